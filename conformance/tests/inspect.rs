//! `kvlease inspect`: the worked messages of docs/wire.md, everything that a peer would drop, and wrong input.
#![cfg(feature = "cli")]

use std::{
    io::Write as _,
    process::{Command, Output, Stdio},
};

use lease_proto::{
    id::{ClockId, Incarnation, Seq, Session, Token},
    time::Duration,
    wire::native::{self, Body, Hello, Party},
};
use serde_json::{Value, json};

const DOC: &str = include_str!("../../docs/wire.md");

fn kvlease(args: &[&str], stdin: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvlease"));
    command.arg("inspect").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(stdin); // it need not read all of it
    child.wait_with_output().unwrap()
}

/// Its one line of standard output, and its exit status.
fn said(args: &[&str], stdin: &[u8]) -> (String, Option<i32>) {
    let Output { status, stdout, stderr } = kvlease(args, stdin);
    assert_eq!(String::from_utf8_lossy(&stderr), "", "{args:?}");
    let line = String::from_utf8(stdout).unwrap();
    assert_eq!(line.find('\n'), Some(line.len() - 1), "{line:?}");
    (line.trim_end().to_owned(), status.code())
}

/// The bytes of a worked example, as they are written there.
fn example(name: &str) -> String {
    let (_, rest) = DOC.split_once(&format!("Example `{name}`:\n\n")).unwrap();
    let rows = rest.lines().skip(2).map_while(|row| row.strip_prefix('|'));
    rows.filter_map(|row| row.split('`').nth(1)).collect::<Vec<_>>().join(" ")
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

#[test]
fn the_worked_messages_are_told() {
    for (name, expected) in [
        (
            "hello",
            concat!(
                r#"{"kind":"hello","session":"0000000000000000","number":1,"lowest":1,"highest":1,"token":{"number":7},"#,
                r#""party":{"engine":"d0","incarnation":"0000000000000044","rank":0,"ranks":1,"clock":"00000000000000c4","#,
                r#""session":"00000000000000d1","extension":"20","drift_ppm":500,"max_message":65536,"capabilities":0},"#,
                r#""metadata":{"bytes":38,"incarnation":"0000000000000044"}}"#,
            ),
        ),
        (
            "hello_ack",
            concat!(
                r#"{"kind":"hello_ack","session":"00000000000000d1","number":1,"re":1,"version":1,"#,
                r#""party":{"engine":"p0","incarnation":"0000000000000033","rank":0,"ranks":1,"clock":"00000000000000c3","#,
                r#""session":"00000000000000a1","extension":"20","drift_ppm":500,"max_message":65536,"capabilities":0}}"#,
            ),
        ),
        (
            "renew",
            concat!(
                r#"{"kind":"renew","session":"00000000000000a1","number":2,"reader":{"rank":0,"of":1},"#,
                r#""tokens":[{"number":7},{"number":8},{"number":9}]}"#,
            ),
        ),
        (
            "renewed",
            concat!(
                r#"{"kind":"renewed","session":"00000000000000d1","number":2,"re":2,"count":3,"granted":"20","#,
                r#""exceptions":[{"index":1,"code":"granted","time":"5"},{"index":2,"code":"expired"}]}"#,
            ),
        ),
        (
            "complete",
            r#"{"kind":"complete","session":"00000000000000a1","number":3,"token":{"number":7},"reader":{"rank":0,"of":1}}"#,
        ),
        (
            "release",
            r#"{"kind":"release","session":"00000000000000a1","number":4,"token":{"number":8},"reader":{"rank":0,"of":1}}"#,
        ),
        ("completed", r#"{"kind":"completed","session":"00000000000000d1","number":3,"re":3,"token":{"number":7}}"#),
        ("gone", r#"{"kind":"gone","session":"00000000000000d1","number":4,"re":4,"token":{"number":8},"why":"released"}"#),
        (
            "gone, unasked",
            r#"{"kind":"gone","session":"00000000000000d1","number":5,"re":0,"token":{"number":9},"why":"draining"}"#,
        ),
        ("time", r#"{"kind":"time","session":"00000000000000a1","number":5}"#),
        (
            "time_reply",
            r#"{"kind":"time_reply","session":"00000000000000d1","number":6,"re":5,"received":"1000","sent":"1000.000001"}"#,
        ),
    ] {
        let hex = example(name);
        let expected = (expected.to_owned(), Some(0));
        assert_eq!(said(&["--hex", &hex], b""), expected);
        assert_eq!(said(&["--wire", "native", "--hex", &format!("0x{}", hex.replace(' ', "").to_lowercase())], b""), expected);
        assert_eq!(said(&[], &bytes(&hex)), expected);
        assert!(!expected.0.contains("feedf00d"));
    }
}

#[test]
fn the_text_of_vllm_is_told() {
    let vllm = |stdin: &[u8]| said(&["--wire", "vllm"], stdin).0;
    assert_eq!(vllm(&bytes(&example("heartbeat"))), r#"{"kind":"heartbeat","ids":["cmpl-1-0-aabbccdd","cmpl-2-0-eeff0011"]}"#);
    assert_eq!(vllm(&bytes(&example("completion"))), r#"{"kind":"completion","id":"cmpl-1-0-aabbccdd","consumers":2}"#);
    assert_eq!(vllm(b"HB:"), r#"{"kind":"heartbeat","ids":[]}"#);
    assert_eq!(vllm(b"PUSH_REG:\xc1\xff"), r#"{"kind":"push_registration","bytes":2}"#);
}

#[test]
fn bytes_of_others_are_no_error() {
    for stdin in [&b""[..], b"\xffKV", b"HB:a", b"NIXL"] {
        assert_eq!(said(&[], stdin), (json!({"kind": "foreign", "bytes": stdin.len()}).to_string(), Some(0)));
    }
}

/// A hello of an engine with an id of so many bytes, which are not UTF-8, and with this metadata.
fn hello(id: usize, metadata: &[u8]) -> Vec<u8> {
    let engine = vec![0xff; id];
    let party = Party {
        engine: &engine,
        incarnation: Incarnation(u64::MAX),
        rank: 0,
        ranks: 1,
        clock: ClockId(1),
        session: Session(1),
        extension: Duration::from_millis(500),
        drift_ppm: 0,
        max_message: 1,
        capabilities: 0,
    };
    let token = Token { number: u64::MAX, nonce: 7 };
    let mut out = vec![0; 1024];
    let hello = Body::Hello(Hello { lowest: 1, highest: 1, token, party, metadata });
    let length = native::encode(Session(0), Seq(u64::MAX), &hello, &mut out).unwrap();
    out.truncate(length);
    out
}

#[test]
fn what_is_strange_is_still_told() {
    let (line, status) = said(&[], &hello(2, b"no frame"));
    let hello: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(status, Some(0));
    assert_eq!(hello["number"], u64::MAX);
    assert_eq!(hello["token"], json!({"number": u64::MAX}));
    assert_eq!(hello["party"]["engine"], "\u{fffd}\u{fffd}");
    assert_eq!(hello["party"]["incarnation"], "ffffffffffffffff");
    assert_eq!(hello["metadata"]["bytes"], 8);
    assert!(hello["metadata"]["broken"].as_str().unwrap().contains("frame"), "{line}");
}

#[test]
fn what_a_peer_would_drop_is_rejected_by_its_name() {
    let complete = bytes(&example("complete"));
    let edited = |place: usize, byte| {
        let mut bytes = complete.clone();
        bytes[place] = byte;
        bytes
    };
    for (wire, stdin, why) in [
        ("native", edited(4, 2), "unknown_version"),
        ("native", edited(5, 99), "unknown_kind"),
        ("native", complete[..20].to_vec(), "truncated"),
        ("native", complete[..43].to_vec(), "truncated"),
        ("native", [&complete[..], b"x"].concat(), "trailing_bytes"),
        ("native", edited(43, 0), "bad_count"), // rank 0 of 0
        ("native", [&edited(6, 19)[..43], b"\x81\x00"].concat(), "not_canonical"), // 1, padded
        ("native", hello(257, b""), "too_large"),
        ("vllm", b"a\xff:1".to_vec(), "not_utf8"),
        ("vllm", b"a".to_vec(), "no_colon"),
        ("vllm", b"".to_vec(), "no_colon"),
        ("vllm", b"a:0".to_vec(), "bad_count"),
        ("vllm", complete.clone(), "not_utf8"),
    ] {
        assert_eq!(said(&["--wire", wire], &stdin), (json!({"rejected": why}).to_string(), Some(1)));
    }
}

#[test]
fn wrong_input_is_one_line_and_status_2() {
    let long = vec![b'a'; (16 << 20) + 1];
    for (args, stdin, says) in [
        (&["--hex", "abc"][..], &b""[..], "even number of hexadecimal digits"),
        (&["--hex", "0xzz"], b"", "even number of hexadecimal digits"),
        (&["--hex", "é"], b"", "even number of hexadecimal digits"),
        (&[], &long, "longer than 16777216 bytes"),
        (&["--wire", "nixl"], b"", "expected native or vllm"),
        (&["--hex"], b"", "a value is required"),
        (&["--zork"], b"", "unexpected argument '--zork'"),
    ] {
        let Output { status, stdout, stderr } = kvlease(args, stdin);
        let stderr = String::from_utf8(stderr).unwrap();
        assert_eq!((status.code(), stdout.as_slice()), (Some(2), &b""[..]), "{stderr}");
        assert!(stderr.starts_with("error: ") || stderr.lines().count() == 1, "{stderr}");
        assert!(stderr.contains(says), "expected {says:?}, got {stderr:?}");
    }
    assert_eq!(said(&["--wire", "vllm"], &long[..16 << 20]).1, Some(1));
}
