//! kvlease over raw [UCX](https://openucx.org): connections and notifications between processes, by tcp, shared memory or
//! whatever else UCX finds.
//!
//! [`UcxTransport`] implements [`lease_proto::transport::Control`]. Nothing in it blocks, and it starts no thread (UCX starts one,
//! for accepting connections): it moves when it is polled, or sleeps in [`UcxTransport::wait`]. It does not read remote memory; its
//! capabilities say so.
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
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Connections
//! - An attempt succeeds once the peer's transport has answered a ping, so a peer that exists but does not poll leaves it open:
//!   the caller's deadline and [`cancel`](lease_proto::transport::Control::cancel) end it. A peer that is gone fails it:
//!   `Rejected` where nobody listens any more or no fabric is common to both, `PeerLost` where its death was noticed.
//! - A connection carries notifications one way. The peer answers over one of its own, for which it needs this side's metadata.
//! - A killed peer is reported within about the keepalive interval; a stopped one, or one behind a cut link, may never be.
//! - Disconnecting sends what was accepted. A peer that had connected back loses that connection, and notices with its next
//!   keepalive; the far end of the socket is open until then.
//! - UCX trusts its peers: whoever may send metadata in a frame, or connect to this worker, can crash this process. Let only
//!   processes of one owner do so.
//!
//! # What is bounded
//! Connections and attempts, notifications and bytes in flight to each peer, notifications and bytes not yet polled: see
//! [`UcxConfig`]. Beyond a bound the caller gets `WouldBlock` or the senders are held back; nothing is dropped.
//!
//! # Settings of UCX
//! These are given to UCX unless the environment sets them otherwise:
//!
//! | variable | value | why |
//! | --- | --- | --- |
//! | `UCX_MM_ERROR_HANDLING` | `y` | else shared memory takes no connections that report a dead peer |
//! | `UCX_KEEPALIVE_INTERVAL` | [`UcxConfig::keepalive`], 1 s | 20 s, UCX's own, are longer than many a lease |
//! | `UCX_PROTO_EMULATION_ENABLE` | `n` | an emulated read with a wrong address kills the process that is read |
//! | `UCX_HANDLE_ERRORS` | `none` | signals are the program's |
//! | `UCX_WARN_UNUSED_ENV_VARS` | `n` | variables may be meant for another UCX, such as NIXL's |
//! | `UCX_LOG_LEVEL` | `fatal` | UCX logs to standard output, which is the program's; failures come as errors and by `tracing` |
//!
//! The capabilities state no time for a dead peer where `UCX_KEEPALIVE_INTERVAL` is set, and no order where
//! `UCX_MAX_EAGER_RAILS` is. [`UcxConfig::tls`], where set, comes before `UCX_TLS`. The last three of the table hold for the whole
//! process. What UCX reads when it is loaded can only be set for a new process: `UCX_LOG_FILE`, `UCX_ERROR_SIGNALS` (moot with
//! `UCX_HANDLE_ERRORS=none`), and `UCX_DEBUG_SIGNO`: unless that is 0, SIGHUP raises UCX's log level instead of ending the process.
//!
//! # Building
//! UCX 1.22 is compiled in, with cc and make and nothing else. No other UCX may be in the process: link this crate into no program
//! that also loads NIXL.
#![deny(unsafe_code)]

mod config;
mod error;
mod metadata;
mod peers;
#[allow(unsafe_code)]
mod sys;
mod transport;

pub use config::UcxConfig;
pub use error::UcxError;
pub use transport::{LOOK, UcxTransport, available};
