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
pub(super) struct Ear {
    pub(super) permits: Permits,
    pub(super) identity: Identity,
    pub(super) started: Instant,
    /// To be told, oldest first.
    pub(super) told: VecDeque<Value>,
    /// To be acted on once the machines are done: leases whose blocks are free, reads that are over.
    pub(super) freed: Vec<Token>,
    pub(super) landed: Vec<(ReadId, ReadOutcome)>,
}

impl Ear {
    pub(super) fn hear(&mut self, event: &Event<'_>, now: Instant) {
        self.permits.hear(event);
        match *event {
            Event::Freed { token, .. } => self.freed.push(token),
            Event::ReadLanded { read, outcome } => self.landed.push((read, outcome)),
            _ => {}
        }
        self.told.extend(json::event(event, &self.identity, self.started, now));
    }

    /// An event that is the engine's own, not the protocol's.
    pub(super) fn tell(&mut self, event: &str, more: Value, now: Instant) {
        self.told.push_back(json::line(event, more, &self.identity, self.started, now));
    }
}
