//! What an engine does about every event, before anything else: permits follow the leases, and what happened is told.

use std::collections::VecDeque;

use lease_proto::{
    event::Event,
    id::{Identity, Token},
    permits::Permits,
    reader::ReadOutcome,
    time::Instant,
    transport::ReadId,
};
use serde_json::Value;

use super::json;

/// Where events go.
pub(crate) struct Ear {
    pub(crate) permits: Permits,
    pub(crate) identity: Identity,
    pub(crate) started: Instant,
    /// To be told, oldest first.
    pub(crate) told: VecDeque<Value>,
    /// To be acted on once the machines are done: leases whose blocks are free, reads that are over.
    pub(crate) freed: Vec<Token>,
    pub(crate) landed: Vec<(ReadId, ReadOutcome)>,
    /// Events that peers make at will and that were not told, as too many waited already.
    pub(crate) untold: u64,
}

/// Events that wait to be told: one message may renew thousands of leases, or name as many that are unknown.
const MOST_TOLD: usize = 10_000;

/// Whether a peer can make any number of these.
fn is_of_peers(event: &Event<'_>) -> bool {
    matches!(event, Event::Renewed { .. } | Event::Refused { .. } | Event::Rejected { .. } | Event::Foreign { .. })
}

impl Ear {
    pub(crate) fn hear(&mut self, event: &Event<'_>, now: Instant) {
        self.permits.hear(event);
        match *event {
            Event::Freed { token, .. } => self.freed.push(token),
            Event::ReadLanded { read, outcome } => self.landed.push((read, outcome)),
            _ => {}
        }
        if self.told.len() >= MOST_TOLD && is_of_peers(event) {
            self.untold = self.untold.saturating_add(1);
            return;
        }
        if self.told.is_empty() && self.untold > 0 {
            let more = serde_json::json!({"events": std::mem::take(&mut self.untold)});
            self.tell("untold", more, now);
        }
        self.told.extend(json::event(event, &self.identity, self.started, now));
    }

    /// An event that is the engine's own, not the protocol's.
    pub(crate) fn tell(&mut self, event: &str, more: Value, now: Instant) {
        self.told.push_back(json::line(event, more, &self.identity, self.started, now));
    }
}
