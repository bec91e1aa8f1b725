//! What can be calculated, and the shortest lease that is safe.

use lease_proto::{
    config::{LONGEST_LEASE, SHORTEST},
    time::Duration,
    wire::Wire,
};

use super::{
    costs::Costs,
    expiry::{Expiry, Silence},
    inputs::{Inputs, seconds},
    rhythm::Rhythm,
    sizes::Sizes,
};

const DAY: f64 = 86_400.0;
const YEAR: f64 = 365.25 * DAY;

/// What a fleet costs and risks. Rates are per second and for one prefill instance unless they say otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Forecast {
    /// Messages and bytes that come in: renewals and completions.
    pub messages_in: f64,
    /// Bytes that come in.
    pub bytes_in: f64,
    /// Messages that go out: answers.
    pub messages_out: f64,
    /// Bytes that go out.
    pub bytes_out: f64,
    /// Datagrams of one beat of one decode instance.
    pub datagrams_per_beat: f64,
    /// Leases renewed.
    pub renewals: f64,
    /// Cores that leases take.
    pub cpu: f64,
    /// Leases held.
    pub held: f64,
    /// Leases that one decode instance has in the whole fleet.
    pub of_one_decoder: f64,
    /// Bytes that are held for it in the whole fleet.
    pub bytes_of_one_decoder: f64,
    /// Seconds until a lease is free again when its decode instance dies.
    pub reclaim_mean: f64,
    /// At most.
    pub reclaim_worst: f64,
    /// Bytes held for a dead decode instance, times the seconds.
    pub byte_seconds: f64,
    /// Probability that a request's lease runs out although its decode instance lives.
    pub false_expiry: f64,
    /// How often that happens in the whole fleet in a day.
    pub false_per_day: f64,
}

impl Forecast {
    pub(super) fn of(inputs: &Inputs, costs: &Costs) -> Self {
        let traffic = Traffic::of(inputs);
        let sizes = Sizes::of(inputs);
        let loss = inputs.asked.loss;
        let arrive = 1.0 - loss;
        let answered = f64::from(u8::from(inputs.asked.wire == Wire::Native));
        let expiry = Expiry::of(inputs);
        let silence = expiry.silence();
        let false_expiry = expiry.false_expiry(&silence);
        // On vLLM's wire a completion that gets lost is not repeated: its lease runs out.
        let forgotten = if inputs.asked.wire == Wire::Vllm { inputs.rate * loss * silence.mean } else { 0.0 };
        let held = inputs.requests + forgotten;
        // They are halfway there, on average.
        let reclaim_mean = silence.mean * (inputs.requests + forgotten / 2.0) / held;
        let of_one_decoder = held / f64::from(inputs.asked.decoders);
        let bytes_of_one_decoder = of_one_decoder * inputs.asked.request_bytes as f64;
        let renewals = traffic.named * arrive;
        Self {
            messages_in: traffic.renews + traffic.completes,
            bytes_in: traffic.renews * sizes.renew + traffic.named * sizes.per_lease + traffic.completes * sizes.complete,
            messages_out: answered * arrive * (traffic.renews + traffic.completes),
            bytes_out: answered * arrive * (traffic.renews * sizes.renewed + traffic.completes * sizes.completed),
            datagrams_per_beat: traffic.datagrams,
            renewals,
            cpu: costs.cores(inputs.rate_per_prefill(), renewals, inputs.rate_per_prefill()),
            held: held / f64::from(inputs.asked.prefills),
            of_one_decoder,
            bytes_of_one_decoder,
            reclaim_mean,
            reclaim_worst: silence.worst,
            byte_seconds: bytes_of_one_decoder * reclaim_mean,
            false_expiry,
            false_per_day: false_expiry * inputs.rate * DAY,
        }
    }
}

/// What one prefill instance is sent per second.
struct Traffic {
    renews: f64,
    /// Leases that the renews name.
    named: f64,
    completes: f64,
    datagrams: f64,
}

impl Traffic {
    fn of(inputs: &Inputs) -> Self {
        let rhythm = Rhythm::of(&inputs.terms);
        let (mean, hold, pairs) = (inputs.per_pair(), inputs.hold, f64::from(inputs.asked.decoders));
        let fit = Sizes::of(inputs).fit.max(1.0);
        let (rate, alone) = (mean / hold, (-mean).exp());
        // A pair beats while it has leases. A busy time is nearly exponential where it is short and where it is long; its first
        // beat is the renewal with which its first lease is tracked.
        let busy = mean.exp_m1() / rate;
        let beats = if busy.is_finite() { rate * alone * rhythm.beats_in(busy) } else { 1.0 / rhythm.mean() };
        let datagrams = datagrams(mean, fit);
        let per_lease = 1.0 + alone * rhythm.beats_in(hold) + (1.0 - alone) * hold / rhythm.mean();
        // On the native wire a completion is repeated until it is answered.
        let arrive = if inputs.asked.wire == Wire::Native { (1.0 - inputs.asked.loss).powi(2) } else { 1.0 };
        Self {
            renews: pairs * (rate + beats * datagrams),
            named: pairs * rate * per_lease,
            completes: pairs * rate / arrive,
            datagrams,
        }
    }
}

/// Datagrams that a beat for a Poisson number of leases takes, where there is one at least.
fn datagrams(mean: f64, fit: f64) -> f64 {
    let (width, mut sum, mut weight) = (10.0 * mean.sqrt() + 10.0, 0.0, 0.0);
    let mode = mean.floor().max(1.0);
    let mut add = |leases: f64, chance: f64| {
        sum += chance * (leases / fit).ceil();
        weight += chance;
    };
    // Relative to the most likely number, upwards and downwards from there.
    let (mut leases, mut chance) = (mode, 1.0);
    while leases < mode + width {
        add(leases, chance);
        leases += 1.0;
        chance *= mean / leases;
    }
    (leases, chance) = (mode, 1.0);
    while leases > (mode - width).max(1.0) {
        chance *= leases / mean;
        leases -= 1.0;
        add(leases, chance);
    }
    sum / weight
}

/// One lease duration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The lease.
    pub lease: Duration,
    /// Seconds until all is free again after a crash, at most.
    pub reclaim_worst: f64,
    /// Seconds until a lease is, on average.
    pub reclaim_mean: f64,
    /// Probability of a false expiry, per request.
    pub false_expiry: f64,
    /// False expiries per year in the whole fleet.
    pub per_year: f64,
}

impl Point {
    /// The lease in seconds.
    pub fn lease_seconds(&self) -> f64 {
        seconds(self.lease)
    }

    fn of(inputs: &Inputs) -> Self {
        let expiry = Expiry::of(inputs);
        let silence @ Silence { mean, worst, .. } = expiry.silence();
        let false_expiry = expiry.false_expiry(&silence);
        let lease = inputs.terms.lease();
        Self { lease, reclaim_worst: worst, reclaim_mean: mean, false_expiry, per_year: false_expiry * inputs.rate * YEAR }
    }
}

/// How reclaim time and false expiry depend on the lease; terms that are not given follow from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// From the shortest lease whose terms hold.
    pub points: Vec<Point>,
    /// The probability of a false expiry that makes as many a year as the target.
    pub target: f64,
    /// The longest lease that was looked at: the longest whose terms hold, if there is one.
    pub longest: Option<Duration>,
    /// The lease that was asked for.
    pub chosen: Point,
    /// The shortest lease whose terms hold and that runs out falsely no more often than the target, if there is one.
    pub safe: Option<Point>,
}

impl Curve {
    pub(super) fn of(inputs: &Inputs) -> Self {
        let at = |lease| inputs.with_lease(lease).map(|inputs| Point::of(&inputs));
        let good = |lease| at(lease).filter(|point| point.per_year <= inputs.asked.target);
        let grid = Grid::of(inputs.asked.wire);
        let mut points: Vec<Point> = grid.ladder().filter_map(at).collect();
        let longest = points.last().map(|last| grid.last_that_holds(last.lease, |lease| inputs.with_lease(lease).is_some()));
        points.extend(longest.filter(|longest| points.last().is_some_and(|last| last.lease < *longest)).and_then(at));
        let passing = points.iter().find(|point| point.per_year <= inputs.asked.target);
        let safe = passing.and_then(|passing| {
            let below = grid.ladder().take_while(|lease| *lease < passing.lease).last().unwrap_or(Duration::ZERO);
            let (mut low, mut high) = (grid.steps(below), grid.steps(passing.lease));
            while low + 1 < high {
                let middle = low.midpoint(high);
                if good(grid.lease(middle)).is_some() { high = middle } else { low = middle }
            }
            // vLLM's whole numbers make steps back.
            (high.saturating_sub(STEPS_BACK)..=high).find_map(|steps| good(grid.lease(steps)))
        });
        Self { points, target: inputs.asked.target / inputs.rate / YEAR, longest, chosen: Point::of(inputs), safe }
    }
}

/// vLLM's interval is a sixth of the lease in whole seconds: leases up to so many seconds shorter may do as well.
const STEPS_BACK: u64 = 12;
/// Round numbers, times ten.
const ROUND: [u64; 10] = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80];

/// Leases that are worth looking at: tenths of seconds, on vLLM's wire seconds.
pub(super) struct Grid(u64);

impl Grid {
    pub(super) fn of(wire: Wire) -> Self {
        Self(if wire == Wire::Native { SHORTEST.as_nanos() } else { 1_000_000_000 })
    }

    fn lease(&self, steps: u64) -> Duration {
        Duration::from_nanos(steps.saturating_mul(self.0)).min(LONGEST_LEASE)
    }

    fn steps(&self, lease: Duration) -> u64 {
        lease.as_nanos() / self.0
    }

    /// Every one.
    pub(super) fn all(&self) -> impl Iterator<Item = Duration> {
        (1..=self.steps(LONGEST_LEASE)).map(|steps| self.lease(steps))
    }

    /// The longest lease for which something holds that holds for `from` and, beyond some lease, no more.
    fn last_that_holds(&self, from: Duration, holds: impl Fn(Duration) -> bool) -> Duration {
        let (mut low, mut high) = (self.steps(from), self.steps(LONGEST_LEASE) + 1);
        while low + 1 < high {
            let middle = low.midpoint(high);
            if holds(self.lease(middle)) { low = middle } else { high = middle }
        }
        self.lease(low)
    }

    /// From the shortest to the longest, in numbers that people choose.
    fn ladder(&self) -> impl Iterator<Item = Duration> {
        let tens = std::iter::successors(Some(1u64), |power| power.checked_mul(10));
        let (all, last) = (tens.flat_map(|power| ROUND.map(|tenths| tenths * power)), self.steps(LONGEST_LEASE));
        all.filter(|tenths| tenths % 10 == 0)
            .map(|tenths| tenths / 10)
            .take_while(move |steps| *steps <= last)
            .map(|steps| self.lease(steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_takes_as_many_datagrams_as_its_leases_need() {
        assert_eq!(datagrams(0.001, 1.0).round(), 1.0);
        assert_eq!(datagrams(100.0, 1000.0), 1.0);
        assert!((datagrams(100.0, 1.0) - 100.0).abs() < 1e-6);
        let many = datagrams(10_000.0, 100.0);
        assert!((many - 100.5).abs() < 0.01, "{many}");
    }
}
