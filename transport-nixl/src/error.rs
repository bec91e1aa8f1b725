//! What can go wrong, in words that say what to do.

use std::path::PathBuf;

use lease_proto::{
    pieces::PiecesError,
    transport::{Error, ErrorKind},
};

use crate::{BackendError, Missing, NoCuda, NotFound};

/// What became of a call, as far as NIXL tells: that a peer died, refused or was cancelled is all one to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer's metadata is not loaded, or no longer.
    Unknown,
    /// NIXL does not take what it was given.
    Invalid,
    /// All else.
    Backend,
}

impl Failure {
    const fn words(self) -> &'static str {
        match self {
            Self::Unknown => "not found",
            Self::Invalid => "invalid parameter",
            Self::Backend => "backend error",
        }
    }
}

/// An error of this transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NixlError {
    /// There is no NIXL.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// NIXL is there, and this process was not started for it.
    #[error(transparent)]
    Environment(#[from] Missing),
    /// NIXL is there and does not load.
    #[error("{} does not load: {why}", library.display())]
    Load {
        /// The library.
        library: PathBuf,
        /// The loader's words.
        why: String,
    },
    /// The backend is not to be had here.
    #[error("nixl has no backend {backend} here: {why}")]
    Backend {
        /// Its name.
        backend: String,
        /// What is missing.
        why: String,
    },
    /// The backend carries no notifications.
    #[error(transparent)]
    NoNotifications(#[from] BackendError),
    /// The engine's agent has no such backend.
    #[error("the agent has no backend {backend}: create it before the agent is borrowed, or name one that it has")]
    NoSuchBackend {
        /// Its name.
        backend: String,
    },
    /// A number of [`NixlConfig`](crate::NixlConfig) that cannot work.
    #[error("nixl configuration: {field} is {got}, expected {expected}")]
    Config {
        /// The field.
        field: &'static str,
        /// Its value.
        got: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// The metadata of a peer is not of this transport.
    #[error("metadata is not of the nixl transport ({0}): take it from the peer's `local_metadata`, framed")]
    Metadata(&'static str),
    /// The metadata of a peer is for another backend.
    #[error("the peer's backend is {theirs} and this one's {ours}: both sides must use the same")]
    OtherBackend {
        /// The peer's.
        theirs: String,
        /// This side's.
        ours: String,
    },
    /// As many connections as allowed are there.
    #[error("all {max} connections are in use: disconnect peers, cancel attempts, or raise `max_peers`")]
    TooManyPeers {
        /// The bound.
        max: usize,
    },
    /// Too much waits for NIXL to be free.
    #[error("{count} notifications with {bytes} bytes wait to be handed to nixl for this peer: poll, then send again")]
    Queued {
        /// Notifications.
        count: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// As many reads of this peer as allowed are open.
    #[error("{open} reads of this peer are open: poll, then read again")]
    Reads {
        /// How many.
        open: usize,
    },
    /// The bytes that describe a region are not of this transport.
    #[error("region is not of the nixl transport ({0}): take it from the peer's `export`, framed")]
    Region(&'static str),
    /// A region of another peer, or of another life of this one.
    #[error("the region is another agent's than the peer's: get its present parameters, and connect again")]
    OtherAgent,
    /// As many regions of this peer as allowed are known.
    #[error("all {max} regions of this peer are in use: export fewer and larger ones, or raise `max_regions`")]
    TooManyRegions {
        /// The bound.
        max: usize,
    },
    /// Ranges that cannot be read.
    #[error("ranges cannot be read ({0}): each must be inside the region and not empty, and all together inside the destination")]
    Ranges(#[from] PiecesError),
    /// A region of this side that another transport registered.
    #[error("the region is registered with another transport: register its memory with this one")]
    OtherTransport,
    /// This transport cannot fence.
    #[error("nixl cannot fence: ending a registration does not end reads of it; use transport-ucx over verbs")]
    NoFence,
    /// NIXL does not take the memory.
    #[error("nixl does not register {kind} memory of {bytes} bytes with backend {backend}: it says {}", why.words())]
    Register {
        /// Its kind.
        kind: gpu_mem::Kind,
        /// How much.
        bytes: usize,
        /// The backend.
        backend: String,
        /// What NIXL says.
        why: Failure,
    },
    /// Memory of a CUDA device, which nobody here treats as such.
    #[error("nixl does not register {kind} memory with backend {backend}: {why}")]
    Cuda {
        /// What the memory is.
        kind: gpu_mem::Kind,
        /// The backend.
        backend: String,
        /// Why not, and what to do.
        why: NoCuda,
    },
    /// Memory, or its device, cannot be had.
    #[error(transparent)]
    Memory(#[from] gpu_mem::MemoryError),
    /// No room for what is exported.
    #[error("the buffer has {got} bytes, expected at least {needed}")]
    Room {
        /// Its bytes.
        got: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// A notification over the limit.
    #[error("notification has {got} bytes, expected at most {max}: split it")]
    TooLarge {
        /// Its bytes.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// No such peer, or no longer.
    #[error("not connected to this peer: connect with its current metadata")]
    NotConnected,
    /// NIXL has given the peer up.
    #[error("the peer is lost: connect again with its current metadata")]
    PeerLost,
    /// A peer behind a side channel, and no client for it.
    #[cfg(feature = "side-channel")]
    #[error("the peer is to be reached by its side channel: give the transport a client (`set_side_channel`)")]
    NoSideChannel,
    /// The side channel takes no further handshake.
    #[cfg(feature = "side-channel")]
    #[error(transparent)]
    SideChannel(#[from] crate::side_channel::StartError),
    /// Wakers are not offered.
    #[error("nixl wakes nobody: poll within `next_timeout`")]
    Waker,
    /// The thread for slow calls cannot be started, or is gone with the agent.
    #[error("the thread that makes slow calls of nixl is not there ({0}): start another transport")]
    Thread(String),
    /// No name can be made that no other agent has.
    #[error("no randomness on this system: {0}")]
    Randomness(String),
    /// A peer's region is in memory that this side cannot read from.
    #[error("the peer's region is {got} memory, expected DRAM or VRAM: move it to the host or to a GPU there")]
    MemoryType {
        /// vLLM's word for it.
        got: String,
    },
    /// A call into NIXL failed.
    #[error("{call} failed: nixl says {}", failure.words())]
    Call {
        /// What was done.
        call: &'static str,
        /// What NIXL tells.
        failure: Failure,
    },
}

impl Error for NixlError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound(_) | Self::Environment(_) | Self::Load { .. } | Self::Backend { .. } => ErrorKind::Unavailable,
            Self::NoNotifications(_) | Self::NoFence | Self::Waker | Self::MemoryType { .. } | Self::Cuda { .. } => {
                ErrorKind::Unsupported
            }
            Self::Config { .. }
            | Self::NoSuchBackend { .. }
            | Self::Metadata(_)
            | Self::OtherBackend { .. }
            | Self::Region(_)
            | Self::OtherAgent
            | Self::Ranges(_)
            | Self::TooManyRegions { .. }
            | Self::OtherTransport => ErrorKind::Invalid,
            Self::TooManyPeers { .. } | Self::Queued { .. } | Self::Reads { .. } => ErrorKind::WouldBlock,
            Self::TooLarge { .. } | Self::Room { .. } => ErrorKind::TooLarge,
            #[cfg(feature = "side-channel")]
            Self::NoSideChannel => ErrorKind::Invalid,
            #[cfg(feature = "side-channel")]
            Self::SideChannel(error) => error.kind(),
            Self::NotConnected => ErrorKind::NotConnected,
            Self::PeerLost => ErrorKind::PeerLost,
            Self::Thread(_) | Self::Randomness(_) | Self::Register { .. } | Self::Memory(_) | Self::Call { .. } => {
                ErrorKind::BackendFailed
            }
        }
    }
}
