//! kvlease over [NIXL](https://github.com/ai-dynamo/nixl): connections, notifications and reads by whatever backend NIXL has, and the side
//! channel by which vLLM's instances find each other.
//!
//! Without features this crate needs neither NIXL nor a C++ compiler: it finds NIXL ([`find`]), knows its backends ([`Backend`]) and
//! reads and writes what vLLM's side channel carries ([`side_channel`]).
//!
//! | feature | what it has | what it needs to build |
//! | --- | --- | --- |
//! | `nixl` | `NixlTransport`, which implements [`Control`](lease_proto::transport::Control) and [`Data`](lease_proto::transport::Data) | g++ and libclang, for nixl-sys |
//! | `borrowed-agent` | `NixlTransport::borrow`, on the engine's own `nixl_sys::Agent` | the same |
//! | `side-channel` | both ends of vLLM's side channel, and peers that are reached by it | nothing |
//!
//! Any nixl-sys 1.x will do; 1.0.0 and the newest are built in CI. NIXL itself is loaded when the first transport starts, of any version
//! that has what is called; 1.5.1 was run.
//!
//! ```
//! # #[cfg(feature = "nixl")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lease_proto::{frame::{Frame, HEADER}, id::Incarnation, transport::{Control as _, Incoming}};
//! use transport_nixl::{NixlConfig, NixlTransport};
//!
//! let (mut holder, mut reader) = (NixlTransport::new(NixlConfig::default())?, NixlTransport::new(NixlConfig::default())?);
//!
//! // Travels to the reader, in real life.
//! let mut metadata = vec![0; holder.local_metadata().len() + HEADER];
//! Frame::encode(Incarnation(1), holder.local_metadata(), &mut metadata)?;
//!
//! reader.connect(Frame::decode(&metadata)?)?;
//! let peer = loop {
//!     if let Some(Incoming::Connected { peer, .. }) = reader.poll()? {
//!         break peer;
//!     }
//! };
//! reader.notify(peer, b"renew")?;
//! loop {
//!     reader.poll()?; // NIXL sends as it is polled
//!     if let Some(Incoming::Notification { bytes, .. }) = holder.poll()? {
//!         assert_eq!(bytes, b"renew");
//!         break;
//!     }
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "nixl"))]
//! # fn main() {}
//! ```
//!
//! # Finding NIXL
//! In this order: what `KVLEASE_NIXL` names; an installed one; the wheel of the active Python environment; the copy that `cargo xtask
//! nixl` fetched. It is loaded by its path, so `LD_LIBRARY_PATH` is not needed. Where there is none, or the process was started without
//! what it needs ([`check`]), a transport says so in one sentence (`Unavailable`): nixl-sys alone would end the process. Whoever starts
//! such a process gives it [`environment`].
//!
//! # How it is driven
//! By one thread at a time, any thread, which polls. NIXL wakes nobody, so `next_timeout` always says when to poll again: after 50 us while
//! something is under way, after `NixlConfig::poll_interval` else.
//!
//! Loading a peer's metadata takes NIXL from 1 ms (shared memory) over 10 ms (tcp) to hundreds (RDMA), under a lock that every other
//! call would wait for. So the agent goes to a thread of its own with each such job and comes back with the result. Meanwhile nothing waits:
//! notifications are queued, and sent in their order once it is back.
//!
//! NIXL's own progress thread is off. With it (`progress`), what peers send and read moves while this engine is busy; NIXL's default for
//! it, without any sleep, burns a core, and is not offered.
//!
//! # What NIXL does not do
//! - **It does not say what has left.** `Ok` from `notify` means that NIXL has queued it: for 12 s towards a stopped process, for minutes
//!   across a silent partition, without bound. So nothing is held back (`holds_back` is false), `in_flight` counts only what waits for the
//!   agent, and a beat's arrival says nothing about when it was sent. lease-proto's unanswered numbers bound what is sent.
//! - **It does not connect.** `Connected` means that the peer's metadata was taken; a dead peer's may be, too (`answered` is false).
//! - **It reports a dead peer only to who sends.** The first send after NIXL has noticed fails, and so do all later ones until the agent
//!   is forgotten. That is done here: the peer is reported lost once, and connecting again heals it. An agent that nobody needs stays known for
//!   `NixlConfig::keep_known`.
//! - **It promises no order**, and does not say who sent: the name in a notification is what its sender wrote. `from` is always `None`, and
//!   there is no authentication: whoever reaches the worker may send, and over tcp, where UCX emulates reads, may read what it can address.
//!   On vLLM's wire a completion that one agent repeats counts twice, therefore, as it does for vLLM.
//! - **It trusts metadata.** UCX ends the process over an address that is none, and NIXL keeps half of metadata whose part about memory is damaged:
//!   that agent is out of reach from then on. Frames guard against damage, not against who makes one, and what comes over vLLM's side channel has
//!   none: let only processes of one owner be peers. Who presents a known agent's name with another life or other metadata ends the old connection.
//! - **It does not tell errors apart**: died, refused and cancelled are one to it. A failed read counts as a lost peer.
//! - **It does not end reads.** A request that is released while it is under way goes on, and writes into its destination later. So one
//!   is kept until NIXL says that it is over, whatever became of its peer, with its destination; where the transport is dropped before, for good.
//! - **It does not revoke.** A registration that ends is not refused to who has learnt of it. Over tcp, where UCX emulates reads, reading
//!   memory that is gone ends the OWNER's process, and so may a reader that is killed in the midst of a read ("Fatal: unexpected error" from
//!   UCX; seen twice in some tens of kills): `late_read_is_safe` is false. Keep pools registered for life, and tcp for trying things out.
//!
//! # Reads
//! One-sided to the protocol: nobody asks about the lease while bytes move, so a read is proven by time or by the holder's answer. They are cut
//! into pieces of `NixlConfig::max_piece`, since over shared memory NIXL copies them before the call returns. Nothing is attached to a
//! READ: the completion is a notification of its own, sent once the read was seen to be over, and does not depend on a request that somebody
//! still polls.
//!
//! # Memory of CUDA devices
//! Built, and not yet certified on a device: what follows is what the sources of NIXL and UCX say, and what NIXL 1.5.1 does without one.
//!
//! - It is registered, read from and read into as NIXL's `VRAM`, under its device's number; a region says whether it is a device's, and so do
//!   vLLM's. Pinned memory is the host's (`DRAM`).
//! - **What is proven.** NIXL's UCX backend asks UCX what it found, and refuses what that takes for the host's. That this NIXL does so is
//!   tried once, before the first such region is given out: a piece of the host's memory that is said to be a device's must be
//!   refused, and taken for the host's. NIXL logs that as an error of its own ("VRAM memory is detected as host"), which is none. Where
//!   it is taken, as older versions do, registering fails: `NixlError::Cuda`.
//! - **What is not.** By which way UCX moves the bytes, and that it is the device that was named. The capability `cuda` says only that
//!   NIXL's UCX has its module for CUDA in this process and that `UCX_TLS` does not leave it out; of other backends it says nothing, and
//!   registering is the only test.
//! - What it takes: NVIDIA's driver, and a NIXL whose UCX knows CUDA, as the Python wheels `nixl-cu12` and `nixl-cu13` bring.
//!   A registration that fails names what is missing (`NoCuda`).
//! - Its CUDA context is current wherever this transport calls NIXL while there is an agent, on the thread for slow calls too, from the
//!   first registration of such memory on, for two calls of the driver each time; where all memory is the host's this costs nothing. Of
//!   several devices it is the first one's, but each one's own where its memory is registered: since 1.19 UCX finds the device of each
//!   buffer, and makes its primary context current by itself. NIXL's own progress thread (`progress`) and the end of an agent rely on that, too.
//! - Memory that was not allocated in one piece is registered with a warning: fabrics may not reach it by themselves.
//!
//! # Backends
//! UCX, LIBFABRIC, UCCL, Mooncake and GPUNETIO carry notifications; POSIX, OBJ, GDS, GDS_MT, HF3FS, GUSLI, AZURE_BLOB and INFINIA do not and
//! are refused by name. A backend whose plugin does not load is `Unavailable` with what the loader misses. Certified here is UCX over tcp and shared
//! memory. One UCCL plugin was seen to drop notifications over 256 bytes: lower `max_notification` for it.
//!
//! UCX over shared memory alone takes connections only with `UCX_MM_ERROR_HANDLING=y`; `UCX_KEEPALIVE_INTERVAL=1s` makes it notice dead
//! peers sooner than after its own 20 s. An agent connects to itself first: where the machine's own address does not answer (a namespace
//! whose loopback is down) it never starts.
#![deny(unsafe_code)]

mod backend;
#[cfg(feature = "borrowed-agent")]
mod borrow;
#[cfg(feature = "nixl")]
mod config;
#[cfg(feature = "nixl")]
mod control;
#[cfg(feature = "nixl")]
mod cuda;
#[cfg(feature = "nixl")]
mod data;
#[cfg(feature = "nixl")]
mod desk;
#[cfg(feature = "nixl")]
mod error;
mod find;
#[cfg(feature = "nixl")]
mod jobs;
#[cfg(feature = "nixl")]
mod metadata;
#[cfg(feature = "nixl")]
mod peers;
#[cfg(feature = "nixl")]
mod reads;
#[cfg(feature = "nixl")]
mod regions;
pub mod side_channel;

#[cfg(feature = "nixl")]
#[allow(unsafe_code)]
mod sys;
#[cfg(feature = "nixl")]
mod transport;
#[cfg(all(feature = "nixl", feature = "side-channel"))]
mod vllm;

pub use backend::{Backend, BackendError, Notifications};
#[cfg(feature = "nixl")]
pub use config::NixlConfig;
#[cfg(feature = "nixl")]
pub use cuda::NoCuda;
#[cfg(feature = "nixl")]
pub use error::{Failure, NixlError};
pub use find::{LIBRARY, Machine, Missing, Nixl, NotFound, Origin, SETTING, check, environment, find};
#[cfg(feature = "borrowed-agent")]
pub use nixl_sys;
#[cfg(feature = "nixl")]
pub use regions::Region;
#[cfg(feature = "nixl")]
pub use transport::{NixlTransport, load};
