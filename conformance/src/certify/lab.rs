//! Where a case takes place: nodes that do what they are told, and may be stopped or killed.

use std::collections::HashMap;

use lease_proto::{
    time::{Duration, Instant},
    wire::Wire,
};
use serde_json::Value;

use crate::engine::{Command, Kinds};

/// The lease of all cases, in seconds: short, so that they are over soon.
pub const LEASE: &str = "3";
/// How long a case waits for something before it fails: not a verdict about speed, only an end to hanging.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A node of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// What a node is started as.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its engine id.
    pub name: &'static str,
    /// The wire that it speaks.
    pub wire: Wire,
    /// Only the transport, without the protocol.
    pub raw: bool,
    /// How its transport is driven, where not as usual: `borrowed`, on a worker or agent of the engine's, `thread`, by one of its own, or
    /// `bytes`, where the engine carries all bytes by hand.
    pub way: Option<&'static str>,
    /// On which side of a link that can be cut; `None` where none will be.
    pub side: Option<Side>,
}

/// A side of the link that can be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This one.
    Near,
    /// The other one.
    Far,
}

/// What can be done to a node's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// It dies at once (SIGKILL).
    Kill,
    /// It stands still (SIGSTOP).
    Stop,
    /// It goes on (SIGCONT).
    Continue,
}

/// Why a case did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The transport or the protocol did not do what it must.
    Failed(String),
    /// It cannot be tried here, for this reason.
    Skip(String),
    /// The lab itself broke: no verdict.
    Harness(String),
}

/// Nodes of one case. Dropping it ends them all.
pub trait Lab {
    /// Starts a node.
    ///
    /// # Errors
    /// `Skip` where the transport is not on this machine, or no link between two sides can be made.
    fn start(&mut self, spec: &Spec) -> Result<NodeId, Trouble>;

    /// The kinds of memory that its nodes are told to use.
    fn memory(&self) -> Kinds;

    /// In which way a node says that its transport is driven; `None` for the usual one.
    fn way(&self, node: NodeId) -> Option<&str>;

    /// Tells a node what to do; the inner error is the node's.
    ///
    /// # Errors
    /// `Failed` if the node is not there any more.
    fn ask(&mut self, node: NodeId, command: Command) -> Result<Result<Value, String>, Trouble>;

    /// The next event of a node; `None` if none comes within that time.
    ///
    /// # Errors
    /// `Failed` if the node is not there any more.
    fn next_event(&mut self, node: NodeId, within: Duration) -> Result<Option<Value>, Trouble>;

    /// Does something to a node's process, and returns when it is done.
    ///
    /// # Errors
    /// `Harness` if it cannot be done.
    fn signal(&mut self, node: NodeId, signal: Signal) -> Result<(), Trouble>;

    /// Cuts the link between the two sides, or heals it.
    ///
    /// # Errors
    /// `Harness` if it cannot be done, as where no node is on a side.
    fn cut(&mut self, cut: bool) -> Result<(), Trouble>;
}

/// A lab with a memory: what cases are written against.
pub struct Bench {
    lab: Box<dyn Lab>,
    seen: HashMap<NodeId, Vec<Value>>,
}

impl Bench {
    /// A bench in a lab.
    pub fn new(lab: Box<dyn Lab>) -> Self {
        Self { lab, seen: HashMap::new() }
    }

    pub(super) fn node(&mut self, name: &'static str, wire: Wire) -> Result<NodeId, Trouble> {
        self.lab.start(&Spec { name, wire, raw: false, way: None, side: None })
    }

    /// A node on a side of the link that can be cut.
    pub(super) fn node_on(&mut self, side: Side, name: &'static str, wire: Wire) -> Result<NodeId, Trouble> {
        self.lab.start(&Spec { name, wire, raw: false, way: None, side: Some(side) })
    }

    /// A node whose transport is driven in another way than usual.
    pub(super) fn driven(&mut self, name: &'static str, way: &'static str, wire: Wire) -> Result<NodeId, Trouble> {
        let node = self.lab.start(&Spec { name, wire, raw: false, way: Some(way), side: None })?;
        let says = self.lab.way(node);
        ensure(says == Some(way), || format!("the node is not driven by {way}: it says {}", says.unwrap_or("nothing")))?;
        Ok(node)
    }

    pub(super) fn raw(&mut self, name: &'static str) -> Result<NodeId, Trouble> {
        self.lab.start(&Spec { name, wire: Wire::Native, raw: true, way: None, side: None })
    }

    /// The kinds of memory that nodes are to use.
    pub(super) fn memory(&self) -> Kinds {
        self.lab.memory()
    }

    pub(super) fn signal(&mut self, node: NodeId, signal: Signal) -> Result<(), Trouble> {
        self.lab.signal(node, signal)
    }

    pub(super) fn cut(&mut self, cut: bool) -> Result<(), Trouble> {
        self.lab.cut(cut)
    }

    /// Tells a node what to do and expects that it does it.
    pub(super) fn tell(&mut self, node: NodeId, command: Command) -> Result<Value, Trouble> {
        let what = format!("{command:?}");
        self.lab.ask(node, command)?.map_err(|error| Trouble::Failed(format!("{error}, at {}", shortened(&what))))
    }

    /// Tells a node what to do; it may refuse.
    pub(super) fn ask(&mut self, node: NodeId, command: Command) -> Result<Result<Value, String>, Trouble> {
        self.lab.ask(node, command)
    }

    /// The first event of this name, now or later, for which `is` holds; those before it are remembered.
    pub(super) fn wait(&mut self, node: NodeId, event: &str, is: impl Fn(&Value) -> bool) -> Result<Value, Trouble> {
        let (mut since, start) = (None, std::time::Instant::now());
        loop {
            let next = self.next(node, PATIENCE)?;
            if let Some(next) = next.as_ref().filter(|next| next["event"] == event && is(next)) {
                return Ok(next.clone());
            }
            // A node that tells other things for ever is no better than one that tells nothing.
            let at = next.as_ref().and_then(|next| next["at"].as_str()?.parse::<Instant>().ok());
            let since = *since.get_or_insert(at.unwrap_or_default());
            let too_late = at.is_some_and(|at| at.saturating_since(since) > PATIENCE) || start.elapsed() > PATIENCE.into();
            if next.is_none() || too_late {
                let last = self.all(node).last().map_or("nothing".to_owned(), Value::to_string);
                return Err(Trouble::Failed(format!("expected {event}, and it did not come; the last was {}", shortened(&last))));
            }
        }
    }

    /// The next event, whatever it is.
    pub(super) fn next(&mut self, node: NodeId, within: Duration) -> Result<Option<Value>, Trouble> {
        let next = self.lab.next_event(node, within)?;
        if let Some(event) = &next {
            self.lawful(node, event)?;
            self.seen.entry(node).or_default().push(event.clone());
        }
        Ok(next)
    }

    /// Whatever a case is about: no stale read is called valid (law 4).
    fn lawful(&self, node: NodeId, event: &Value) -> Result<(), Trouble> {
        let called_valid = event["event"] == "read_done" && event["verdict"] == "valid";
        let request = event["request"].as_str().unwrap_or_default();
        match self.seen(node, "read_landed", request).last() {
            Some(landed) if called_valid => {
                ensure(landed["matches"] == true, || format!("a stale read was called valid: {event} of {landed}"))
            }
            _ => Ok(()),
        }
    }

    /// All events that have been looked at.
    pub(super) fn all(&self, node: NodeId) -> &[Value] {
        self.seen.get(&node).map(Vec::as_slice).unwrap_or_default()
    }

    /// Those of this name about a request.
    pub(super) fn seen(&self, node: NodeId, event: &str, request: &str) -> Vec<&Value> {
        self.all(node).iter().filter(|seen| seen["event"] == event && seen["request"] == request).collect()
    }
}

/// Fails a case with a reason.
pub(super) fn fail<T>(why: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::Failed(why.into()))
}

/// Fails a case unless something holds.
pub(super) fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), Trouble> {
    if holds { Ok(()) } else { Err(Trouble::Failed(why())) }
}

fn shortened(text: &str) -> String {
    if text.chars().count() > 200 { text.chars().take(200).chain("…".chars()).collect() } else { text.to_owned() }
}
