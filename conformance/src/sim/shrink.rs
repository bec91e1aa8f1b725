//! Makes a trace that fails as small and as plain as it can be while it still fails.

mod plain;

use super::{
    chaos::assumed,
    trace::{Trace, What},
};

/// How often a trace is run at most.
const RUNS: usize = 4_000;

/// The smallest trace that was found for which `still_fails` holds, as it does for `trace`. It is a trace that can be written and
/// read, and one whose clocks do as the protocol assumes if those of `trace` do. Which failure counts is for the caller to say.
pub fn shrink(trace: &Trace, still_fails: impl FnMut(&Trace) -> bool) -> Trace {
    let mut shrinking = Shrinking { best: trace.clone(), still_fails, runs: RUNS, assumed: assumed(trace) };
    loop {
        let before = shrinking.best.clone();
        shrinking.lines();
        shrinking.nodes();
        shrinking.plainer();
        if shrinking.best == before || shrinking.runs == 0 {
            return shrinking.best;
        }
    }
}

struct Shrinking<F> {
    best: Trace,
    still_fails: F,
    runs: usize,
    assumed: bool,
}

impl<F: FnMut(&Trace) -> bool> Shrinking<F> {
    /// Takes a candidate if it is a trace and still fails. What can be tried is what can be written and read again.
    fn take(&mut self, candidate: &Trace) -> bool {
        if self.runs == 0 || *candidate == self.best {
            return false;
        }
        let Ok(candidate) = Trace::parse(candidate.to_text().as_bytes()) else { return false };
        if self.assumed && !assumed(&candidate) {
            return false;
        }
        self.runs -= 1;
        let fails = (self.still_fails)(&candidate);
        if fails {
            self.best = candidate;
        }
        fails
    }

    /// Without runs of lines: half of them, a quarter, … one.
    fn lines(&mut self) {
        let mut length = self.best.lines.len().div_ceil(2);
        while length > 0 {
            let mut from = 0;
            while from < self.best.lines.len() {
                let mut candidate = self.best.clone();
                candidate.lines.drain(from..candidate.lines.len().min(from + length));
                if !self.take(&candidate) {
                    from += length;
                }
            }
            length = if length == 1 { 0 } else { length.div_ceil(2) };
        }
    }

    fn nodes(&mut self) {
        let mut node = 0;
        while self.best.world.nodes.len() > 1 && node < self.best.world.nodes.len() {
            if !self.take(&without(&self.best, node)) {
                node += 1;
            }
        }
    }

    fn plainer(&mut self) {
        let mut at = 0;
        // What a step is about may have changed by the time that it comes: it is made for the best there is.
        while let Some(step) = plain::step(&self.best, at) {
            for candidate in step {
                if self.take(&candidate) {
                    break;
                }
            }
            at += 1;
        }
    }
}

/// The trace without a node and all that it has to do with.
fn without(trace: &Trace, node: usize) -> Trace {
    let mut trace = trace.clone();
    trace.world.nodes.remove(node);
    trace.lines.retain_mut(|line| plain::nodes(&mut line.what).into_iter().all(|named| moved(named, node)));
    trace
}

/// A place in a list from which `gone` is removed; `false` if it is that.
fn moved(place: &mut usize, gone: usize) -> bool {
    let stays = *place != gone;
    *place -= usize::from(*place > gone);
    stays
}

/// When a line takes effect, if it does at a time of its own.
fn time_of(what: &What) -> Option<super::time::WorldTime> {
    match what {
        What::Do { at, .. } | What::Link { at, .. } | What::Expect { at, .. } => Some(*at),
        What::Never { .. } => None,
    }
}
