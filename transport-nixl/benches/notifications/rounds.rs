//! Rounds of blocks, and what their ratios say.

use std::time::Duration;

use crate::{
    bare::Bare,
    ours::Ours,
    python::Python,
    traffic::{Metric, block},
};

/// How often and how long.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    /// Of a block.
    pub(crate) seconds: f64,
}

/// A block of each side, one after the other: nanoseconds of a poll or a notification.
#[derive(Clone, Copy, Default)]
pub(crate) struct Round {
    pub(crate) ours: f64,
    pub(crate) bare: f64,
    pub(crate) python: Option<f64>,
}

/// Measures one metric. Each round's order is drawn: whoever comes second may find the machine warmer, or hotter.
pub(crate) fn measure(
    metric: Metric,
    plan: Plan,
    ours: &mut Ours,
    bare: &mut Bare,
    mut python: Option<&mut Python>,
) -> Result<Vec<Round>, String> {
    let time = Duration::try_from_secs_f64(plan.seconds).map_err(|why| format!("--seconds: {why}"))?;
    let mut rounds = Vec::new();
    for _ in 0..plan.rounds {
        let mut round = Round::default();
        for side in order()? {
            match side {
                0 => round.ours = block(ours, metric, time)?,
                1 => round.bare = block(bare, metric, time)?,
                _ => round.python = python.as_mut().map(|python| python.block(metric, time)).transpose()?,
            }
        }
        rounds.push(round);
    }
    Ok(rounds)
}

/// The three sides; ours and the bare one are neighbours, so that what slows the machine slows both.
fn order() -> Result<[u8; 3], String> {
    let mut drawn = [0];
    getrandom::fill(&mut drawn).map_err(|why| why.to_string())?;
    Ok(match drawn[0] % 4 {
        0 => [0, 1, 2],
        1 => [1, 0, 2],
        2 => [2, 0, 1],
        _ => [2, 1, 0],
    })
}

/// The middle one of the rounds' ratios, and how far they lie apart.
#[derive(Clone, Copy)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// Of those rounds that have one.
pub(crate) fn ratio(rounds: &[Round], of: impl Fn(&Round) -> Option<f64>) -> Option<Ratio> {
    let mut ratios: Vec<f64> = rounds.iter().filter_map(of).collect();
    let median = median(&mut ratios);
    Some(Ratio { median, min: *ratios.first()?, max: *ratios.last()? })
}

/// The middle one, or the mean of the middle two; sorts them. NaN if there are none.
pub(crate) fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    let at = |index: usize| figures.get(index).copied().unwrap_or(f64::NAN);
    let half = figures.len() / 2;
    if figures.len() % 2 == 1 { at(half) } else { (at(half.wrapping_sub(1)) + at(half)) / 2.0 }
}
