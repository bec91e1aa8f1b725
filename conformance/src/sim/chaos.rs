//! Random worlds, each from one seed: engines on clocks of their own, terms, networks, crashes, and requests whose reads end close
//! to the instants that matter.
//!
//! What is random stays inside of what the protocol assumes: clocks keep the drift bound that their terms state, and a clock
//! stands still only where no reader takes a deadline as proof.

mod assumed;
mod dice;
mod faults;
mod junk;
mod nodes;
mod script;
mod stories;

use lease_proto::wire::Wire;

use self::{nodes::Setting, script::Script};
use super::trace::Trace;
pub use assumed::assumed;
pub(super) use dice::Dice;

/// Which worlds to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// At most so many prefill nodes, from 1.
    pub prefill: usize,
    /// At most so many decode nodes, from 1.
    pub decode: usize,
    /// At most so many requests, from 1.
    pub requests: usize,
    /// Everything goes wrong; without, only loss, delay and jitter.
    pub chaos: bool,
    /// The wire; `None`: native in worlds of even seeds, vLLM's in those of odd ones.
    pub wire: Option<Wire>,
}

impl Default for Shape {
    fn default() -> Self {
        Self { prefill: 3, decode: 3, requests: 12, chaos: false, wire: Some(Wire::Native) }
    }
}

/// The world of that seed and shape, always the same.
pub fn generate(seed: u64, shape: &Shape) -> Trace {
    let dice = &mut Dice::new(seed);
    let wire = shape.wire.unwrap_or(if seed.is_multiple_of(2) { Wire::Native } else { Wire::Vllm });
    let mut setting = Setting::draw(dice, seed, shape, wire);
    let script = &mut Script::default();
    faults::draw(dice, &mut setting, script, shape.chaos);
    stories::draw(dice, &setting, script, shape);
    Trace { lines: script.lines(&setting.world), world: setting.world }
}
