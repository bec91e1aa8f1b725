//! What came of a certification: one JSON object per case, and a table to look at.

use serde_json::{Value, json};

use super::run::Lane;

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

/// Cases down, lanes across, then what failed and why.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut lanes: Vec<&Lane> = Vec::new();
    let mut cases: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !lanes.contains(&&outcome.lane) {
            lanes.push(&outcome.lane);
        }
        if !cases.contains(&outcome.case) {
            cases.push(outcome.case);
        }
    }
    lanes.sort();
    let width = cases.iter().map(|case| case.len()).max().unwrap_or(0).max(4);
    let mut text = format!("{:width$}", "case");
    for lane in &lanes {
        text += &format!("  {lane:>8}");
    }
    for case in cases {
        text += &format!("\n{case:width$}");
        for lane in &lanes {
            let outcome = outcomes.iter().find(|outcome| outcome.case == case && outcome.lane == **lane);
            text += &format!("  {:>8}", outcome.map_or("", |outcome| outcome.verdict.word()));
        }
    }
    let count = |word| outcomes.iter().filter(|outcome| outcome.verdict.word() == word).count();
    text += &format!("\n\n{} passed, {} failed, {} skipped\n", count("pass"), count("fail"), count("skip"));
    for word in ["fail", "skip"] {
        for outcome in outcomes.iter().filter(|outcome| outcome.verdict.word() == word) {
            let reason = outcome.verdict.reason().unwrap_or_default();
            text += &format!("{word}: {} on {}: {reason}\n", outcome.case, outcome.lane);
        }
    }
    text
}
