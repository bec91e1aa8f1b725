//! What the protocol assumes about clocks; without it no law holds.

use lease_proto::config::Proof;

use crate::sim::trace::{Action, Trace, What};

/// Whether every clock keeps the drift bound that its node's terms state, and none stands still uncounted where a reader takes a
/// deadline as proof.
pub fn assumed(trace: &Trace) -> bool {
    let nodes = &trace.world.nodes;
    let within = |node: usize, ppm: i64| ppm.unsigned_abs() <= u64::from(nodes[node].terms.drift_ppm());
    let clockless = nodes.iter().all(|node| node.terms.proof() == Proof::Completion);
    let holds = |what: &What| match what {
        What::Do { node, action: Action::Drift { ppm }, .. } => within(*node, *ppm),
        What::Do { action: Action::Suspend { counted, .. }, .. } => *counted || clockless,
        _ => true,
    };
    (0..nodes.len()).all(|node| within(node, nodes[node].drift_ppm)) && trace.lines.iter().all(|line| holds(&line.what))
}
