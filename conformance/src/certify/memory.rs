//! The lab on the loopback fabric: engines in this process, on virtual time. Nothing sleeps.

use lease_proto::{config::Config, time::Duration};
use serde_json::Value;

use super::lab::{LEASE, Lab, NodeId, Signal, Spec, Trouble};
use crate::{
    engine::{Command, Engine, Setup},
    loopback::{Fabric, Loopback},
};

/// Turns that may pass without an event that somebody waits for: a timer that is always due would go on for ever.
const TURNS: usize = 1_000_000;

/// Engines on one fabric.
pub struct MemoryLab {
    fabric: Fabric,
    nodes: Vec<Node>,
}

struct Node {
    engine: Option<Engine<Loopback>>,
    stopped: bool,
}

impl MemoryLab {
    /// A lab whose fabric and nodes draw from this seed.
    pub fn new(seed: u64) -> Self {
        Self { fabric: Fabric::new(seed), nodes: Vec::new() }
    }

    fn engine(&mut self, node: NodeId) -> Result<&mut Engine<Loopback>, Trouble> {
        let gone = || Trouble::Failed("the node is dead".into());
        self.nodes.get_mut(node.0).and_then(|node| node.engine.as_mut()).ok_or_else(gone)
    }
}

impl Lab for MemoryLab {
    fn start(&mut self, spec: &Spec) -> Result<NodeId, Trouble> {
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
        };
        let fabric = self.fabric.clone();
        let engine = Engine::new(self.fabric.endpoint(), Box::new(move || fabric.now()), setup);
        self.nodes.push(Node { engine: Some(engine.map_err(|error| Trouble::Harness(error.to_string()))?), stopped: false });
        Ok(NodeId(self.nodes.len() - 1))
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
        let node = self.nodes.get_mut(node.0).ok_or_else(|| Trouble::Harness("no such node".into()))?;
        if let Some(engine) = &mut node.engine {
            self.fabric.stop(engine.transport().id(), signal == Signal::Stop);
        }
        match signal {
            Signal::Kill => node.engine = None,
            Signal::Stop => node.stopped = true,
            Signal::Continue => node.stopped = false,
        }
        Ok(())
    }
}

impl MemoryLab {
    /// Whether something has arrived at a node that runs.
    fn anybody_has_mail(&self) -> bool {
        self.nodes.iter().filter(|node| !node.stopped).filter_map(|node| node.engine.as_ref()).any(Engine::has_mail)
    }
}
