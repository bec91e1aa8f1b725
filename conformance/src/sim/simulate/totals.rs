//! What happened in many worlds, counted.

use std::collections::BTreeMap;

use lease_proto::event::{Freed, Verdict};
use serde_json::{Value, json};

use crate::sim::{line::Line, replay::LOST_IN_CRASH};

type Counts = BTreeMap<&'static str, u64>;

/// What happened, by kind, so that one sees that it did.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Worlds that were run.
    pub worlds: u64,
    /// Leases granted.
    pub grants: u64,
    /// Leases ended, by reason.
    pub freed: Counts,
    /// Verdicts about reads, those that are valid by their proof.
    pub verdicts: Counts,
    /// Requests that a reader counted as gone, by cause.
    pub lost: Counts,
    /// Requests refused, by cause.
    pub refused: Counts,
    /// Messages dropped, by what was wrong with them.
    pub rejected: Counts,
    /// Heartbeats sent.
    pub heartbeats: u64,
    /// Laws broken.
    pub violations: u64,
}

impl Default for Totals {
    fn default() -> Self {
        let none = |names: &[&'static str]| names.iter().map(|name| (*name, 0)).collect();
        let reasons: Vec<_> = Freed::ALL.iter().map(|why| why.name()).chain([LOST_IN_CRASH]).collect();
        Self {
            worlds: 0,
            grants: 0,
            freed: none(&reasons),
            verdicts: none(&VERDICTS),
            lost: Counts::new(),
            refused: Counts::new(),
            rejected: Counts::new(),
            heartbeats: 0,
            violations: 0,
        }
    }
}

/// Those that a simulated fabric can lead to: nothing is served or fenced in it.
const VERDICTS: [&str; 5] = [
    Verdict::ValidByDeadline.name(),
    Verdict::ValidByCompletion.name(),
    Verdict::Expired.name(),
    Verdict::Unverified.name(),
    Verdict::Failed.name(),
];

impl Totals {
    pub(super) fn count(&mut self, line: &Line<'_>) {
        let count = |counts: &mut Counts, name: Option<&'static str>| *counts.entry(name.unwrap_or("?")).or_default() += 1;
        match line.event {
            "granted" => self.grants += 1,
            "freed" => count(&mut self.freed, line.reason),
            "read_done" => {
                let is = |verdict: &Verdict| Some(verdict.word()) == line.verdict && verdict.proof() == line.proof;
                count(&mut self.verdicts, Verdict::ALL.into_iter().find(is).map(Verdict::name));
            }
            "lost" => count(&mut self.lost, line.why),
            "refused" => count(&mut self.refused, line.why),
            "rejected" => count(&mut self.rejected, line.why),
            "heartbeat_sent" => self.heartbeats += 1,
            _ => {}
        }
    }

    /// Adds what happened elsewhere.
    pub fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.grants += other.grants;
        self.heartbeats += other.heartbeats;
        self.violations += other.violations;
        for (here, there) in self.by_kind_mut().into_iter().zip(other.by_kind()) {
            there.iter().for_each(|(name, count)| *here.entry(name).or_default() += count);
        }
    }

    fn by_kind(&self) -> [&Counts; 5] {
        [&self.freed, &self.verdicts, &self.lost, &self.refused, &self.rejected]
    }

    fn by_kind_mut(&mut self) -> [&mut Counts; 5] {
        [&mut self.freed, &mut self.verdicts, &mut self.lost, &mut self.refused, &mut self.rejected]
    }

    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        json!({
            "worlds": self.worlds,
            "grants": self.grants,
            "heartbeats": self.heartbeats,
            "freed": self.freed,
            "verdicts": self.verdicts,
            "lost": self.lost,
            "refused": self.refused,
            "rejected": self.rejected,
            "violations": self.violations,
        })
    }
}
