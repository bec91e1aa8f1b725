//! Connections: to peers that are not there yet, or not any more, and with metadata that is none.

use lease_proto::{
    frame::{Frame, HEADER},
    id::Incarnation,
    time::Duration,
};
use serde_json::Value;

use super::{Bench, Case, Command, NodeId, Trouble, ensure, notify::link};
use crate::{
    certify::lab::Signal,
    engine::{Filling, hex, unhex},
};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "connect/early",
        requires: "an attempt to a peer that stands still is resolved once it goes on, not before, where the transport states it",
        run: early,
    },
    Case { id: "connect/cancel", requires: "an attempt that was cancelled is never resolved", run: cancel },
    Case {
        id: "connect/gone",
        requires: "an attempt to a dead peer fails, or can be given up, and its successor is connected to",
        run: gone,
    },
    Case { id: "connect/lost", requires: "a peer that dies is reported once, where the transport states it", run: lost },
    Case {
        id: "connect/disconnect",
        requires: "a forgotten peer is not connected, and can be connected to again",
        run: disconnect,
    },
    Case { id: "connect/garbage", requires: "metadata that is none is refused, and harms nothing", run: garbage },
];

/// Long enough for what must not come to come, where it would.
const MOMENT: Duration = Duration::from_millis(300);

/// Starts to connect and returns the ticket.
fn attempt(bench: &mut Bench, from: NodeId, metadata: &Value) -> Result<u64, Trouble> {
    let metadata = metadata.as_str().unwrap_or_default().to_owned();
    let answer = bench.tell(from, Command::Connect { metadata })?;
    ensure(answer["result"] == "ok", || format!("cannot connect: {answer}"))?;
    answer["ticket"].as_u64().ok_or_else(|| Trouble::Failed(format!("expected a ticket: {answer}")))
}

fn arrives(bench: &mut Bench, from: NodeId, to: NodeId, peer: u64) -> Result<(), Trouble> {
    let answer = bench.tell(from, Command::Notify { peer, filling: Filling::Counting(3) })?;
    ensure(answer["result"] == "ok", || format!("not accepted: {answer}"))?;
    bench.wait(to, "received", |event| event["hex"] == "000102").map(|_| ())
}

/// What a node has told about a ticket or a peer by now, after a moment without anything new.
pub(super) fn told(bench: &mut Bench, node: NodeId, event: &str, key: &str, number: u64) -> Result<usize, Trouble> {
    const MOST: usize = 10_000; // who goes on telling does not hold it up for ever
    for _ in 0..MOST {
        if bench.next(node, MOMENT)?.is_none() {
            break;
        }
    }
    Ok(bench.all(node).iter().filter(|told| told["event"] == event && told[key] == number).count())
}

fn not_connected(bench: &mut Bench, from: NodeId, peer: u64) -> Result<(), Trouble> {
    let answer = bench.tell(from, Command::Notify { peer, filling: Filling::Counting(3) })?;
    ensure(answer["result"] == "not connected", || format!("expected not connected: {answer}"))
}

fn early(bench: &mut Bench) -> Result<(), Trouble> {
    let (to, from) = (bench.raw("p")?, bench.raw("d")?);
    let states = bench.tell(to, Command::Metadata)?;
    bench.signal(to, Signal::Stop)?;
    let ticket = attempt(bench, from, &states["metadata"])?;
    let linked = told(bench, from, "linked", "ticket", ticket)?;
    ensure(linked == 0 || states["answered"] == false, || "connected to a peer that stands still".into())?;
    bench.signal(to, Signal::Continue)?;
    let is_it = |event: &Value| event["event"] == "linked" && event["ticket"] == ticket;
    let event = match bench.all(from).iter().find(|event| is_it(event)) {
        Some(event) => event.clone(),
        None => bench.wait(from, "linked", is_it)?,
    };
    arrives(bench, from, to, event["peer"].as_u64().unwrap_or_default())
}

fn cancel(bench: &mut Bench) -> Result<(), Trouble> {
    let (to, from) = (bench.raw("p")?, bench.raw("d")?);
    let states = bench.tell(to, Command::Metadata)?;
    let metadata = states["metadata"].clone();
    bench.signal(to, Signal::Stop)?;
    let ticket = attempt(bench, from, &metadata)?;
    if states["answered"] == false && told(bench, from, "linked", "ticket", ticket)? > 0 {
        return Err(Trouble::Skip("it was connected before it could be cancelled: this transport waits for no answer".into()));
    }
    bench.tell(from, Command::Cancel { ticket })?;
    bench.signal(to, Signal::Continue)?;
    let peer = link(bench, from, &metadata)?;
    arrives(bench, from, to, peer)?;
    unresolved(bench, from, ticket)
}

/// That nothing was told about a ticket.
fn unresolved(bench: &mut Bench, from: NodeId, ticket: u64) -> Result<(), Trouble> {
    for event in ["linked", "link_failed"] {
        let count = told(bench, from, event, "ticket", ticket)?;
        ensure(count == 0, || format!("{event}, though it was cancelled"))?;
    }
    Ok(())
}

fn gone(bench: &mut Bench) -> Result<(), Trouble> {
    let (to, from) = (bench.raw("p")?, bench.raw("d")?);
    let states = bench.tell(to, Command::Metadata)?;
    bench.signal(to, Signal::Kill)?;
    let ticket = attempt(bench, from, &states["metadata"])?;
    let resolved = told(bench, from, "linked", "ticket", ticket)? + told(bench, from, "link_failed", "ticket", ticket)? > 0;
    // Where the transport does not state that it notices, nothing need come of it, and it can be given up.
    let silent = !resolved && within(&states).is_none();
    if silent {
        bench.tell(from, Command::Cancel { ticket })?;
    } else if !resolved {
        bench.wait(from, "link_failed", |event| event["ticket"] == ticket)?;
    }
    let successor = bench.raw("p")?;
    let metadata = bench.tell(successor, Command::Metadata)?;
    let peer = link(bench, from, &metadata["metadata"])?;
    arrives(bench, from, successor, peer)?;
    let [linked, failed] = ["linked", "link_failed"].map(|event| told(bench, from, event, "ticket", ticket));
    let linked = linked?;
    ensure(linked == 0 || states["answered"] == false, || "connected to a dead peer".into())?;
    let (failed, expected) = (failed?, usize::from(!silent && linked == 0));
    ensure(failed == expected, || format!("expected {expected} failures of one attempt, got {failed}"))
}

/// Within which time the death of a peer is reported, as the transport states it.
pub(super) fn within(states: &Value) -> Option<Duration> {
    states["dead_peer"].as_str()?.parse().ok()
}

fn lost(bench: &mut Bench) -> Result<(), Trouble> {
    let (to, from) = (bench.raw("p")?, bench.raw("d")?);
    let states = bench.tell(to, Command::Metadata)?;
    let peer = link(bench, from, &states["metadata"])?;
    arrives(bench, from, to, peer)?;
    if within(&states).is_none() {
        return Err(Trouble::Skip("the transport reports no dead peers".into()));
    }
    bench.signal(to, Signal::Kill)?;
    bench.wait(from, "link_lost", |event| event["peer"] == peer)?;
    not_connected(bench, from, peer)?;
    let reports = told(bench, from, "link_lost", "peer", peer)?;
    ensure(reports == 1, || format!("expected one report, got {reports}"))
}

fn disconnect(bench: &mut Bench) -> Result<(), Trouble> {
    let (to, from) = (bench.raw("p")?, bench.raw("d")?);
    let metadata = bench.tell(to, Command::Metadata)?["metadata"].clone();
    let peer = link(bench, from, &metadata)?;
    arrives(bench, from, to, peer)?;
    bench.tell(from, Command::Disconnect { peer })?;
    not_connected(bench, from, peer)?;
    let again = link(bench, from, &metadata)?;
    ensure(again != peer, || "a peer's number was given out again".into())?;
    arrives(bench, from, to, again)?;
    not_connected(bench, from, peer)?;
    let lost = told(bench, from, "link_lost", "peer", peer)?;
    ensure(lost == 0, || "a forgotten peer was reported lost".into())
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
    // The transport's own metadata, cut, with more behind it, or with another beginning. What is altered further inside only the
    // frame can tell.
    let payload = Frame::decode(&good).map(|frame| frame.payload().to_vec()).unwrap_or_default();
    bad.extend((0..payload.len()).map(|cut| framed(&payload[..cut])));
    bad.push(framed(&[payload.as_slice(), b"!"].concat()));
    bad.extend((1..=3).map(|altered| {
        let other = payload.iter().enumerate().map(|(at, byte)| if at < altered { !byte } else { *byte });
        framed(&other.collect::<Vec<u8>>())
    }));
    for bytes in bad {
        let answer = bench.tell(from, Command::Connect { metadata: hex(&bytes) })?;
        ensure(answer["result"] == "invalid", || format!("{} bytes of garbage gave {answer}", bytes.len()))?;
    }
    let peer = link(bench, from, &metadata)?;
    arrives(bench, from, to, peer)
}

fn framed(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; payload.len() + HEADER];
    let length = Frame::encode(Incarnation(1), payload, &mut bytes).unwrap_or(0);
    bytes.truncate(length);
    bytes
}
