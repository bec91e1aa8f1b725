//! Certifies kvlease transports: [`loopback`], an in-memory fabric with faults; with the feature `sim` the simulator ([`sim`]),
//! which replays traces and checks the laws; with the feature `cli` the cases ([`certify`]), the engine that they and the command
//! `kvlease` run ([`engine`]), and the command lines ([`cli`]); with the feature `nixl` the peers that vLLM itself talks to (`vllm`).

#[cfg(feature = "cli")]
pub mod bench;
#[cfg(feature = "cli")]
pub mod certify;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
pub mod engine;
#[cfg(feature = "cli")]
mod launch;
pub mod loopback;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(all(feature = "cli", feature = "nixl"))]
pub mod vllm;
