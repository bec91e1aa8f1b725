//! kvlease over raw [UCX](https://openucx.org): connections, notifications and reads between processes, by tcp, shared memory,
//! verbs or whatever else UCX finds.
//!
//! [`UcxTransport`] implements [`Control`](lease_proto::transport::Control) and [`Data`](lease_proto::transport::Data). Nothing in
//! it blocks, and it starts no thread (UCX starts one, for accepting connections). Three ways to drive it:
//! - polled from the forward loop, on the thread that made it;
//! - asleep on its descriptor, in [`UcxTransport::wait`] or, with the feature `tokio`, in `UcxTransport::ready`;
//! - by a thread of its own, with a handle for any other: [`UcxThread`].
//!
//! ```
//! use lease_proto::{frame::{Frame, HEADER}, id::Incarnation, transport::{Control as _, Incoming}};
//! use transport_ucx::{UcxConfig, UcxTransport};
//!
//! let config = UcxConfig { tls: Some("tcp".to_owned()), ..UcxConfig::default() };
//! let (mut holder, mut reader) = (UcxTransport::new(config.clone())?, UcxTransport::new(config)?);
//!
//! // Travels to the reader, in real life.
//! let mut metadata = vec![0; holder.local_metadata().len() + HEADER];
//! Frame::encode(Incarnation(1), holder.local_metadata(), &mut metadata)?;
//!
//! reader.connect(Frame::decode(&metadata)?)?;
//! let peer = loop {
//!     holder.poll()?;
//!     if let Some(Incoming::Connected { peer, .. }) = reader.poll()? {
//!         break peer;
//!     }
//! };
//! reader.notify(peer, b"renew")?;
//! loop {
//!     reader.poll()?;
//!     if let Some(Incoming::Notification { bytes, .. }) = holder.poll()? {
//!         assert_eq!(bytes, b"renew");
//!         break;
//!     }
//! }
//!
//! // The holder registers its blocks once, and permits what it grants: `permits().hear(&event)` in an engine.
//! # use gpu_mem::{HostSlab, Memory};
//! # use lease_proto::{id::Token, transport::{Data as _, Landed, Range}};
//! let token = Token { number: 1, nonce: 2 };
//! let blocks = holder.register(Memory::from(HostSlab::new(1 << 20)?))?;
//! let mut exported = vec![0; 1024];
//! let length = holder.export(&blocks, Incarnation(1), &mut exported)?;
//! holder.permits().permit(token);
//!
//! let into = reader.register(Memory::from(HostSlab::new(1 << 20)?))?;
//! let (region, block) = (Frame::decode(&exported[..length])?, Range { offset: 4096, length: 65536 });
//! reader.read(peer, token, region, &[block], &into, 0)?;
//! loop {
//!     holder.poll()?;
//!     if let Some(Incoming::ReadDone { result, .. }) = reader.poll()? {
//!         assert_eq!(result, Ok(Landed::Served));
//!         break;
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/lease.rs` is the whole of it: both engines of a lease, from the grant over the read to the end.
//!
//! # Connections
//! - An attempt succeeds once the peer's transport has answered a ping, so a peer that exists but does not poll leaves it open:
//!   the caller's deadline and [`cancel`](lease_proto::transport::Control::cancel) end it. A peer that is gone fails it:
//!   `Rejected` where nobody listens any more or no fabric is common to both, `PeerLost` where its death was noticed.
//! - A connection carries notifications one way. The peer answers over one of its own, for which it needs this side's metadata.
//! - A killed peer is reported within about the keepalive interval, over shared memory only once its parent has taken notice
//!   (`waitpid`); a stopped one, or one behind a cut link, may never be: the lease is the failure detector, and the caller's deadline.
//! - In shared memory all peers write into one queue of the receiver's. One that is stopped in the middle of that, or killed, holds
//!   up all behind it until it goes on, or for good: to the receiver they are as silent as behind a cut link. The moment is short
//!   (longest with the first 256 messages that a process writes, which touch new pages), and neither side can tell. Where peers on
//!   one machine are killed and the others must go on, let them use `tcp` or a NIC.
//! - A peer that drops its transport while its process lives is lost over tcp at once, and over shared memory never: UCX only looks
//!   whether the process lives. Its next life says so, by its own handshake.
//! - Disconnecting sends what was accepted. A peer that had connected back loses that connection, and notices with its next
//!   keepalive; the far end of the socket is open until then.
//! - UCX trusts its peers: whoever may send metadata in a frame, or connect to this worker, can crash this process. Let only
//!   processes of one owner do so.
//!
//! # Reads
//! - Where a connection has an RDMA transport (`rc_*`, `dc_*`) reads are one-sided: the owner need not even run, and the lease is
//!   proven by time or by its answer ([`Landed::OneSided`](lease_proto::transport::Landed)).
//! - Elsewhere the owner serves them when it polls, in pieces of up to 1 MiB ([`Landed::Served`](lease_proto::transport::Landed)):
//!   it checks the token against its [`permits`](UcxTransport::permits), the region and every range, and once the last byte is read
//!   the token again: at once for what it copies (up to 64 KiB, over shared memory 16 KiB), by one more question for what is longer.
//!   UCX would emulate one-sided reads there, without any check; that is off.
//! - A read that is refused ends `Rejected` (no permit, or the region is gone) or `Invalid`; one whose peer is lost or
//!   disconnected ends so, once nothing can write to its destination any more. A stopped peer's stays open.
//! - [`register_fenced`](lease_proto::transport::Data::register_fenced) is proof (D): only with verbs, and with UCX's registration
//!   cache off, since with it on a registration that ends revokes nothing. It costs a registration and its end for every lease (on
//!   emulated RoCE 0.1 ms for 64 KiB and 1.2 ms for 16 MiB), and a reader that comes late loses its connection with all that is on it.
//!
//! # Memory of CUDA devices
//! Built, and not yet certified on a device: what follows is what the sources of UCX 1.22 say.
//!
//! - It takes a UCX with CUDA, which the one that is compiled in is not (below), and `cuda` among the transports that it may use:
//!   UCX opens nothing else, not even to look at memory. The capability `cuda` says whether both is so.
//! - After each registration, and never later, UCX is asked what it takes the memory for, without having been told. For another kind than it
//!   is, such as the host's, the registration fails with the cause and what to do ([`Mistaken`]). Pinned memory is the host's to UCX too.
//! - The host's instructions never touch it. An owner sends it from where it lies, however short; who reads into it asks for no copies, and so
//!   for one answer more. One-sided reads of it need GPUDirect RDMA (nvidia-peermem, or dma-buf) on the owner's side.
//! - Its CUDA context is current on whatever thread registers it, ends its registration or exports it. While a transport moves (`poll`,
//!   `wait`, [`UcxThread`]) or begins a one-sided read, the context of the first such memory is, for two calls of the driver each time, from
//!   that registration on. One is enough for several devices, since UCX finds the device of each buffer and makes its primary context
//!   current by itself. Where all memory is the host's this costs nothing. On a borrowed worker the engine's own progress is the engine's.
//! - Memory that was not allocated in one piece is registered with a warning: fabrics may not reach it by themselves. What was allocated in
//!   a stream's order UCX calls managed, unless `UCX_CUDA_COPY_ASYNC_MEM_TYPE=cuda`.
//!
//! # What is bounded
//! Connections and attempts, notifications and bytes in flight to each peer, reads of each peer and their bytes under way, answers
//! to peers' reads, notifications and bytes not yet polled: see [`UcxConfig`]. Beyond a bound the caller gets `WouldBlock`, or peers
//! are held back; no notification is dropped. Pings and asks beyond what honest peers send are dropped and counted as
//! [`refused`](UcxTransport::refused). On an engine's worker its own progress may bring in more than the inbox holds.
//!
//! # Settings of UCX
//! These are given to UCX unless the environment sets them otherwise:
//!
//! | variable | value | why |
//! | --- | --- | --- |
//! | `UCX_MM_ERROR_HANDLING` | `y` | else shared memory takes no connections that report a dead peer |
//! | `UCX_KEEPALIVE_INTERVAL` | [`UcxConfig::keepalive`], 1 s | 20 s, UCX's own, are longer than many a lease |
//! | `UCX_PROTO_EMULATION_ENABLE` | `n` | an emulated read with a wrong address kills the process that is read |
//! | `UCX_RCACHE_ENABLE` | `n` | with the cache a registration that ends revokes nothing; with it the capability `fence` is off |
//! | `UCX_GVA_ENABLE` | `off` | as above: one registration of the whole address space |
//! | `UCX_MAX_EAGER_RAILS` | `1` | over several rails a short notification may overtake a long one; then no order is stated |
//! | `UCX_IB_ASYNC_EVENTS` | `n` | a reader was seen to crash in UCX after a remote access error; verbs only |
//! | `UCX_RC_VERBS_RETRY_COUNT` | `3` | 7, UCX's own, is for ever on some devices; verbs only |
//! | `UCX_UD_VERBS_TIMEOUT` | `3s` | a dead peer's wire-up lane is given up after 30 s else; verbs only |
//! | `UCX_HANDLE_ERRORS` | `none` | signals are the program's |
//! | `UCX_WARN_UNUSED_ENV_VARS` | `n` | variables may be meant for another UCX, such as NIXL's |
//! | `UCX_LOG_LEVEL` | `fatal` | UCX logs to standard output, which is the program's; failures come as errors and by `tracing` |
//!
//! The capabilities state no time for a dead peer where `UCX_KEEPALIVE_INTERVAL` is set, and no order where
//! `UCX_MAX_EAGER_RAILS` is. `UCX_PROTO_ENABLE=n` would bring emulated reads back: leave it alone. [`UcxConfig::tls`],
//! where set, comes before `UCX_TLS`. The last three of the table hold for the whole process. What UCX reads when it is loaded can only be set for a new process: `UCX_LOG_FILE`, `UCX_ERROR_SIGNALS` (moot with
//! `UCX_HANDLE_ERRORS=none`), and `UCX_DEBUG_SIGNO`: unless that is 0, SIGHUP raises UCX's log level instead of ending the process.
//!
//! On the engine's own worker (feature `borrowed-worker`, `UcxTransport::borrow`) all settings are the engine's; `examples/borrowed.rs`
//! is a program that does it.
//!
//! # Building
//! | how | what it has | what it needs |
//! | --- | --- | --- |
//! | default | UCX 1.22 compiled in: tcp, shared memory | cc and make |
//! | feature `rdma` | verbs and rdmacm as well | libibverbs-dev and librdmacm-dev; says so if they are missing |
//! | feature `tokio` | `UcxTransport::ready` | |
//! | feature `borrowed-worker` | `UcxTransport::borrow`, `EngineWorker` | |
//! | `UCX_DIR=/opt/ucx` | that shared UCX, 1.17 or later; CUDA if it has it, as the Python wheels `libucx-cu12` and `libucx-cu13` | `LD_LIBRARY_PATH` or an rpath to find it at run time; for CUDA NVIDIA's driver |
//!
//! [`UcxTransport::found`] tells which transports, devices and types of memory are there, and so does a line of `tracing` at start, at
//! level info. Names in `tls` that this machine lacks are passed over as long as one is there. No other UCX may be in
//! the process: link this crate into no program that also loads NIXL.
#![deny(unsafe_code)]

mod config;
mod control;
mod cuda;
mod data;
mod error;
mod messages;
mod metadata;
mod peers;
mod reads;
#[cfg(feature = "tokio")]
mod ready;
mod regions;
#[allow(unsafe_code)]
mod sys;
mod threaded;
mod transport;
mod wait;

pub use config::UcxConfig;
pub use cuda::Mistaken;
pub use error::UcxError;
pub use regions::{Region, Registrar};
#[cfg(feature = "borrowed-worker")]
pub use sys::EngineWorker;
pub use threaded::UcxThread;
pub use transport::{Found, UcxTransport, available};
#[cfg(feature = "borrowed-worker")]
pub use ucx_sys;
pub use wait::LOOK;
