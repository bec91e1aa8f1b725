//! The first line of a world: its terms, its network, its nodes.

use lease_proto::{
    config::{Config, Proof, Terms},
    time::Duration,
    wire::Wire,
};
use serde_json::{Map, Value};

use super::{Dice, Shape, script::world_time};
use crate::sim::trace::{Node, Role, World};

pub(super) const MILLI: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000_000_000;

/// A world before anything happens, and what its stories turn on.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) world: World,
    pub(super) lease: u64,
    pub(super) extension: u64,
    pub(super) end: u64,
    pub(super) delay: u64,
    /// How many ranks of each node read.
    pub(super) readers: Vec<u16>,
    /// No reader takes a deadline as proof: clocks may stand still.
    pub(super) clockless: bool,
    /// When something begins or ends that leases feel.
    pub(super) instants: Vec<u64>,
}

impl Setting {
    pub(super) fn draw(dice: &mut Dice, seed: u64, shape: &Shape, wire: Wire) -> Self {
        let (config, terms) = terms(dice, wire);
        let (lease, extension) = (terms.lease().as_nanos(), terms.extension().as_nanos());
        let length = lease.max(extension);
        let end = length * 2 + dice.below(length * 2);
        let delay = delay(dice, extension);
        let mut world = World {
            wire,
            seed,
            end: world_time(end),
            delay: Duration::from_nanos(delay),
            max_notification: max_notification(dice),
            nodes: Vec::new(),
            config,
        };
        let roles = [(Role::Prefill, 'p', shape.prefill), (Role::Decode, 'd', shape.decode)];
        let shared = (wire, &world.config, &terms, end);
        let polls = dice.percent(40);
        for (role, letter, most) in roles {
            for number in 0..dice.between(1, most.max(1) as u64) {
                world.nodes.push(node(dice, shared, role, format!("{letter}{number}"), polls));
            }
        }
        if dice.percent(35) {
            world.nodes.push(node(dice, shared, Role::Router, "r0".to_owned(), false));
        }
        world.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let readers = world.nodes.iter().map(|_| if dice.percent(70) { 1 } else { dice.between(2, 3) as u16 }).collect();
        let clockless = world.nodes.iter().all(|node| node.terms.proof() == Proof::Completion);
        Self { world, lease, extension, end, delay, readers, clockless, instants: Vec::new() }
    }

    pub(super) fn of_role(&self, role: Role) -> Vec<usize> {
        (0..self.world.nodes.len()).filter(|node| self.world.nodes[*node].role == role).collect()
    }

    /// Two different nodes.
    pub(super) fn link(&self, dice: &mut Dice) -> (usize, usize) {
        let count = self.world.nodes.len();
        let from = dice.index(count);
        (from, (from + 1 + dice.index(count - 1)) % count)
    }
}

/// Terms that hold, most of them the protocol's own.
fn terms(dice: &mut Dice, wire: Wire) -> (Map<String, Value>, Terms) {
    let lease = match wire {
        Wire::Native => dice.pick(&[1_000, 1_000, 1_500, 2_000, 3_000, 6_000, 10_000, 30_000, 60_000]) * MILLI,
        Wire::Vllm => dice.pick(&[2, 6, 6, 7, 10, 12, 30, 60]) * SECOND,
    };
    let mut asked = vec![("lease", seconds(lease))];
    if dice.percent(25) {
        asked.push(("extension", seconds(lease * dice.between(3, 16) / 8)));
    }
    if dice.percent(45) {
        asked.push(("drift_ppm", dice.pick(&[0u64, 1, 100, 2000, 2000, 10_000]).into()));
    }
    if dice.percent(15) {
        asked.push(("proof", "completion".into()));
    }
    if dice.percent(3) {
        asked.push(("hold_until_ack", true.into()));
    }
    for name in ["path_budget", "longest_stall", "poll", "lost_after", "verdict_timeout", "drain_grace", "connect_deadline"] {
        if dice.percent(8) {
            let most = if matches!(name, "lost_after" | "verdict_timeout") { 4 * lease } else { lease / 4 };
            asked.push((name, seconds(dice.between(1, most))));
        }
    }
    for (name, most) in [("tombstone_ttl", 3 * lease), ("engine_ttl", 3 * lease), ("decoder_ttl", 2 * lease)] {
        if dice.percent(8) {
            asked.push((name, seconds(dice.between(lease / 8, most))));
        }
    }
    for (name, most) in [("losses", 3), ("max_unanswered", 16)] {
        if dice.percent(10) {
            asked.push((name, dice.between(1, most).into()));
        }
    }
    // What does not fit the rest is not asked for.
    let (mut kept, mut config) = (Map::new(), Config::default());
    for (name, value) in asked {
        let before = config.clone();
        match config.set(name, &text(&value)).ok().and_then(|()| config.validate(wire).ok()) {
            Some(_) => drop(kept.insert(name.to_owned(), value)),
            None => config = before,
        }
    }
    let terms = config.validate(wire).or_else(|_| Config::default().validate(wire));
    (kept, terms.expect("the terms that were kept hold"))
}

/// Terms of one node's own over those of the world, if they hold.
fn own_terms(dice: &mut Dice, wire: Wire, shared: &Map<String, Value>, terms: &Terms) -> Option<(Map<String, Value>, Terms)> {
    let lease = terms.lease().as_nanos();
    let (name, value): (&str, Value) = match dice.below(4) {
        0 => ("lease", seconds((lease / 2 + dice.below(lease)) / SECOND.min(lease / 4) * SECOND.min(lease / 4))),
        1 => ("drift_ppm", dice.pick(&[0u64, 500, 2000]).into()),
        2 => ("extension", seconds(terms.extension().as_nanos() / 2 + dice.below(terms.extension().as_nanos()))),
        _ => ("proof", "completion".into()),
    };
    let mut config = Config::default();
    for (name, value) in shared {
        config.set(name, &text(value)).ok()?;
    }
    config.set(name, &text(&value)).ok()?;
    let terms = config.validate(wire).ok()?;
    Some((Map::from_iter([(name.to_owned(), value)]), terms))
}

fn node(
    dice: &mut Dice,
    (wire, shared, terms, end): (Wire, &Map<String, Value>, &Terms, u64),
    role: Role,
    name: String,
    polls: bool,
) -> Node {
    let own = if dice.percent(12) { own_terms(dice, wire, shared, terms) } else { None };
    let (config, terms) = own.unwrap_or_else(|| (Map::new(), terms.clone()));
    let bound = terms.drift_ppm();
    let holds = dice.percent(if role == Role::Prefill { 30 } else { 15 });
    Node {
        name,
        role,
        clock: Duration::from_nanos(clock(dice)),
        drift_ppm: drift(dice, bound),
        poll: Duration::from_nanos(if polls && dice.percent(75) { poll(dice, &terms, end) } else { 0 }),
        ranks: if holds && role != Role::Router { dice.between(2, 4) as u16 } else { 1 },
        config,
        terms,
    }
}

/// Anywhere within the bound, often at its ends.
pub(super) fn drift(dice: &mut Dice, bound: u32) -> i64 {
    let bound = i64::from(bound);
    match dice.below(4) {
        0 => bound,
        1 => -bound,
        2 => 0,
        _ => dice.below(2 * bound.unsigned_abs() + 1) as i64 - bound,
    }
}

fn clock(dice: &mut Dice) -> u64 {
    match dice.below(4) {
        0 => 0,
        1 => dice.below(1_000_000) * SECOND,
        2 => dice.log(1_000_000 * SECOND),
        _ => dice.below(1_000_000 * SECOND),
    }
}

/// The next of its loop comes round within a fifth of the extension, and not more often than a world can afford.
fn poll(dice: &mut Dice, terms: &Terms, end: u64) -> u64 {
    let least = (end / 2_000).max(MILLI);
    let most = (terms.extension().as_nanos() / 5).min(5 * SECOND).max(least);
    let poll = least + dice.log(most - least);
    if dice.percent(50) { poll.div_ceil(MILLI) * MILLI } else { poll }
}

fn delay(dice: &mut Dice, extension: u64) -> u64 {
    match dice.below(10) {
        0 | 1 => 0,
        2 | 3 => MILLI,
        4 | 5 => dice.log(200 * MILLI).min(extension / 4),
        6..=8 => dice.below(200 * MILLI).min(extension / 8),
        _ => dice.below(5 * SECOND).min(extension),
    }
}

/// Small ones make many messages of a beat; too small ones no greeting at all.
fn max_notification(dice: &mut Dice) -> u32 {
    dice.weighed(&[(50, 65_536), (12, 256), (12, 300), (12, 512), (8, 1_200), (4, 180), (1, 64)])
}

pub(super) fn seconds(nanos: u64) -> Value {
    Duration::from_nanos(nanos).to_string().into()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
