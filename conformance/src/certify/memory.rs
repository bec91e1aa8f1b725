//! The lab on the loopback fabric: engines in this process, on virtual time. Nothing sleeps.

use gpu_mem::Memory;
use lease_proto::{config::Config, permits::Permits, time::Duration, transport::Data};
use serde_json::Value;

use super::lab::{LEASE, Lab, NodeId, Side, Signal, Spec, Trouble};
use crate::{
    engine::{Command, Engine, Kinds, Setup},
    loopback::{EndpointId, Fabric, Fault, Link, Loopback},
};

/// Turns that may pass without an event that somebody waits for: a timer that is always due would go on for ever.
const TURNS: usize = 1_000_000;

/// Engines on one fabric, each over an endpoint or over something around one.
pub struct MemoryLab<T: Data<Memory = Memory> = Loopback> {
    fabric: Fabric,
    open: fn(&Fabric) -> (T, Permits),
    memory: Kinds,
    nodes: Vec<Node<T>>,
}

struct Node<T: Data<Memory = Memory>> {
    engine: Option<Engine<T>>,
    endpoint: EndpointId,
    /// The fabric is one and the same, however it is driven.
    way: Option<&'static str>,
    side: Option<Side>,
    stopped: bool,
}

impl MemoryLab {
    /// A lab whose fabric and nodes draw from this seed. Reads are one-sided.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, |fabric| with_permits(fabric.endpoint()))
    }

    /// The same where owners serve reads.
    pub fn served(seed: u64) -> Self {
        Self::with(seed, |fabric| with_permits(fabric.endpoint_served()))
    }
}

fn with_permits(endpoint: Loopback) -> (Loopback, Permits) {
    let permits = endpoint.permits();
    (endpoint, permits)
}

impl<T: Data<Memory = Memory> + AsRef<Loopback>> MemoryLab<T> {
    /// A lab over whatever `open` makes, with the permits that its engine keeps.
    pub fn with(seed: u64, open: fn(&Fabric) -> (T, Permits)) -> Self {
        Self { fabric: Fabric::new(seed), open, memory: Kinds::HOST, nodes: Vec::new() }
    }

    /// The same where nodes are to use these kinds of memory; it has only one.
    pub fn in_memory(self, memory: Kinds) -> Self {
        Self { memory, ..self }
    }

    fn node(&mut self, node: NodeId) -> Result<&mut Node<T>, Trouble> {
        self.nodes.get_mut(node.0).ok_or_else(|| Trouble::Harness("no such node".into()))
    }

    fn engine(&mut self, node: NodeId) -> Result<&mut Engine<T>, Trouble> {
        self.node(node)?.engine.as_mut().ok_or_else(|| Trouble::Failed("the node is dead".into()))
    }

    /// Whether something has arrived at a node that runs.
    fn anybody_has_mail(&mut self) -> bool {
        let mut running = self.nodes.iter_mut().filter(|node| !node.stopped).filter_map(|node| node.engine.as_mut());
        running.any(|engine| engine.transport().as_ref().has_mail())
    }
}

impl<T: Data<Memory = Memory> + AsRef<Loopback>> Lab for MemoryLab<T> {
    fn start(&mut self, spec: &Spec) -> Result<NodeId, Trouble> {
        if self.memory != Kinds::HOST {
            return Err(Trouble::Skip("the in-memory fabric has host memory only".into()));
        }
        let number = self.nodes.len() as u64 + 1;
        let lease = LEASE.parse().map_err(|error: lease_proto::time::TimeError| Trouble::Harness(error.to_string()))?;
        let setup = Setup {
            name: spec.name.to_owned(),
            wire: spec.wire,
            config: Config::with_lease(lease),
            capacity: 64,
            seed: [number as u8; 16],
            incarnation: number,
            raw: spec.raw,
            memory: self.memory,
        };
        let (fabric, (transport, permits)) = (self.fabric.clone(), (self.open)(&self.fabric));
        let endpoint = transport.as_ref().id();
        let engine = Engine::new(transport, permits, Box::new(move || fabric.now()), setup);
        let engine = Some(engine.map_err(|error| Trouble::Harness(error.to_string()))?);
        self.nodes.push(Node { engine, endpoint, way: spec.way, side: spec.side, stopped: false });
        Ok(NodeId(self.nodes.len() - 1))
    }

    fn memory(&self) -> Kinds {
        self.memory
    }

    fn way(&self, node: NodeId) -> Option<&str> {
        self.nodes.get(node.0)?.way
    }

    fn ask(&mut self, node: NodeId, command: Command) -> Result<Result<Value, String>, Trouble> {
        Ok(self.engine(node)?.execute(command).map_err(|error| error.to_string()))
    }

    fn next_event(&mut self, node: NodeId, within: Duration) -> Result<Option<Value>, Trouble> {
        let deadline = self.fabric.now().saturating_add(within);
        for _ in 0..TURNS {
            if let Some(event) = self.engine(node)?.next_event() {
                return Ok(Some(event));
            }
            let mut next = deadline;
            for node in self.nodes.iter_mut().filter(|node| !node.stopped) {
                if let Some(engine) = &mut node.engine {
                    let due = engine.turn().map_err(|error| Trouble::Failed(error.to_string()))?;
                    next = due.map_or(next, |due| next.min(self.fabric.now().saturating_add(due)));
                }
            }
            // What was sent in this instant arrives in it, so time moves only when everybody has had a turn after that.
            if self.anybody_has_mail() || self.engine(node)?.has_event() {
                continue;
            }
            if self.fabric.now() >= deadline {
                return Ok(None);
            }
            let next = self
                .fabric
                .next_arrival()
                .filter(|arrival| *arrival > self.fabric.now())
                .map_or(next, |arrival| next.min(arrival));
            self.fabric.advance_to(next.max(self.fabric.now().saturating_add(Duration::from_nanos(1))));
        }
        Err(Trouble::Failed("the nodes take turn after turn, and nothing comes of it".into()))
    }

    fn signal(&mut self, node: NodeId, signal: Signal) -> Result<(), Trouble> {
        let endpoint = self.node(node)?.endpoint;
        self.fabric.stop(endpoint, signal == Signal::Stop);
        let node = self.node(node)?;
        match signal {
            Signal::Kill => node.engine = None,
            Signal::Stop => node.stopped = true,
            Signal::Continue => node.stopped = false,
        }
        Ok(())
    }

    fn cut(&mut self, cut: bool) -> Result<(), Trouble> {
        let on = |side| self.nodes.iter().filter(move |node| node.side == Some(side)).map(|node| node.endpoint);
        for near in on(Side::Near) {
            for far in on(Side::Far) {
                for (from, to) in [(near, far), (far, near)] {
                    self.fabric.fault(Link { from, to }, Fault { cut, ..Fault::default() });
                }
            }
        }
        Ok(())
    }
}
