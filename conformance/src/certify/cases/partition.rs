//! The link between holder and reader is cut, and healed again.

use lease_proto::{
    time::Duration,
    wire::Wire::{self, Native, Vllm},
};

use super::{Bench, Case, Command, NodeId, Trouble, ensure, expired, grant, in_time, read, track};
use crate::certify::lab::Side;

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

/// A good part of an extension, and less than what is left of it when the next beat is due.
const SHORT: Duration = Duration::from_millis(400);

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
    while bench.next(holder, SHORT)?.is_some() {} // what was under way
    bench.cut(false)?;
    let next = bench.wait(holder, "renewed", |event| event["request"] == "a")?;
    ensure(bench.seen(holder, "freed", "a").is_empty(), || format!("freed before {next}"))?;
    completed(bench, holder, reader, "a", wire)
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
    if begun {
        let landed = bench.wait(reader, "read_landed", |event| event["request"] == "a")?;
        let done = bench.wait(reader, "read_done", |event| event["request"] == "a")?;
        ensure(done["verdict"] != "valid", || format!("read over a link that was cut, and called valid: {done} of {landed}"))?;
    }
    renewed(bench, holder, reader, "b")?;
    completed(bench, holder, reader, "b", wire)
}
