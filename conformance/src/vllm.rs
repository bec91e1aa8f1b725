//! Live peers of vLLM's NixlConnector, for both roles: its transfer parameters, its side channel, its notifications, and reads of block
//! memory as its metadata lays it out. What talks to it here talks to vLLM 0.33 as well, in both directions.
//!
//! One process hosts all ranks of its engine, each with an agent and the protocol's machines of its own.

mod decode;
mod listener;
mod params;
mod plan;
mod pool;
mod prefill;
mod ranks;
mod reading;

pub use decode::decode;
pub use params::request;
pub use prefill::prefill;
pub use ranks::Open;
