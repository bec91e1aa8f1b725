//! What happened to a server, by kind.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// A kind of thing that happens to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Count {
    /// A connection was accepted.
    Connections,
    /// A connection could not be accepted.
    NotAccepted,
    /// A request was answered.
    Answered,
    /// A request that is none was dropped.
    Malformed,
    /// A request for a rank that is not there was dropped.
    UnknownRank,
    /// A message that is not one empty frame and one other was dropped.
    WrongFrames,
    /// A frame or a message above the bounds ended its connection.
    Oversized,
    /// A peer that is no ZeroMQ REQ or DEALER socket was turned away.
    NotZeroMq,
    /// A peer that did not greet, ask or take its answer in time was turned away.
    Stalled,
    /// A peer closed its connection, or lost it.
    Closed,
    /// A connection was ended to make room for another one.
    Evicted,
}

impl Count {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Connections,
        Self::NotAccepted,
        Self::Answered,
        Self::Malformed,
        Self::UnknownRank,
        Self::WrongFrames,
        Self::Oversized,
        Self::NotZeroMq,
        Self::Stalled,
        Self::Closed,
        Self::Evicted,
    ];
}

/// How often each of them happened.
#[derive(Default)]
pub struct Counters([AtomicU64; Count::ALL.len()]);

impl Counters {
    /// How often that happened so far.
    pub fn get(&self, count: Count) -> u64 {
        self.0.get(count as usize).map_or(0, |counter| counter.load(Relaxed))
    }

    pub(super) fn add(&self, count: Count) {
        if let Some(counter) = self.0.get(count as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(Count::ALL.map(|count| (count, self.get(count)))).finish()
    }
}
