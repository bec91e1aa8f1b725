//! The two wires: [`native`], which kvlease peers speak to each other, and [`vllm`], the text that vLLM's NixlConnector speaks.
//!
//! Both are decoded by borrowing and encoded in place. One [`Message`] holds either; bytes that belong to neither come back
//! as [`Message::Foreign`], untouched, for the engine that shares its notifications with us.
//!
//! Byte tables from which a second implementation can be written are in `docs/wire.md`.

pub(crate) mod canonical;
pub mod native;
pub mod vllm;

use core::fmt;

use crate::id::{Seq, Session};

/// Which wire a process speaks. A vLLM peer never sees a native byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wire {
    /// Binary, versioned, answered; reads can be proven.
    #[default]
    Native,
    /// vLLM's text; nothing is answered, so no read is ever proven.
    Vllm,
}

/// One notification, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Of the native wire.
    Native {
        /// The conversation it claims to be part of; zero in a hello.
        session: Session,
        /// Its number there.
        seq: Seq,
        /// What it says.
        body: native::Body<'a>,
    },
    /// Of vLLM's wire.
    Vllm(vllm::Message<'a>),
    /// Not ours.
    Foreign(&'a [u8]),
}

/// Reads one notification.
///
/// # Errors
/// Bytes that are ours but broken, by kind (law 5).
pub fn decode(wire: Wire, bytes: &[u8]) -> Result<Message<'_>, Rejected> {
    match wire {
        Wire::Native if native::is_native(bytes) => {
            native::decode(bytes).map(|(session, seq, body)| Message::Native { session, seq, body })
        }
        Wire::Native => Ok(Message::Foreign(bytes)),
        Wire::Vllm => match vllm::decode(bytes)? {
            vllm::Message::PushRegistration(_) => Ok(Message::Foreign(bytes)),
            message => Ok(Message::Vllm(message)),
        },
    }
}

/// Why a message was dropped. Each is counted; none changes anything (law 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Rejected {
    /// vLLM wire: not UTF-8. Raises inside vLLM's own step.
    #[error("not utf-8")]
    NotUtf8,
    /// vLLM wire: neither a heartbeat nor `id:count`.
    #[error("no colon: expected HB:ids or id:count")]
    NoColon,
    /// A count out of range or not a number, a rank not below its count, a code that has no meaning.
    #[error("a count or code is out of range")]
    BadCount,
    /// Fewer bytes than announced.
    #[error("cut short")]
    Truncated,
    /// More bytes than announced.
    #[error("trailing bytes")]
    TrailingBytes,
    /// Not the one way to write it (a padded varint), or metadata that is no whole frame.
    #[error("not the canonical encoding")]
    NotCanonical,
    /// A kind from a later version: skipped (case 16).
    #[error("unknown kind")]
    UnknownKind,
    /// A version this build does not read.
    #[error("unknown version")]
    UnknownVersion,
    /// More than the receiver said it takes.
    #[error("too large")]
    TooLarge,
    /// A session that is not, or no longer, ours.
    #[error("unknown session")]
    StaleSession,
}

impl Rejected {
    /// All kinds, in the order of their counters.
    pub const ALL: [Self; 10] = [
        Self::NotUtf8,
        Self::NoColon,
        Self::BadCount,
        Self::Truncated,
        Self::TrailingBytes,
        Self::NotCanonical,
        Self::UnknownKind,
        Self::UnknownVersion,
        Self::TooLarge,
        Self::StaleSession,
    ];

    /// Its name in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotUtf8 => "not_utf8",
            Self::NoColon => "no_colon",
            Self::BadCount => "bad_count",
            Self::Truncated => "truncated",
            Self::TrailingBytes => "trailing_bytes",
            Self::NotCanonical => "not_canonical",
            Self::UnknownKind => "unknown_kind",
            Self::UnknownVersion => "unknown_version",
            Self::TooLarge => "too_large",
            Self::StaleSession => "stale_session",
        }
    }
}

/// Why a message could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The buffer, or the peer's limit, is too small.
    #[error("message does not fit the {room} bytes there are")]
    TooLarge {
        /// Bytes there were.
        room: usize,
    },
    /// vLLM's text cannot carry this id: it is empty, not UTF-8, holds a comma, or would be read as another message.
    #[error(
        "id cannot be written on the vllm wire: expected utf-8 without commas, not empty, not \"HB\" or \"PUSH_REG\", not starting with \"HB:\" or \"PUSH_REG:\""
    )]
    IdNotEncodable,
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Vllm => "vllm",
        })
    }
}

impl core::str::FromStr for Wire {
    type Err = UnknownWire;

    fn from_str(text: &str) -> Result<Self, UnknownWire> {
        match text {
            "native" => Ok(Self::Native),
            "vllm" => Ok(Self::Vllm),
            _ => Err(UnknownWire),
        }
    }
}

/// Not the name of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected native or vllm")]
pub struct UnknownWire;
