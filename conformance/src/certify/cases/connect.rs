//! Connections: to peers that are not there yet, or not any more, and with metadata that is none.

use serde_json::{Value, json};

use super::{Bench, Case, Command, Trouble, ensure, notify::link};
use crate::{
    certify::lab::Signal,
    engine::{Filling, hex, unhex},
};

pub(super) const CASES: &[Case] = &[
    Case { id: "connect/early", requires: "an attempt before the peer is up is resolved once it is", run: early },
    Case { id: "connect/gone", requires: "a peer that is gone is never connected to, and its successor is", run: gone },
    Case { id: "connect/garbage", requires: "metadata that is none is refused, and harms nothing", run: garbage },
];

fn early(bench: &mut Bench) -> Result<(), Trouble> {
    let (to, from) = (bench.raw("p")?, bench.raw("d")?);
    let metadata = bench.tell(to, Command::Metadata)?["metadata"].clone();
    bench.signal(to, Signal::Stop)?;
    let text = metadata.as_str().unwrap_or_default().to_owned();
    let answer = bench.tell(from, Command::Connect { metadata: text })?;
    ensure(answer["result"] == "ok", || format!("cannot connect: {answer}"))?;
    bench.signal(to, Signal::Continue)?;
    let event = bench.wait(from, "linked", |event| event["ticket"] == answer["ticket"])?;
    let peer = event["peer"].as_u64().unwrap_or_default();
    bench.tell(from, Command::Notify { peer, filling: Filling::Counting(3) })?;
    bench.wait(to, "received", |event| event["hex"] == "000102").map(|_| ())
}

fn gone(bench: &mut Bench) -> Result<(), Trouble> {
    let (to, from) = (bench.raw("p")?, bench.raw("d")?);
    let metadata = bench.tell(to, Command::Metadata)?["metadata"].clone();
    bench.signal(to, Signal::Kill)?;
    let text = metadata.as_str().unwrap_or_default().to_owned();
    let lost = bench.tell(from, Command::Connect { metadata: text })?;
    let successor = bench.raw("p")?;
    let metadata = bench.tell(successor, Command::Metadata)?;
    let peer = link(bench, from, &metadata["metadata"])?;
    bench.tell(from, Command::Notify { peer, filling: Filling::Counting(3) })?;
    bench.wait(successor, "received", |event| event["hex"] == "000102")?;
    while bench.next(from, lease_proto::time::Duration::ZERO)?.is_some() {} // all that it has told by now
    let linked = bench.all(from).iter().any(|event| event["event"] == "linked" && event["ticket"] == lost["ticket"]);
    ensure(!linked, || "connected to a dead peer".into())
}

fn garbage(bench: &mut Bench) -> Result<(), Trouble> {
    let (to, from) = (bench.raw("p")?, bench.raw("d")?);
    let metadata = bench.tell(to, Command::Metadata)?["metadata"].clone();
    let good = metadata.as_str().and_then(unhex).unwrap_or_default();
    let mut bad: Vec<Vec<u8>> = vec![Vec::new(), vec![0; 64], b"KVF".to_vec()];
    bad.extend((0..good.len()).step_by(7).map(|cut| good[..cut].to_vec()));
    bad.extend((0..good.len()).step_by(5).map(|at| {
        let mut flipped = good.clone();
        flipped[at] ^= 0x40;
        flipped
    }));
    // Whole frames, with something else inside.
    bad.extend([b"".as_slice(), b"x", &[0xff; 300], b"loopback", b"ucx", b"ucx\x01\x01\x16\x04\x00\x00\x00junk"].map(framed));
    for bytes in bad {
        let answer = bench.tell(from, Command::Connect { metadata: hex(&bytes) })?;
        ensure(answer["result"] == "invalid", || format!("{} bytes of garbage gave {answer}", bytes.len()))?;
    }
    let peer = link(bench, from, &metadata)?;
    bench.tell(from, Command::Notify { peer, filling: Filling::Counting(1) })?;
    bench.wait(to, "received", |event: &Value| event["length"] == json!(1)).map(|_| ())
}

fn framed(payload: &[u8]) -> Vec<u8> {
    use lease_proto::{
        frame::{Frame, HEADER},
        id::Incarnation,
    };
    let mut bytes = vec![0; payload.len() + HEADER];
    let length = Frame::encode(Incarnation(1), payload, &mut bytes).unwrap_or(0);
    bytes.truncate(length);
    bytes
}
