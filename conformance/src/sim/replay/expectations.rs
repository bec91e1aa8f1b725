//! What a trace says must come, and must not.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use crate::sim::{
    line::Line,
    time::WorldTime,
    trace::{Trace, What},
};

/// The expectations of a trace that are still open.
#[derive(Default)]
pub(super) struct Expectations<'t> {
    /// The place of each kind.
    kinds: FxHashMap<Kind<'t>, usize>,
    open: Vec<Open<'t>>,
    /// What must come, by the time at which it fails, then line: the place of its kind, and from when it may come.
    deadlines: BTreeMap<(WorldTime, usize), (usize, WorldTime)>,
}

/// Those of one kind.
#[derive(Default)]
struct Open<'t> {
    /// By the time from which it may come, then line.
    wanted: BTreeMap<(WorldTime, usize), Wanted<'t>>,
    unwanted: Vec<Unwanted<'t>>,
}

/// The event and the request that are asked for; what is left out may be any.
type Kind<'t> = (Option<&'t str>, Option<&'t str>);

struct Wanted<'t> {
    deadline: WorldTime,
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
        let mut expectations = Self::default();
        for line in &trace.lines {
            match &line.what {
                What::Expect { at, within, event } => {
                    let (place, deadline) = (expectations.place(event), at.saturating_add(*within));
                    expectations.deadlines.insert((deadline, line.number), (place, *at));
                    expectations.open[place].wanted.insert((*at, line.number), Wanted { deadline, event });
                }
                What::Never { until, event } => {
                    let place = expectations.place(event);
                    expectations.open[place].unwanted.push(Unwanted { line: line.number, until: *until, event });
                }
                What::Do { .. } | What::Link { .. } => {}
            }
        }
        expectations
    }

    fn place(&mut self, event: &'t Map<String, Value>) -> usize {
        let place = *self.kinds.entry(kind(event)).or_insert(self.open.len());
        if place == self.open.len() {
            self.open.push(Open::default());
        }
        place
    }

    /// Something happened.
    pub(super) fn see(&mut self, line: &Line<'_>, tell: Tell<'_>) {
        let mut came = Vec::new();
        for kind in kinds(line) {
            let Some(&place) = self.kinds.get(&kind) else { continue };
            let Open { wanted, unwanted } = &mut self.open[place];
            let may = wanted.range(..=(line.at, usize::MAX)).filter(|(_, wanted)| is(line, wanted.event));
            let met: Vec<_> = may.map(|(key, wanted)| (*key, wanted.deadline)).collect();
            for (key, deadline) in met {
                wanted.remove(&key);
                self.deadlines.remove(&(deadline, key.1));
            }
            unwanted.retain(|unwanted| {
                let over = unwanted.until.is_some_and(|until| until < line.at);
                let comes = !over && is(line, unwanted.event);
                if comes {
                    came.push((unwanted.line, unwanted.event));
                }
                !over && !comes
            });
        }
        came.sort_by_key(|(line, _)| *line);
        came.into_iter().for_each(|(number, event)| failed(line.at, number, event, tell));
    }

    /// Time has come to `at`: what was to come before has not.
    pub(super) fn pass(&mut self, at: WorldTime, tell: Tell<'_>) {
        while let Some(first) = self.deadlines.first_entry()
            && first.key().0 < at
        {
            let ((deadline, line), (place, from)) = first.remove_entry();
            self.fail(deadline, (place, from, line), tell);
        }
    }

    /// The world has ended: nothing more will come.
    pub(super) fn end(&mut self, end: WorldTime, tell: Tell<'_>) {
        for ((deadline, line), (place, from)) in std::mem::take(&mut self.deadlines) {
            self.fail(deadline.min(end), (place, from, line), tell);
        }
    }

    fn fail(&mut self, at: WorldTime, (place, from, line): (usize, WorldTime, usize), tell: Tell<'_>) {
        let wanted = self.open[place].wanted.remove(&(from, line));
        if let Some(wanted) = wanted {
            failed(at, line, wanted.event, tell);
        }
    }
}

fn kind(event: &Map<String, Value>) -> Kind<'_> {
    let text = |key| event.get(key).and_then(Value::as_str);
    (text("event"), text("request"))
}

/// Each kind that a line may be of.
fn kinds<'l>(line: &Line<'l>) -> impl Iterator<Item = Kind<'l>> {
    let (event, request) = (Some(line.event), line.request);
    let of_request = request.map(|_| [(event, request), (None, request)]);
    [(event, None), (None, None)].into_iter().chain(of_request.into_iter().flatten())
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
