//! Certifies kvlease transports: [`loopback`], an in-memory fabric with faults; with the feature `sim` the simulator ([`sim`]),
//! which replays traces and checks the laws; with the feature `cli` the cases ([`certify`]), the engine that they and the command
//! `kvlease` run ([`engine`]), and the command lines ([`cli`]).

#[cfg(feature = "cli")]
pub mod bench;
#[cfg(feature = "cli")]
pub mod certify;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
pub mod engine;
pub mod loopback;
#[cfg(feature = "cli")]
mod quiet;
#[cfg(feature = "sim")]
pub mod sim;
