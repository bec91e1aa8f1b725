//! Processes that die, stand still, or come back.

use lease_proto::wire::Wire::{self, Native, Vllm};

use super::{Bench, Case, Command, NodeId, Trouble, at_expiry, ensure, expired, grant, heard, read, renewed, track};
use crate::certify::lab::Signal;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "fault/native/reader-killed",
        requires: "the blocks of a dead reader are freed when its last promise runs out",
        run: |b| killed(b, Native),
    },
    Case {
        id: "fault/vllm/reader-killed",
        requires: "the blocks of a dead reader are freed when its last promise runs out",
        run: |b| killed(b, Vllm),
    },
    Case {
        id: "fault/native/reader-killed-reading",
        requires: "the blocks of a reader that dies while it reads are freed when its last promise runs out",
        run: |b| killed_reading(b, Native),
    },
    Case {
        id: "fault/vllm/reader-killed-reading",
        requires: "the blocks of a reader that dies while it reads are freed when its last promise runs out",
        run: |b| killed_reading(b, Vllm),
    },
    Case {
        id: "fault/native/reader-stopped",
        requires: "a reader that stood still too long loses its lease and calls no read valid that its owner does not vouch for",
        run: |b| stopped(b, Native),
    },
    Case {
        id: "fault/vllm/reader-stopped",
        requires: "a reader that stood still too long loses its lease and calls no read valid",
        run: |b| stopped(b, Vllm),
    },
    Case {
        id: "fault/native/holder-restarted",
        requires: "leases of a dead holder are lost, and those of its next life are kept",
        run: |b| restarted(b, Native),
    },
    Case { id: "fault/vllm/holder-restarted", requires: "leases of a holder's next life are kept", run: |b| restarted(b, Vllm) },
];

fn killed(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = renewed(bench, wire, "a")?;
    for _ in 0..3 {
        bench.wait(holder, "renewed", |event| event["request"] == "a")?;
    }
    bench.signal(reader, Signal::Kill)?;
    expired(bench, holder, "a", "expired").map(|_| ())
}

fn killed_reading(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = renewed(bench, wire, "a")?;
    if wire == Native {
        bench.wait(reader, "confirmed", |event| event["request"] == "a")?;
    }
    let states = bench.tell(holder, Command::Metadata)?;
    match reading(bench, holder, reader, Signal::Kill) {
        // UCX's own last words, and nothing that a transport on top of it could do.
        Err(Trouble::Failed(why)) if states["late_read_is_safe"] == false && why.contains("Fatal: unexpected error") => {
            return Err(Trouble::Skip(format!(
                "the fabric ended the owner with its reader, which the transport states it may: {why}"
            )));
        }
        read => read?,
    }
    let (params, successor) = (grant(bench, holder, "b")?, bench.node("e", wire)?);
    track(bench, successor, &params)?;
    bench.wait(holder, "renewed", |event| event["request"] == "b")?;
    read(bench, successor, "b", super::in_time(wire))
}

/// A reader gets this signal while it reads, and its lease ends by time.
fn reading(bench: &mut Bench, holder: NodeId, reader: NodeId, signal: Signal) -> Result<(), Trouble> {
    let states = bench.tell(holder, Command::Metadata)?;
    // The holder stands still meanwhile, so that the read is not over before, where it takes a holder to read.
    bench.signal(holder, Signal::Stop)?;
    bench.tell(reader, Command::Read { request: "a".into() })?;
    bench.signal(reader, signal)?;
    bench.signal(holder, Signal::Continue)?;
    let freed = bench.wait(holder, "freed", |event| event["request"] == "a")?;
    if states["reads"] == "one_sided" && freed["reason"] == "completed" {
        return Err(Trouble::Skip("the read was over before its reader could be stopped".into()));
    }
    at_expiry(bench, holder, "a", "expired", freed).map(|_| ())
}

fn stopped(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = renewed(bench, wire, "a")?;
    if wire == Native {
        bench.wait(reader, "confirmed", |event| event["request"] == "a")?;
    }
    // The read may land after the blocks were given away: a bench takes it amiss if a stale one is called valid.
    reading(bench, holder, reader, Signal::Stop)?;
    bench.signal(reader, Signal::Continue)?;
    if wire == Native {
        heard(bench, reader, "lost", "a")?;
    }
    let landed = heard(bench, reader, "read_landed", "a")?;
    let done = heard(bench, reader, "read_done", "a")?;
    if wire == Native {
        // It may have been over before the reader stood still: an owner that served or fences knows, a clock does not.
        let vouched = done["proof"] == "served" || done["proof"] == "fenced";
        return ensure(done["verdict"] != "valid" || vouched && landed["matches"] == true, || {
            format!("called valid with nothing that proves it: {done} of {landed}")
        });
    }
    let expected = if landed["outcome"] == "failed" { "failed" } else { "unverified" };
    ensure(done["verdict"] == expected, || format!("expected {expected}: {done}"))
}

fn restarted(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = renewed(bench, wire, "a")?;
    bench.signal(holder, Signal::Kill)?;
    let successor = bench.node("p", wire)?;
    let params = grant(bench, successor, "b")?;
    track(bench, reader, &params)?;
    bench.wait(successor, "renewed", |event| event["request"] == "b")?;
    if wire == Native {
        let lost = bench.wait(reader, "lost", |event| event["request"] == "a")?;
        ensure(lost["why"] == "peer_restarted" || lost["why"] == "no_answer", || {
            format!("expected it to be the restart: {lost}")
        })?;
        read(bench, reader, "b", "valid")?;
        let freed = bench.wait(successor, "freed", |event| event["request"] == "b")?;
        return ensure(freed["reason"] == "completed", || format!("expected completed: {freed}"));
    }
    read(bench, reader, "b", "unverified")
}
