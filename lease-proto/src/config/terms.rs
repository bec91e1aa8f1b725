//! Terms that hold, and the arithmetic of both wires.

use super::{Config, LONGEST_EXTENSION, LONGEST_LEASE, Proof, Remedy, SHORTEST_INTERVAL, TermsError};
use crate::{time::Duration, wire::Wire};

const PPM: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;
/// Beats per extension.
const BEATS: u64 = 5;

/// Terms that hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    pub(super) config: Config,
    pub(super) wire: Wire,
    pub(super) extension: Duration,
    pub(super) interval: Duration,
    pub(super) path_budget: Duration,
    pub(super) longest_stall: Duration,
    pub(super) poll: Duration,
}

impl Terms {
    /// The wire they were made for.
    pub fn wire(&self) -> Wire {
        self.wire
    }

    /// First time to live of a grant.
    pub fn lease(&self) -> Duration {
        self.config.lease
    }

    /// By how much a renewal extends.
    pub fn extension(&self) -> Duration {
        self.extension
    }

    /// Time between two beats to one peer, before jitter: native `(extension - 2r * extension - path budget) / 5`, vLLM `L // 6`.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Time between two beats to a holder that extends by `extension`. On vLLM's wire the reader's own terms decide.
    pub fn interval_for(&self, extension: Duration) -> Duration {
        match self.wire {
            Wire::Native if extension == self.extension => self.interval,
            Wire::Native => native_interval(extension, self.config.drift_ppm, self.path_budget.min(extension.scale(1, 40))),
            Wire::Vllm => self.interval,
        }
    }

    /// Time to live of blocks that a decode instance holds.
    pub fn decoder_ttl(&self) -> Duration {
        self.config.decoder_ttl
    }

    /// Drift bound of a clock in parts per million.
    pub fn drift_ppm(&self) -> u32 {
        self.config.drift_ppm
    }

    /// Longest way of a message there and back.
    pub fn path_budget(&self) -> Duration {
        self.path_budget
    }

    /// Longest time between two polls of the holder.
    pub fn poll(&self) -> Duration {
        self.poll
    }

    /// Longest time that the reader sends nothing.
    pub fn longest_stall(&self) -> Duration {
        self.longest_stall
    }

    /// A lease without an answer for so long is given up by its reader.
    pub fn lost_after(&self) -> Duration {
        self.config.lost_after.unwrap_or(self.extension.saturating_mul(2))
    }

    /// Latest time for a verdict after the end of its read.
    pub fn verdict_timeout(&self) -> Duration {
        self.config.verdict_timeout.unwrap_or(self.extension)
    }

    /// Longest draining of the queue before expiry after a stall.
    pub fn drain_grace(&self) -> Duration {
        self.config.drain_grace.unwrap_or(self.extension.scale(1, 20))
    }

    /// When a connection attempt is given up.
    pub fn connect_deadline(&self) -> Duration {
        self.config.connect_deadline.unwrap_or(self.extension.scale(1, 2))
    }

    /// How long the end of a lease is remembered.
    pub fn tombstone_ttl(&self) -> Duration {
        let longest = self.config.lease.max(self.extension).max(self.config.decoder_ttl);
        self.config.tombstone_ttl.unwrap_or(longest.saturating_mul(2))
    }

    /// When a silent peer is forgotten.
    pub fn engine_ttl(&self) -> Duration {
        self.config.engine_ttl
    }

    /// Unanswered renews per peer beyond which beats slow down.
    pub fn max_unanswered(&self) -> u32 {
        self.config.max_unanswered
    }

    /// Whether blocks are kept past their expiry until answered for.
    pub fn hold_until_ack(&self) -> bool {
        self.config.hold_until_ack
    }

    /// What may prove a one-sided read.
    pub fn proof(&self) -> Proof {
        self.config.proof
    }

    /// What an operator of vLLM's arithmetic should know: why these terms cannot hold a lease through the losses and the stall
    /// that were asked for. Always `None` on the native wire, where that is an error.
    pub fn warning(&self) -> Option<TermsError> {
        self.holds(self.extension, self.interval).err()
    }

    /// Whether a reader that beats by these terms keeps a lease of a holder that extends by `extension`; for two sides that
    /// negotiate nothing (vLLM's wire: a P of 10 s and a D of 60 s).
    ///
    /// # Errors
    /// As [`Config::validate`].
    pub fn holds_with(&self, extension: Duration) -> Result<(), TermsError> {
        self.holds(extension, self.interval_for(extension))
    }

    /// extension >= (losses + 1) * interval + longest stall + path budget + the holder's poll.
    pub(super) fn holds(&self, extension: Duration, interval: Duration) -> Result<(), TermsError> {
        let others = self.longest_stall.saturating_add(self.path_budget).saturating_add(self.poll);
        let needed = interval.saturating_mul(self.beats()).saturating_add(others);
        if !interval.is_zero() && needed <= extension {
            return Ok(());
        }
        let without = needed.saturating_sub(self.longest_stall);
        let stall = (without <= extension).then(|| {
            let millis = extension.saturating_sub(without).scale(1, MILLISECOND).as_nanos();
            Duration::from_millis(millis)
        });
        Err(match self.wire {
            Wire::Native => {
                let remedy = Remedy { term: "extension", raise_to: self.least(MILLISECOND, LONGEST_EXTENSION), stall };
                TermsError::CannotHold { extension, needed, remedy }
            }
            Wire::Vllm => {
                let remedy = Remedy { term: "kv_lease_duration", raise_to: self.least(SECOND, LONGEST_LEASE), stall };
                TermsError::CannotHoldVllm { extension, needed, remedy }
            }
        })
    }

    fn beats(&self) -> u64 {
        u64::from(self.config.losses.unwrap_or(if self.wire == Wire::Native { 2 } else { 1 })).saturating_add(1)
    }

    /// The least extension (on vLLM's wire: lease) that holds, in whole `steps` of nanoseconds up to `most`. What is derived from
    /// it grows with it, so it is searched for and not solved. `None` where none holds.
    fn least(&self, step: u64, most: Duration) -> Option<Duration> {
        let at = |steps: u64| Duration::from_nanos(steps.saturating_mul(step));
        let (mut low, mut high) = (0, most.as_nanos().checked_div(step).unwrap_or(0));
        while low < high {
            let middle = low.midpoint(high);
            if self.would_hold(at(middle)) {
                high = middle;
            } else {
                low = middle.saturating_add(1);
            }
        }
        Some(at(high)).filter(|least| self.would_hold(*least))
    }

    fn would_hold(&self, asked: Duration) -> bool {
        let extension = if self.wire == Wire::Native { asked } else { vllm_extension(asked) };
        let (path_budget, stall, poll) = self.config.parts(extension);
        let interval = match self.wire {
            Wire::Native => native_interval(extension, self.config.drift_ppm, path_budget),
            Wire::Vllm => vllm_interval(asked).max(SHORTEST_INTERVAL),
        };
        let others = stall.saturating_add(path_budget).saturating_add(poll);
        !interval.is_zero() && interval.saturating_mul(self.beats()).saturating_add(others) <= extension
    }
}

pub(super) fn native_interval(extension: Duration, drift_ppm: u32, path_budget: Duration) -> Duration {
    let drift = extension.scale(u64::from(drift_ppm).saturating_mul(2), PPM);
    extension
        .saturating_sub(drift)
        .saturating_sub(path_budget)
        .scale(1, BEATS)
        .max(SHORTEST_INTERVAL.min(extension.scale(1, BEATS)))
}

/// vLLM's `L // 6`, in whole seconds. Zero below 6 s: a beat at every step.
pub fn vllm_interval(lease: Duration) -> Duration {
    Duration::from_secs(lease.scale(1, 6 * SECOND).as_nanos())
}

/// vLLM's `L * 2 // 3`, in whole seconds. Zero below 1.5 s: renewals extend nothing.
pub fn vllm_extension(lease: Duration) -> Duration {
    Duration::from_secs(lease.scale(2, 3 * SECOND).as_nanos())
}
