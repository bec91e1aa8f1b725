//! vLLM's side channel: how D learns P's agent metadata, and the offset between their clocks, over ZeroMQ.
//!
//! The bytes need no feature: [`encode_request`] and [`decode_request`], the time stamp, [`Payload`] and the [`AgentMetadata`] in it,
//! which tells where each block lies ([`AgentMetadata::block`]). They are those of vLLM 0.33, version 15 of its connector.
//!
//! With the feature `side-channel` there are both ends, each on a thread of its own: a `Server` for P, which answers vLLM's workers as
//! well as ours and outlives what kills vLLM's own listener (a malformed request, a rank that is not there), and a `Client` for D,
//! which asks vLLM's listener or ours and never makes a forward loop wait.
//!
//! ```
//! # #[cfg(feature = "side-channel")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lease_proto::topology::Ranks;
//! use transport_nixl::side_channel::*;
//!
//! let metadata = AgentMetadata {
//!     engine_id: "prefill-0".into(),
//!     kv_caches_base_addr: vec![1 << 40],
//!     num_blocks: 1000,
//!     block_lens: vec![32768],
//!     block_strides: vec![32768],
//!     block_size: 16,
//!     ..AgentMetadata::default()
//! };
//! let payload = Payload { compatibility_hash: "of the model".into(), agent_metadata_bytes: metadata.encode()? };
//! let rank = Ranks { pp: 0, tp: 0 };
//! let payloads = Payloads::new();
//! payloads.publish(rank, payload.encode()?)?;
//! let server = Server::bind("127.0.0.1", 0, payloads, ServerConfig::default())?;
//!
//! let compatibility = Compatibility::Expected("of the model".into());
//! let mut client = Client::spawn(ClientConfig { compatibility, ..ClientConfig::default() })?;
//! let port = server.address().port();
//! client.start(1, Target { host: "127.0.0.1".into(), port, engine_id: "prefill-0".into(), rank })?;
//! let handshake = loop {
//!     // Here a forward pass runs.
//!     if let Some((1, outcome)) = client.poll() {
//!         break outcome?;
//!     }
//! };
//! assert_eq!(handshake.metadata.block(0, 2)?.start, (1 << 40) + 2 * 32768);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "side-channel"))]
//! # fn main() {}
//! ```
//!
//! # What a stranger can do
//! There is no authentication, here as in vLLM: who reaches the port can learn addresses and connect as a peer. Keep it inside.
//!
//! A stranger cannot stop a server. Its connections are bounded, and the one that was useful the longest time ago makes room for a new
//! one; so whoever only connects and waits delays nobody, but who connects by the hundred within the millisecond of a handshake can push
//! that one out, and it has to be tried again. Memory grows with what arrives, up to a bound, never with what is claimed: 256
//! connections that hold as much as they may cost 1.5 MB here. An answer is shared, not copied, while it is written; whoever does not
//! read it costs the system's send buffer until the deadline. Measured on two cores: a handshake takes 0.6 ms of libzmq's REQ socket,
//! 3 ms while a thousand connections wait, and some 10 ms while eight strangers flood the server.

#[cfg(feature = "side-channel")]
mod client;
#[cfg(feature = "side-channel")]
mod clock;
mod error;
#[cfg(feature = "side-channel")]
mod host;
mod layout;
mod metadata;
mod msgpack;
mod payload;
mod request;
#[cfg(feature = "side-channel")]
mod server;
#[cfg(feature = "side-channel")]
mod zmtp;

#[cfg(feature = "side-channel")]
pub use client::{Client, ClientConfig, Compatibility, Handshake, HandshakeError, OffsetSample, StartError, Target};
#[cfg(feature = "side-channel")]
pub use clock::{Clock, perf_counter};
pub use error::CodecError;
pub use layout::LayoutError;
pub use metadata::{AgentMetadata, MAX_BLOCKS, MAX_NAMES, MAX_REGIONS};
pub use payload::{MAX_PAYLOAD, Payload};
pub use request::{decode_request, decode_stamp, encode_request, encode_stamp};
#[cfg(feature = "side-channel")]
pub use server::{Count, Counters, Payloads, Server, ServerConfig, serve};
