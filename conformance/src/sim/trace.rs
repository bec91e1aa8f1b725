//! A trace: a world, what is done in it, and what must come of it. One file format for test vectors, incidents from the field
//! and planning; docs/traces.md describes it.

mod read;
mod write;

pub use read::TraceError;

use lease_proto::{config::Terms, time::Duration, wire::Wire};
use serde_json::{Map, Value};

use super::time::WorldTime;

/// A trace that can be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Its first line.
    pub world: World,
    /// The lines after it.
    pub lines: Vec<Line>,
}

/// The first line.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// The wire that every node speaks.
    pub wire: Wire,
    /// For jitter, reordering, nonces and sessions.
    pub seed: u64,
    /// When the world stops.
    pub end: WorldTime,
    /// Terms of every node by their own names, as they were written.
    pub config: Map<String, Value>,
    /// One way, for every pair of nodes.
    pub delay: Duration,
    /// Largest notification in bytes.
    pub max_notification: u32,
    /// In the order of their names.
    pub nodes: Vec<Node>,
}

/// A node: an engine of one or several workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Also its engine id.
    pub name: String,
    /// What it may be told to do.
    pub role: Role,
    /// What its clock shows at world time 0.
    pub clock: Duration,
    /// By how much that runs fast; above -1 000 000.
    pub drift_ppm: i64,
    /// Period of its forward loop on its own clock. Zero: it acts at every arrival and exactly at its own next timeout.
    pub poll: Duration,
    /// How many of its workers hold each lease, from 1.
    pub ranks: u16,
    /// Terms of its own, over those of the world, as they were written.
    pub config: Map<String, Value>,
    /// The terms that hold.
    pub terms: Terms,
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub enum Role {
    Prefill,
    Decode,
    Router,
}

/// A line after the first.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its number in the file; the first line is 1.
    pub number: usize,
    /// What it says.
    pub what: What,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A node is told to do something.
    Do {
        /// When.
        at: WorldTime,
        /// The node by its place in [`World::nodes`].
        node: usize,
        /// What.
        action: Action,
    },
    /// Something happens on a link.
    Link {
        /// When.
        at: WorldTime,
        /// The sending node.
        from: usize,
        /// The receiving node.
        to: usize,
        /// What.
        fault: Fault,
    },
    /// An event must come.
    Expect {
        /// At this time …
        at: WorldTime,
        /// … or up to so much later, inclusive.
        within: Duration,
        /// It has exactly these keys and values, and any others.
        event: Map<String, Value>,
    },
    /// An event must not come.
    Never {
        /// Up to and including this time; `None`: in the whole run.
        until: Option<WorldTime>,
        /// It has exactly these keys and values, and any others.
        event: Map<String, Value>,
    },
}

/// What a node can be told to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Holder: grant a lease.
    Grant {
        /// The request whose blocks are held.
        request: String,
        /// How many ranks will read each worker's blocks, as a check.
        consumers: Option<u16>,
        /// A fixed time to live in place of a lease that can be renewed.
        ttl: Option<Duration>,
    },
    /// Holder: announce a request before its grant.
    Expect {
        /// The request.
        request: String,
    },
    /// Holder: take a lease back. Reader: release a request that is not read yet.
    Abort {
        /// The request.
        request: String,
    },
    /// Holder: shut down.
    Drain {
        /// Renewals are honoured for so long.
        within: Duration,
    },
    /// Reader: a request arrives in the queue, with the transfer parameters of a grant.
    Enqueue {
        /// The request.
        request: String,
        /// The holder by its place in [`World::nodes`].
        from: usize,
        /// The line of the grant; `None`: the latest one of that id at that moment.
        grant: Option<usize>,
        /// Which of the ranks that read it this is …
        reader: u16,
        /// … and of how many.
        of: u16,
    },
    /// Reader: read.
    Read {
        /// The request.
        request: String,
        /// How long it takes, to its end or to its failure.
        takes: Duration,
        /// Whether it fails then.
        fails: bool,
    },
    /// Reader: done with the request; without a read this releases it.
    Finish {
        /// The request.
        request: String,
    },
    /// Router: release a request with the token it has seen.
    Release {
        /// The request.
        request: String,
    },
    /// Neither poll nor send.
    Stall {
        /// Until then.
        until: WorldTime,
    },
    /// As a stall, and the clock stands still, unless it counts suspended time.
    Suspend {
        /// Until then.
        until: WorldTime,
        /// The clock counts it.
        counted: bool,
    },
    /// The clock runs fast by so much from now on.
    Drift {
        /// Parts per million; above -1 000 000.
        ppm: i64,
    },
    /// The process dies.
    Crash,
    /// It starts again: a new incarnation, empty.
    Restart,
    /// Bytes arrive as a notification.
    Receive {
        /// The bytes.
        bytes: Vec<u8>,
        /// As from this node, where the fabric tells.
        from: Option<usize>,
    },
}

/// What can happen on a link. Faults are decided at the moment of sending.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// For messages sent from now until then.
    Window {
        /// Exclusive.
        until: WorldTime,
        /// What happens to them.
        effect: Effect,
    },
    /// The next messages get lost.
    DropNext {
        /// So many.
        count: u64,
    },
    /// A message is delivered again.
    Replay {
        /// Which one ever sent on that link, from 0.
        nth: u64,
    },
}

/// What happens to messages in a window.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// They get lost.
    Drop,
    /// They get lost both ways.
    Partition,
    /// They are kept and delivered in a burst when the window ends.
    Hold,
    /// They take longer.
    Delay {
        /// By so much.
        by: Duration,
    },
    /// Each arrives again.
    Duplicate {
        /// So many times more.
        times: u32,
    },
    /// They overtake each other as the generator says.
    Reorder,
}

impl Role {
    /// Its name in a trace.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Router => "router",
        }
    }
}

impl Trace {
    /// The node of that name.
    pub fn node(&self, name: &str) -> Option<usize> {
        self.world.nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok()
    }

    /// Expectations about a request that nothing in the trace names, by line: they say nothing.
    pub fn about_nobody(&self) -> Vec<(usize, &str)> {
        let request = |line: &Line| match &line.what {
            What::Do { action, .. } => action.request().map(str::to_owned),
            _ => None,
        };
        let named: std::collections::HashSet<String> = self.lines.iter().filter_map(request).collect();
        let received = |name: &str| {
            self.lines.iter().any(|line| match &line.what {
                What::Do { action: Action::Receive { bytes, .. }, .. } => String::from_utf8_lossy(bytes).contains(name),
                _ => false,
            })
        };
        let expected = self.lines.iter().filter_map(|line| match &line.what {
            What::Expect { event, .. } | What::Never { event, .. } => Some((line.number, event.get("request")?.as_str()?)),
            _ => None,
        });
        expected.filter(|(_, name)| !named.contains(*name) && !received(name)).collect()
    }
}

impl Action {
    /// The request that it is about, if it is about one.
    pub fn request(&self) -> Option<&str> {
        match self {
            Self::Grant { request, .. }
            | Self::Expect { request }
            | Self::Abort { request }
            | Self::Enqueue { request, .. }
            | Self::Read { request, .. }
            | Self::Finish { request }
            | Self::Release { request } => Some(request),
            _ => None,
        }
    }
}
