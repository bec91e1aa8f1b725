//! Transports that are driven in other ways than usual, each against one that is not.

use super::{Bench, Case, NodeId, Trouble, ensure, grant, in_time, read, track};
use lease_proto::wire::Wire::{self, Native, Vllm};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "depth/bytes/holder",
        requires: "an engine that passes vLLM's bytes by its own agent grants, is renewed, is read and frees like any other",
        run: |b| holds(b, "bytes", Vllm),
    },
    Case {
        id: "depth/bytes/reader",
        requires: "an engine that passes vLLM's bytes by its own agent renews, reads and completes like any other",
        run: |b| reads(b, "bytes", Vllm),
    },
    Case {
        id: "depth/borrowed/holder",
        requires: "a holder on the engine's own worker or agent grants, is renewed, is read and frees like any other",
        run: |b| holds(b, "borrowed", Native),
    },
    Case {
        id: "depth/borrowed/reader",
        requires: "a reader on the engine's own worker or agent renews, reads and completes like any other",
        run: |b| reads(b, "borrowed", Native),
    },
    Case {
        id: "drive/thread/holder",
        requires: "a holder with a progress thread grants, is renewed, is read and frees like any other",
        run: |b| holds(b, "thread", Native),
    },
    Case {
        id: "drive/thread/reader",
        requires: "a reader with a progress thread renews, reads and completes like any other",
        run: |b| reads(b, "thread", Native),
    },
];

fn holds(bench: &mut Bench, way: &'static str, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = (bench.driven("p", way, wire)?, bench.node("d", wire)?);
    lives(bench, holder, reader, wire)
}

fn reads(bench: &mut Bench, way: &'static str, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = (bench.node("p", wire)?, bench.driven("d", way, wire)?);
    lives(bench, holder, reader, wire)
}

/// Two leases, one after the other.
fn lives(bench: &mut Bench, holder: NodeId, reader: NodeId, wire: Wire) -> Result<(), Trouble> {
    for request in ["a", "b"] {
        let params = grant(bench, holder, request)?;
        track(bench, reader, &params)?;
        bench.wait(holder, "renewed", |event| event["request"] == request)?;
        if wire == Native {
            bench.wait(reader, "confirmed", |event| event["request"] == request)?;
        }
        read(bench, reader, request, in_time(wire))?;
        let freed = bench.wait(holder, "freed", |event| event["request"] == request)?;
        ensure(freed["reason"] == "completed", || format!("expected completed: {freed}"))?;
        bench.wait(reader, "resolved", |event| event["request"] == request)?;
    }
    Ok(())
}
