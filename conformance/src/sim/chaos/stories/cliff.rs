//! A lease whose last renewal is known to the nanosecond, and a read that ends on the edge of it.
//!
//! With loops that turn at every arrival a handshake takes two flights, the first renewal a third, its answer a fourth. After
//! that the way to the holder is cut.

use lease_proto::{time::Duration, wire::Wire};

use super::{Dice, Request, Script, Setting};
use crate::sim::trace::{Action, Effect, Fault, Role};

pub(super) fn draw(dice: &mut Dice, setting: &Setting, script: &mut Script) -> Option<Request> {
    let world = &setting.world;
    let turns = |node: &usize| world.nodes[*node].poll.is_zero();
    let of_role = |role| setting.of_role(role).into_iter().filter(turns).collect::<Vec<_>>();
    let (prefill, decode) = (of_role(Role::Prefill), of_role(Role::Decode));
    if prefill.is_empty() || decode.is_empty() || world.wire == Wire::Vllm {
        return None;
    }
    let (holder, reader) = (dice.pick(&prefill), dice.pick(&decode));
    let (at, flight) = (dice.below(setting.lease / 8), setting.delay);
    let name = "edge".to_owned();
    let grant = script.act(at, holder, Action::Grant { request: name.clone(), consumers: None, ttl: None });
    let node = &world.nodes[holder];
    let enqueued = at + if dice.percent(50) { 0 } else { dice.below(node.terms.lease().as_nanos()) };
    let from = holder;
    script.act_on(enqueued, reader, Action::Enqueue { request: name.clone(), from, grant: None, reader: 0, of: 1 }, Some(grant));
    let renewed = enqueued + 3 * flight;
    let up = (reader, holder);
    if dice.percent(15) {
        // One rank of several is not reached.
        script.link(enqueued + 2 * flight, up, Fault::DropNext { count: dice.between(1, 3) });
    }
    let late = if dice.percent(20) { dice.below(setting.extension) } else { 0 };
    if late > 0 {
        // The answer comes late, beats go on meanwhile.
        let by = Duration::from_nanos(late);
        script.window(enqueued + 2 * flight + 1, (holder, reader), renewed + 1, Effect::Delay { by });
    }
    // The cut is at the renewal, or some beats later.
    let cut = renewed + 1 + if dice.percent(60) { 0 } else { dice.below(setting.extension / 2) };
    script.window(cut, up, cut + 3 * setting.extension, Effect::Drop);
    let run = |nanos: Duration| nanos.as_nanos() * 1_000_000 / 1_000_000u64.saturating_add_signed(node.drift_ppm) + 1;
    let lease_over = at + run(node.terms.lease());
    let over = (renewed + run(node.terms.extension())).max(lease_over);
    let spread = setting.extension / 5_000 * u64::from(node.terms.drift_ppm().max(100)) / 100;
    let off = match dice.below(8) {
        0 => 0,
        1 => 1,
        2 | 3 => dice.below(spread + 1),
        4 => dice.below(flight + late + 1),
        5 => dice.below(cut - renewed + 1),
        6 => dice.below(setting.extension / 8),
        _ => dice.log(setting.extension),
    };
    let end = if dice.percent(75) { over + off } else { over.saturating_sub(off) };
    let start = match dice.below(4) {
        0 => enqueued,
        1 => enqueued + 4 * flight + late,
        _ => enqueued + dice.below(end.saturating_sub(enqueued)),
    };
    let takes = Duration::from_nanos(end.saturating_sub(start));
    script.act(start, reader, Action::Read { request: name.clone(), takes, fails: false });
    Some(Request { name, holder, reader, of: 1, at, ttl: None, grant })
}
