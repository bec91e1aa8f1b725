//! Steps that make a trace plainer: numbers round, what is optional left out.

use lease_proto::time::Duration;
use serde_json::Map;

use super::time_of;
use crate::sim::{
    time::WorldTime,
    trace::{Action, Effect, Fault, Trace, What},
};

/// To whole seconds if it can be, else to what can be.
const ROUND: [u64; 5] = [1_000_000_000, 100_000_000, 10_000_000, 1_000_000, 1_000];

/// The candidates of the step with that number, the plainest first; `None` after the last step.
pub(super) fn step(trace: &Trace, number: usize) -> Option<Vec<Trace>> {
    let nodes = trace.world.nodes.len();
    match number {
        0 => Some(world(trace)),
        _ if number <= nodes => Some(node(trace, number - 1)),
        _ if number <= nodes + 2 * trace.lines.len() => {
            let place = number - nodes - 1;
            Some(line(trace, place / 2, place.is_multiple_of(2)))
        }
        _ => None,
    }
}

fn changed(trace: &Trace, change: impl FnOnce(&mut Trace)) -> Trace {
    let mut trace = trace.clone();
    change(&mut trace);
    trace
}

fn rounded(nanos: u64) -> impl Iterator<Item = u64> {
    ROUND.into_iter().filter(move |unit| nanos >= *unit && !nanos.is_multiple_of(*unit)).map(move |unit| nanos / unit * unit)
}

fn simpler(duration: Duration) -> impl Iterator<Item = Duration> {
    let nanos = duration.as_nanos();
    (nanos > 0).then_some(0).into_iter().chain(rounded(nanos)).map(Duration::from_nanos)
}

fn after(nanos: u64) -> WorldTime {
    WorldTime::after(Duration::from_nanos(nanos))
}

fn world(trace: &Trace) -> Vec<Trace> {
    let mut all = vec![changed(trace, |trace| trace.world.seed = 0)];
    let last = trace.lines.iter().filter_map(|line| time_of(&line.what)).max().unwrap_or_default().as_nanos();
    let end = trace.world.end.as_nanos();
    let sooner = [0, 1, 2, 4, 8, 16].map(|part| if part == 0 { last } else { end - (end - last) / (part * 2) });
    let ends = sooner.into_iter().chain(rounded(end)).filter(|sooner| (last..end).contains(sooner));
    all.extend(ends.map(|end| changed(trace, |trace| trace.world.end = after(end))));
    all.extend(simpler(trace.world.delay).map(|delay| changed(trace, |trace| trace.world.delay = delay)));
    all.push(changed(trace, |trace| trace.world.max_notification = 65_536));
    let names = trace.world.config.keys();
    all.extend(names.map(|name| changed(trace, |trace| drop(trace.world.config.remove(name)))));
    all
}

fn node(trace: &Trace, number: usize) -> Vec<Trace> {
    let node = &trace.world.nodes[number];
    let with = |change: &dyn Fn(&mut crate::sim::trace::Node)| changed(trace, |trace| change(&mut trace.world.nodes[number]));
    let mut all = vec![with(&|node| {
        (node.clock, node.drift_ppm, node.poll, node.ranks, node.config) = (Duration::ZERO, 0, Duration::ZERO, 1, Map::new());
    })];
    all.extend(simpler(node.clock).map(|clock| with(&|node| node.clock = clock)));
    all.push(with(&|node| node.drift_ppm = 0));
    all.extend(simpler(node.poll).map(|poll| with(&|node| node.poll = poll)));
    all.push(with(&|node| node.ranks = 1));
    all.push(with(&|node| node.ranks = node.ranks.min(2)));
    all.push(with(&|node| node.config = Map::new()));
    all
}

/// A line at a rounder time, or with rounder lengths and less said.
fn line(trace: &Trace, place: usize, when: bool) -> Vec<Trace> {
    let what = &trace.lines[place].what;
    let with = |what: What| changed(trace, |trace| trace.lines[place].what = what);
    if when {
        let Some(at) = time_of(what) else { return Vec::new() };
        // Not before the line above it.
        let above = trace.lines[..place].iter().filter_map(|line| time_of(&line.what)).max().unwrap_or_default().as_nanos();
        let times = [above].into_iter().chain(rounded(at.as_nanos()).filter(|time| *time >= above));
        return times.map(|time| with(at_time(what.clone(), after(time)))).collect();
    }
    let mut all: Vec<Trace> = plainer(what).map(with).into_iter().collect();
    for unit in ROUND {
        let mut rounder = what.clone();
        lengths(&mut rounder, unit);
        all.push(with(rounder));
    }
    all
}

fn at_time(mut what: What, time: WorldTime) -> What {
    match &mut what {
        What::Do { at, .. } | What::Link { at, .. } | What::Expect { at, .. } => *at = time,
        What::Never { .. } => {}
    }
    what
}

/// Without what can be left out.
fn plainer(what: &What) -> Option<What> {
    let mut what = what.clone();
    match &mut what {
        What::Do { action: Action::Grant { consumers, ttl, .. }, .. } => (*consumers, *ttl) = (None, None),
        What::Do { action: Action::Enqueue { grant, reader, of, .. }, .. } => (*grant, *reader, *of) = (None, 0, 1),
        What::Do { action: Action::Receive { from, .. }, .. } => *from = None,
        _ => return None,
    }
    Some(what)
}

/// Rounds the lengths in a line to whole units.
fn lengths(what: &mut What, unit: u64) {
    let length = |duration: &mut Duration| *duration = Duration::from_nanos(duration.as_nanos() / unit * unit);
    let time = |time: &mut WorldTime| *time = after(time.as_nanos().div_ceil(unit) * unit);
    match what {
        What::Do { action, .. } => match action {
            Action::Grant { ttl: Some(ttl), .. } => length(ttl),
            Action::Drain { within } => length(within),
            Action::Read { takes, .. } => length(takes),
            Action::Stall { until } | Action::Suspend { until, .. } => time(until),
            _ => {}
        },
        What::Link { fault: Fault::Window { until, effect }, .. } => {
            time(until);
            if let Effect::Delay { by } = effect {
                length(by);
            }
        }
        _ => {}
    }
}

/// The nodes that a line names.
pub(super) fn nodes(what: &mut What) -> Vec<&mut usize> {
    match what {
        What::Do { node, action: Action::Enqueue { from, .. } | Action::Receive { from: Some(from), .. }, .. } => {
            vec![node, from]
        }
        What::Do { node, .. } => vec![node],
        What::Link { from, to, .. } => vec![from, to],
        What::Expect { .. } | What::Never { .. } => Vec::new(),
    }
}
