//! Transports that are driven in other ways than usual, each against one that is not.

use super::{Bench, Case, NodeId, Trouble, ensure, grant, in_time, read, track};
use lease_proto::wire::Wire::Native;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "depth/borrowed/holder",
        requires: "a holder on the engine's own worker grants, is renewed, is read and frees like any other",
        run: |b| holds(b, "borrowed"),
    },
    Case {
        id: "depth/borrowed/reader",
        requires: "a reader on the engine's own worker renews, reads and completes like any other",
        run: |b| reads(b, "borrowed"),
    },
    Case {
        id: "drive/thread/holder",
        requires: "a holder with a progress thread grants, is renewed, is read and frees like any other",
        run: |b| holds(b, "thread"),
    },
    Case {
        id: "drive/thread/reader",
        requires: "a reader with a progress thread renews, reads and completes like any other",
        run: |b| reads(b, "thread"),
    },
];

fn holds(bench: &mut Bench, way: &'static str) -> Result<(), Trouble> {
    let (holder, reader) = (bench.driven("p", way)?, bench.node("d", Native)?);
    lives(bench, holder, reader)
}

fn reads(bench: &mut Bench, way: &'static str) -> Result<(), Trouble> {
    let (holder, reader) = (bench.node("p", Native)?, bench.driven("d", way)?);
    lives(bench, holder, reader)
}

/// Two leases, one after the other.
fn lives(bench: &mut Bench, holder: NodeId, reader: NodeId) -> Result<(), Trouble> {
    for request in ["a", "b"] {
        let params = grant(bench, holder, request)?;
        track(bench, reader, &params)?;
        bench.wait(holder, "renewed", |event| event["request"] == request)?;
        bench.wait(reader, "confirmed", |event| event["request"] == request)?;
        read(bench, reader, request, in_time(Native))?;
        let freed = bench.wait(holder, "freed", |event| event["request"] == request)?;
        ensure(freed["reason"] == "completed", || format!("expected completed: {freed}"))?;
        bench.wait(reader, "resolved", |event| event["request"] == request)?;
    }
    Ok(())
}
