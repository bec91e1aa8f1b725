//! What a trace says must come, and must not.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value};

use crate::sim::{
    line::Line,
    time::WorldTime,
    trace::{Trace, What},
};

/// The expectations of a trace that are still open.
pub(super) struct Expectations<'t> {
    /// By the time at which they fail, then line.
    wanted: BTreeMap<(WorldTime, usize), Wanted<'t>>,
    unwanted: VecDeque<Unwanted<'t>>,
}

struct Wanted<'t> {
    from: WorldTime,
    event: &'t Map<String, Value>,
}

struct Unwanted<'t> {
    line: usize,
    until: Option<WorldTime>,
    event: &'t Map<String, Value>,
}

type Tell<'a> = &'a mut dyn FnMut(&Line<'_>);

impl<'t> Expectations<'t> {
    pub(super) fn of(trace: &'t Trace) -> Self {
        let mut expectations = Self { wanted: BTreeMap::new(), unwanted: VecDeque::new() };
        for line in &trace.lines {
            match &line.what {
                What::Expect { at, within, event } => {
                    expectations.wanted.insert((at.saturating_add(*within), line.number), Wanted { from: *at, event });
                }
                What::Never { until, event } => {
                    expectations.unwanted.push_back(Unwanted { line: line.number, until: *until, event });
                }
                What::Do { .. } | What::Link { .. } => {}
            }
        }
        expectations
    }

    /// Something happened.
    pub(super) fn see(&mut self, line: &Line<'_>, tell: Tell<'_>) {
        self.wanted.retain(|_, wanted| line.at < wanted.from || !is(line, wanted.event));
        self.unwanted.retain(|unwanted| {
            let came = unwanted.until.is_none_or(|until| line.at <= until) && is(line, unwanted.event);
            if came {
                failed(line.at, unwanted.line, unwanted.event, tell);
            }
            !came
        });
    }

    /// Time has come to `at`: what was to come before has not.
    pub(super) fn pass(&mut self, at: WorldTime, tell: Tell<'_>) {
        while let Some(first) = self.wanted.first_entry()
            && first.key().0 < at
        {
            let ((deadline, line), wanted) = first.remove_entry();
            failed(deadline, line, wanted.event, tell);
        }
    }

    /// The world has ended: nothing more will come.
    pub(super) fn end(&mut self, end: WorldTime, tell: Tell<'_>) {
        for ((deadline, line), wanted) in std::mem::take(&mut self.wanted) {
            failed(deadline.min(end), line, wanted.event, tell);
        }
    }
}

fn failed(at: WorldTime, line: usize, event: &Map<String, Value>, tell: Tell<'_>) {
    let node = event.get("node").and_then(Value::as_str);
    tell(&Line { at, node, event: "failed_expectation", line: Some(line), ..Line::default() });
}

/// Whether a line has exactly these keys and values, and any others.
fn is(line: &Line<'_>, event: &Map<String, Value>) -> bool {
    event.iter().all(|(key, value)| match (key.as_str(), value) {
        ("law", Value::Number(number)) => line.law.map(u64::from) == number.as_u64(),
        ("leases", Value::Number(number)) => line.leases.map(u64::from) == number.as_u64(),
        ("bytes", Value::Number(number)) => line.bytes.map(|bytes| bytes as u64) == number.as_u64(),
        ("line", Value::Number(number)) => line.line.map(|line| line as u64) == number.as_u64(),
        ("expires", Value::String(text)) => line.expires.is_some_and(|expires| expires.to_string() == *text),
        (key, Value::String(text)) => {
            let there = match key {
                "event" => Some(line.event),
                "node" => line.node,
                "request" => line.request,
                "reason" => line.reason,
                "why" => line.why,
                "peer" => line.peer,
                "verdict" => line.verdict,
                "proof" => line.proof,
                "detail" => line.detail,
                _ => None,
            };
            there == Some(text)
        }
        _ => false,
    })
}
