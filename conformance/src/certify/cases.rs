//! The cases: each an id, a requirement in one line, and what shows it.

mod connect;
mod drive;
mod fault;
mod lease;
mod notify;
mod partition;
mod read;

use lease_proto::{
    time::{Duration, Instant},
    wire::Wire,
};
use serde_json::Value;

use super::lab::{Bench, Lab, NodeId, Trouble, ensure, fail};
use crate::engine::{Command, Lease};

/// How the ids of those cases begin that are worth another kind of memory than the host's: it moves in them.
const MOVING: &[&str] = &[
    "memory/",
    "read/",
    "lease/native/complete",
    "lease/vllm/complete",
    "lease/native/served",
    "lease/native/fenced",
    "depth/",
    "drive/",
    "fault/native/reader-killed-reading",
    "fault/vllm/reader-killed-reading",
    "fault/native/reader-stopped",
    "fault/vllm/reader-stopped",
    "fault/native/holder-restarted",
    "fault/vllm/holder-restarted",
];

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its id; any prefix selects.
    pub id: &'static str,
    /// What it requires.
    pub requires: &'static str,
    pub(super) run: fn(&mut Bench) -> Result<(), Trouble>,
}

impl Case {
    /// Tries it in a lab of one's own.
    ///
    /// # Errors
    /// Why it did not pass.
    pub fn try_in(&self, lab: Box<dyn Lab>) -> Result<(), Trouble> {
        (self.run)(&mut Bench::new(lab))
    }

    /// Whether it is worth another kind of memory than the host's.
    pub fn moves_memory(&self) -> bool {
        MOVING.iter().any(|prefix| self.id.starts_with(prefix))
    }
}

/// All cases, in the order in which they are best read.
pub fn all() -> Vec<Case> {
    let reads = read::cases();
    [notify::CASES, connect::CASES, &reads, lease::CASES, drive::CASES, fault::CASES, partition::CASES].concat()
}

/// A holder and a reader that speak this wire.
fn pair(bench: &mut Bench, wire: Wire) -> Result<(NodeId, NodeId), Trouble> {
    Ok((bench.node("p", wire)?, bench.node("d", wire)?))
}

/// Grants a lease and returns its transfer parameters.
fn grant(bench: &mut Bench, holder: NodeId, request: &str) -> Result<Value, Trouble> {
    bench.tell(holder, Command::Grant(Lease { request: request.to_owned(), ..Lease::default() }))
}

fn track(bench: &mut Bench, reader: NodeId, params: &Value) -> Result<(), Trouble> {
    bench.tell(reader, Command::Track { params: params.clone(), reader: 0, of: 1 }).map(|_| ())
}

/// A holder and a reader with a lease that has been renewed.
fn renewed(bench: &mut Bench, wire: Wire, request: &str) -> Result<(NodeId, NodeId), Trouble> {
    let (holder, reader) = pair(bench, wire)?;
    let params = grant(bench, holder, request)?;
    track(bench, reader, &params)?;
    bench.wait(holder, "renewed", |event| event["request"] == request)?;
    Ok((holder, reader))
}

/// What a node has told about a request, or tells later.
fn heard(bench: &mut Bench, node: NodeId, event: &str, request: &str) -> Result<Value, Trouble> {
    match bench.seen(node, event, request).last() {
        Some(told) => Ok((*told).clone()),
        None => bench.wait(node, event, |told| told["request"] == request),
    }
}

/// A time that an event carries.
fn time(event: &Value, key: &str) -> Result<Instant, Trouble> {
    let text = event[key].as_str().unwrap_or_default();
    text.parse().map_err(|_| Trouble::Failed(format!("expected a time as {key} in {event}")))
}

/// The last expiry that a holder has told about a request.
fn last_promise(bench: &Bench, holder: NodeId, request: &str) -> Result<Instant, Trouble> {
    let told = ["granted", "renewed"].map(|event| bench.seen(holder, event, request)).concat();
    let mut last = Instant::ZERO;
    for event in told {
        last = last.max(time(event, "expires")?);
    }
    Ok(last)
}

/// The end of a lease by time: at the first poll at or after its last promised expiry, by the holder's own stamps.
fn expired(bench: &mut Bench, holder: NodeId, request: &str, reason: &str) -> Result<Value, Trouble> {
    let freed = bench.wait(holder, "freed", |event| event["request"] == request)?;
    at_expiry(bench, holder, request, reason, freed)
}

/// See [`expired`].
fn at_expiry(bench: &Bench, holder: NodeId, request: &str, reason: &str, freed: Value) -> Result<Value, Trouble> {
    ensure(freed["reason"] == reason, || format!("expected it to end as {reason}: {freed}"))?;
    let promised = last_promise(bench, holder, request)?;
    let (expires, now, before) = (time(&freed, "expires")?, time(&freed, "now")?, time(&freed, "previous_poll")?);
    ensure(expires == promised, || format!("the last promise was {promised}: {freed}"))?;
    ensure(now >= expires, || format!("freed before its promise ran out: {freed}"))?;
    ensure(before < expires, || format!("not freed at the first poll after its expiry: {freed}"))?;
    Ok(freed)
}

/// Reads a request that stands, every byte as it was written, and expects this verdict.
fn read(bench: &mut Bench, reader: NodeId, request: &str, verdict: &str) -> Result<(), Trouble> {
    bench.tell(reader, Command::Read { request: request.to_owned() })?;
    let landed = bench.wait(reader, "read_landed", |event| event["request"] == request)?;
    ensure(landed["matches"] == true, || format!("expected every byte as it was written: {landed}"))?;
    let done = bench.wait(reader, "read_done", |event| event["request"] == request)?;
    ensure(done["verdict"] == verdict, || format!("expected {verdict}: {done}"))
}

/// What a read that ended in time is called on this wire, where vLLM's proves nothing.
fn in_time(wire: Wire) -> &'static str {
    match wire {
        Wire::Native => "valid",
        Wire::Vllm => "unverified",
    }
}

/// Waits until the holder's own clock has gone on by `span` since `start`, by the stamps of its events.
fn until(bench: &mut Bench, holder: NodeId, start: Instant, span: Duration) -> Result<(), Trouble> {
    loop {
        match bench.next(holder, super::lab::PATIENCE)? {
            Some(event) if event["event"] == "freed" => return fail(format!("freed while it was beaten for: {event}")),
            Some(event) if time(&event, "at")? >= start.saturating_add(span) => return Ok(()),
            Some(_) => {}
            None => return fail("the holder tells nothing any more"),
        }
    }
}
