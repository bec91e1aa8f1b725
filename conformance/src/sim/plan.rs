//! Planning a fleet: what leases cost and how safe they are, by closed form and by one sampled run of the real state machines,
//! side by side. docs/plan.md derives the formulas.

mod closed;
mod costs;
mod driver;
mod expiry;
mod inputs;
mod ledger;
#[cfg(feature = "cli")]
pub mod plot;
mod rhythm;
mod sample;
mod sizes;

pub use closed::{Curve, Forecast, Point};
pub use costs::Costs;
pub use inputs::{Asked, Inputs, PlanError};
pub use sample::{Counted, Reclaim, Sample, Slice};

use rustix::time::{ClockId, clock_gettime};

/// Everything that there is to say about a fleet.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What was asked for.
    pub inputs: Inputs,
    /// What one lease costs on this machine.
    pub costs: Costs,
    /// By closed form.
    pub forecast: Forecast,
    /// Other leases, and the shortest safe one.
    pub curve: Curve,
    /// By simulation.
    pub sample: Sample,
}

impl Plan {
    /// Plans a fleet. Takes about as long as the inputs' budget.
    pub fn of(inputs: Inputs) -> Self {
        let costs = Costs::measured(&inputs);
        Self {
            costs,
            forecast: Forecast::of(&inputs, &costs),
            curve: Curve::of(&inputs),
            sample: Sample::of(&inputs, &costs),
            inputs,
        }
    }
}

/// Seconds that this thread has run for, whoever else wanted its core.
fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
