//! The lines after the first: what nodes are told to do, what happens on links, what is expected.

use serde_json::Value;

use super::{
    super::{super::time::WorldTime, Action, Effect, Fault, Line, Role, Trace, What, World},
    expectations,
    json::{Fields, Taken, brief, duration, hex, switch, text, whole, world_time},
    world::PPM,
};

/// A trace as far as it is read.
pub(super) struct Lines {
    trace: Trace,
    /// No earlier action may follow.
    now: WorldTime,
    /// Of each node: the line in which it crashed, if it has not been started again.
    crashed: Vec<Option<usize>>,
}

impl Lines {
    pub(super) fn of(world: World) -> Self {
        let crashed = vec![None; world.nodes.len()];
        Self { trace: Trace { world, lines: Vec::new() }, now: WorldTime::ZERO, crashed }
    }

    pub(super) fn finish(self) -> Trace {
        self.trace
    }

    pub(super) fn read(&mut self, mut fields: Fields) -> Taken<()> {
        let what = match fields.one_of(["node", "link", "expect", "never"])? {
            "node" => self.action(&mut fields)?,
            "link" => self.link(&mut fields)?,
            "expect" => self.expect(&mut fields)?,
            _ => self.never(&mut fields)?,
        };
        fields.finish()?;
        self.trace.lines.push(Line { number: fields.line(), what });
        Ok(())
    }

    fn expect(&self, fields: &mut Fields) -> Taken<What> {
        let at = self.at(fields)?;
        let event = expectations::read(fields, "expect", &self.trace)?;
        let within = fields.optional("within", duration)?.unwrap_or_default();
        Ok(What::Expect { at, within, event })
    }

    fn never(&self, fields: &mut Fields) -> Taken<What> {
        let event = expectations::read(fields, "never", &self.trace)?;
        Ok(What::Never { until: fields.optional("until", world_time)?, event })
    }

    fn action(&mut self, fields: &mut Fields) -> Taken<What> {
        let at = self.next(fields)?;
        let node = fields.required("node", |value| self.node(value))?;
        let name = fields.required("do", text)?;
        let action = self.named(fields, &name, at, node)?;
        let role = self.trace.world.nodes.get(node).map_or(Role::Router, |node| node.role);
        if !may(role, &action) {
            return Err(fields.wrong("do", format!("expected what a node of role {} can do, got {name}", role.name())));
        }
        let crashed = self.crashed.get_mut(node);
        match (crashed, &action) {
            (Some(crashed), Action::Restart) => *crashed = None,
            (Some(Some(line)), _) => {
                return Err(fields.wrong("do", format!("expected restart, since the node crashed in line {line}, got {name}")));
            }
            (Some(crashed), Action::Crash) => *crashed = Some(fields.line()),
            _ => {}
        }
        Ok(What::Do { at, node, action })
    }

    fn named(&self, fields: &mut Fields, name: &str, at: WorldTime, node: usize) -> Taken<Action> {
        Ok(match name {
            "grant" => Action::Grant {
                request: fields.required("request", text)?,
                consumers: fields.optional("consumers", whole(1..=64))?,
                ttl: fields.optional("ttl", duration)?,
            },
            "expect" => Action::Expect { request: fields.required("request", text)? },
            "abort" => Action::Abort { request: fields.required("request", text)? },
            "drain" => Action::Drain { within: fields.required("for", duration)? },
            "enqueue" => self.enqueue(fields, node)?,
            "read" => {
                let request = fields.required("request", text)?;
                let end = fields.one_of(["takes", "fails_after"])?;
                Action::Read { request, takes: fields.required(end, duration)?, fails: end == "fails_after" }
            }
            "finish" => Action::Finish { request: fields.required("request", text)? },
            "release" => Action::Release { request: fields.required("request", text)? },
            "stall" => Action::Stall { until: until(fields, at)? },
            "suspend" => {
                Action::Suspend { until: until(fields, at)?, counted: fields.optional("counted", switch)?.unwrap_or(false) }
            }
            "drift" => Action::Drift { ppm: fields.required("ppm", whole(PPM))? },
            "crash" => Action::Crash,
            "restart" => Action::Restart,
            "receive" => {
                let bytes = match fields.one_of(["text", "hex"])? {
                    "text" => fields.required("text", text)?.into_bytes(),
                    _ => fields.required("hex", hex)?,
                };
                Action::Receive { bytes, from: fields.optional("from", |value| self.node(value))? }
            }
            _ => {
                const ALL: &str = "grant, expect, abort, drain, enqueue, read, finish, release, stall, suspend, drift, crash, \
                                   restart or receive";
                return Err(fields.wrong("do", format!("expected {ALL}, got {:?}", brief(name))));
            }
        })
    }

    fn enqueue(&self, fields: &mut Fields, node: usize) -> Taken<Action> {
        let request = fields.required("request", text)?;
        let holder = fields.one_of(["from", "prefill"])?;
        let from = fields.required(holder, |value| {
            let from = self.node(value)?;
            let holds = self.trace.world.nodes.get(from).is_some_and(|node| node.role != Role::Router);
            if holds && from != node { Ok(from) } else { Err("expected another node, which can hold blocks".into()) }
        })?;
        let grant = fields.optional("grant", |value| {
            let line = whole(1..=usize::MAX)(value).ok();
            line.filter(|&line| self.grants(line, from, &request))
                .ok_or_else(|| "expected the number of a line above that is a grant of this request at that node".into())
        })?;
        let of = fields.optional("of", whole(1..=64u16))?.unwrap_or(1);
        let reader = fields.optional("reader", whole(0..=of.saturating_sub(1)))?.unwrap_or(0);
        Ok(Action::Enqueue { request, from, grant, reader, of })
    }

    /// Whether that line is a grant of this request at this node.
    fn grants(&self, line: usize, from: usize, of: &str) -> bool {
        let lines = &self.trace.lines;
        let line = lines.binary_search_by_key(&line, |line| line.number).ok().and_then(|place| lines.get(place));
        let what = line.map(|line| &line.what);
        matches!(what, Some(What::Do { node, action: Action::Grant { request, .. }, .. }) if *node == from && request == of)
    }

    fn link(&mut self, fields: &mut Fields) -> Taken<What> {
        let at = self.next(fields)?;
        let (from, to) = fields.required("link", |value| self.ends(value))?;
        let name = fields.required("do", text)?;
        let window = |fields: &mut Fields, effect| until(fields, at).map(|until| Fault::Window { until, effect });
        let fault = match name.as_str() {
            "drop" => window(fields, Effect::Drop)?,
            "partition" => window(fields, Effect::Partition)?,
            "hold" => window(fields, Effect::Hold)?,
            "reorder" => window(fields, Effect::Reorder)?,
            "delay" => {
                let by = fields.required("by", duration)?;
                window(fields, Effect::Delay { by })?
            }
            "duplicate" => {
                let times = fields.required("times", whole(1..=1000))?;
                window(fields, Effect::Duplicate { times })?
            }
            "drop_next" => Fault::DropNext { count: fields.required("count", whole(1..=u64::MAX))? },
            "replay" => Fault::Replay { nth: fields.required("nth", whole(0..=u64::MAX))? },
            name => {
                const ALL: &str = "drop, partition, hold, reorder, delay, duplicate, drop_next or replay";
                return Err(fields.wrong("do", format!("expected {ALL}, got {:?}", brief(name))));
            }
        };
        Ok(What::Link { at, from, to, fault })
    }

    /// Both ends of a link. Names may hold a `>` themselves.
    fn ends(&self, value: &Value) -> Result<(usize, usize), String> {
        let link = value.as_str().ok_or("expected two nodes as a string, such as \"d0>p0\"")?;
        let splits = link.match_indices('>').filter_map(|(place, _)| {
            let (from, to) = link.split_at_checked(place)?;
            Some((self.trace.node(from)?, self.trace.node(to.strip_prefix('>')?)?))
        });
        match splits.take(2).collect::<Vec<_>>()[..] {
            [(from, to)] if from == to => Err("expected two different nodes".into()),
            [ends] => Ok(ends),
            [] => Err("expected two nodes of line 1 with a `>` between them, such as \"d0>p0\"".into()),
            _ => Err("expected one way to split it into two nodes: give them names without `>`".into()),
        }
    }

    fn node(&self, value: &Value) -> Result<usize, String> {
        value.as_str().and_then(|name| self.trace.node(name)).ok_or_else(|| "expected the name of a node of line 1".into())
    }

    /// The time of an action or a fault, which come in order.
    fn next(&mut self, fields: &mut Fields) -> Taken<WorldTime> {
        let at = self.at(fields)?;
        if at < self.now {
            return Err(fields.wrong("at", format!("goes backwards: expected at least {}, got {at}", self.now)));
        }
        self.now = at;
        Ok(at)
    }

    fn at(&self, fields: &mut Fields) -> Taken<WorldTime> {
        let (at, end) = (fields.required("at", world_time)?, self.trace.world.end);
        if at > end {
            return Err(fields.wrong("at", format!("lies after the world's end: expected at most {end}, got {at}")));
        }
        Ok(at)
    }
}

/// The end of a window that starts at `at`.
fn until(fields: &mut Fields, at: WorldTime) -> Taken<WorldTime> {
    let until = fields.required("until", world_time)?;
    if until > at { Ok(until) } else { Err(fields.wrong("until", format!("expected a time after {at}, got {until}"))) }
}

fn may(role: Role, action: &Action) -> bool {
    match action {
        Action::Grant { .. } | Action::Expect { .. } | Action::Abort { .. } | Action::Drain { .. } => role != Role::Router,
        Action::Enqueue { .. } | Action::Read { .. } | Action::Finish { .. } => role != Role::Router,
        Action::Release { .. } => role == Role::Router,
        _ => true,
    }
}
