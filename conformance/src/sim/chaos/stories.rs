//! The requests: granted, enqueued, read, completed, given up; and reads that end close to the instants that matter.

mod cliff;
mod regret;

use lease_proto::time::Duration;

use super::{
    Dice, Shape,
    nodes::{MILLI, Setting},
    script::{GrantId, Script, world_time},
};
use crate::sim::trace::{Action, Role};

/// What is known of a request while its story is told.
#[derive(Clone, Debug)]
struct Request {
    name: String,
    holder: usize,
    reader: usize,
    of: u16,
    at: u64,
    ttl: Option<u64>,
    grant: GrantId,
}

pub(super) fn draw(dice: &mut Dice, setting: &Setting, script: &mut Script, shape: &Shape) {
    let mut told: Vec<Request> = Vec::new();
    if shape.chaos && dice.percent(40) {
        told.extend(cliff::draw(dice, setting, script));
    }
    if shape.chaos && dice.percent(10) {
        told.extend(regret::draw(dice, setting, script));
    }
    for number in 0..dice.between(1, shape.requests.max(1) as u64) {
        let request = granted(dice, setting, script, &told, number);
        enqueued(dice, setting, script, &request, shape.chaos);
        given_up(dice, setting, script, &request, shape.chaos);
        told.push(request);
    }
    if shape.chaos && dice.percent(8) {
        storm(dice, setting, script, &told);
    }
}

/// Everybody gives everything up at once.
fn storm(dice: &mut Dice, setting: &Setting, script: &mut Script, told: &[Request]) {
    let at = dice.below(setting.end);
    for Request { name, holder, reader, .. } in told {
        let request = name.clone();
        let node = if dice.percent(50) { *holder } else { *reader };
        script.act(at, node, if dice.percent(70) { Action::Abort { request } } else { Action::Finish { request } });
    }
}

fn granted(dice: &mut Dice, setting: &Setting, script: &mut Script, told: &[Request], number: u64) -> Request {
    let (prefill, decode) = (setting.of_role(Role::Prefill), setting.of_role(Role::Decode));
    let (holders, readers) = if dice.percent(82) { (&prefill, &decode) } else { (&decode, &prefill) };
    let (mut holder, mut name) = (dice.pick(holders), name(dice, number));
    if let Some(before) = (!told.is_empty() && dice.percent(12)).then(|| &told[dice.index(told.len())])
        && holders.contains(&before.holder)
    {
        (holder, name) = (before.holder, before.name.clone()); // granted again
    }
    let reader = dice.pick(readers);
    let of = setting.readers[reader];
    let fixed = dice.percent(if setting.world.nodes[holder].role == Role::Decode { 75 } else { 10 });
    let ttl = fixed.then(|| if dice.percent(30) { setting.lease } else { dice.between(MILLI, setting.lease * 3 / 2) });
    let at = dice.below(setting.end / 2);
    if dice.percent(12) {
        script.act(at - dice.below(setting.extension.min(at) + 1), holder, Action::Expect { request: name.clone() });
    }
    let consumers = match dice.below(10) {
        0..=6 => None,
        7 | 8 => Some(of),
        _ => Some(dice.between(1, 3) as u16),
    };
    let ttl_asked = ttl.map(Duration::from_nanos);
    let grant = script.act(at, holder, Action::Grant { request: name.clone(), consumers, ttl: ttl_asked });
    Request { name, holder, reader, of, at, ttl, grant }
}

fn name(dice: &mut Dice, number: u64) -> String {
    match dice.below(40) {
        0 => format!("HB:r{number}"),
        1 => format!("chatcmpl-___prefill_addr_10.0.0.1:21001-{number}"),
        2 => format!("é,{number}"),
        3 => "x".repeat(dice.between(250, 257) as usize),
        4 => format!("r{number}:1"),
        _ => format!("r{number}"),
    }
}

/// Its reader has it in its queue, at once, late or never, and reads it; another one may claim it too.
fn enqueued(dice: &mut Dice, setting: &Setting, script: &mut Script, request: &Request, chaos: bool) {
    if dice.percent(6) {
        return;
    }
    let at = match dice.below(10) {
        0..=4 => request.at,
        5 | 6 => request.at + dice.log(setting.lease),
        7 => request.at + dice.below(setting.lease),
        8 => request.at + dice.below(setting.lease * 3 / 2),
        _ => request.at.saturating_sub(dice.below(setting.extension)),
    };
    read_by(dice, setting, script, request, (request.reader, request.of, at), chaos);
    if chaos && dice.percent(18) {
        // A rival, or the same one again.
        let rivals = setting.of_role(setting.world.nodes[request.reader].role);
        let rival = dice.pick(&rivals);
        let at = at + dice.log(setting.lease);
        read_by(dice, setting, script, request, (rival, setting.readers[rival], at), chaos);
    }
}

fn read_by(
    dice: &mut Dice,
    setting: &Setting,
    script: &mut Script,
    request: &Request,
    (reader, of, at): (usize, u16, u64),
    chaos: bool,
) {
    let of = if chaos && dice.percent(2) { dice.between(1, 3) as u16 } else { of };
    let named = dice.percent(15).then_some(request.grant);
    for rank in 0..of {
        if chaos && dice.percent(3) {
            continue;
        }
        let action = Action::Enqueue { request: request.name.clone(), from: request.holder, grant: None, reader: rank, of };
        let late = if dice.percent(20) { dice.log(setting.lease) } else { 0 };
        script.act_on(at + late, reader, action, named);
        if dice.percent(85) {
            read(dice, setting, script, request, (reader, at + late), chaos);
        }
    }
}

/// Reads, and ends close to an instant that matters, before or after it.
fn read(dice: &mut Dice, setting: &Setting, script: &mut Script, request: &Request, (reader, at): (usize, u64), chaos: bool) {
    let start = at
        + match dice.below(6) {
            0 | 1 => 0,
            2 | 3 => setting.delay * 4 + dice.log(setting.extension),
            4 => dice.below(setting.extension),
            _ => dice.below(setting.lease * 2),
        };
    let takes = if dice.percent(40) {
        if dice.percent(50) { dice.log(setting.lease * 2) } else { dice.below(setting.lease * 2) }
    } else {
        let (instant, off) = (instant(dice, setting, request), off(dice, setting));
        (if dice.percent(50) { instant + off } else { instant.saturating_sub(off) }).saturating_sub(start)
    };
    let fails = dice.percent(if chaos { 6 } else { 2 });
    let name = &request.name;
    script.act(start, reader, Action::Read { request: name.clone(), takes: Duration::from_nanos(takes), fails });
    if chaos && dice.percent(8) {
        let during = if dice.percent(50) { dice.below(takes + 1) } else { takes + dice.log(setting.extension) };
        script.act(start + during, reader, Action::Finish { request: name.clone() });
    }
    if dice.percent(5) {
        script.act(start + takes + 1, reader, Action::Read { request: name.clone(), takes: Duration::ZERO, fails: false });
    }
}

fn instant(dice: &mut Dice, setting: &Setting, request: &Request) -> u64 {
    let own = [request.at + setting.lease, request.at + request.ttl.unwrap_or(setting.lease), request.at + setting.extension];
    if setting.instants.is_empty() || dice.percent(35) { dice.pick(&own) } else { dice.pick(&setting.instants) }
}

fn off(dice: &mut Dice, setting: &Setting) -> u64 {
    match dice.below(7) {
        0 => 0,
        1 => 1,
        2 => dice.log(MILLI),
        3 => dice.below(setting.extension / 100),
        4 => dice.below(setting.delay * 4 + 1),
        5 => dice.below(setting.extension / 8),
        _ => dice.log(setting.extension),
    }
}

/// The engines on both sides, or a router, do not want it any more.
fn given_up(dice: &mut Dice, setting: &Setting, script: &mut Script, request: &Request, chaos: bool) {
    let Request { name, holder, reader, at, .. } = request;
    let later = |dice: &mut Dice| at + if dice.percent(40) { dice.log(setting.lease) } else { dice.below(setting.lease * 2) };
    let request = || name.clone();
    if dice.percent(if chaos { 14 } else { 4 }) {
        script.act(later(dice), *holder, Action::Abort { request: request() });
    }
    if dice.percent(7) {
        script.act(later(dice), *reader, Action::Abort { request: request() });
    }
    if dice.percent(10) {
        script.act(later(dice), *reader, Action::Finish { request: request() });
    }
    for router in setting.of_role(Role::Router) {
        if dice.percent(18) {
            script.act(later(dice), router, Action::Release { request: request() });
        }
    }
    if chaos && dice.percent(2) {
        let node = if dice.percent(50) { *holder } else { *reader };
        let until = world_time(at + 1 + dice.below(setting.extension));
        script.act(*at, node, Action::Stall { until });
    }
}
