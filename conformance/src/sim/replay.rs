//! Running a trace: what happened, line by line, what it adds up to, and whether it is what the trace expects.

mod expectations;
mod summary;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    line::Line,
    trace::{Action, Node, Trace, What},
    worker::Sizes,
    world::{Room, World},
};
use expectations::Expectations;
pub(super) use summary::LOST_IN_CRASH;
pub use summary::Summary;

/// Runs a trace. `sink` sees every line of output, in the order of time; what they add up to is returned.
pub fn run(trace: &Trace, sink: &mut dyn FnMut(&Line<'_>)) -> Summary {
    let mut summary = Summary::default();
    let mut expectations = Expectations::of(trace);
    let mut see = |line: &Line<'_>| {
        let mut tell = |line: &Line<'_>| {
            summary.count(line);
            sink(line);
        };
        expectations.pass(line.at, &mut tell);
        tell(line);
        expectations.see(line, &mut tell);
    };
    let mut world = World::new(&trace.world, &rooms(trace), true, &mut see);
    world.load(&trace.lines);
    world.run(trace.world.end, &trace.lines);
    world.close();
    let live = world.live();
    drop(world);
    let mut tell = |line: &Line<'_>| {
        summary.count(line);
        sink(line);
    };
    expectations.end(trace.world.end, &mut tell);
    summary.live = live;
    summary
}

/// How much room the workers of each node need, so that no table is ever full. In all it grows with the lines and the nodes of
/// the trace, not with pairs of nodes: only those count that are told to meet.
fn rooms(trace: &Trace) -> Vec<Room> {
    let nodes = &trace.world.nodes;
    let mut meant: Vec<Meant<'_>> = nodes.iter().map(Meant::by).collect();
    // How often a rank reads from a holder, and how often a third party releases a request.
    let mut reads = FxHashMap::<(usize, u16, usize), usize>::default();
    let mut releases = FxHashMap::<&str, usize>::default();
    for line in &trace.lines {
        let What::Do { node, action, .. } = &line.what else { continue };
        let here = &mut meant[*node];
        match action {
            Action::Restart => here.lives += 1,
            Action::Receive { .. } => here.strangers += 1,
            Action::Grant { request, .. } | Action::Expect { request } => {
                here.leases += 1;
                here.granted.insert(request);
            }
            Action::Enqueue { from, reader, of, .. } => {
                here.width = here.width.max(*of);
                *reads.entry((*node, *reader, *from)).or_default() += 1;
            }
            Action::Release { request } => {
                here.releases += 1;
                *releases.entry(request).or_default() += 1;
            }
            _ => {}
        }
    }
    let granting = || nodes.iter().zip(&meant).filter(|(_, holder)| holder.leases > 0);
    let ranks = granting().map(|(node, _)| usize::from(node.ranks)).max().unwrap_or(0);
    let lives: usize = granting().map(|(node, holder)| usize::from(node.ranks) * holder.lives).sum();
    let mut desks = FxHashMap::<(usize, u16), Desk>::default();
    for ((node, rank, from), count) in reads {
        let (holds, holder) = (usize::from(nodes[from].ranks), &mut meant[from]);
        // A session needs a request that begins it.
        holder.sessions += count;
        let desk = desks.entry((node, rank)).or_default();
        desk.requests += count;
        desk.legs += count * holds;
        desk.holders += count.min(holder.lives) * holds;
    }
    for (node, router) in meant.iter().enumerate().filter(|(_, router)| router.releases > 0) {
        let desk = desks.entry((node, 0)).or_default();
        desk.requests += router.releases;
        desk.legs += router.releases * ranks;
        desk.holders += (router.releases * ranks).min(lives);
    }
    let mut widest = vec![Desk::default(); nodes.len()];
    for ((node, _), desk) in desks {
        widest[node] = widest[node].or(desk);
    }
    let room = |(here, desk): (&Meant<'_>, Desk)| {
        let released: usize = here.granted.iter().filter_map(|request| releases.get(request)).sum();
        let sizes = Sizes {
            leases: here.leases + 1,
            ended: here.leases + 1,
            requests: desk.requests + 1,
            legs: desk.legs + 1,
            readers: here.sessions + released + here.strangers + 1,
            holders: desk.holders + 1,
        };
        Room { workers: here.width, sizes }
    };
    meant.iter().zip(widest).map(room).collect()
}

/// What the lines of a trace mean for the room of one node.
struct Meant<'t> {
    /// How many workers it has: those that hold leases, or the ranks that read.
    width: u16,
    lives: usize,
    leases: usize,
    granted: FxHashSet<&'t str>,
    /// How many sessions readers may begin with each of its workers.
    sessions: usize,
    /// Messages that nobody sent.
    strangers: usize,
    releases: usize,
}

impl Meant<'_> {
    fn by(node: &Node) -> Self {
        let granted = FxHashSet::default();
        Self { width: node.ranks.max(1), lives: 1, leases: 0, granted, sessions: 0, strangers: 0, releases: 0 }
    }
}

/// What one rank of a reader reads.
#[derive(Clone, Copy, Default)]
struct Desk {
    requests: usize,
    legs: usize,
    /// Processes that it may read from.
    holders: usize,
}

impl Desk {
    /// Room for either.
    fn or(self, other: Self) -> Self {
        Self {
            requests: self.requests.max(other.requests),
            legs: self.legs.max(other.legs),
            holders: self.holders.max(other.holders),
        }
    }
}

#[cfg(test)]
mod tests;
