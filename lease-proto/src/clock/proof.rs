//! Proof (A) of law 4.

use super::MILLION;
use crate::time::{Duration, Instant};

/// The reader's instant strictly before which a renewal answered with `granted` still protects a lease:
/// `sent + floor(granted * (1 - reader) / (1 + holder))`, at most [`Instant::MAX`].
///
/// `sent` is the reader's clock BEFORE the first hand-over of the renew, so the holder promised `granted` no earlier than that.
/// The promise ends when the HOLDER's clock has run `granted`, sooner in true time if it runs fast: `granted / (1 + holder)`.
/// The reader measures that on ITS clock, which shows less of it if it runs slow: times `(1 - reader)`. Either drift alone
/// would spoil a proof that only knew the other, so both count.
///
/// Whole nanoseconds: rounded down here, and the holder's own reading, up to 1 ns early, is paid for by the message's flight.
///
/// Drift bounds in ppm; from 1 000 000 on there is no proof, and the result is `sent` itself.
///
/// ```
/// use lease_proto::{clock::proof_deadline, time::{Duration, Instant}};
/// let deadline = proof_deadline(Instant::from_nanos(0), Duration::from_secs(20), 500, 500);
/// assert_eq!(deadline.as_nanos(), 19_980_009_995); // 20 ms are given up to drift
/// ```
pub fn proof_deadline(sent: Instant, granted: Duration, reader_ppm: u32, holder_ppm: u32) -> Instant {
    let (reader, holder) = (u64::from(reader_ppm), u64::from(holder_ppm));
    if holder >= MILLION {
        return sent;
    }
    let holder = if broken!(DriftOnce) { 0 } else { holder };
    sent.saturating_add(granted.scale(MILLION.saturating_sub(reader), MILLION.saturating_add(holder)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CORNERS: [i64; 4] = [0, 1, 500, 999_999];

    /// Ideal clocks: the deadline lies before the holder's end for every pair of drifts within the bounds, and one nanosecond
    /// more would lie behind it for the worst pair.
    #[test]
    fn the_deadline_is_the_last_nanosecond_that_is_safe() {
        for granted in [0, 1, 2, 999_999, 1_000_001, 20_000_000_000, 480_000_000_000, 1 << 62] {
            for (reader_bound, holder_bound) in CORNERS.iter().flat_map(|reader| CORNERS.map(|holder| (*reader, holder))) {
                let deadline =
                    proof_deadline(Instant::ZERO, Duration::from_nanos(granted), reader_bound as u32, holder_bound as u32);
                // The reader's clock shows granted * (1 + reader) / (1 + holder) when the holder's has run `granted`.
                let safe = |deadline: u64, reader: i64, holder: i64| {
                    u128::from(deadline) * (1_000_000 + holder) as u128 <= u128::from(granted) * (1_000_000 + reader) as u128
                };
                for reader in [-reader_bound, 0, reader_bound] {
                    for holder in [-holder_bound, 0, holder_bound] {
                        assert!(safe(deadline.as_nanos(), reader, holder), "{granted} {reader} {holder}");
                    }
                }
                assert!(!safe(deadline.as_nanos() + 1, -reader_bound, holder_bound), "{granted} {reader_bound} {holder_bound}");
            }
        }
    }

    #[test]
    fn nothing_overflows_and_no_bound_is_no_proof() {
        let sent = Instant::from_nanos(7);
        for (reader, holder) in [(1_000_000, 0), (0, 1_000_000), (u32::MAX, 0), (0, u32::MAX), (u32::MAX, u32::MAX)] {
            assert_eq!(proof_deadline(sent, Duration::MAX, reader, holder), sent);
        }
        assert_eq!(proof_deadline(sent, Duration::MAX, 0, 0), Instant::MAX);
        assert_eq!(proof_deadline(Instant::MAX, Duration::MAX, 500, 500), Instant::MAX);
        assert_eq!(proof_deadline(sent, Duration::ZERO, 0, 0), sent);
    }

    /// A clock that shows whole nanoseconds, read at a true time in picoseconds.
    #[derive(Clone, Copy, Debug)]
    struct Clock {
        ppm: i64,
        phase: u128,
    }

    impl Clock {
        const UNIT: u128 = 1_000_000_000; // picoseconds to nanoseconds, times a million

        fn rate(self) -> u128 {
            (1_000_000 + self.ppm) as u128
        }

        fn read(self, picos: u128) -> u64 {
            ((picos * self.rate() + self.phase) / Self::UNIT) as u64
        }

        /// The first true time at which it shows `nanos`.
        fn shows(self, nanos: u64) -> u128 {
            (u128::from(nanos) * Self::UNIT).saturating_sub(self.phase).div_ceil(self.rate())
        }
    }

    proptest! {
        /// Clocks as they are: whatever their drift, their phase and the flight, a reading before the deadline was taken
        /// before the holder's clock showed the lease's end, and little over 2 ns besides the flight are given away.
        #[test]
        fn a_reading_before_the_deadline_precedes_the_end(
            bounds in (0u32..2000, 0u32..2000),
            corners in (0usize..3, 0usize..3),
            phases in (0u128..Clock::UNIT, 0u128..Clock::UNIT),
            granted in prop_oneof![1u64..5000, 1u64..500_000_000_000],
            sent_at in 0u128..1_000_000_000_000,
            flight in prop_oneof![Just(1000u128), 1000u128..1_000_000_000],
        ) {
            let drift = |bound: u32, corner: usize| [-i64::from(bound), 0, i64::from(bound)][corner];
            let reader = Clock { ppm: drift(bounds.0, corners.0), phase: phases.0 };
            let holder = Clock { ppm: drift(bounds.1, corners.1), phase: phases.1 };
            let sent = Instant::from_nanos(reader.read(sent_at));
            let deadline = proof_deadline(sent, Duration::from_nanos(granted), bounds.0, bounds.1);
            let end = holder.shows(holder.read(sent_at + flight) + granted);
            // The last true time at which the reader's clock shows less than the deadline, if there is one after sending.
            let last = reader.shows(deadline.as_nanos()).saturating_sub(1);
            prop_assert!(last < end, "read at {last} ps, end at {end} ps");
            if (corners.0, corners.1) == (0, 2) {
                prop_assert!(end <= last + flight + 2010, "end {end} ps, last {last} ps: not tight");
            }
        }
    }
}
