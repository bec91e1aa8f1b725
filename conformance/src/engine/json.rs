//! Events as JSON, with the names that traces use. Times are seconds since the engine's start, on its
//! own clock, as decimal strings.

use lease_proto::{event::Event, id::Identity, time::Instant};
use serde_json::{Map, Value, json};

/// One event as a line, or nothing for those that only matter inside.
pub(super) fn event(event: &Event<'_>, identity: &Identity, started: Instant, now: Instant) -> Option<Value> {
    let since = |instant: Instant| instant.saturating_since(started).to_string();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (name, rest) = match event {
        Event::Granted { request, expires, .. } => {
            ("granted", json!({"request": request.to_string(), "expires": since(*expires)}))
        }
        Event::Renewed { request, expires, .. } => {
            ("renewed", json!({"request": request.to_string(), "expires": since(*expires)}))
        }
        Event::Freed { request, why, expires, now, previous_poll, .. } => (
            "freed",
            json!({
                "request": request.to_string(),
                "reason": why.name(),
                "expires": since(*expires),
                "now": since(*now),
                "previous_poll": since(*previous_poll),
            }),
        ),
        Event::Overdue { request } => ("overdue", json!({"request": request.to_string()})),
        Event::Drained => ("drained", json!({})),
        Event::Refused { request, why, .. } => match request {
            Some(request) => ("refused", json!({"request": text(request), "why": why.name()})),
            None => ("refused", json!({"why": why.name()})),
        },
        Event::Rejected { why } => ("rejected", json!({"why": why.name()})),
        Event::Foreign { bytes, .. } => ("foreign", json!({"bytes": bytes.len()})),
        Event::Connected { engine } => ("connected", json!({"peer": text(engine)})),
        Event::OneWay { engine } => ("one_way", json!({"peer": text(engine)})),
        Event::PeerLost { engine } => ("peer_lost", json!({"peer": text(engine)})),
        Event::PeerRestarted { engine } => ("peer_restarted", json!({"peer": text(engine)})),
        Event::HeartbeatSent { engine, leases, bytes } => {
            ("heartbeat_sent", json!({"peer": text(engine), "leases": leases, "bytes": bytes}))
        }
        Event::Confirmed { request, .. } => ("confirmed", json!({"request": request.to_string()})),
        Event::Unproven { request, .. } => ("unproven", json!({"request": request.to_string()})),
        Event::Lost { request, why, .. } => ("lost", json!({"request": request.to_string(), "why": why.name()})),
        Event::HolderDrains { request, .. } => ("holder_drains", json!({"request": request.to_string()})),
        Event::ReadDone { request, verdict, .. } => match verdict.proof() {
            Some(proof) => ("read_done", json!({"request": request.to_string(), "verdict": verdict.word(), "proof": proof})),
            None => ("read_done", json!({"request": request.to_string(), "verdict": verdict.word()})),
        },
        Event::Resolved { request, .. } => ("resolved", json!({"request": request.to_string()})),
        Event::TransportError { kind } => ("transport_error", json!({"kind": kind.name()})),
        Event::TermsUnsatisfiable { engine, granted } => {
            ("terms_unsatisfiable", json!({"peer": text(engine), "granted": granted.to_string()}))
        }
        _ => return None,
    };
    Some(line(name, rest, identity, started, now))
}

/// `at` and `node` first, then the event's own keys.
pub(super) fn line(event: &str, more: Value, identity: &Identity, started: Instant, now: Instant) -> Value {
    let mut line = Map::new();
    line.insert("at".into(), now.saturating_since(started).to_string().into());
    line.insert("node".into(), identity.engine.to_string().into());
    line.insert("event".into(), event.into());
    if let Value::Object(more) = more {
        line.extend(more);
    }
    Value::Object(line)
}
