//! Writes a trace as short as it can be said.

use std::{collections::HashMap, fmt::Display};

use lease_proto::{time::Duration, wire::Wire};
use serde_json::{Map, Value};

use super::{Action, Effect, Fault, Node, Trace, What, World};

impl Trace {
    /// The trace as text, which reads back as an equal one, with lines numbered anew.
    ///
    /// A reference to a line that is gone, or that no longer stands above the one that names it, is left out: then the latest
    /// grant is meant.
    pub fn to_text(&self) -> String {
        let numbers: HashMap<usize, usize> = self.lines.iter().map(|line| line.number).zip(2..).collect();
        let lines =
            self.lines.iter().zip(2..).map(|(line, number)| {
                self.line(&line.what, |grant| numbers.get(&grant).copied().filter(|&grant| grant < number))
            });
        let mut text = String::new();
        for line in std::iter::once(world(&self.world)).chain(lines) {
            text.push_str(&line.finish());
            text.push('\n');
        }
        text
    }

    fn line(&self, what: &What, renumbered: impl Fn(usize) -> Option<usize>) -> Keys {
        let keys = Keys::default();
        match what {
            What::Do { at, node, action } => {
                let keys = keys.time("at", at).text("node", self.name(*node));
                self.action(keys, action, renumbered)
            }
            What::Link { at, from, to, fault } => {
                fault_keys(keys.time("at", at).text("link", &format!("{}>{}", self.name(*from), self.name(*to))), fault)
            }
            What::Expect { at, within, event } => {
                keys.time("at", at).with("expect", event.clone()).unless_zero("within", *within)
            }
            What::Never { until, event } => {
                keys.with("never", event.clone()).maybe("until", until.map(|until| until.to_string()))
            }
        }
    }

    fn action(&self, keys: Keys, action: &Action, renumbered: impl Fn(usize) -> Option<usize>) -> Keys {
        match action {
            Action::Grant { request, consumers, ttl } => keys
                .text("do", "grant")
                .text("request", request)
                .maybe("consumers", *consumers)
                .maybe("ttl", ttl.map(|ttl| ttl.to_string())),
            Action::Expect { request } => keys.text("do", "expect").text("request", request),
            Action::Abort { request } => keys.text("do", "abort").text("request", request),
            Action::Drain { within } => keys.text("do", "drain").time("for", within),
            Action::Enqueue { request, from, grant, reader, of } => keys
                .text("do", "enqueue")
                .text("request", request)
                .text("from", self.name(*from))
                .maybe("grant", grant.and_then(renumbered))
                .maybe("reader", (*reader != 0).then_some(*reader))
                .maybe("of", (*of != 1).then_some(*of)),
            Action::Read { request, takes, fails } => {
                keys.text("do", "read").text("request", request).time(if *fails { "fails_after" } else { "takes" }, takes)
            }
            Action::Finish { request } => keys.text("do", "finish").text("request", request),
            Action::Release { request } => keys.text("do", "release").text("request", request),
            Action::Stall { until } => keys.text("do", "stall").time("until", until),
            Action::Suspend { until, counted } => {
                keys.text("do", "suspend").time("until", until).maybe("counted", counted.then_some(true))
            }
            Action::Drift { ppm } => keys.text("do", "drift").with("ppm", *ppm),
            Action::Crash => keys.text("do", "crash"),
            Action::Restart => keys.text("do", "restart"),
            Action::Receive { bytes, from } => {
                let keys = keys.text("do", "receive");
                let keys = match str::from_utf8(bytes) {
                    Ok(text) => keys.text("text", text),
                    Err(_) => keys.with("hex", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
                };
                keys.maybe("from", from.map(|from| self.name(from)))
            }
        }
    }

    fn name(&self, node: usize) -> &str {
        self.world.nodes.get(node).map_or("", |node| &node.name)
    }
}

fn world(world: &World) -> Keys {
    let nodes: Map<_, _> = world.nodes.iter().map(|node| (node.name.clone(), node_keys(node).0.into())).collect();
    Keys::default()
        .with("world", 1)
        .maybe("wire", (world.wire != Wire::default()).then(|| world.wire.to_string()))
        .maybe("seed", (world.seed != 0).then_some(world.seed))
        .time("end", world.end)
        .filled("config", world.config.clone())
        .filled("link", Keys::default().unless_zero("delay", world.delay).0)
        .maybe("max_notification", (world.max_notification != 65_536).then_some(world.max_notification))
        .with("nodes", nodes)
}

fn node_keys(node: &Node) -> Keys {
    Keys::default()
        .text("role", node.role.name())
        .unless_zero("clock", node.clock)
        .maybe("drift_ppm", (node.drift_ppm != 0).then_some(node.drift_ppm))
        .unless_zero("poll", node.poll)
        .maybe("ranks", (node.ranks != 1).then_some(node.ranks))
        .filled("config", node.config.clone())
}

fn fault_keys(keys: Keys, fault: &Fault) -> Keys {
    match fault {
        Fault::Window { until, effect } => match effect {
            Effect::Drop => keys.text("do", "drop"),
            Effect::Partition => keys.text("do", "partition"),
            Effect::Hold => keys.text("do", "hold"),
            Effect::Delay { by } => keys.text("do", "delay").time("by", by),
            Effect::Duplicate { times } => keys.text("do", "duplicate").with("times", *times),
            Effect::Reorder => keys.text("do", "reorder"),
        }
        .time("until", until),
        Fault::DropNext { count } => keys.text("do", "drop_next").with("count", *count),
        Fault::Replay { nth } => keys.text("do", "replay").with("nth", *nth),
    }
}

/// An object that grows key by key.
#[derive(Default)]
struct Keys(Map<String, Value>);

impl Keys {
    fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.into(), value.into());
        self
    }

    fn text(self, key: &str, value: &str) -> Self {
        self.with(key, value)
    }

    /// A time in its shortest form.
    fn time(self, key: &str, value: impl Display) -> Self {
        self.with(key, value.to_string())
    }

    fn maybe(self, key: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    fn unless_zero(self, key: &str, value: Duration) -> Self {
        if value.is_zero() { self } else { self.time(key, value) }
    }

    fn filled(self, key: &str, value: Map<String, Value>) -> Self {
        if value.is_empty() { self } else { self.with(key, value) }
    }

    fn finish(self) -> String {
        Value::Object(self.0).to_string()
    }
}
