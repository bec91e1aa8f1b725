//! Notifications: whole, unchanged, none lost, none doubled.

use serde_json::Value;

use super::{Bench, Case, Command, NodeId, Trouble, ensure};
use crate::{
    certify::lab::Signal,
    engine::{Filling, hex, numbered, unhex},
};

pub(super) const CASES: &[Case] = &[
    Case { id: "notify/bytes", requires: "every byte value arrives unchanged", run: bytes },
    Case { id: "notify/empty", requires: "an empty notification arrives as one", run: empty },
    Case {
        id: "notify/sizes",
        requires: "every size up to the largest stated one arrives unchanged: powers of two and around",
        run: sizes,
    },
    Case { id: "notify/largest", requires: "a notification of the largest stated size arrives unchanged", run: largest },
    Case { id: "notify/too-large", requires: "one byte more is refused as too large, and harms nothing", run: too_large },
    Case {
        id: "notify/order",
        requires: "short and long notifications to one peer arrive in order, where the transport states it",
        run: order,
    },
    Case { id: "notify/complete", requires: "of many notifications none is lost and none doubled", run: complete },
    Case {
        id: "notify/never-polled",
        requires: "who sends to a peer that takes nothing in is held back, where the transport states it, and what was accepted arrives",
        run: never_polled,
    },
];

const MANY: u32 = 2000;
/// Bytes that are more than a sender may accept for a receiver that takes nothing in.
const TOO_MANY: usize = 64 << 20;

/// Two raw nodes, the first connected to the second; the peer's number, and the second's stated limit and order.
struct Linked {
    from: NodeId,
    to: NodeId,
    peer: u64,
    max: usize,
    ordered: bool,
    holds_back: bool,
}

fn linked(bench: &mut Bench) -> Result<Linked, Trouble> {
    let (to, from) = (bench.raw("p")?, bench.raw("d")?);
    let metadata = bench.tell(to, Command::Metadata)?;
    let peer = link(bench, from, &metadata["metadata"])?;
    let max = metadata["max"].as_u64().unwrap_or_default() as usize;
    Ok(Linked { from, to, peer, max, ordered: metadata["ordered"] == true, holds_back: metadata["holds_back"] == true })
}

/// Connects without the protocol and returns the peer's number.
pub(super) fn link(bench: &mut Bench, from: NodeId, metadata: &Value) -> Result<u64, Trouble> {
    let metadata = metadata.as_str().unwrap_or_default().to_owned();
    let answer = bench.tell(from, Command::Connect { metadata })?;
    ensure(answer["result"] == "ok", || format!("cannot connect: {answer}"))?;
    let event = bench.wait(from, "linked", |event| event["ticket"] == answer["ticket"])?;
    Ok(event["peer"].as_u64().unwrap_or_default())
}

fn arrives(bench: &mut Bench, at: &Linked, filling: Filling, expected: &[u8]) -> Result<(), Trouble> {
    let answer = bench.tell(at.from, Command::Notify { peer: at.peer, filling })?;
    ensure(answer["result"] == "ok", || format!("not accepted: {answer}"))?;
    let event = bench.wait(at.to, "received", |_| true)?;
    ensure(event["hex"] == hex(expected), || {
        format!("expected {} bytes as they were sent, got {}", expected.len(), event["length"])
    })
}

fn bytes(bench: &mut Bench) -> Result<(), Trouble> {
    let at = linked(bench)?;
    let all: Vec<u8> = (0..=255).collect();
    arrives(bench, &at, Filling::Counting(256), &all)?;
    for byte in all {
        arrives(bench, &at, Filling::Hex(hex(&[byte])), &[byte])?;
    }
    Ok(())
}

fn empty(bench: &mut Bench) -> Result<(), Trouble> {
    let at = linked(bench)?;
    arrives(bench, &at, Filling::Counting(0), &[])?;
    arrives(bench, &at, Filling::Counting(1), &[0])
}

fn sizes(bench: &mut Bench) -> Result<(), Trouble> {
    let at = linked(bench)?;
    let powers = (0..usize::BITS).map(|exponent| 1_usize << exponent).take_while(|power| *power <= at.max);
    for size in powers.flat_map(|power| [power - 1, power, power + 1]).filter(|size| *size <= at.max) {
        let expected: Vec<u8> = (0..size).map(|byte| byte as u8).collect();
        arrives(bench, &at, Filling::Counting(size), &expected)?;
    }
    Ok(())
}

fn largest(bench: &mut Bench) -> Result<(), Trouble> {
    let at = linked(bench)?;
    let expected: Vec<u8> = (0..at.max).map(|byte| byte as u8).collect();
    arrives(bench, &at, Filling::Counting(at.max), &expected)
}

fn too_large(bench: &mut Bench) -> Result<(), Trouble> {
    let at = linked(bench)?;
    let answer = bench.tell(at.from, Command::Notify { peer: at.peer, filling: Filling::Counting(at.max + 1) })?;
    ensure(answer["result"] == "too large", || format!("expected too large: {answer}"))?;
    arrives(bench, &at, Filling::Hex("2a".into()), &[42])
}

/// Sends many, of these lengths over and over, and returns their numbers as they come.
fn many(bench: &mut Bench, at: &Linked, lengths: Vec<usize>) -> Result<Vec<u32>, Trouble> {
    let answer = bench.tell(at.from, Command::NotifyMany { peer: at.peer, count: MANY, lengths: lengths.clone() })?;
    ensure(answer["result"] == "ok", || format!("not accepted: {answer}"))?;
    let mut numbers = Vec::new();
    while numbers.len() < MANY as usize {
        let event = bench.wait(at.to, "received", |_| true)?;
        let bytes = event["hex"].as_str().and_then(unhex).unwrap_or_default();
        let number = bytes
            .first_chunk()
            .map(|number| u32::from_le_bytes(*number))
            .filter(|number| *number < MANY && bytes == numbered(*number, lengths[*number as usize % lengths.len()]));
        numbers.push(number.ok_or_else(|| Trouble::Failed(format!("not what was sent: {} bytes", event["length"])))?);
    }
    Ok(numbers)
}

fn order(bench: &mut Bench) -> Result<(), Trouble> {
    let at = linked(bench)?;
    if !at.ordered {
        return Err(Trouble::Skip("the transport states no order".into()));
    }
    // A few long ones, each with short ones behind it.
    let mut lengths = vec![4; 50];
    for (behind, length) in [(10, at.max), (20, at.max / 2), (30, 8192), (40, 1024)] {
        lengths[behind] = length.clamp(4, at.max.max(4));
    }
    let numbers = many(bench, &at, lengths)?;
    let wrong = numbers.iter().zip(0..MANY).find(|(got, expected)| *got != expected);
    ensure(wrong.is_none(), || format!("expected {}, got {}", wrong.map_or(0, |w| w.1), wrong.map_or(0, |w| *w.0)))
}

fn complete(bench: &mut Bench) -> Result<(), Trouble> {
    let at = linked(bench)?;
    let mut numbers = many(bench, &at, vec![4])?;
    numbers.sort_unstable();
    ensure(numbers.iter().copied().eq(0..MANY), || "some are lost and others doubled".into())?;
    // What would be doubled comes before this one, or never.
    arrives(bench, &at, Filling::Hex("ffffffffff".into()), &[0xff; 5])
}

fn never_polled(bench: &mut Bench) -> Result<(), Trouble> {
    let at = linked(bench)?;
    if !at.holds_back {
        return Err(Trouble::Skip("the transport states that its fabric queues without bound".into()));
    }
    let length = at.max.min(16 << 10);
    bench.signal(at.to, Signal::Stop)?;
    let answer = bench.tell(at.from, Command::NotifyUntilHeld { peer: at.peer, length, most: TOO_MANY })?;
    ensure(answer["result"] == "would block", || format!("expected to be held back: {answer}"))?;
    bench.signal(at.to, Signal::Continue)?;
    let sent = answer["sent"].as_u64().unwrap_or_default() as u32;
    let mut expected: std::collections::BTreeSet<String> = (0..sent).map(|number| hex(&numbered(number, length))).collect();
    while !expected.is_empty() {
        let event = bench.wait(at.to, "received", |_| true)?;
        let known = event["hex"].as_str().is_some_and(|bytes| expected.remove(bytes));
        ensure(known, || format!("not what was sent, or twice: {} bytes", event["length"]))?;
    }
    arrives(bench, &at, Filling::Hex("2a".into()), &[42])
}
