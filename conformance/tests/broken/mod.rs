//! The lab in memory with a lie in it: what its nodes tell and answer passes through a twist first, or their transport has a flaw.

mod flawed;
mod rows;

pub(crate) use flawed::{Flaw, flawed};
pub(crate) use rows::{FLAWS, rows};

use std::collections::{HashMap, VecDeque};

use conformance::{
    certify::{
        MemoryLab,
        lab::{Lab, NodeId, Signal, Spec, Trouble},
    },
    engine::{Command, Kinds},
};
use gpu_mem::Kind;
use lease_proto::time::{Duration, Instant};
use serde_json::Value;

type Answer = Result<Value, String>;
type Reply = Box<dyn FnMut(&Command, Answer) -> Answer>;
type Tell = Box<dyn FnMut(&str, Value) -> Vec<Value>>;

/// What is wrong with the nodes of a lab.
pub(crate) struct Twist {
    /// What becomes of an event, by the node's name.
    tell: Tell,
    /// What becomes of an answer.
    answer: Reply,
    /// What is not done, though it is answered.
    ignores: fn(&Command) -> bool,
    /// Its nodes do not stand still when they are stopped.
    runs_on: bool,
    /// Its link is never cut.
    uncut: bool,
    /// Its nodes do not say how they are driven.
    says_no_way: bool,
    /// Owners serve reads.
    served: bool,
    /// The kinds of memory that its nodes are said to be told to use.
    memory: Kinds,
}

impl Twist {
    pub(crate) fn none() -> Self {
        Self {
            tell: Box::new(|_, event| vec![event]),
            answer: Box::new(|_, answer| answer),
            ignores: |_| false,
            runs_on: false,
            uncut: false,
            says_no_way: false,
            served: false,
            memory: Kinds::HOST,
        }
    }

    /// The same where owners serve reads.
    pub(crate) fn served(self) -> Self {
        Self { served: true, ..self }
    }

    /// The same, said to be about this kind of memory.
    pub(crate) fn about(self, kind: Kind) -> Self {
        Self { memory: Kinds::both(kind), ..self }
    }

    /// The link goes on when it is cut.
    pub(crate) fn uncut() -> Self {
        Self { uncut: true, ..Self::none() }
    }

    /// Whoever is told how to be driven does not say that it is.
    pub(crate) fn says_no_way() -> Self {
        Self { says_no_way: true, ..Self::none() }
    }

    /// Every event becomes what `f` makes of it.
    pub(crate) fn all(mut f: impl FnMut(Value) -> Vec<Value> + 'static) -> Self {
        Self { tell: Box::new(move |_, event| f(event)), ..Self::none() }
    }

    /// Every event of this name becomes what `f` makes of it.
    pub(crate) fn each(name: &'static str, mut f: impl FnMut(Value) -> Vec<Value> + 'static) -> Self {
        let tell: Tell = Box::new(move |_, event| if event["event"] == name { f(event) } else { vec![event] });
        Self { tell, ..Self::none() }
    }

    /// The event of this name that `is` picks becomes what `f` makes of it, each time.
    pub(crate) fn those(name: &'static str, is: fn(&Value) -> bool, mut f: impl FnMut(Value) -> Vec<Value> + 'static) -> Self {
        Self::each(name, move |event| if is(&event) { f(event) } else { vec![event] })
    }

    /// Events of this name get lost.
    pub(crate) fn lost(name: &'static str) -> Self {
        Self::each(name, |_| Vec::new())
    }

    /// Commands that `which` picks are answered, and not carried out.
    pub(crate) fn ignores(which: fn(&Command) -> bool) -> Self {
        Self { ignores: which, ..Self::none() }
    }

    /// Stopped nodes go on.
    pub(crate) fn runs_on() -> Self {
        Self { runs_on: true, ..Self::none() }
    }

    /// The transport states that it reports no dead peers.
    pub(crate) fn reports_no_dead(self) -> Self {
        let answers = Self::answers(|command, answer| match command {
            Command::Metadata => answer.map(|answer| with(answer, "dead_peer", "never")),
            _ => answer,
        });
        Self { answer: answers.answer, ..self }
    }

    /// Events of this name carry something else under this key.
    pub(crate) fn says(name: &'static str, key: &'static str, value: impl Into<Value>) -> Self {
        let value = value.into();
        Self::each(name, move |event| vec![with(event, key, value.clone())])
    }

    pub(crate) fn answers(f: impl FnMut(&Command, Answer) -> Answer + 'static) -> Self {
        Self { answer: Box::new(f), ..Self::none() }
    }
}

/// An event with something else under a key.
pub(crate) fn with(mut event: Value, key: &str, value: impl Into<Value>) -> Value {
    event[key] = value.into();
    event
}

/// An event with a time moved: later by `by` nanoseconds, or earlier.
pub(crate) fn moved(event: Value, key: &str, by: i64) -> Value {
    let told: Instant = event[key].as_str().and_then(|text| text.parse().ok()).expect("a time");
    let by_nanos = Duration::from_nanos(by.unsigned_abs());
    let now = if by < 0 { told.saturating_sub(by_nanos) } else { told.saturating_add(by_nanos) };
    with(event, key, now.to_string())
}

pub(crate) struct Broken {
    inner: Box<dyn Lab>,
    twist: Twist,
    names: Vec<&'static str>,
    told: HashMap<NodeId, VecDeque<Value>>,
}

impl Broken {
    pub(crate) fn new(twist: Twist) -> Box<Self> {
        let inner = if twist.served { MemoryLab::served(7) } else { MemoryLab::new(7) };
        Box::new(Self { inner: Box::new(inner), twist, names: Vec::new(), told: HashMap::new() })
    }
}

impl Lab for Broken {
    fn start(&mut self, spec: &Spec) -> Result<NodeId, Trouble> {
        self.names.push(spec.name);
        self.inner.start(spec)
    }

    fn memory(&self) -> Kinds {
        self.twist.memory
    }

    fn way(&self, node: NodeId) -> Option<&str> {
        self.inner.way(node).filter(|_| !self.twist.says_no_way)
    }

    fn ask(&mut self, node: NodeId, command: Command) -> Result<Answer, Trouble> {
        if (self.twist.ignores)(&command) {
            return Ok(Ok(Value::Object(serde_json::Map::new())));
        }
        let answer = self.inner.ask(node, command.clone())?;
        Ok((self.twist.answer)(&command, answer))
    }

    fn next_event(&mut self, node: NodeId, within: Duration) -> Result<Option<Value>, Trouble> {
        let mut since = None;
        loop {
            if let Some(event) = self.told.entry(node).or_default().pop_front() {
                return Ok(Some(event));
            }
            let Some(event) = self.inner.next_event(node, within)? else { return Ok(None) };
            let at: Instant = event["at"].as_str().and_then(|at| at.parse().ok()).expect("every event is stamped");
            if at.saturating_since(*since.get_or_insert(at)) > within {
                return Ok(None); // nothing but lost events
            }
            let told = (self.twist.tell)(self.names[node.0], event);
            self.told.entry(node).or_default().extend(told);
        }
    }

    fn signal(&mut self, node: NodeId, signal: Signal) -> Result<(), Trouble> {
        if self.twist.runs_on && signal != Signal::Kill {
            return Ok(());
        }
        self.inner.signal(node, signal)
    }

    fn cut(&mut self, cut: bool) -> Result<(), Trouble> {
        if self.twist.uncut { Ok(()) } else { self.inner.cut(cut) }
    }
}
