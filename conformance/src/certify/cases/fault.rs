//! Processes that die, stand still, or come back.

use lease_proto::wire::Wire::{self, Native, Vllm};

use super::{Bench, Case, Command, Trouble, ensure, expired, fail, grant, read, renewed, track};
use crate::{certify::lab::Signal, engine::Outcome};

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
        id: "fault/native/reader-stopped",
        requires: "a reader that stood still too long loses its lease and calls no read valid",
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

fn stopped(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = renewed(bench, wire, "a")?;
    if wire == Native {
        bench.wait(reader, "confirmed", |event| event["request"] == "a")?;
    }
    // A read runs while it stands still; it lands after the blocks were given away.
    bench.tell(reader, Command::Read { request: "a".into() })?;
    bench.signal(reader, Signal::Stop)?;
    expired(bench, holder, "a", "expired")?;
    bench.signal(reader, Signal::Continue)?;
    let outcome = Command::ReadEnded { request: "a".into(), outcome: Outcome::OneSided };
    match bench.ask(reader, outcome)? {
        Ok(_) => {
            let done = bench.wait(reader, "read_done", |event| event["request"] == "a")?;
            match wire {
                Native => ensure(done["verdict"] != "valid", || format!("a stale read was called valid: {done}")),
                Vllm => ensure(done["verdict"] == "unverified", || format!("expected unverified: {done}")),
            }
        }
        Err(error) => fail(format!("the read was forgotten: {error}")),
    }
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
