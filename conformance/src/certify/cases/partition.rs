//! The link between holder and reader is cut, and healed again.

use lease_proto::{
    time::{Duration, Instant},
    wire::Wire::{self, Native, Vllm},
};

use super::{Bench, Case, Command, NodeId, Trouble, ensure, expired, grant, heard, in_time, read, time, track};
use crate::certify::lab::{LEASE, Side};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "fault/native/partition-short",
        requires: "a partition that is shorter than the lease harms nothing",
        run: |b| short(b, Native),
    },
    Case {
        id: "fault/vllm/partition-short",
        requires: "a partition that is shorter than the lease harms nothing",
        run: |b| short(b, Vllm),
    },
    Case {
        id: "fault/native/partition-long",
        requires: "a longer one frees the blocks at expiry, no read over it is called valid, and then all is well again",
        run: |b| long(b, Native),
    },
    Case {
        id: "fault/vllm/partition-long",
        requires: "a longer one frees the blocks at expiry, and then all is well again",
        run: |b| long(b, Vllm),
    },
];

/// Longer than between two beats, and less than what is left of an extension when the next one is due.
const SHORT: Duration = Duration::from_millis(500);

/// A holder and a reader on two sides of a link, with a lease that has been renewed.
fn apart(bench: &mut Bench, wire: Wire) -> Result<(NodeId, NodeId), Trouble> {
    let (holder, reader) = (bench.node_on(Side::Near, "p", wire)?, bench.node_on(Side::Far, "d", wire)?);
    renewed(bench, holder, reader, "a")?;
    Ok((holder, reader))
}

fn renewed(bench: &mut Bench, holder: NodeId, reader: NodeId, request: &str) -> Result<(), Trouble> {
    let params = grant(bench, holder, request)?;
    track(bench, reader, &params)?;
    bench.wait(holder, "renewed", |event| event["request"] == request).map(|_| ())
}

fn completed(bench: &mut Bench, holder: NodeId, reader: NodeId, request: &str, wire: Wire) -> Result<(), Trouble> {
    read(bench, reader, request, in_time(wire))?;
    let freed = bench.wait(holder, "freed", |event| event["request"] == request)?;
    ensure(freed["reason"] == "completed", || format!("expected completed: {freed}"))
}

fn short(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = apart(bench, wire)?;
    if wire == Native {
        bench.wait(reader, "confirmed", |event| event["request"] == "a")?;
    }
    bench.cut(true)?;
    silent(bench, holder)?;
    bench.cut(false)?;
    let next = bench.wait(holder, "renewed", |event| event["request"] == "a")?;
    ensure(bench.seen(holder, "freed", "a").is_empty(), || format!("freed before {next}"))?;
    completed(bench, holder, reader, "a", wire)
}

/// Waits until a holder has told what was under way when the link was cut, and then nothing for a while.
fn silent(bench: &mut Bench, holder: NodeId) -> Result<(), Trouble> {
    let cut = bench.all(holder).last().map_or(Ok(Instant::ZERO), |event| time(event, "at"))?;
    while let Some(event) = bench.next(holder, SHORT)? {
        ensure(time(&event, "at")? < cut.saturating_add(extension()), || format!("the link was not cut: {event}"))?;
    }
    Ok(())
}

/// By how much a beat extends a lease.
fn extension() -> Duration {
    LEASE.parse::<Duration>().map_or(Duration::ZERO, |lease| lease.scale(2, 3))
}

fn long(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = apart(bench, wire)?;
    if wire == Native {
        bench.wait(reader, "confirmed", |event| event["request"] == "a")?;
    }
    bench.cut(true)?;
    // It may begin, since the promise stands; it cannot end well before that has run out.
    let begun = bench.ask(reader, Command::Read { request: "a".into() })?.is_ok();
    expired(bench, holder, "a", "expired")?;
    bench.cut(false)?;
    if wire == Native {
        heard(bench, reader, "unproven", "a")?; // and not lost, where a read is under way that may yet end
    }
    if begun {
        let landed = heard(bench, reader, "read_landed", "a")?;
        let done = heard(bench, reader, "read_done", "a")?;
        ensure(done["verdict"] != "valid", || format!("read over a link that was cut, and called valid: {done} of {landed}"))?;
    }
    renewed(bench, holder, reader, "b")?;
    completed(bench, holder, reader, "b", wire)
}
