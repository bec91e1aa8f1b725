//! Pairs of runs, and what their ratios say.

use std::time::Duration;

use super::{
    Ours, Perftest,
    metric::{Figure, Kind, Metric},
};

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Pairs of each metric.
    pub rounds: u32,
    /// Of a run, about, in seconds.
    pub seconds: f64,
}

/// One run of each side, back to back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The transport's figure.
    pub ours: f64,
    /// UCX's, unless it hung.
    pub theirs: Option<f64>,
}

/// What came of a metric: its pairs, or why there are none.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which one.
    pub metric: Metric,
    /// What was measured.
    pub pairs: Result<Vec<Pair>, String>,
}

/// The middle one of the rounds' ratios, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Half of the rounds lie above.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Outcome {
    /// Ours over theirs, of those rounds in which both have a figure.
    pub fn ratio(&self) -> Option<Ratio> {
        let pairs = self.pairs.as_ref().ok()?;
        let mut ratios: Vec<f64> = pairs.iter().filter_map(|pair| Some(pair.ours / pair.theirs?)).collect();
        let median = (!ratios.is_empty()).then(|| median(&mut ratios))?;
        Some(Ratio { median, min: *ratios.first()?, max: *ratios.last()? })
    }

    /// The medians of both sides.
    pub fn medians(&self) -> (Option<f64>, Option<f64>) {
        let pairs = self.pairs.as_deref().unwrap_or_default();
        let middle = |mut figures: Vec<f64>| (!figures.is_empty()).then(|| median(&mut figures));
        let ours = pairs.iter().map(|pair| pair.ours).collect();
        (middle(ours), middle(pairs.iter().filter_map(|pair| pair.theirs).collect()))
    }
}

/// A run that takes longer hangs, or the machine is too busy for it; none is planned for a tenth of it.
const LIMIT: Duration = Duration::from_secs(10);
/// The runs that tell how many turns the planned time has room for start with so many seconds.
const FIRST_SECONDS: f64 = 0.01;
/// UCX's runs in a row that may hang before no more are tried.
const HANGS: u32 = 2;

/// Measures one metric. `theirs` may be missing where nothing but idle polls is measured.
pub fn measure(metric: Metric, ours: &Ours, theirs: Option<&Perftest>, plan: Plan) -> Outcome {
    Outcome { metric, pairs: pairs(&metric, ours, theirs, plan) }
}

fn pairs(metric: &Metric, ours: &Ours, theirs: Option<&Perftest>, plan: Plan) -> Result<Vec<Pair>, String> {
    let late = || format!("kvlease's own run of {metric} did not end within {} s: is the machine busy?", LIMIT.as_secs());
    let own = |times: u64| ours.run(metric, times, times / 10 + 1, LIMIT);
    let mut times = first(metric);
    for seconds in [FIRST_SECONDS, plan.seconds] {
        times = fitting(times, own(times)?.ok_or_else(late)?.seconds, seconds, first(metric));
    }
    let mut hung = if metric.kind == Kind::Idle { HANGS } else { 0 };
    let mut other = || match theirs.filter(|_| hung < HANGS) {
        None => Ok(None),
        Some(theirs) => {
            let figure = theirs.run(metric, times, times / 10 + 1, LIMIT)?;
            hung = if figure.is_some() { 0 } else { hung + 1 };
            Ok::<_, String>(figure)
        }
    };
    let mut pairs = Vec::new();
    for round in 0..plan.rounds {
        // Whoever comes second may find the machine warmer, or hotter.
        let (own, other) = match round % 2 {
            0 => (own(times)?, other()?),
            _ => {
                let other = other()?;
                (own(times)?, other)
            }
        };
        pairs.extend(own.map(|Figure { value, bare, .. }| Pair { ours: value, theirs: bare.or(other) }));
    }
    if pairs.is_empty() { Err(late()) } else { Ok(pairs) }
}

/// Turns that take milliseconds on any machine.
fn first(metric: &Metric) -> u64 {
    match metric.kind {
        Kind::Latency => 50,
        Kind::Rate => 500,
        Kind::Read => 4,
        Kind::Idle => 10_000,
    }
}

/// Turns for so many seconds, if `times` took `took`.
fn fitting(times: u64, took: f64, seconds: f64, least: u64) -> u64 {
    const MOST: u64 = 10_000_000;
    let fitting = times as f64 * seconds / took.max(1e-6);
    (fitting as u64).clamp(least, MOST)
}

/// The middle one, or the mean of the middle two; sorts them. NaN if there are none.
pub(super) fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    let at = |index: usize| figures.get(index).copied().unwrap_or(f64::NAN);
    let half = figures.len() / 2;
    if figures.len() % 2 == 1 { at(half) } else { (at(half.wrapping_sub(1)) + at(half)) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::{super::metric::all, *};

    fn outcome(pairs: &[(f64, Option<f64>)]) -> Outcome {
        let pairs = pairs.iter().map(|&(ours, theirs)| Pair { ours, theirs }).collect();
        Outcome { metric: all()[0], pairs: Ok(pairs) }
    }

    #[test]
    fn the_ratio_is_that_of_the_middle_pair_and_not_of_the_middles() {
        let outcome = outcome(&[(10.0, Some(10.0)), (30.0, Some(20.0)), (20.0, Some(40.0))]);
        assert_eq!(outcome.ratio(), Some(Ratio { median: 1.0, min: 0.5, max: 1.5 }));
        assert_eq!(outcome.medians(), (Some(20.0), Some(20.0)));
    }

    #[test]
    fn rounds_without_the_other_figure_have_no_ratio() {
        assert_eq!(
            outcome(&[(1.0, None), (3.0, Some(2.0)), (5.0, None)]).ratio(),
            Some(Ratio { median: 1.5, min: 1.5, max: 1.5 })
        );
        let alone = outcome(&[(1.0, None), (3.0, None)]);
        assert_eq!((alone.ratio(), alone.medians()), (None, (Some(2.0), None)));
        assert_eq!(Outcome { metric: all()[0], pairs: Err("x".into()) }.ratio(), None);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&mut []).is_nan());
    }

    #[test]
    fn turns_fit_the_time_and_are_bounded() {
        assert_eq!(fitting(100, 0.01, 0.3, 4), 3000);
        assert_eq!(fitting(100, 60.0, 0.3, 4), 4);
        assert_eq!(fitting(100, 0.0, 1e9, 4), 10_000_000);
    }
}
