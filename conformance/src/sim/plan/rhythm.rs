//! The rhythm of the beats that a decode instance sends to one prefill instance.

use lease_proto::{config::Terms, wire::Wire};

use super::inputs::seconds;

/// More beats than that take their mean time: jitter evens out.
const LONGEST_SUM: u32 = 20;
/// So many intervals are long.
const LONG: f64 = 1e4;

/// Time between beats: uniform from `interval * (1 - jitter)` to `interval`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rhythm {
    interval: f64,
    jitter: f64,
}

impl Rhythm {
    pub(super) fn of(terms: &Terms) -> Self {
        let jitter = if terms.wire() == Wire::Native { 0.125 } else { 0.0 };
        Self { interval: seconds(terms.interval()), jitter }
    }

    /// Mean time between two beats.
    pub(super) fn mean(self) -> f64 {
        self.interval * (1.0 - self.jitter / 2.0)
    }

    /// Beats, not counting one at the start, in a time that is exponential with that mean: `f / (1 - f)` with
    /// `f = E[exp(-X / mean)]`, the probability that it outlasts one more beat.
    pub(super) fn beats_in(self, mean: f64) -> f64 {
        let (low, high) = (self.interval * (1.0 - self.jitter), self.interval);
        if mean > LONG * high {
            return mean / self.mean() - 0.5; // what it comes to, where `f` is too near to one
        }
        let outlasts = if self.jitter == 0.0 {
            (-high / mean).exp()
        } else {
            ((-low / mean).exp() - (-high / mean).exp()) * mean / (high - low)
        };
        outlasts / (1.0 - outlasts)
    }

    /// The probability that all beats of a window get lost that starts with a beat, which does not count: `E[loss^N]`.
    pub(super) fn all_lost(self, loss: f64, window: f64) -> f64 {
        let (mut sum, mut power, mut reached) = (0.0, 1.0, 1.0);
        for beats in 1.. {
            let next = self.within(beats, window);
            sum += power * (reached - next);
            (power, reached) = (power * loss, next);
            if reached == 0.0 || power == 0.0 {
                break;
            }
        }
        sum
    }

    /// The probability that `beats` intervals in a row take no longer than `window`: a sum of uniform times (Irwin and Hall).
    fn within(self, beats: u32, window: f64) -> f64 {
        let count = f64::from(beats);
        let least = count * self.interval * (1.0 - self.jitter);
        if self.jitter == 0.0 || beats > LONGEST_SUM {
            // A beat that comes together with the end rescues; times are nanoseconds.
            return f64::from(u8::from(count * self.mean() <= window + 1e-9));
        }
        let x = (window - least) / (self.interval * self.jitter);
        if x >= count {
            return 1.0;
        }
        let (mut sum, mut term) = (0.0, 1.0 / (1..=beats).map(f64::from).product::<f64>());
        for k in (0..=beats).take_while(|k| f64::from(*k) <= x) {
            sum += term * (x - f64::from(k)).powi(beats as i32);
            term *= -(count - f64::from(k)) / f64::from(k + 1);
        }
        sum.clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NATIVE: Rhythm = Rhythm { interval: 4.0, jitter: 0.125 };
    const VLLM: Rhythm = Rhythm { interval: 5.0, jitter: 0.0 };

    #[test]
    fn a_window_holds_as_many_beats_as_fit() {
        assert!((VLLM.all_lost(0.1, 20.0) - 0.1f64.powi(4)).abs() < 1e-12);
        assert_eq!(VLLM.all_lost(0.1, 4.9), 1.0);
        assert!((NATIVE.all_lost(0.1, 20.5) - 0.1f64.powi(5)).abs() < 1e-12);
        // Between five long and six short intervals it depends on the jitter.
        let sometimes = NATIVE.all_lost(0.1, 22.5);
        assert!(sometimes < 0.1f64.powi(5) && sometimes > 0.1f64.powi(6), "{sometimes}");
        assert_eq!(NATIVE.all_lost(0.0, 20.0), 0.0);
    }

    #[test]
    fn a_sum_of_uniform_times_is_symmetric() {
        for beats in 1..=LONGEST_SUM {
            let middle = f64::from(beats) * NATIVE.mean();
            assert!((NATIVE.within(beats, middle) - 0.5).abs() < 1e-6, "{beats}");
            let (early, late) = (NATIVE.within(beats, middle - 0.1), NATIVE.within(beats, middle + 0.1));
            assert!((early + late - 1.0).abs() < 1e-6, "{beats}: {early} {late}");
        }
    }

    #[test]
    fn an_exponential_time_holds_its_share_of_beats() {
        let long = NATIVE.beats_in(1e6) * NATIVE.mean() / 1e6;
        assert!((long - 1.0).abs() < 1e-4, "{long}");
        assert!((VLLM.beats_in(5.0) - 1.0 / (1f64.exp() - 1.0)).abs() < 1e-12);
    }
}
