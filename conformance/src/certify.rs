//! A certification: cases over a lab, on every transport that this machine has.
//!
//! A [`lab::Lab`] runs nodes: real processes for a transport between processes, engines on virtual time for the in-memory fabric. A
//! case knows neither; it tells nodes what to do and looks at the events they tell. Time is judged by the holder's own stamps.

mod cases;
pub mod lab;
mod memory;
mod network;
mod process;
mod report;
mod run;

pub use cases::{Case, all};
pub use memory::MemoryLab;
pub use process::ProcessLab;
pub use report::{Outcome, Verdict, table};
pub use run::{Lane, Progress, run};
