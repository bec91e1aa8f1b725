//! What happens in a world, collected in any order and told in order of time.

use crate::sim::{
    time::WorldTime,
    trace::{Action, Effect, Fault, Line, What, World},
};
use lease_proto::time::Duration;

/// A grant in the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GrantId(usize);

#[derive(Debug)]
struct Entry {
    at: u64,
    what: What,
    /// The grant that an enqueue names.
    grant: Option<GrantId>,
}

#[derive(Debug, Default)]
pub(super) struct Script(Vec<Entry>);

pub(super) fn world_time(nanos: u64) -> WorldTime {
    WorldTime::after(Duration::from_nanos(nanos))
}

impl Script {
    pub(super) fn act(&mut self, at: u64, node: usize, action: Action) -> GrantId {
        self.0.push(Entry { at, what: What::Do { at: world_time(at), node, action }, grant: None });
        GrantId(self.0.len() - 1)
    }

    /// As [`Script::act`], about the parameters of that grant instead of the latest.
    pub(super) fn act_on(&mut self, at: u64, node: usize, action: Action, grant: Option<GrantId>) {
        self.act(at, node, action);
        if let Some(entry) = self.0.last_mut() {
            entry.grant = grant;
        }
    }

    pub(super) fn link(&mut self, at: u64, (from, to): (usize, usize), fault: Fault) {
        self.0.push(Entry { at, what: What::Link { at: world_time(at), from, to, fault }, grant: None });
    }

    pub(super) fn window(&mut self, at: u64, link: (usize, usize), until: u64, effect: Effect) {
        self.link(at, link, Fault::Window { until: world_time(until.max(at + 1)), effect });
    }

    /// In order of time, without what comes after the world's end or befalls the dead.
    pub(super) fn lines(&mut self, world: &World) -> Vec<Line> {
        let end = world.end.as_nanos();
        let mut entries: Vec<(usize, Entry)> = std::mem::take(&mut self.0).into_iter().enumerate().collect();
        entries.sort_by_key(|(_, entry)| entry.at);
        let mut dead = vec![false; world.nodes.len()];
        entries.retain(|(_, entry)| entry.at <= end && lives(&mut dead, &entry.what));
        let numbers: Vec<usize> = entries.iter().map(|(id, _)| *id).collect();
        let line = |(place, (_, entry)): (usize, (usize, Entry))| {
            let Entry { mut what, grant, .. } = entry;
            if let What::Do { action: Action::Enqueue { grant: named, .. }, .. } = &mut what {
                let line = grant.and_then(|grant| numbers.iter().position(|id| *id == grant.0));
                *named = line.filter(|line| *line < place).map(|line| line + FIRST);
            }
            Line { number: place + FIRST, what }
        };
        entries.into_iter().enumerate().map(line).collect()
    }
}

/// The number of the line after that of the world.
const FIRST: usize = 2;

/// Whether it befalls a node that lives, or wakes it.
fn lives(dead: &mut [bool], what: &What) -> bool {
    let What::Do { node, action, .. } = what else { return true };
    let was_dead = dead[*node];
    match action {
        Action::Restart => dead[*node] = false,
        Action::Crash => dead[*node] = true,
        _ => {}
    }
    !was_dead || matches!(action, Action::Restart)
}
