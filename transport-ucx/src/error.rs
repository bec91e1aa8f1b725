//! What can go wrong, in words that say what to do.

use lease_proto::{
    pieces::PiecesError,
    transport::{Error, ErrorKind},
};

use crate::Mistaken;

/// An error of this transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UcxError {
    /// UCX finds none of the wanted transports here, or cannot open them.
    #[error("ucx finds no usable transport for `{tls}` ({status}): name others, such as `tcp`{}", look(variables))]
    Unavailable {
        /// The wanted transports.
        tls: String,
        /// The variables that are set for UCX.
        variables: String,
        /// UCX's own words.
        status: &'static str,
    },
    /// UCX cannot work with what the environment says.
    #[error("{call} failed ({status}){}", look(variables))]
    Environment {
        /// The function.
        call: &'static str,
        /// The variables that are set for UCX.
        variables: String,
        /// UCX's own words.
        status: &'static str,
    },
    /// A number of [`UcxConfig`](crate::UcxConfig) that cannot work.
    #[error("ucx configuration: {field} is {got}, expected {expected}")]
    Config {
        /// The field.
        field: &'static str,
        /// Its value.
        got: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// UCX does not take a setting.
    #[error("ucx does not take the setting {name}={value} ({status}): correct it or unset it")]
    Setting {
        /// Its name as an environment variable.
        name: String,
        /// Its value.
        value: String,
        /// UCX's own words.
        status: &'static str,
    },
    /// The metadata of a peer is not of this transport.
    #[error("metadata is not of the ucx transport ({0}): take it from the peer's `local_metadata`, framed")]
    Metadata(&'static str),
    /// As many connections as allowed are open, being opened or being closed.
    #[error("all {max} connections are in use: disconnect peers, cancel attempts, or raise `max_peers`")]
    TooManyPeers {
        /// The bound.
        max: usize,
    },
    /// The bound on what is in flight to this peer is reached.
    #[error("{ops} notifications with {bytes} bytes are in flight to this peer: poll, then send again")]
    InFlight {
        /// Notifications not yet sent.
        ops: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// As many reads of this peer as allowed are open.
    #[error("{open} reads of this peer are open: poll, then read again")]
    Reads {
        /// How many.
        open: usize,
    },
    /// The progress thread has as much to do as it takes.
    #[error("the progress thread has as much to do as it takes: poll, then try again")]
    Busy,
    /// The bytes that describe a region are not of this transport.
    #[error("region is not of the ucx transport ({0}): take it from the peer's `export`, framed")]
    Region(&'static str),
    /// Ranges that cannot be read.
    #[error("ranges cannot be read ({0}): each must be inside the region and not empty, and all together inside the destination")]
    Ranges(#[from] PiecesError),
    /// A region of this side that another transport registered.
    #[error("the region is registered with another transport: register its memory with this one")]
    OtherTransport,
    /// A peer's region of another life than the one that is connected.
    #[error("the region is of another life of the peer: get its present parameters, and connect again")]
    OtherLife,
    /// A destination that is registered for one lease.
    #[error("the destination is registered for one lease: read into a region of `register`")]
    FencedDestination,
    /// The region was fenced.
    #[error("the region is fenced and cannot be exported any more: register its memory anew")]
    Fenced,
    /// What is to be fenced was not registered so.
    #[error("the region is registered for any number of leases: fence one of `register_fenced`")]
    NotFenced,
    /// This transport cannot fence.
    #[error("ucx cannot fence here: that takes verbs with UCX_RCACHE_ENABLE=n")]
    NoFence,
    /// An operation still uses the region.
    #[error("an operation uses the region: poll, then fence it again")]
    InUse,
    /// UCX takes the memory for another kind than it is.
    #[error("ucx registered {expected} memory as {found}: {why}")]
    MemoryType {
        /// What UCX says.
        found: &'static str,
        /// What it is.
        expected: gpu_mem::Kind,
        /// Why, and what to do.
        why: Mistaken,
    },
    /// The device of the memory cannot be used.
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
    /// The fabric reports the peer dead.
    #[error("the peer is lost ({status}): connect again with its current metadata")]
    PeerLost {
        /// UCX's own words.
        status: &'static str,
    },
    /// Wakers are not offered.
    #[error("ucx wakes by a file descriptor, not by a waker: use `arm` or `wait`")]
    Waker,
    /// A call into UCX failed.
    #[error("{call} failed: {status}")]
    Backend {
        /// The function.
        call: &'static str,
        /// UCX's own words.
        status: &'static str,
    },
    /// Waiting on the event descriptor failed.
    #[error("waiting for the event descriptor failed: {0}")]
    Wait(rustix::io::Errno),
}

/// Where to look, if anything is set.
fn look(variables: &str) -> String {
    if variables.is_empty() { String::new() } else { format!("; set for ucx is {variables}: correct or unset it") }
}

impl Error for UcxError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unavailable { .. } => ErrorKind::Unavailable,
            Self::Config { .. }
            | Self::Setting { .. }
            | Self::Environment { .. }
            | Self::Metadata(_)
            | Self::Region(_)
            | Self::Ranges(_)
            | Self::FencedDestination
            | Self::Fenced
            | Self::NotFenced
            | Self::OtherTransport
            | Self::OtherLife => ErrorKind::Invalid,
            Self::TooManyPeers { .. } | Self::InFlight { .. } | Self::Reads { .. } | Self::InUse | Self::Busy => {
                ErrorKind::WouldBlock
            }
            Self::TooLarge { .. } | Self::Room { .. } => ErrorKind::TooLarge,
            Self::NotConnected => ErrorKind::NotConnected,
            Self::PeerLost { .. } => ErrorKind::PeerLost,
            Self::Waker | Self::NoFence | Self::MemoryType { .. } => ErrorKind::Unsupported,
            Self::Backend { .. } | Self::Wait(_) | Self::Memory(_) => ErrorKind::BackendFailed,
        }
    }
}
