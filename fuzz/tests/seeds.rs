//! Replays the committed seeds, and keeps them up to date: a change of a wire that makes one stale is noticed here, and
//! `KVLEASE_WRITE_SEEDS=1 cargo test -p kvlease-fuzz` writes them anew.

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use lease_proto::{
    frame::Frame,
    id::{ClockId, Incarnation, ReaderRank, Seq, Session, Token},
    time::{Duration, PeerInstant},
    wire::native::{self, About, Answer, Body, Gone, Hello, HelloAck, Party, Refusal, RenewWriter, RenewedWriter, TimeReply},
};

type Seeds = BTreeMap<&'static str, Vec<u8>>;

/// Compares the seeds of `target` with the files, and feeds every file to `check`: also those that a crash left there.
fn replay(target: &str, seeds: Seeds, check: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    for (name, bytes) in seeds {
        let file = folder.join(name);
        if env::var_os("KVLEASE_WRITE_SEEDS").is_some() {
            fs::write(&file, &bytes).unwrap();
        }
        let there = fs::read(&file).unwrap_or_default();
        assert_eq!(there, bytes, "{} is stale: KVLEASE_WRITE_SEEDS=1 writes it anew", file.display());
    }
    for file in fs::read_dir(folder).unwrap() {
        check(&fs::read(file.unwrap().path()).unwrap());
    }
}

fn frames() -> Seeds {
    [("empty", &b""[..]), ("payload", b"worker address")]
        .map(|(name, payload)| {
            let mut out = [0; 64];
            let len = Frame::encode(Incarnation(7), payload, &mut out).unwrap();
            (name, out[..len].to_vec())
        })
        .into()
}

fn natives() -> Seeds {
    let (token, reader, re) = (Token { number: 1, nonce: 2 }, ReaderRank::new(1, 2).unwrap(), Seq(3));
    let party = Party {
        engine: b"engine_dp0",
        incarnation: Incarnation(4),
        rank: 0,
        ranks: 2,
        clock: ClockId(5),
        session: Session(6),
        extension: Duration::from_secs(20),
        drift_ppm: 500,
        max_message: 65_536,
        capabilities: 0,
    };
    let bodies = [
        ("hello", Body::Hello(Hello { lowest: 1, highest: 1, token, party, metadata: &frames()["payload"] })),
        ("hello_ack", Body::HelloAck(HelloAck { re, version: 1, party })),
        ("complete", Body::Complete(About { token, reader })),
        ("completed", Body::Completed(Answer { re, token })),
        ("release", Body::Release(About { token, reader })),
        ("gone", Body::Gone(Gone { re, token, why: Refusal::Expired })),
        ("time", Body::Time),
        ("time_reply", Body::TimeReply(TimeReply { re, received: PeerInstant::from_nanos(7), sent: PeerInstant::from_nanos(8) })),
    ];
    let (session, seq, mut out) = (Session(9), Seq(10), [0; 256]);
    let mut seeds = Seeds::new();
    for (name, body) in bodies {
        let len = native::encode(session, seq, &body, &mut out).unwrap();
        seeds.insert(name, out[..len].to_vec());
    }
    let mut renew = RenewWriter::new(&mut out, reader).unwrap();
    assert!((0..3).all(|number| renew.push(Token { number, nonce: !number })));
    let len = renew.finish(session, seq);
    seeds.insert("renew", out[..len].to_vec());
    let mut renewed = RenewedWriter::new(&mut out, 3).unwrap();
    renewed.push(0, Ok(Duration::from_secs(5)));
    renewed.push(2, Err(Refusal::Unknown));
    let len = renewed.finish(session, seq, re, 3, Duration::from_secs(20));
    seeds.insert("renewed", out[..len].to_vec());
    seeds
}

fn texts() -> Seeds {
    let texts: [(&str, &[u8]); 27] = [
        ("empty", b""),
        ("beat-none", b"HB:"),
        ("beat-comma", b"HB:,"),
        ("beat-trailing-comma", b"HB:a,"),
        ("beat-twice", b"HB:a,a"),
        ("beat-with-count", b"HB:a,b:2"),
        ("beat-in-beat", b"HB:HB:1"),
        ("beat-cut-character", b"HB:\xc3"),
        ("no-count", b"a:"),
        ("no-id", b":1"),
        ("no-colon", b"a"),
        ("count-0", b"a:0"),
        ("count-negative", b"a:-1"),
        ("count-padded", b"a:01"),
        ("count-space", b"a: 2"),
        ("count-underscore", b"a:1_0"),
        ("count-huge", b"a:99999999999999999999"),
        ("count-largest", b"a:4294967295"),
        ("two-counts", b"a:2:2"),
        ("not-utf8", b"\xff\xfe"),
        ("push", b"PUSH_REG:"),
        ("push-not-utf8", b"PUSH_REG:\xc1"),
        ("id-beat", b"HB"),
        ("id-vllm", b"cmpl-00000000-0000-4000-8000-000000000000-0-0123abcd:2"),
        ("id-dynamo", b"00000000-0000-4000-8000-000000000000-0123abcd:1"),
        ("id-addresses", b"cmpl-___prefill_addr_10.0.0.1:21001___decode_addr_10.0.0.2:22001_00:4"),
        ("id-not-ascii", "b\u{fc}ro \u{1f600}:1".as_bytes()),
    ];
    texts.map(|(name, text)| (name, text.to_vec())).into()
}

#[test]
fn frame_seeds() {
    replay("frame", frames(), kvlease_fuzz::frame);
}

#[test]
fn native_seeds() {
    assert!(natives().values().all(|bytes| native::decode(bytes).is_ok()));
    replay("native", natives(), kvlease_fuzz::native);
}

#[test]
fn vllm_seeds() {
    replay("vllm", texts(), kvlease_fuzz::vllm);
}

/// Too large to commit.
#[test]
fn large_vllm_messages() {
    let ids: Vec<_> = (0..1191).map(|number| format!("chatcmpl-00000000-0000-4000-8000-000000000000-{number:08x}")).collect();
    assert_eq!(ids[0].len(), 54);
    kvlease_fuzz::vllm(format!("HB:{}", ids.join(",")).as_bytes());
    kvlease_fuzz::vllm(&[b'x'; 65_536]);
    kvlease_fuzz::vllm(format!("{}:1", "x".repeat(65_536)).as_bytes());
}

/// Every cut and every changed byte of every seed; what libFuzzer would try first.
#[test]
fn neighbours_of_the_seeds() {
    neighbours(frames(), kvlease_fuzz::frame);
    neighbours(natives(), kvlease_fuzz::native);
    neighbours(texts(), kvlease_fuzz::vllm);
}

fn neighbours(seeds: Seeds, check: fn(&[u8])) {
    for mut bytes in seeds.into_values() {
        for at in 0..bytes.len() {
            check(&bytes[..at]);
            for flip in 1..=255 {
                bytes[at] ^= flip;
                check(&bytes);
                bytes[at] ^= flip;
            }
        }
    }
}
