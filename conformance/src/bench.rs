//! Measures a transport against `ucx_perftest` of the same UCX: two runs back to back, the ratio of the two, several rounds of it.
//!
//! Figures of one machine on one day say little: two busy cores move them by half. The ratio of a pair moves far less, so ratios are
//! what is reported. Each run is a pair of fresh processes on either side: a [`node`] that leads and one that follows for the
//! transport, a client and a server for UCX.

mod child;
mod cores;
mod idle;
pub mod metric;
pub mod node;
mod ours;
mod perftest;
mod reads;
mod report;
mod rounds;
mod traffic;

pub use cores::Cores;
pub use ours::Ours;
pub use perftest::Perftest;
pub use report::{table, to_json};
pub use rounds::{Outcome, Plan, measure};
