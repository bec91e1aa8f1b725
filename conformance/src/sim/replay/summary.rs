//! What the lines of a run add up to.

use lease_proto::event::Freed;
use serde_json::{Map, Value, json};

use crate::sim::line::Line;

/// Counts of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Leases granted.
    pub grants: u64,
    /// Leases ended, by reason.
    freed: [u64; REASONS],
    /// Leases that were live when the world ended.
    pub live: u64,
    /// Heartbeats sent, and their bytes.
    pub heartbeats: u64,
    /// Bytes of heartbeats.
    pub bytes: u64,
    /// Requests refused.
    pub refused: u64,
    /// Messages rejected.
    pub rejected: u64,
    /// Laws broken.
    pub violations: u64,
    /// Expectations that failed.
    pub failed_expectations: u64,
}

/// How many reasons there are for the end of a lease.
pub(super) const REASONS: usize = Freed::ALL.len() + 1;

/// Why a lease ended when its process did.
pub(in crate::sim) const LOST_IN_CRASH: &str = "lost_in_crash";

fn reasons() -> impl Iterator<Item = &'static str> {
    Freed::ALL.into_iter().map(Freed::name).chain([LOST_IN_CRASH])
}

impl Summary {
    pub(super) fn count(&mut self, line: &Line<'_>) {
        match line.event {
            "granted" => self.grants += 1,
            "freed" => {
                let reason = reasons().position(|reason| Some(reason) == line.reason);
                reason.and_then(|reason| self.freed.get_mut(reason)).into_iter().for_each(|count| *count += 1);
            }
            "heartbeat_sent" => {
                self.heartbeats += 1;
                self.bytes += line.bytes.unwrap_or(0) as u64;
            }
            "refused" => self.refused += 1,
            "rejected" => self.rejected += 1,
            "violation" => self.violations += 1,
            "failed_expectation" => self.failed_expectations += 1,
            _ => {}
        }
    }

    /// Whether nothing was broken and everything came that was expected.
    pub fn held(&self) -> bool {
        self.violations == 0 && self.failed_expectations == 0
    }

    /// The last line of a run.
    pub fn to_json(&self, file: &str) -> Value {
        let freed: Map<String, Value> = reasons()
            .zip(self.freed)
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| (reason.to_owned(), count.into()))
            .collect();
        json!({"summary": {
            "file": file,
            "grants": self.grants,
            "freed": freed,
            "live": self.live,
            "heartbeats": self.heartbeats,
            "bytes": self.bytes,
            "refused": self.refused,
            "rejected": self.rejected,
            "violations": self.violations,
            "failed_expectations": self.failed_expectations,
        }})
    }
}
