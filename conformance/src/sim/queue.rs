//! What will happen, in the order in which it does.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::time::WorldTime;

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Then {
    /// A clock that stood still goes on.
    Resume(u32),
    /// A line of the trace: what happens on a link, or what a node is told to do.
    Fault(usize),
    Act(usize),
    /// A read is over: worker and number.
    ReadEnd(u32, u64),
    /// A message arrives, or what a clock showed.
    Deliver(u64),
    Sample(u64),
    /// A node's forward loop comes round.
    Turn(u32),
}

/// By time; at one instant: link faults, actions, read ends, deliveries, timeouts; then by what [`Then`] holds: lines in the
/// order of the file, deliveries in that of sending, nodes in that of their names.
#[derive(Debug, Default)]
pub(super) struct Queue(BinaryHeap<Reverse<(WorldTime, Then)>>);

impl Queue {
    pub(super) fn push(&mut self, at: WorldTime, then: Then) {
        self.0.push(Reverse((at, then)));
    }

    /// When the next thing happens.
    pub(super) fn next_at(&self) -> Option<WorldTime> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// The next thing, if it happens by then.
    pub(super) fn pop(&mut self, by: WorldTime) -> Option<(WorldTime, Then)> {
        self.next_at().filter(|at| *at <= by)?;
        self.0.pop().map(|Reverse(next)| next)
    }
}
