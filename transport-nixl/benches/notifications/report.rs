//! What a person reads, and what a program does.

use serde_json::{Value, json};

use crate::{
    rounds::{Ratio, Round, median, ratio},
    traffic::Metric,
};

/// How many times the bare loop's time this transport may take.
const OVER_BARE: f64 = 1.05;
/// How many times this transport's time NIXL's Python API is expected to take at least.
const UNDER_PYTHON: f64 = 1.5;

/// Times of one round, as ratios.
fn over_bare(round: &Round) -> Option<f64> {
    Some(round.ours / round.bare)
}

fn under_python(round: &Round) -> Option<f64> {
    Some(round.python? / round.ours)
}

/// The medians of ours, the bare loop and Python.
fn medians(rounds: &[Round]) -> [Option<f64>; 3] {
    let middle = |of: fn(&Round) -> Option<f64>| {
        let mut figures: Vec<f64> = rounds.iter().filter_map(of).collect();
        (!figures.is_empty()).then(|| median(&mut figures))
    };
    [middle(|round| Some(round.ours)), middle(|round| Some(round.bare)), middle(|round| round.python)]
}

/// The unit of a metric, and nanoseconds of a poll or a notification in it.
fn unit(metric: Metric) -> (&'static str, fn(f64) -> f64) {
    match metric {
        Metric::Idle => ("ns", |nanos| nanos),
        Metric::Latency(_) => ("us", |nanos| nanos / 1e3),
        Metric::Rate(_) => ("msg/s", |nanos| 1e9 / nanos),
    }
}

/// What stands above the lines.
pub(crate) fn title(lane: &str) -> String {
    let (bare, python) = ("over bare", "under python");
    format!("{lane:14} {:>8} {:>8} {:>8}        {bare:<29} {python}", "ours", "bare", "python")
}

/// One metric.
pub(crate) fn line(metric: Metric, rounds: &[Round]) -> String {
    let (unit, convert) = unit(metric);
    let [ours, bare, python] = medians(rounds).map(|figure| figure.map_or("-".into(), |nanos| short(convert(nanos))));
    let shown = |ratio: Option<Ratio>, target: String, is_met: fn(f64) -> bool| match ratio {
        None => String::new(),
        Some(Ratio { median, min, max }) => {
            let met = if is_met(median) { "" } else { " MISSED" };
            format!("{median:.2} ({min:.2} - {max:.2}) {target}{met}")
        }
    };
    let over = shown(ratio(rounds, over_bare), format!("<= {OVER_BARE}"), |ratio| ratio <= OVER_BARE);
    let under = shown(ratio(rounds, under_python), format!(">= {UNDER_PYTHON}"), |ratio| ratio >= UNDER_PYTHON);
    let line = format!("{:14} {ours:>8} {bare:>8} {python:>8} {unit:5}  {over:29} {under}", metric.to_string());
    line.trim_end().to_owned()
}

/// Three digits that mean something.
fn short(figure: f64) -> String {
    let decimals = if figure >= 100.0 {
        0
    } else if figure >= 10.0 {
        1
    } else {
        2
    };
    format!("{figure:.decimals$}")
}

/// One metric with every round, in nanoseconds of a poll or a notification.
pub(crate) fn object(lane: &str, metric: Metric, rounds: &[Round]) -> Value {
    let [ours, bare, python] = medians(rounds);
    let told = |ratio: Option<Ratio>| ratio.map(|Ratio { median, min, max }| json!({"median": median, "min": min, "max": max}));
    json!({
        "lane": lane,
        "metric": metric.to_string(),
        "unit": "ns",
        "ours": ours,
        "bare": bare,
        "python": python,
        "over_bare": told(ratio(rounds, over_bare)),
        "under_python": told(ratio(rounds, under_python)),
        "targets": {"over_bare": {"at_most": OVER_BARE}, "under_python": {"at_least": UNDER_PYTHON}},
        "rounds": rounds.iter().map(|round| json!([round.ours, round.bare, round.python])).collect::<Vec<_>>(),
    })
}
