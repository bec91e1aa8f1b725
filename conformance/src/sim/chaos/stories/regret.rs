//! A lease that its reader gave up unheard, and then wants again: what it said before may still come, under the second read.

use lease_proto::{time::Duration, wire::Wire};

use super::{Dice, Request, Script, Setting};
use crate::sim::trace::{Action, Effect, Role};

pub(super) fn draw(dice: &mut Dice, setting: &Setting, script: &mut Script) -> Option<Request> {
    let world = &setting.world;
    let (prefill, decode) = (setting.of_role(Role::Prefill), setting.of_role(Role::Decode));
    let (holder, reader) = (dice.pick(&prefill), dice.pick(&decode));
    let patience = world.nodes[reader].terms.lost_after().as_nanos();
    let poll = world.nodes[reader].poll.as_nanos() + world.nodes[holder].poll.as_nanos();
    let (at, up) = (dice.below(setting.extension / 4), (reader, holder));
    // Long enough for both reads, without a renewal in between.
    let ttl = patience + 4 * setting.extension + 8 * setting.delay + 4 * poll;
    if world.wire == Wire::Vllm || at + ttl > setting.end {
        return None;
    }
    let (name, from) = ("regret".to_owned(), holder);
    let asked = Action::Grant { request: name.clone(), consumers: None, ttl: Some(Duration::from_nanos(ttl)) };
    let grant = script.act(at, holder, asked);
    let enqueue = || Action::Enqueue { request: name.clone(), from, grant: None, reader: 0, of: 1 };
    script.act_on(at, reader, enqueue(), Some(grant));
    let given_up = at + 6 * setting.delay + 2 * poll + dice.below(setting.extension / 2);
    let said = given_up + world.nodes[reader].poll.as_nanos() + 1;
    let again = said + patience + world.nodes[reader].poll.as_nanos() + dice.below(setting.extension / 4);
    let late = again - given_up + 6 * setting.delay + 2 * poll + dice.below(setting.extension);
    script.window(given_up, up, said, Effect::Delay { by: Duration::from_nanos(late) });
    script.act(given_up, reader, Action::Finish { request: name.clone() });
    script.window(said, up, again, Effect::Drop);
    script.act_on(again, reader, enqueue(), Some(grant));
    let start = again + 4 * setting.delay + poll;
    let over = given_up + late + setting.delay + dice.log(setting.extension);
    let takes = Duration::from_nanos(over.saturating_sub(start));
    script.act(start, reader, Action::Read { request: name.clone(), takes, fails: false });
    Some(Request { name, holder, reader, of: 1, at, ttl: Some(ttl), grant })
}
