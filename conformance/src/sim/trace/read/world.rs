//! The first line.

use lease_proto::{
    config::{Config, ConfigError},
    id::EngineId,
    time::Duration,
    wire::{UnknownWire, Wire},
};
use serde_json::{Map, Value};

use super::{
    super::{Node, Role, World},
    TraceError,
    json::{Fields, Taken, brief, duration, map, text, whole, world_time},
};

/// How fast or slow a clock may run, in parts per million; it never stands still.
pub(super) const PPM: std::ops::RangeInclusive<i64> = -999_999..=999_999_999;

pub(super) fn read(mut fields: Fields) -> Taken<World> {
    fields.required("world", whole(1..=1))?;
    let wire = fields.optional("wire", wire)?.unwrap_or_default();
    let seed = fields.optional("seed", whole(0..=u64::MAX))?.unwrap_or(0);
    let end = fields.required("end", world_time)?;
    let config = fields.optional("config", map)?.unwrap_or_default();
    let delay = delay(&mut fields)?;
    let max_notification = fields.optional("max_notification", whole(64..=16_777_216))?.unwrap_or(65_536);
    let named = fields.required("nodes", map)?;
    fields.finish()?;

    let shared = terms(&fields, Config::default(), &config)?;
    let Some(longest) = end.as_nanos().checked_mul(2) else {
        return Err(fields.wrong("end", format!("expected at most half of what clocks can show, got {end}")));
    };
    let mut world = World { wire, seed, end, config, delay, max_notification, nodes: Vec::new() };
    for (name, value) in named {
        if name.is_empty() {
            return Err(fields.wrong("nodes", "expected a name for each node, got an empty one"));
        }
        EngineId::try_from(name.as_str()).map_err(|error| fields.wrong("nodes", format!("the name of a node: {error}")))?;
        let whose = format!("node {:?}", brief(&name));
        let keys = map(&value).map_err(|expected| fields.unexpected("nodes", format!("{whose}: {expected}"), &value))?;
        world.nodes.push(node(fields.within(whose, keys), name, wire, &shared, longest)?);
    }
    if world.nodes.is_empty() {
        return Err(fields.wrong("nodes", "expected at least one node, got none"));
    }
    world.nodes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(world)
}

fn delay(fields: &mut Fields) -> Taken<Duration> {
    let Some(link) = fields.optional("link", map)? else { return Ok(Duration::ZERO) };
    let mut link = fields.within("link", link);
    let delay = link.optional("delay", duration)?.unwrap_or_default();
    link.finish().map(|()| delay)
}

fn node(mut fields: Fields, name: String, wire: Wire, shared: &Config, longest: u64) -> Taken<Node> {
    let role = fields.required("role", role)?;
    let clock = fields.optional("clock", duration)?.unwrap_or_default();
    let drift_ppm = fields.optional("drift_ppm", whole(PPM))?.unwrap_or(0);
    let poll = fields.optional("poll", duration)?.unwrap_or_default();
    let ranks = fields.optional("ranks", whole(1..=64))?.unwrap_or(1);
    let config = fields.optional("config", map)?.unwrap_or_default();
    fields.finish()?;
    if clock.as_nanos().checked_add(longest).is_none() {
        return Err(fields.wrong("clock", format!("expected one that can show twice the world's end, got {clock}")));
    }
    let terms = terms(&fields, shared.clone(), &config)?.validate(wire).map_err(|error| fields.wrong("config", error))?;
    Ok(Node { name, role, clock, drift_ppm, poll, ranks, config, terms })
}

/// Terms over others.
fn terms(fields: &Fields, mut config: Config, terms: &Map<String, Value>) -> Result<Config, TraceError> {
    for (name, value) in terms {
        let set = term(name, value).and_then(|text| config.set(name, &text).map_err(|error| error.to_string()));
        set.map_err(|expected| fields.unexpected(name, format!("config: {expected}"), value))?;
    }
    Ok(config)
}

/// A term's value as a text. Of which kind it must be, the error about an empty one tells.
fn term(name: &str, value: &Value) -> Result<String, String> {
    match Config::default().set(name, "") {
        Err(ConfigError::UnknownKey) => Err("expected the name of a term".into()),
        Err(ConfigError::Time(_)) => duration(value).map(|time| time.to_string()),
        Err(ConfigError::Number) => whole(0..=u32::MAX)(value).map(|number| number.to_string()),
        Err(ConfigError::Switch) => super::json::switch(value).map(|switch| switch.to_string()),
        _ => text(value),
    }
}

fn wire(value: &Value) -> Result<Wire, String> {
    value.as_str().unwrap_or_default().parse().map_err(|error: UnknownWire| error.to_string())
}

fn role(value: &Value) -> Result<Role, String> {
    let roles = [Role::Prefill, Role::Decode, Role::Router];
    roles.into_iter().find(|role| value == role.name()).ok_or_else(|| "expected prefill, decode or router".into())
}
