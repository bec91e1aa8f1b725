//! The life of a lease, on both wires.

use lease_proto::wire::Wire::{self, Native, Vllm};

use super::{Bench, Case, Command, Lease, Trouble, ensure, expired, grant, in_time, pair, read, renewed, time, track, until};

pub(super) const CASES: &[Case] = &[
    Case { id: "lease/native/grant", requires: "a grant is told with its expiry, one lease ahead", run: |b| granted(b, Native) },
    Case { id: "lease/vllm/grant", requires: "a grant is told with its expiry, one lease ahead", run: |b| granted(b, Vllm) },
    Case { id: "lease/native/renew", requires: "a beat extends a lease and never shortens it", run: |b| renew(b, Native) },
    Case { id: "lease/vllm/renew", requires: "a beat extends a lease and never shortens it", run: |b| renew(b, Vllm) },
    Case {
        id: "lease/native/complete",
        requires: "a read in time is valid, and its completion frees the blocks",
        run: |b| complete(b, Native),
    },
    Case {
        id: "lease/vllm/complete",
        requires: "a completion frees the blocks; the read stays unverified",
        run: |b| complete(b, Vllm),
    },
    Case {
        id: "lease/native/served",
        requires: "a real read is valid by a proof of its own kind: served where owners serve, else deadline or completion",
        run: served,
    },
    Case {
        id: "lease/native/fenced",
        requires: "a read of blocks that are fenced at their lease's end is valid by that, where the transport states it",
        run: fenced,
    },
    Case {
        id: "lease/native/release",
        requires: "a request that will not be read frees its blocks",
        run: |b| release(b, Native),
    },
    Case { id: "lease/vllm/release", requires: "a request that will not be read frees its blocks", run: |b| release(b, Vllm) },
    Case {
        id: "lease/native/expire",
        requires: "a lease that nobody beats for ends at the first poll after its expiry",
        run: |b| expire(b, Native),
    },
    Case {
        id: "lease/vllm/expire",
        requires: "a lease that nobody beats for ends at the first poll after its expiry",
        run: |b| expire(b, Vllm),
    },
    Case { id: "lease/native/abort", requires: "an abort frees at once what nobody was promised", run: |b| abort(b, Native) },
    Case { id: "lease/vllm/abort", requires: "an abort frees at once what nobody was promised", run: |b| abort(b, Vllm) },
    Case {
        id: "lease/native/abort-promised",
        requires: "an abort keeps what was promised, promises no more and tells the reader",
        run: |b| abort_promised(b, Native),
    },
    Case {
        id: "lease/vllm/abort-promised",
        requires: "an abort keeps what was promised and promises no more",
        run: |b| abort_promised(b, Vllm),
    },
    Case {
        id: "overload/native/queue",
        requires: "blocks are held for a request that waits three lease durations in the queue",
        run: |b| queue(b, Native),
    },
    Case {
        id: "overload/vllm/queue",
        requires: "blocks are held for a request that waits three lease durations in the queue",
        run: |b| queue(b, Vllm),
    },
];

fn lease() -> lease_proto::time::Duration {
    crate::certify::lab::LEASE.parse().unwrap_or(lease_proto::time::Duration::ZERO)
}

fn granted(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, _) = pair(bench, wire)?;
    let params = grant(bench, holder, "a")?;
    ensure(params["kv_transfer_params"]["remote_request_id"] == "a", || format!("not what a router needs: {params}"))?;
    let event = bench.wait(holder, "granted", |event| event["request"] == "a")?;
    let (at, expires) = (time(&event, "at")?, time(&event, "expires")?);
    // Both by one reading of the holder's clock.
    ensure(expires == at.saturating_add(lease()), || format!("expected one lease ahead: {event}"))
}

fn renew(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, _) = renewed(bench, wire, "a")?;
    let first = bench.seen(holder, "granted", "a").first().map(|event| time(event, "expires")).transpose()?;
    let mut last = first.unwrap_or_default();
    for _ in 0..8 {
        let event = bench.wait(holder, "renewed", |event| event["request"] == "a")?;
        let expires = time(&event, "expires")?;
        ensure(expires >= last, || format!("shortened from {last}: {event}"))?;
        last = expires;
    }
    let event = bench.wait(holder, "renewed", |event| time(event, "expires").is_ok_and(|expires| expires > last))?;
    ensure(event["request"] == "a", || format!("another request: {event}"))
}

fn complete(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = renewed(bench, wire, "a")?;
    if wire == Native {
        bench.wait(reader, "confirmed", |event| event["request"] == "a")?;
    }
    read(bench, reader, "a", in_time(wire))?;
    let freed = bench.wait(holder, "freed", |event| event["request"] == "a")?;
    ensure(freed["reason"] == "completed", || format!("expected completed: {freed}"))?;
    bench.wait(reader, "resolved", |event| event["request"] == "a").map(|_| ())
}

/// Reads a request that was confirmed, and returns how it landed and what proves it.
fn proof(bench: &mut Bench, reader: super::NodeId) -> Result<(String, String), Trouble> {
    bench.wait(reader, "confirmed", |event| event["request"] == "a")?;
    read(bench, reader, "a", "valid")?;
    let text = |event: &str, key: &str| {
        let seen = bench.seen(reader, event, "a");
        seen.last().and_then(|seen| seen[key].as_str()).unwrap_or_default().to_owned()
    };
    Ok((text("read_landed", "outcome"), text("read_done", "proof")))
}

fn served(bench: &mut Bench) -> Result<(), Trouble> {
    let (holder, reader) = renewed(bench, Native, "a")?;
    let states = bench.tell(holder, Command::Metadata)?;
    if states["reads"] == "none" {
        return Err(Trouble::Skip("the transport does not read".into()));
    }
    let (landed, proof) = proof(bench, reader)?;
    ensure(states["reads"] == landed.as_str(), || format!("expected it to land as {}: {landed}", states["reads"]))?;
    let proofs: &[&str] = if landed == "served" { &["served"] } else { &["deadline", "completion"] };
    ensure(proofs.contains(&proof.as_str()), || format!("expected it to be proven by {}, not by {proof}", proofs.join(" or ")))?;
    let freed = bench.wait(holder, "freed", |event| event["request"] == "a")?;
    ensure(freed["reason"] == "completed", || format!("expected completed: {freed}"))
}

fn fenced(bench: &mut Bench) -> Result<(), Trouble> {
    let (holder, reader) = pair(bench, Native)?;
    if bench.tell(holder, Command::Metadata)?["fence"] != true {
        return Err(Trouble::Skip("the transport states no fence".into()));
    }
    let lease = Lease { request: "a".into(), one_lease: true, ..Lease::default() };
    let params = bench.tell(holder, Command::Grant(lease))?;
    track(bench, reader, &params)?;
    let (landed, proof) = proof(bench, reader)?;
    ensure([landed.as_str(), proof.as_str()] == ["fenced"; 2], || format!("expected fenced: {landed}, proven by {proof}"))?;
    let freed = bench.wait(holder, "freed", |event| event["request"] == "a")?;
    ensure(freed["reason"] == "completed", || format!("expected completed: {freed}"))
}

fn release(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = renewed(bench, wire, "a")?;
    bench.tell(reader, Command::Finish { request: "a".into() })?;
    let freed = bench.wait(holder, "freed", |event| event["request"] == "a")?;
    // vLLM's text has no word for it: a release is a completion there.
    let reason = if wire == Native { "released" } else { "completed" };
    ensure(freed["reason"] == reason, || format!("expected {reason}: {freed}"))?;
    bench.wait(reader, "resolved", |event| event["request"] == "a").map(|_| ())
}

fn expire(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = pair(bench, wire)?;
    let params = grant(bench, holder, "a")?;
    expired(bench, holder, "a", "expired")?;
    // Who comes too late is told so where the wire can tell.
    track(bench, reader, &params)?;
    if wire == Native {
        bench.wait(reader, "lost", |event| event["request"] == "a")?;
    }
    Ok(())
}

fn abort(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, _) = pair(bench, wire)?;
    grant(bench, holder, "a")?;
    bench.tell(holder, Command::Abort { request: "a".into(), failed: false })?;
    let freed = bench.wait(holder, "freed", |event| event["request"] == "a")?;
    ensure(freed["reason"] == "aborted", || format!("expected aborted: {freed}"))?;
    ensure(time(&freed, "now")? < time(&freed, "expires")?, || format!("expected it at once: {freed}"))
}

fn abort_promised(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = renewed(bench, wire, "a")?;
    bench.tell(holder, Command::Abort { request: "a".into(), failed: false })?;
    if wire == Native {
        let lost = bench.wait(reader, "lost", |event| event["request"] == "a")?;
        // The reader gives it back when it hears of it, so that it is over before its promise.
        ensure(lost["why"] == "revoked", || format!("expected revoked: {lost}"))?;
        let freed = bench.wait(holder, "freed", |event| event["request"] == "a")?;
        return ensure(freed["reason"] == "released", || format!("expected the reader to give it back: {freed}"));
    }
    expired(bench, holder, "a", "aborted").map(|_| ())
}

fn queue(bench: &mut Bench, wire: Wire) -> Result<(), Trouble> {
    let (holder, reader) = renewed(bench, wire, "a")?;
    let start = bench.seen(holder, "granted", "a").first().map(|event| time(event, "at")).transpose()?.unwrap_or_default();
    until(bench, holder, start, lease().saturating_mul(3))?;
    read(bench, reader, "a", in_time(wire))?;
    let freed = bench.wait(holder, "freed", |event| event["request"] == "a")?;
    ensure(freed["reason"] == "completed", || format!("expected completed: {freed}"))
}
