//! The terms of leasing: what an operator sets, and what follows from it.
//!
//! [`Config`] is what was asked for; [`Terms`] is what holds, and can only be made by [`Config::validate`], which names the
//! number to change where the terms cannot hold a lease.

mod terms;

pub use terms::{Terms, vllm_extension, vllm_interval};

use crate::{
    time::{Duration, TimeError},
    wire::Wire,
};
use terms::native_interval;

/// Shortest lease or extension. Below it the arithmetic of drift and jitter loses its meaning.
pub const SHORTEST: Duration = Duration::from_millis(100);
/// Longest lease or fixed time to live.
pub const LONGEST_LEASE: Duration = Duration::from_secs(24 * 3600);
/// Longest extension, also of one that is learned from a holder's answers.
pub const LONGEST_EXTENSION: Duration = Duration::from_secs(3600);
/// Beats are never closer than this, whatever the terms.
pub const SHORTEST_INTERVAL: Duration = Duration::from_millis(20);

/// What may prove a one-sided read, besides a fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Proof {
    /// The reader's clock, or the holder's answer where the promise has run out: proofs (A) and (B) of law 4. For machines whose
    /// clocks keep their drift bound.
    #[default]
    Deadline,
    /// Only the holder's answer, proof (B): for machines that may be paused or migrated, whose clocks then show too little time.
    /// Every read waits for one more way there and back.
    Completion,
}

impl Proof {
    fn named(name: &str) -> Result<Self, ConfigError> {
        match name {
            "deadline" => Ok(Self::Deadline),
            "completion" => Ok(Self::Completion),
            _ => Err(ConfigError::Proof),
        }
    }
}

/// The terms as asked for. `None` means: derived from the lease, as the field says.
///
/// Every field can be set by its own name ([`Config::set`]); the names of vLLM's `kv_connector_extra_config` work too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// First time to live of a grant: vLLM's `kv_lease_duration`, 30 s. From 100 ms to 24 h.
    pub lease: Duration,
    /// By how much a renewal extends: two thirds of the lease. From 100 ms to 1 h.
    pub extension: Option<Duration>,
    /// Time to live of blocks that a decode instance holds: vLLM's `decoder_kv_blocks_ttl`, 480 s. Up to 24 h.
    pub decoder_ttl: Duration,
    /// Drift bound of each clock in parts per million, 500. Up to 10 000.
    pub drift_ppm: u32,
    /// Longest way of a message there and back: a fortieth of the extension.
    pub path_budget: Option<Duration>,
    /// Longest time that the reader sends nothing (cases 23, 40): a quarter of the extension.
    pub longest_stall: Option<Duration>,
    /// Longest time between two polls of the holder: a twentieth of the extension.
    pub poll: Option<Duration>,
    /// How many beats in a row may be lost: 2, on vLLM's wire 1, which is what its 5 s in 20 s allow. Up to 3.
    pub losses: Option<u32>,
    /// A reader gives a lease up after so long without an answer: two extensions.
    pub lost_after: Option<Duration>,
    /// A verdict that waits for the holder's answer comes at the latest after: one extension.
    pub verdict_timeout: Option<Duration>,
    /// After a stall a holder drains its queue for at most so long before it expires anything: a twentieth of the extension.
    pub drain_grace: Option<Duration>,
    /// A connection attempt is given up after (case 48): half an extension.
    pub connect_deadline: Option<Duration>,
    /// How long a holder remembers how a lease ended: twice the longest a lease can last without renewal.
    pub tombstone_ttl: Option<Duration>,
    /// A silent peer is forgotten after: vLLM's `engine_ttl`, 3600 s (case 24).
    pub engine_ttl: Duration,
    /// Unanswered renews per peer beyond which beats slow down, 8. From 1 to 16.
    pub max_unanswered: u32,
    /// Keep blocks past their expiry until the reader that was promised them has answered (case 57). Off. Suspends law 2.
    pub hold_until_ack: bool,
    /// What may prove a one-sided read: [`Proof::Deadline`].
    pub proof: Proof,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            extension: None,
            decoder_ttl: Duration::from_secs(480),
            drift_ppm: 500,
            path_budget: None,
            longest_stall: None,
            poll: None,
            losses: None,
            lost_after: None,
            verdict_timeout: None,
            drain_grace: None,
            connect_deadline: None,
            tombstone_ttl: None,
            engine_ttl: Duration::from_secs(3600),
            max_unanswered: 8,
            hold_until_ack: false,
            proof: Proof::Deadline,
        }
    }
}

impl Config {
    /// vLLM's defaults with another lease.
    pub fn with_lease(lease: Duration) -> Self {
        Self { lease, ..Self::default() }
    }

    /// Sets one term by its name: times in seconds, switches as `true` or `false`, the proof as `deadline` or `completion`.
    ///
    /// ```
    /// use lease_proto::config::{Config, ConfigError};
    /// let mut config = Config::default();
    /// config.set("kv_lease_duration", "60")?;
    /// assert_eq!(config.set("kv_lease_durration", "60"), Err(ConfigError::UnknownKey));
    /// # Ok::<(), ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// An unknown name (case 60) or a value that is none; the config is unchanged.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let time = || value.parse::<Duration>().map_err(ConfigError::Time);
        let number = || value.parse::<u32>().map_err(|_| ConfigError::Number);
        let switch = || value.parse::<bool>().map_err(|_| ConfigError::Switch);
        match key {
            "lease" | "kv_lease_duration" => self.lease = time()?,
            "extension" => self.extension = Some(time()?),
            "decoder_ttl" | "decoder_kv_blocks_ttl" => self.decoder_ttl = time()?,
            "drift_ppm" => self.drift_ppm = number()?,
            "path_budget" => self.path_budget = Some(time()?),
            "longest_stall" => self.longest_stall = Some(time()?),
            "poll" => self.poll = Some(time()?),
            "losses" => self.losses = Some(number()?),
            "lost_after" => self.lost_after = Some(time()?),
            "verdict_timeout" => self.verdict_timeout = Some(time()?),
            "drain_grace" => self.drain_grace = Some(time()?),
            "connect_deadline" => self.connect_deadline = Some(time()?),
            "tombstone_ttl" => self.tombstone_ttl = Some(time()?),
            "engine_ttl" => self.engine_ttl = time()?,
            "max_unanswered" => self.max_unanswered = number()?,
            "hold_until_ack" => self.hold_until_ack = switch()?,
            "proof" => self.proof = Proof::named(value)?,
            _ => return Err(ConfigError::UnknownKey),
        }
        Ok(())
    }

    /// Path budget, longest stall and poll, given or as they follow from the extension.
    fn parts(&self, extension: Duration) -> (Duration, Duration, Duration) {
        let part = |asked: Option<Duration>, fraction| asked.unwrap_or(extension.scale(1, fraction));
        (part(self.path_budget, 40), part(self.longest_stall, 4), part(self.poll, 20))
    }

    /// The terms that hold on `wire`.
    ///
    /// # Errors
    /// Which number is out of range, or what to change so that a lease survives the losses and the stall that were asked for.
    /// On vLLM's wire the arithmetic is vLLM's, and only an extension of zero is an error; see [`Terms::warning`].
    pub fn validate(&self, wire: Wire) -> Result<Terms, TermsError> {
        range("lease", self.lease, SHORTEST, LONGEST_LEASE)?;
        range("decoder_ttl", self.decoder_ttl, SHORTEST, LONGEST_LEASE)?;
        count("drift_ppm", self.drift_ppm, 0, 10_000)?;
        count("losses", self.losses.unwrap_or(0), 0, 3)?;
        count("max_unanswered", self.max_unanswered, 1, 16)?;
        let extension = match (wire, self.extension) {
            (_, Some(extension)) => extension,
            (Wire::Native, None) => self.lease.scale(2, 3).max(SHORTEST),
            (Wire::Vllm, None) => vllm_extension(self.lease),
        };
        if extension.is_zero() {
            return Err(TermsError::RenewsNothing { lease: self.lease });
        }
        range("extension", extension, SHORTEST, LONGEST_EXTENSION)?;
        let (path_budget, longest_stall, poll) = self.parts(extension);
        let terms = Terms {
            config: self.clone(),
            wire,
            extension,
            interval: match wire {
                Wire::Native => native_interval(extension, self.drift_ppm, path_budget),
                Wire::Vllm => vllm_interval(self.lease).max(SHORTEST_INTERVAL),
            },
            path_budget,
            longest_stall,
            poll,
        };
        let positive = [
            ("lost_after", terms.lost_after()),
            ("verdict_timeout", terms.verdict_timeout()),
            ("connect_deadline", terms.connect_deadline()),
            ("tombstone_ttl", terms.tombstone_ttl()),
            ("engine_ttl", terms.engine_ttl()),
        ];
        for (name, value) in positive {
            range(name, value, SHORTEST_INTERVAL, Duration::from_secs(7 * 24 * 3600))?;
        }
        range("drain_grace", terms.drain_grace(), Duration::from_nanos(1), extension)?;
        if terms.connect_deadline() >= extension {
            return Err(TermsError::TooLong { name: "connect_deadline", got: terms.connect_deadline(), limit: extension });
        }
        match wire {
            Wire::Native => terms.holds(extension, terms.interval).map(|()| terms),
            Wire::Vllm => Ok(terms),
        }
    }
}

fn range(name: &'static str, got: Duration, least: Duration, most: Duration) -> Result<(), TermsError> {
    if got < least || got > most { Err(TermsError::OutOfRange { name, got, least, most }) } else { Ok(()) }
}

fn count(name: &'static str, got: u32, least: u32, most: u32) -> Result<(), TermsError> {
    if got < least || got > most { Err(TermsError::CountOutOfRange { name, got, least, most }) } else { Ok(()) }
}

/// Why a term could not be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No term has that name.
    #[error("no term has that name")]
    UnknownKey,
    /// Not a time.
    #[error(transparent)]
    Time(TimeError),
    /// Not a number.
    #[error("expected a whole number")]
    Number,
    /// Not a switch.
    #[error("expected true or false")]
    Switch,
    /// Not a proof.
    #[error("expected deadline or completion")]
    Proof,
}

/// Why terms do not hold, and what to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// A time is too short or too long.
    #[error("{name} is {got} s, expected {least} to {most} s")]
    OutOfRange {
        /// The term.
        name: &'static str,
        /// What was asked for.
        got: Duration,
        /// The least that works.
        least: Duration,
        /// The most that works.
        most: Duration,
    },
    /// A count is too small or too large.
    #[error("{name} is {got}, expected {least} to {most}")]
    CountOutOfRange {
        /// The term.
        name: &'static str,
        /// What was asked for.
        got: u32,
        /// The least that works.
        least: u32,
        /// The most that works.
        most: u32,
    },
    /// A time must stay below another one.
    #[error("{name} is {got} s, expected less than the extension of {limit} s")]
    TooLong {
        /// The term.
        name: &'static str,
        /// What was asked for.
        got: Duration,
        /// The extension.
        limit: Duration,
    },
    /// vLLM's arithmetic makes an extension of zero.
    #[error("kv_lease_duration of {lease} s renews nothing on the vllm wire (L * 2 // 3 is 0): raise it to at least 2 s")]
    RenewsNothing {
        /// The lease.
        lease: Duration,
    },
    /// vLLM's arithmetic gives an extension that is shorter than the losses and the stall that it should survive.
    #[error("kv_lease_duration gives an extension of {extension} s, {needed} s are needed: {remedy}")]
    CannotHoldVllm {
        /// What there is.
        extension: Duration,
        /// What the losses, the stall, the path and the poll add up to.
        needed: Duration,
        /// What would do.
        remedy: Remedy,
    },
    /// The extension is shorter than the losses and the stall that it should survive.
    #[error("an extension of {extension} s cannot hold a lease, {needed} s are needed: {remedy}")]
    CannotHold {
        /// What there is.
        extension: Duration,
        /// What the losses, the stall, the path and the poll add up to.
        needed: Duration,
        /// What would do.
        remedy: Remedy,
    },
}

/// What to change so that terms hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The term to raise.
    pub term: &'static str,
    /// To at least this, with what follows from it; `None` if no value would do, since the others grow with it.
    pub raise_to: Option<Duration>,
    /// A longest stall that would do; `None` if not even none would.
    pub stall: Option<Duration>,
}

impl core::fmt::Display for Remedy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match (self.raise_to, self.stall) {
            (Some(least), Some(stall)) => {
                write!(f, "raise {} to at least {least} s, or lower longest_stall to at most {stall} s", self.term)
            }
            (Some(least), None) => write!(f, "raise {} to at least {least} s", self.term),
            (None, Some(stall)) => write!(f, "lower longest_stall to at most {stall} s"),
            (None, None) => f.write_str("lower losses, poll or path_budget"),
        }
    }
}

#[cfg(test)]
mod tests;
