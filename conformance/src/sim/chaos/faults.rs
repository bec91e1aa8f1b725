//! What goes wrong, whatever the requests do.

use lease_proto::time::Duration;

use super::{
    Dice, junk,
    nodes::{self, MILLI, Setting},
    script::{Script, world_time},
};
use crate::sim::trace::{Action, Effect, Fault, Role};

pub(super) fn draw(dice: &mut Dice, setting: &mut Setting, script: &mut Script, chaos: bool) {
    if setting.world.nodes.len() < 2 {
        return;
    }
    if !chaos {
        return mild(dice, setting, script);
    }
    for _ in 0..dice.below(5) {
        on_a_link(dice, setting, script);
    }
    for _ in 0..dice.below(4) {
        on_a_node(dice, setting, script);
    }
}

/// What a network does on a good day.
fn mild(dice: &mut Dice, setting: &mut Setting, script: &mut Script) {
    for _ in 0..dice.below(6) {
        let (at, link) = (dice.below(setting.end), setting.link(dice));
        let until = at + dice.below(setting.extension / 8);
        match dice.below(4) {
            0 => script.link(at, link, Fault::DropNext { count: dice.between(1, 2) }),
            1 => script.window(at, link, until, Effect::Drop),
            2 => script.window(at, link, until, Effect::Reorder),
            _ => {
                let by = Duration::from_nanos(dice.below(50 * MILLI).min(setting.extension / 40));
                script.window(at, link, at + dice.below(setting.end), Effect::Delay { by });
            }
        }
    }
}

fn on_a_link(dice: &mut Dice, setting: &mut Setting, script: &mut Script) {
    let (at, link) = (dice.below(setting.end), setting.link(dice));
    let lasts = if dice.percent(30) { dice.log(setting.extension) } else { dice.below(setting.extension * 3 / 2) };
    let until = at + lasts;
    let kinds = [(22, 0), (20, 1), (15, 2), (12, 3), (12, 4), (10, 5), (10, 6), (10, 7)];
    match dice.weighed(&kinds) {
        0 => script.window(at, link, until, Effect::Drop),
        1 => script.window(at, link, until, Effect::Partition),
        2 => script.window(at, link, until, Effect::Hold),
        3 => {
            let by = Duration::from_nanos(dice.log(setting.extension));
            script.window(at, link, until, Effect::Delay { by });
        }
        4 => script.window(at, link, until, Effect::Duplicate { times: dice.between(1, 3) as u32 }),
        5 => script.window(at, link, until, Effect::Reorder),
        6 => script.link(at, link, Fault::DropNext { count: dice.between(1, 4) }),
        _ => script.link(at, link, Fault::Replay { nth: dice.below(40) }),
    }
    setting.instants.extend([until, at + setting.extension]);
}

fn on_a_node(dice: &mut Dice, setting: &mut Setting, script: &mut Script) {
    let (at, node) = (dice.below(setting.end), dice.index(setting.world.nodes.len()));
    let until = at + 1 + dice.below(setting.extension * 5 / 4);
    let kinds = [(25, 0), (10, 1), (10, 2), (15, 3), (12, 4), (4, 5), (10, 6), (14, 7)];
    match dice.weighed(&kinds) {
        0 => drop(script.act(at, node, Action::Stall { until: world_time(until) })),
        1 => drop(script.act(at, node, Action::Suspend { until: world_time(until), counted: true })),
        2 => drop(script.act(at, node, Action::Suspend { until: world_time(until), counted: !setting.clockless })),
        3 => {
            let ppm = nodes::drift(dice, setting.world.nodes[node].terms.drift_ppm());
            script.act(at, node, Action::Drift { ppm });
        }
        4 => {
            script.act(at, node, Action::Crash);
            if dice.percent(85) {
                script.act(until, node, Action::Restart);
            }
        }
        5 => drop(script.act(at, node, Action::Restart)),
        6 if setting.world.nodes[node].role != Role::Router => {
            let within = dice.below(setting.lease * 3 / 2);
            script.act(at, node, Action::Drain { within: Duration::from_nanos(within) });
            setting.instants.push(at + within);
        }
        _ => {
            for _ in 0..dice.between(1, 4) {
                let bytes = junk::draw(dice, setting.world.wire);
                let from = dice.percent(50).then(|| dice.index(setting.world.nodes.len()));
                script.act(at + dice.below(setting.end - at), node, Action::Receive { bytes, from });
            }
        }
    }
    setting.instants.extend([at, until, at + setting.extension]);
}
