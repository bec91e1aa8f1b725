//! How a handshake can fail, and what to do then.

use lease_proto::transport::{Error, ErrorKind};

use crate::side_channel::CodecError;

/// Why a handshake was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// As many as allowed are in flight.
    #[error("{in_flight} handshakes are in flight: poll, then start again, or raise `in_flight`")]
    WouldBlock {
        /// The bound.
        in_flight: usize,
    },
    /// The id is another handshake's.
    #[error("handshake {id} is in flight already: poll or cancel it first")]
    InUse {
        /// The id.
        id: u64,
    },
    /// No such peer can be.
    #[error("no peer is at host \"{}\", port {port}: take both from the transfer parameters", host.escape_debug().take(256).collect::<String>())]
    Target {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
}

impl Error for StartError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::WouldBlock { .. } => ErrorKind::WouldBlock,
            Self::InUse { .. } | Self::Target { .. } => ErrorKind::Invalid,
        }
    }
}

/// Why a handshake failed. None is the caller's fault, and none says that a lease has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer's name is not known.
    #[error("host \"{}\" is not found ({reason}): check VLLM_NIXL_SIDE_CHANNEL_HOST of the peer", host.escape_debug())]
    Resolve {
        /// The name.
        host: String,
        /// The system's words.
        reason: String,
    },
    /// Nobody listens there.
    #[error("nobody takes a connection at \"{}\", port {port} ({reason}): the peer is gone, or not up yet; try again", host.escape_debug())]
    Connect {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// The system's words.
        reason: String,
    },
    /// The peer did not do its part before the deadline.
    #[error(
        "the peer did nothing in time: it hangs, or has no such rank; try again, and check the parallel sizes in the transfer parameters"
    )]
    Silent,
    /// The connection broke.
    #[error("the peer closed the connection ({reason}): try again")]
    Closed {
        /// The system's words.
        reason: String,
    },
    /// Something else listens there.
    #[error("the peer {problem}: check that the port is a side channel's")]
    NotZeroMq {
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An answer above the bounds.
    #[error("the peer sent more than {max} frames or bytes: check that the port is a side channel's, or raise `max_payload`")]
    TooLarge {
        /// The bound.
        max: usize,
    },
    /// An answer of other frames.
    #[error(
        "the peer answered {got} frames, expected an empty one, payload and time stamp: it speaks a version before 5 of the connector"
    )]
    Frames {
        /// How many.
        got: usize,
    },
    /// An answer that cannot be read.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The engines do not fit.
    #[error(
        "the engines differ: compatibility hash {ours} here, \"{}\" there; run both with the same vLLM, model and settings, or do not enforce it",
        theirs.escape_debug()
    )]
    Incompatible {
        /// Ours.
        ours: String,
        /// The peer's.
        theirs: String,
    },
    /// Another engine listens there now.
    #[error("engine \"{}\" answered for \"{}\": it was restarted, or the port was given to another one", got.escape_debug(), expected.escape_debug())]
    OtherEngine {
        /// Whose metadata was wanted.
        expected: String,
        /// Whose came.
        got: String,
    },
    /// The background thread is no more.
    #[error("the handshake ended with its client's thread: make another client")]
    Ended,
}

impl Error for HandshakeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Resolve { .. } | Self::Connect { .. } => ErrorKind::NotConnected,
            Self::Silent | Self::Closed { .. } => ErrorKind::PeerLost,
            Self::NotZeroMq { .. } | Self::TooLarge { .. } | Self::Frames { .. } => ErrorKind::Invalid,
            Self::Codec(error) => error.kind(),
            Self::Incompatible { .. } | Self::OtherEngine { .. } => ErrorKind::Rejected,
            Self::Ended => ErrorKind::Unavailable,
        }
    }
}
