//! World time, and how a node's clock shows it.

use std::fmt;

use lease_proto::time::{Duration, Instant};

const MILLION: u128 = 1_000_000;

/// Nanoseconds since the world began: nobody in it can read this clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorldTime(u64);

impl WorldTime {
    /// The beginning.
    pub const ZERO: Self = Self(0);

    /// So long after the beginning.
    pub const fn after(since: Duration) -> Self {
        Self(since.as_nanos())
    }

    /// Nanoseconds since the beginning.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// So much later, at most the end of this type.
    pub const fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_nanos()))
    }

    /// How long since `earlier`; zero if that is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Seconds, as short as they can be written.
impl fmt::Display for WorldTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Duration::from_nanos(self.0).fmt(f)
    }
}

/// A node's clock: `start + floor(world * (1 000 000 + ppm) / 1 000 000)`, exactly, also where the drift changes and where the
/// clock stood still.
#[derive(Clone, Debug)]
pub struct NodeClock {
    /// What it showed at world time 0.
    start: u64,
    /// Since when the present rate holds, and what had run by then, in millionths of a nanosecond.
    since: u64,
    run: u128,
    ppm: i64,
    stopped: bool,
    /// The fastest it ever was off, and whether it ever stood still.
    worst: i64,
    stood: bool,
}

impl NodeClock {
    /// A clock that shows `start` when the world begins and runs fast by `ppm`, which must lie above -1 000 000.
    pub fn new(start: Duration, ppm: i64) -> Self {
        Self { start: start.as_nanos(), since: 0, run: 0, ppm, stopped: false, worst: ppm.abs(), stood: false }
    }

    /// What it shows at a time not before its last change.
    pub fn local(&self, at: WorldTime) -> Instant {
        if self.is_perfect() {
            return Instant::from_nanos(self.start.saturating_add(at.0));
        }
        let nanos = self.run_by(at) / MILLION;
        Instant::from_nanos(self.start.saturating_add(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// The smallest world time at which it shows `local` or more, if it goes on as it does now; `None` if it stands still before.
    pub fn world(&self, local: Instant) -> Option<WorldTime> {
        if self.is_perfect() {
            return Some(WorldTime(local.as_nanos().saturating_sub(self.start)));
        }
        let target = u128::from(local.as_nanos().saturating_sub(self.start)) * MILLION;
        let missing = target.saturating_sub(self.run);
        if missing == 0 {
            return Some(WorldTime(self.first_at(target)));
        }
        if self.stopped {
            return None;
        }
        let nanos = self.since.saturating_add(u64::try_from(missing.div_ceil(self.rate())).unwrap_or(u64::MAX));
        Some(WorldTime(nanos))
    }

    /// From `at` on it runs fast by `ppm`.
    pub fn drift(&mut self, at: WorldTime, ppm: i64) {
        self.settle(at);
        self.ppm = ppm;
        self.worst = self.worst.max(ppm.abs());
    }

    /// It stands still from `at` on, or goes on.
    pub fn stop(&mut self, at: WorldTime, stopped: bool) {
        self.settle(at);
        self.stopped = stopped;
        self.stood |= stopped;
    }

    /// Whether it always ran within that bound.
    pub fn keeps_within(&self, ppm: i64) -> bool {
        self.worst <= ppm && !self.stood
    }

    /// It has always shown the world's time, and needs no long division.
    fn is_perfect(&self) -> bool {
        self.worst == 0 && !self.stood
    }

    fn settle(&mut self, at: WorldTime) {
        self.run = self.run_by(at);
        self.since = at.0;
    }

    fn run_by(&self, at: WorldTime) -> u128 {
        if self.stopped { self.run } else { self.run + u128::from(at.0.saturating_sub(self.since)) * self.rate() }
    }

    fn rate(&self) -> u128 {
        MILLION.saturating_add_signed(i128::from(self.ppm)).max(1)
    }

    /// When a reading that lies in the past was first shown, at the present rate.
    fn first_at(&self, target: u128) -> u64 {
        let back = (self.run - target.min(self.run)) / self.rate();
        self.since.saturating_sub(u64::try_from(back).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(nanos: u64) -> WorldTime {
        WorldTime(nanos)
    }

    #[test]
    fn a_clock_drifts_from_the_world_s_beginning() {
        let clock = NodeClock::new(Duration::from_secs(12), 200);
        assert_eq!(clock.local(at(0)).as_nanos(), 12_000_000_000);
        assert_eq!(clock.local(at(10_000_000_000)).as_nanos(), 22_002_000_000);
        assert_eq!(clock.local(at(4_999)).as_nanos(), 12_000_004_999);
        assert_eq!(clock.local(at(5_000)).as_nanos(), 12_000_005_001);
    }

    #[test]
    fn a_stopped_clock_reaches_nothing_and_goes_on_where_it_stood() {
        let mut clock = NodeClock::new(Duration::ZERO, 0);
        clock.stop(at(5), true);
        assert_eq!(clock.local(at(100)).as_nanos(), 5);
        assert_eq!(clock.world(Instant::from_nanos(6)), None);
        clock.stop(at(100), false);
        assert_eq!(clock.world(Instant::from_nanos(6)), Some(at(101)));
    }

    proptest! {
        /// The inverse is the smallest world time whose reading reaches the target, whatever changed before.
        #[test]
        fn a_timeout_fires_at_the_smallest_world_time_that_reaches_it(
            start in 0u64..1 << 50,
            ppms in (-999_999i64..2_000_000, -500i64..500),
            change in 0u64..1 << 40,
            ahead in 1u64..1 << 40,
        ) {
            let mut clock = NodeClock::new(Duration::from_nanos(start), ppms.0);
            clock.drift(at(change), ppms.1);
            let target = clock.local(at(change)).as_nanos() + ahead;
            let world = clock.world(Instant::from_nanos(target)).unwrap();
            prop_assert!(clock.local(world).as_nanos() >= target);
            prop_assert!(clock.local(at(world.0 - 1)).as_nanos() < target);
        }
    }
}
