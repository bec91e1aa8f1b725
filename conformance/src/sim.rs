//! The simulator: a world of engines on virtual time that runs the real state machines and knows the truth on every node.
//!
//! A [`trace::Trace`] says what is done in a world; [`replay`] runs it and tells what happened, line by line, whether a law was
//! broken, and whether what was expected came.

pub mod chaos;
pub mod line;
mod net;
pub mod plan;
mod queue;
pub mod replay;
pub mod shrink;
pub mod simulate;
pub mod time;
pub mod trace;
mod truth;
mod worker;
pub mod world;
