//! Many random worlds, each held against the laws.
//!
//! World `k` is that of seed `seed + k`, and what is checked about a world follows from its own seed alone: one that failed can be
//! run again by itself.

mod totals;

use std::{
    hash::{DefaultHasher, Hasher as _},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use lease_proto::{time::Duration, wire::Wire};

use super::{
    chaos::{Dice, Shape, generate},
    line::Line,
    replay,
    trace::{Action, Trace, What},
};
pub use totals::Totals;

/// One world in so many is run again with other clocks, with other junk, and just again.
const OTHER_CLOCKS: u64 = 8;
const OTHER_JUNK: u64 = 4;
const AGAIN: u64 = 64;

/// What came of a number of worlds.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What happened in them.
    pub totals: Totals,
    /// The first world that broke a law. Nothing is run after it.
    pub broken: Option<Broken>,
}

/// A world that broke a law.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Its seed.
    pub seed: u64,
    /// The world.
    pub trace: Trace,
    /// What it broke, the first first.
    pub violations: Vec<Violation>,
}

/// A law that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub law: u8,
    /// The line that tells it, as one JSON object.
    pub line: String,
    /// Whether running the trace shows it. What two runs show when they are compared, one run does not.
    pub replays: bool,
}

/// Runs worlds until all are done or one breaks a law. `progress` is told how many are done.
pub fn run_worlds(seed: u64, worlds: u64, shape: &Shape, threads: usize, progress: &(dyn Fn(u64) + Sync)) -> Outcome {
    let (next, done, first) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let work = || {
        let (mut totals, mut broken) = (Totals::default(), None);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= worlds || number > first.load(Ordering::Relaxed) {
                return (totals, broken);
            }
            let seed = seed.wrapping_add(number);
            let trace = generate(seed, shape);
            let violations = judge(&trace, seed, &mut totals);
            if !violations.is_empty() {
                first.fetch_min(number, Ordering::Relaxed);
                broken = Some((number, Broken { seed, trace, violations }));
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    let results: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        running.into_iter().filter_map(|worker| worker.join().ok()).collect()
    });
    let mut totals = Totals::default();
    results.iter().for_each(|(part, _)| totals.add(part));
    let broken = results.into_iter().filter_map(|(_, broken)| broken).min_by_key(|(number, _)| *number);
    Outcome { totals, broken: broken.map(|(_, broken)| broken) }
}

/// The laws that a world breaks. What it is compared with follows from `seed`.
pub fn judge(trace: &Trace, seed: u64, totals: &mut Totals) -> Vec<Violation> {
    let others = others(trace, seed);
    let mut violations = Vec::new();
    let digest = watch(trace, !others.is_empty(), |line| {
        totals.count(line);
        violations.extend(violation(line));
    });
    if let Err(panic) = &digest {
        violations.push(broken(5, &format!("it panics: {panic}"), true));
    }
    for Other { trace, law, differs } in others {
        if digest.is_ok() && watch(&trace, true, |_| ()) != digest {
            violations.push(broken(law, differs, false));
        }
    }
    totals.worlds += 1;
    totals.violations += violations.len() as u64;
    violations
}

/// A world in which the same must happen.
struct Other {
    trace: Trace,
    law: u8,
    /// What is wrong if it does not.
    differs: &'static str,
}

/// What a world is compared with.
fn others(trace: &Trace, seed: u64) -> Vec<Other> {
    let mut others = Vec::new();
    if seed.is_multiple_of(AGAIN) {
        let differs = "it goes another way when it is run again";
        others.push(Other { trace: trace.clone(), law: 7, differs });
    }
    if trace.world.wire != Wire::Native {
        return others; // vLLM's carries instants, and whatever names an id is a message
    }
    if seed.is_multiple_of(OTHER_CLOCKS) {
        let differs = "it goes another way when its nodes' clocks show other times from the start";
        others.push(Other { trace: with_other_clocks(trace, seed), law: 7, differs });
    }
    if seed % OTHER_JUNK == 1
        && let Some(trace) = with_other_junk(trace)
    {
        others.push(Other { trace, law: 5, differs: "it goes another way when other junk arrives in it" });
    }
    others
}

/// The same world with one byte that means nothing wherever bytes of no session arrive, if they do anywhere. They still arrive: a loop
/// that comes round once more may forget what is out of date a little earlier.
fn with_other_junk(trace: &Trace) -> Option<Trace> {
    let (mut trace, mut any) = (trace.clone(), false);
    for line in &mut trace.lines {
        if let What::Do { action: Action::Receive { bytes, .. }, .. } = &mut line.what {
            (*bytes, any) = (vec![b'?'], true);
        }
    }
    any.then_some(trace)
}

/// Runs a world and returns a digest of all that happened, if asked for.
fn watch(trace: &Trace, digests: bool, mut see: impl FnMut(&Line<'_>)) -> Result<u64, String> {
    let run = || {
        let (mut digest, mut text) = (DefaultHasher::new(), Vec::new());
        replay::run(trace, &mut |line| {
            see(line);
            // A violation may name instants of a node's own clock, and what is rejected must leave no other trace.
            if digests && !matches!(line.event, "violation" | "rejected") {
                text.clear();
                if serde_json::to_writer(&mut text, line).is_ok() {
                    digest.write(&text);
                }
            }
        });
        digest.finish()
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    })
}

/// The same world on clocks that were started at other times. They differ by multiples of three days and more, for things that end
/// at one instant end in an order that hangs on how the queue of deadlines lies to it, and nobody is promised one.
fn with_other_clocks(trace: &Trace, seed: u64) -> Trace {
    const STEP: u64 = 1 << 48;
    let (mut trace, dice) = (trace.clone(), &mut Dice::new(!seed));
    for node in &mut trace.world.nodes {
        let steps = if dice.percent(20) { 0 } else { dice.log(1 << 12) };
        node.clock = Duration::from_nanos(node.clock.as_nanos() % STEP + steps * STEP);
    }
    trace
}

fn violation(line: &Line<'_>) -> Option<Violation> {
    let law = line.law.filter(|_| line.event == "violation")?;
    Some(Violation { law, line: serde_json::to_string(line).unwrap_or_default(), replays: true })
}

fn broken(law: u8, detail: &str, replays: bool) -> Violation {
    let line = Line { event: "violation", law: Some(law), detail: Some(detail), ..Line::default() };
    Violation { law, line: serde_json::to_string(&line).unwrap_or_default(), replays }
}
