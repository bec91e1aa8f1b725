//! Time as the protocol is told it: whole nanoseconds, read by the caller.
//!
//! [`Instant`] belongs to the clock of this process, [`PeerInstant`] to that of another one. They are two types, because
//! no decision may compare them except through an offset interval ([`crate::clock`], law 7, cases 2 and 3):
//!
//! ```compile_fail
//! # use lease_proto::time::{Instant, PeerInstant};
//! let late = Instant::from_nanos(1) < PeerInstant::from_nanos(2);
//! ```
//!
//! Infinity and NaN cannot be written (case 51), and no operation here can panic: all saturate or return `None`.

use core::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// A length of time in whole nanoseconds, up to 584 years.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Duration(#[serde(with = "postcard::fixint::le")] u64);

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest length that can be written.
    pub const MAX: Self = Self(u64::MAX);

    /// A length in nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A length in milliseconds; saturates at [`Duration::MAX`].
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A length in seconds; saturates at [`Duration::MAX`].
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(NANOS_PER_SEC))
    }

    /// This length in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whether this is no time at all.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, at most [`Duration::MAX`].
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, at least zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The product, at most [`Duration::MAX`].
    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// `floor(self * numerator / denominator)` without intermediate overflow; saturates. A zero denominator counts as one.
    pub const fn scale(self, numerator: u64, denominator: u64) -> Self {
        let denominator = if denominator == 0 { 1 } else { denominator };
        // 64 x 64 bits fit 128, and the divisor is not zero: neither step can fail.
        #[allow(clippy::arithmetic_side_effects)]
        let scaled = self.0 as u128 * numerator as u128 / denominator as u128;
        if scaled > u64::MAX as u128 { Self::MAX } else { Self(scaled as u64) }
    }
}

impl From<Duration> for core::time::Duration {
    fn from(duration: Duration) -> Self {
        Self::from_nanos(duration.0)
    }
}

impl TryFrom<core::time::Duration> for Duration {
    type Error = TimeError;

    fn try_from(duration: core::time::Duration) -> Result<Self, TimeError> {
        u64::try_from(duration.as_nanos()).map(Self).map_err(|_| TimeError::TooLarge)
    }
}

macro_rules! instant {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(#[serde(with = "postcard::fixint::le")] u64);

        impl $name {
            /// The first instant of the clock.
            pub const ZERO: Self = Self(0);
            /// The last instant of the clock.
            pub const MAX: Self = Self(u64::MAX);

            /// The instant this many nanoseconds after the clock's start.
            pub const fn from_nanos(nanos: u64) -> Self {
                Self(nanos)
            }

            /// Nanoseconds since the clock's start.
            pub const fn as_nanos(self) -> u64 {
                self.0
            }

            /// The instant `duration` later, at most the clock's last one.
            pub const fn saturating_add(self, duration: Duration) -> Self {
                Self(self.0.saturating_add(duration.0))
            }

            /// The instant `duration` earlier, at least the clock's first one.
            pub const fn saturating_sub(self, duration: Duration) -> Self {
                Self(self.0.saturating_sub(duration.0))
            }

            /// Time since `earlier` on the same clock; zero if it lies ahead.
            pub const fn saturating_since(self, earlier: Self) -> Duration {
                Duration(self.0.saturating_sub(earlier.0))
            }
        }

        impl FromStr for $name {
            type Err = TimeError;

            fn from_str(text: &str) -> Result<Self, TimeError> {
                parse(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_seconds(self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({}s)"), self)
            }
        }
    };
}

instant!(
    /// A point on THIS process's clock. Has no meaning anywhere else.
    Instant
);
instant!(
    /// A point on ANOTHER process's clock, as it was told on the wire.
    PeerInstant
);

impl FromStr for Duration {
    type Err = TimeError;

    /// Reads seconds with up to nine decimals, exactly (`"30"`, `"0.25"`, `"30.000000001"`).
    fn from_str(text: &str) -> Result<Self, TimeError> {
        parse(text).map(Self)
    }
}

impl fmt::Display for Duration {
    /// Seconds in the shortest decimal that reads back to the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_seconds(self.0, f)
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}s")
    }
}

/// Why a text is not a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// Not digits, or digits, a point and up to nine digits.
    #[error("expected seconds as digits with up to nine decimals, such as 30 or 0.25")]
    Malformed,
    /// More than 2^64 - 1 nanoseconds.
    #[error("expected at most 18446744073.709551615 seconds")]
    TooLarge,
}

fn parse(text: &str) -> Result<u64, TimeError> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > 9 {
        return Err(TimeError::Malformed);
    }
    let number = |part: &str| part.parse::<u64>().map_err(|_| TimeError::TooLarge);
    let scale = (decimals.len()..9).fold(1u64, |scale, _| scale.saturating_mul(10));
    number(whole)?
        .checked_mul(NANOS_PER_SEC)
        .and_then(|nanos| nanos.checked_add(number(decimals).ok()?.checked_mul(scale)?))
        .ok_or(TimeError::TooLarge)
}

fn write_seconds(nanos: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (whole, mut rest) = (nanos / NANOS_PER_SEC, nanos % NANOS_PER_SEC);
    write!(f, "{whole}")?;
    if rest == 0 {
        return Ok(());
    }
    let mut width = 9usize;
    while rest.is_multiple_of(10) {
        rest /= 10;
        width = width.saturating_sub(1);
    }
    write!(f, ".{rest:0width$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::ToString;

    #[test]
    fn reads_seconds_exactly_and_writes_the_shortest_form() {
        for (text, nanos) in
            [("0", 0), ("30", 30_000_000_000), ("30.000000001", 30_000_000_001), ("0.25", 250_000_000), ("0.010", 10_000_000)]
        {
            assert_eq!(text.parse::<Duration>().unwrap().as_nanos(), nanos);
        }
        assert_eq!(Duration::from_nanos(30_000_000_001).to_string(), "30.000000001");
        assert_eq!(Instant::from_nanos(10_000_000).to_string(), "0.01");
        assert_eq!(Duration::from_secs(12).to_string(), "12");
    }

    #[test]
    fn refuses_what_is_no_time() {
        for text in ["", ".", "1.", ".5", "-1", "+1", "1e3", "inf", "NaN", "1.0000000001", " 1", "1_0"] {
            assert_eq!(text.parse::<Duration>(), Err(TimeError::Malformed), "{text:?}");
        }
        for text in ["18446744073.709551616", "99999999999999999999"] {
            assert_eq!(text.parse::<Duration>(), Err(TimeError::TooLarge), "{text:?}");
        }
        assert_eq!("18446744073.709551615".parse(), Ok(Duration::MAX));
    }

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Instant::MAX.saturating_add(Duration::from_secs(1)), Instant::MAX);
        assert_eq!(Instant::ZERO.saturating_sub(Duration::from_secs(1)), Instant::ZERO);
        assert_eq!(Instant::ZERO.saturating_since(Instant::MAX), Duration::ZERO);
        assert_eq!(Duration::MAX.scale(3, 2), Duration::MAX);
        assert_eq!(Duration::MAX.scale(1, 0), Duration::MAX);
        assert_eq!(Duration::from_nanos(10).scale(2, 3), Duration::from_nanos(6));
    }
}
