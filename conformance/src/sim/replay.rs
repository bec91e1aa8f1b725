//! Running a trace: what happened, line by line, what it adds up to, and whether it is what the trace expects.

mod expectations;
mod summary;

use super::{
    line::Line,
    trace::{Action, Fault, Trace, What},
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

/// How much room the workers of each node need, so that no table is ever full.
fn rooms(trace: &Trace) -> Vec<Room> {
    let count = |is: &dyn Fn(usize, &Action) -> bool| {
        let acts = trace.lines.iter().filter(|line| matches!(&line.what, What::Do { node, action, .. } if is(*node, action)));
        acts.count()
    };
    let restarts = 1 + count(&|_, action| matches!(action, Action::Restart));
    let widths: Vec<u16> = (0..trace.world.nodes.len()).map(|node| width(trace, node)).collect();
    let workers: usize = widths.iter().map(|width| usize::from(*width)).sum();
    let ranks = trace.world.nodes.iter().map(|node| usize::from(node.ranks)).max().unwrap_or(1);
    let injected = count(&|_, action| matches!(action, Action::Receive { .. }));
    let replayed = trace.lines.iter().any(|line| {
        matches!(&line.what, What::Link { fault: Fault::Replay { .. } | Fault::Window { .. } | Fault::DropNext { .. }, .. })
    });
    let room = |(node, workers_here): (usize, &u16)| {
        let leases = count(&|at, action| at == node && matches!(action, Action::Grant { .. } | Action::Expect { .. }));
        let requests = count(&|at, action| at == node && matches!(action, Action::Enqueue { .. } | Action::Release { .. }));
        // Each life of each worker may greet in several sessions.
        let peers = workers * restarts * if replayed { 2 } else { 1 } + injected + 1;
        let sizes = Sizes {
            leases: leases + 1,
            ended: leases + 1,
            requests: requests + 1,
            legs: requests * ranks + 1,
            readers: peers,
            holders: workers * restarts + 1,
        };
        Room { workers: *workers_here, sizes }
    };
    widths.iter().enumerate().map(room).collect()
}

/// How many workers a node has: those that hold leases, or the ranks that read.
fn width(trace: &Trace, node: usize) -> u16 {
    let readers = trace.lines.iter().filter_map(|line| match &line.what {
        What::Do { node: at, action: Action::Enqueue { of, .. }, .. } if *at == node => Some(*of),
        _ => None,
    });
    readers.chain([trace.world.nodes[node].ranks, 1]).max().unwrap_or(1)
}
