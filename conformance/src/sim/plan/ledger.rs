//! What the lines of a sampled run add up to.

use rustc_hash::FxHashSet;

use super::driver::{decoder_of, number_of};
use crate::sim::{line::Line, time::WorldTime};

/// Lease events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) granted: u64,
    pub(super) renewed: u64,
    /// Ended in good order.
    pub(super) closed: u64,
    /// Ran out when they were not needed any more: nobody said so, or it got lost.
    pub(super) late: u64,
    /// Ran out.
    pub(super) expired: u64,
    pub(super) full: u64,
    pub(super) violations: u64,
}

/// Leases of decode instances that died.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reclaimed {
    pub(super) leases: u64,
    /// Nanoseconds from their death to the end of each, and the longest.
    sum: u128,
    longest: u64,
}

/// Sees every line.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) counts: Counts,
    pub(super) reclaimed: Reclaimed,
    /// When each decode instance dies.
    pub(super) dies: Vec<WorldTime>,
    /// Requests that were read and hold their lease still.
    read: FxHashSet<u64>,
    live: u64,
    /// Leases times nanoseconds up to a time.
    held: u128,
    since: WorldTime,
}

impl Counts {
    pub(super) fn ended(&self) -> u64 {
        self.closed + self.late + self.expired
    }

    pub(super) fn events(&self) -> u64 {
        self.granted + self.renewed + self.ended()
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self {
            granted: self.granted - earlier.granted,
            renewed: self.renewed - earlier.renewed,
            closed: self.closed - earlier.closed,
            late: self.late - earlier.late,
            expired: self.expired - earlier.expired,
            full: self.full - earlier.full,
            violations: self.violations - earlier.violations,
        }
    }
}

impl Reclaimed {
    pub(super) fn mean(&self) -> Option<f64> {
        (self.leases > 0).then(|| self.sum as f64 / self.leases as f64 / 1e9)
    }

    pub(super) fn longest(&self) -> Option<f64> {
        (self.leases > 0).then_some(self.longest as f64 / 1e9)
    }
}

impl Ledger {
    pub(super) fn new(decoders: u32) -> Self {
        Self {
            counts: Counts::default(),
            reclaimed: Reclaimed::default(),
            dies: vec![WorldTime::after(lease_proto::time::Duration::MAX); decoders as usize],
            read: FxHashSet::default(),
            live: 0,
            held: 0,
            since: WorldTime::ZERO,
        }
    }

    pub(super) fn see(&mut self, line: &Line<'_>) {
        match line.event {
            "renewed" => self.counts.renewed += 1,
            "granted" => {
                self.pass(line.at);
                self.live += 1;
                self.counts.granted += 1;
            }
            "freed" => {
                self.pass(line.at);
                self.live = self.live.saturating_sub(1);
                let read = line.request.and_then(number_of).is_some_and(|number| self.read.remove(&number));
                match line.reason {
                    Some("expired") => self.expired(line, read),
                    _ => self.counts.closed += 1,
                }
            }
            "read_ended" => self.read.extend(line.request.and_then(number_of)),
            "refused" if line.why == Some("full") => self.counts.full += 1,
            "violation" => self.counts.violations += 1,
            _ => {}
        }
    }

    fn expired(&mut self, line: &Line<'_>, read: bool) {
        let count = if read { &mut self.counts.late } else { &mut self.counts.expired };
        *count += 1;
        let dies = line.request.and_then(decoder_of).and_then(|decoder| self.dies.get(decoder));
        if let Some(dies) = dies.filter(|dies| **dies <= line.at) {
            let took = line.at.since(*dies).as_nanos();
            self.reclaimed.leases += 1;
            self.reclaimed.sum += u128::from(took);
            self.reclaimed.longest = self.reclaimed.longest.max(took);
        }
    }

    fn pass(&mut self, now: WorldTime) {
        self.held += u128::from(self.live) * u128::from(now.since(self.since).as_nanos());
        self.since = now;
    }

    /// Leases times seconds until now.
    pub(super) fn held_until(&mut self, now: WorldTime) -> f64 {
        self.pass(now);
        self.held as f64 / 1e9
    }
}
