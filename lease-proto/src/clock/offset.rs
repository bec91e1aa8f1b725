//! The offset between this process's clock and a peer's, as an interval.

use super::MILLION;
use crate::{
    id::ClockId,
    time::{Duration, Instant, PeerInstant},
};

/// Most samples that a window keeps; older ones only widen.
pub const WINDOW: usize = 8;

/// One question and its answer, stamped at both ends (four stamps, as NTP takes them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    /// Whose clock the peer's stamps belong to.
    pub clock: ClockId,
    /// This clock before the question was handed over.
    pub sent: Instant,
    /// The peer's clock after the question arrived.
    pub peer_received: PeerInstant,
    /// The peer's clock before the answer was handed over.
    pub peer_sent: PeerInstant,
    /// This clock after the answer arrived.
    pub received: Instant,
}

/// What became of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Added {
    /// It is in the window.
    Kept,
    /// It is in the window, which forgot those of another clock.
    NewClock,
    /// The peer held the question longer than the round trip took, or stamps of one clock are out of order: ignored.
    NegativeRoundTrip,
    /// It contradicts the others, so one of the clocks jumped: the window is empty now.
    Voided,
}

/// The peer's clock minus this one, in nanoseconds: in the range ±2^64 as measured, more once widened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OffsetInterval {
    low: i128,
    high: i128,
}

impl OffsetInterval {
    /// The least possible offset in nanoseconds.
    pub const fn low(self) -> i128 {
        self.low
    }

    /// The greatest possible offset in nanoseconds.
    pub const fn high(self) -> i128 {
        self.high
    }

    /// The interval's length in nanoseconds: twice what is added to a margin.
    pub const fn width(self) -> u128 {
        self.high.abs_diff(self.low)
    }

    fn widened(self, nanos: i128) -> Self {
        Self { low: self.low.saturating_sub(nanos), high: self.high.saturating_add(nanos) }
    }

    /// What lies in both, if anything does.
    fn and(self, other: Self) -> Option<Self> {
        let both = Self { low: self.low.max(other.low), high: self.high.min(other.high) };
        (both.low <= both.high).then_some(both)
    }
}

/// When a peer's instant is, on this clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalSpan {
    /// It is not before this: the safe end for a reader, which must be done by the peer's deadline.
    pub earliest: Instant,
    /// It is not after this: the safe end for a holder, which must wait the peer's deadline out.
    pub latest: Instant,
}

/// Whether a read of blocks with a deadline on the peer's clock may begin, or counts at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gate {
    /// It may.
    Read,
    /// The deadline may have come, or is closer than the margin.
    TooLate,
    /// There is no deadline, or no offset to compare it by.
    Unknown,
}

impl Gate {
    /// Whether the read may begin or counts. What is unknown does not.
    pub const fn is_read(self) -> bool {
        matches!(self, Self::Read)
    }
}

/// What to do about blocks whose owner names no deadline (case 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AbsentDeadline {
    /// Do not read them.
    #[default]
    Decline,
    /// Read them anyway, as vLLM does.
    Read,
}

impl AbsentDeadline {
    /// The gate for a missing deadline.
    pub const fn gate(self) -> Gate {
        match self {
            Self::Decline => Gate::Unknown,
            Self::Read => Gate::Read,
        }
    }
}

/// The last [`WINDOW`] samples of one peer clock, intersected.
///
/// The offset at a sample's end lies within `midpoint ± ((t3-t0) - (t2-t1)) / 2 + drift * (t3-t0)`, and at any other time
/// within that widened by `drift * age`; `drift` is what two clocks of bound `r` may differ by on one of them, `2r / (1 - r)`.
///
/// Samples are keyed by the clock that stamped them. One of another clock restarts the window, so hand in only what a live
/// session answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OffsetWindow {
    drift_ppm: u32,
    clock: ClockId,
    /// The latest first.
    kept: [Option<Kept>; WINDOW],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kept {
    offset: OffsetInterval,
    at: Instant,
}

impl OffsetWindow {
    /// An empty window for two clocks of drift bound `drift_ppm` each; 1 000 000 or more is taken as 999 999.
    pub const fn new(drift_ppm: u32) -> Self {
        let drift_ppm = if drift_ppm as u64 >= MILLION { 999_999 } else { drift_ppm };
        Self { drift_ppm, clock: ClockId(0), kept: [None; WINDOW] }
    }

    /// Takes a sample in at time `now`, not before its end.
    pub fn add(&mut self, sample: Sample, now: Instant) -> Added {
        let Some(offset) = self.measure(sample) else { return Added::NegativeRoundTrip };
        let kept = Kept { offset, at: sample.received };
        if broken!(OffsetWithoutError) {
            self.kept = [None; WINDOW];
        }
        let others = self.interval(now);
        if self.clock != sample.clock && self.kept != [None; WINDOW] {
            self.restart(sample.clock, Some(kept));
            return Added::NewClock;
        }
        if others.is_some_and(|others| others.and(self.at(kept, now)).is_none()) {
            self.restart(sample.clock, None);
            return Added::Voided;
        }
        let [a, b, c, d, e, f, g, _] = self.kept;
        self.clock = sample.clock;
        self.kept = [Some(kept), a, b, c, d, e, f, g];
        Added::Kept
    }

    /// The offset at time `now`, or `None` of an empty window.
    pub fn interval(&self, now: Instant) -> Option<OffsetInterval> {
        self.kept.iter().flatten().map(|kept| Some(self.at(*kept, now))).reduce(|all, one| all?.and(one?)).flatten()
    }

    /// The clock whose offset this is, or `None` of an empty window.
    pub fn clock(&self) -> Option<ClockId> {
        self.kept.iter().any(Option::is_some).then_some(self.clock)
    }

    /// When `instant` of the peer's clock was or will be on this one, as far as can be said at time `now`: the further away
    /// from `now`, the wider. Ends beyond this clock's range are cut to it. `None` of an empty window.
    ///
    /// A holder that takes a foreign deadline over waits for [`LocalSpan::latest`].
    pub fn to_local(&self, instant: PeerInstant, now: Instant) -> Option<LocalSpan> {
        let OffsetInterval { low, high } = self.interval(now)?;
        // How far ahead the instant lies on the peer's clock, which reads between `now + low` and `now + high`.
        let ahead =
            |offset: i128| i128::from(instant.as_nanos()).saturating_sub(i128::from(now.as_nanos())).saturating_sub(offset);
        let (least, most) = (ahead(high), ahead(low));
        let earliest = if least > 0 { self.shortest(least) } else { self.longest(least) };
        let latest = if most > 0 { self.longest(most) } else { self.shortest(most) };
        let local = |ahead: i128| {
            let nanos = i128::from(now.as_nanos()).saturating_add(ahead).clamp(0, i128::from(u64::MAX));
            Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        };
        Some(LocalSpan { earliest: local(earliest), latest: local(latest) })
    }

    /// Whether the peer's clock certainly still lies before `deadline` when this one shows `now + margin` (case 3).
    ///
    /// Ask at a read's start, with the time that the read may take as margin, and at its end, without one. A deadline that is
    /// absent has its own policy, [`AbsentDeadline`].
    pub fn before(&self, deadline: PeerInstant, margin: Duration, now: Instant) -> Gate {
        match self.to_local(deadline, now) {
            Some(span) if now.saturating_add(margin) < span.earliest => Gate::Read,
            Some(_) => Gate::TooLate,
            None => Gate::Unknown,
        }
    }

    fn measure(&self, sample: Sample) -> Option<OffsetInterval> {
        let nanos = |instant: u64| i128::from(instant);
        let (t0, t3) = (nanos(sample.sent.as_nanos()), nanos(sample.received.as_nanos()));
        let (t1, t2) = (nanos(sample.peer_received.as_nanos()), nanos(sample.peer_sent.as_nanos()));
        let (low, high) = (t2.saturating_sub(t3), t1.saturating_sub(t0)); // midpoint ± half the round trip
        let in_order = t0 <= t3 && t1 <= t2 && low <= high;
        let (low, high) = if broken!(OffsetWithoutError) { (low.midpoint(high), low.midpoint(high)) } else { (low, high) };
        in_order.then(|| OffsetInterval { low, high }.widened(self.drift(t3.saturating_sub(t0))))
    }

    fn at(&self, kept: Kept, now: Instant) -> OffsetInterval {
        kept.offset.widened(self.drift(i128::from(now.as_nanos().abs_diff(kept.at.as_nanos()))))
    }

    fn restart(&mut self, clock: ClockId, first: Option<Kept>) {
        *self = Self { clock, kept: [first, None, None, None, None, None, None, None], ..*self };
    }

    /// The most that the offset can change in `nanos` of one of the clocks, rounded up.
    fn drift(&self, nanos: i128) -> i128 {
        let r = if broken!(OffsetWithoutError) { 0 } else { i128::from(self.drift_ppm) };
        let million = i128::from(MILLION);
        let scaled = nanos.saturating_mul(r.saturating_mul(2));
        let divisor = million.saturating_sub(r);
        scaled.saturating_add(divisor.saturating_sub(1)).checked_div(divisor).unwrap_or(i128::MAX)
    }

    /// At most so long does `nanos` of one clock last on the other, rounded away from zero.
    fn longest(&self, nanos: i128) -> i128 {
        let length = i128::try_from(nanos.unsigned_abs()).unwrap_or(i128::MAX);
        length.saturating_add(self.drift(length)).saturating_mul(nanos.signum())
    }

    /// At least so long does `nanos` of one clock last on the other, rounded towards zero.
    fn shortest(&self, nanos: i128) -> i128 {
        let (r, million) = (i128::from(self.drift_ppm), i128::from(MILLION));
        nanos.saturating_mul(million.saturating_sub(r)).checked_div(million.saturating_add(r)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
