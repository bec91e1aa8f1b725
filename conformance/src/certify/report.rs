//! What came of a certification: one JSON object per case, and a table to look at.

use serde_json::{Value, json};

use super::run::Lane;
use crate::engine::Kinds;

/// What came of one case on one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    Pass,
    /// It does not, and why.
    Fail(String),
    /// It was not tried, and why.
    Skip(String),
}

impl Verdict {
    /// `pass`, `fail` or `skip`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail(_) => "fail",
            Self::Skip(_) => "skip",
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Self::Pass => None,
            Self::Fail(reason) | Self::Skip(reason) => Some(reason),
        }
    }
}

/// One case on one lane.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The case's id.
    pub case: &'static str,
    /// What it requires.
    pub requires: &'static str,
    /// Where it was tried.
    pub lane: Lane,
    /// What came of it.
    pub verdict: Verdict,
    /// How long it took; says nothing about the transport.
    pub took: std::time::Duration,
}

impl Outcome {
    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        let mut object = json!({
            "case": self.case,
            "transport": self.lane.transport(),
            "lane": self.lane.lane(),
            "blocks": self.lane.memory().blocks.to_string(),
            "landing": self.lane.memory().landing.to_string(),
            "verdict": self.verdict.word(),
            "requires": self.requires,
            "seconds": (self.took.as_secs_f64() * 1000.0).round() / 1000.0,
        });
        if let Some(reason) = self.verdict.reason() {
            object["reason"] = reason.into();
        }
        object
    }
}

/// A table for each pair of kinds of memory, then what failed and why.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut pairs: Vec<Kinds> = Vec::new();
    for outcome in outcomes {
        if !pairs.contains(&outcome.lane.memory()) {
            pairs.push(outcome.lane.memory());
        }
    }
    let grids = pairs.iter().map(|pair| grid(*pair, outcomes.iter().filter(|outcome| outcome.lane.memory() == *pair).collect()));
    let mut text = grids.collect::<Vec<String>>().join("\n\n");
    let count = |word| outcomes.iter().filter(|outcome| outcome.verdict.word() == word).count();
    text += &format!("\n\n{} passed, {} failed, {} skipped\n", count("pass"), count("fail"), count("skip"));
    for word in ["fail", "skip"] {
        text += &reasons(word, outcomes);
    }
    text
}

/// Cases down, lanes across.
fn grid(memory: Kinds, outcomes: Vec<&Outcome>) -> String {
    let (mut lanes, mut cases): (Vec<&Lane>, Vec<&str>) = (Vec::new(), Vec::new());
    for outcome in &outcomes {
        if !lanes.contains(&&outcome.lane) {
            lanes.push(&outcome.lane);
        }
        if !cases.contains(&outcome.case) {
            cases.push(outcome.case);
        }
    }
    let corner = if memory == Kinds::HOST { "case".to_owned() } else { memory.to_string() };
    let width = cases.iter().map(|case| case.len()).max().unwrap_or(0).max(corner.len());
    let mut text = format!("{corner:width$}");
    for lane in &lanes {
        text += &format!("  {:>8}", lane.name());
    }
    for case in cases {
        text += &format!("\n{case:width$}");
        for lane in &lanes {
            let outcome = outcomes.iter().find(|outcome| outcome.case == case && outcome.lane == **lane);
            text += &format!("  {:>8}", outcome.map_or("", |outcome| outcome.verdict.word()));
        }
    }
    text
}

/// Why what failed or was skipped did: a line each, or one where a lane has nothing else to tell.
fn reasons(word: &str, outcomes: &[Outcome]) -> String {
    let (mut text, mut told): (String, Vec<&Lane>) = (String::new(), Vec::new());
    for outcome in outcomes.iter().filter(|outcome| outcome.verdict.word() == word) {
        if told.contains(&&outcome.lane) {
            continue;
        }
        let (lane, reason) = (&outcome.lane, outcome.verdict.reason().unwrap_or_default());
        let of_lane = || outcomes.iter().filter(|other| other.lane == *lane);
        let case = if of_lane().count() > 1 && of_lane().all(|other| other.verdict == outcome.verdict) {
            told.push(lane);
            "all cases"
        } else {
            outcome.case
        };
        text += &format!("{word}: {case} on {lane}: {reason}\n");
    }
    text
}
