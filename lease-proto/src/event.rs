//! What the state machines tell the engine, and the context they are called with.

use crate::{
    counters::Counters,
    id::{RequestId, Token},
    reader::{Handle, ReadOutcome},
    time::{Duration, Instant},
    transport::{ErrorKind, PeerId, ReadId},
    wire::{Rejected, native::Refusal},
};

/// One call of a state machine: the time, the counters, and where events go.
///
/// Events are handed to a function at once instead of being queued: a poll may end ten thousand leases, and nothing here allocates.
pub struct Context<'a> {
    /// The caller's clock, read just before.
    pub now: Instant,
    /// Where things are counted.
    pub counters: &'a mut Counters,
    /// Where events go. Must not call the state machines again.
    pub events: &'a mut dyn FnMut(Event<'_>),
}

impl Context<'_> {
    /// The same at another time.
    pub(crate) fn at(&mut self, now: Instant) -> Context<'_> {
        Context { now, counters: self.counters, events: self.events }
    }

    pub(crate) fn emit(&mut self, event: Event<'_>) {
        (self.events)(event);
    }

    pub(crate) fn refuse(&mut self, request: Option<&[u8]>, token: Option<Token>, why: Refused) {
        self.counters.count_refused(why);
        self.emit(Event::Refused { request, token, why });
    }

    pub(crate) fn reject(&mut self, why: Rejected) {
        self.counters.count_rejected(why);
        self.emit(Event::Rejected { why });
    }
}

impl core::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Context").field("now", &self.now).finish_non_exhaustive()
    }
}

/// Something that an engine may want to act on or to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Holder: a lease was granted.
    Granted {
        /// Of this request.
        request: &'a RequestId,
        /// Its token.
        token: Token,
        /// When it ends unless renewed.
        expires: Instant,
    },
    /// Holder: a reader renewed a lease.
    Renewed {
        /// Of this request.
        request: &'a RequestId,
        /// Its token.
        token: Token,
        /// When it ends now; an earlier promise is never shortened.
        expires: Instant,
    },
    /// Holder: a lease is over and its blocks may be used again. Exactly once per lease.
    Freed {
        /// Of this request.
        request: &'a RequestId,
        /// Its token.
        token: Token,
        /// Why.
        why: Freed,
        /// When its last promise ran out or would have.
        expires: Instant,
        /// The clock at the poll that ended it.
        now: Instant,
        /// The clock at the poll before that one.
        previous_poll: Instant,
    },
    /// Holder: a lease is past its expiry and kept, by the policy `hold_until_ack`.
    Overdue {
        /// Of this request.
        request: &'a RequestId,
    },
    /// Holder: it drains and no lease is left.
    Drained,
    /// A well-formed request could not be met.
    Refused {
        /// About this request, where it is known.
        request: Option<&'a [u8]>,
        /// About this token, where one was named.
        token: Option<Token>,
        /// Why.
        why: Refused,
    },
    /// A message was dropped.
    Rejected {
        /// Why.
        why: Rejected,
    },
    /// Bytes that are not ours.
    Foreign {
        /// The peer, where the fabric can tell.
        from: Option<PeerId>,
        /// Unchanged.
        bytes: &'a [u8],
    },
    /// A peer can be reached and the handshake is done.
    Connected {
        /// The peer's engine id.
        engine: &'a [u8],
    },
    /// A peer that reaches us cannot be reached, or the other way round: its reads end unverified. Told once.
    OneWay {
        /// The peer's engine id.
        engine: &'a [u8],
    },
    /// The fabric reports a peer dead. Advice: leases go on.
    PeerLost {
        /// The peer's engine id.
        engine: &'a [u8],
    },
    /// A peer is there again as another incarnation.
    PeerRestarted {
        /// The peer's engine id.
        engine: &'a [u8],
    },
    /// The transport returned an error.
    TransportError {
        /// Of this kind.
        kind: ErrorKind,
    },
    /// The transport is done with a read, which the engine knows by this number: now it is judged, by
    /// [`Reader::read_ended`](crate::reader::Reader::read_ended).
    ReadLanded {
        /// Its number.
        read: ReadId,
        /// How it went.
        outcome: ReadOutcome,
    },
    /// Reader: a renew was handed over.
    HeartbeatSent {
        /// The holder's engine id.
        engine: &'a [u8],
        /// How many leases it names.
        leases: u16,
        /// Its length.
        bytes: usize,
    },
    /// Reader: every lease of the request is promised.
    Confirmed {
        /// The request.
        request: &'a RequestId,
        /// Its handle.
        handle: Handle,
    },
    /// Reader: a promise lapsed; it is still beaten for.
    Unproven {
        /// The request.
        request: &'a RequestId,
        /// Its handle.
        handle: Handle,
    },
    /// Reader: the blocks must be counted as gone. Told once.
    Lost {
        /// The request.
        request: &'a RequestId,
        /// Its handle.
        handle: Handle,
        /// Why.
        why: Lost,
    },
    /// Reader: the holder is shutting down; it keeps its promises and extends them up to its deadline.
    HolderDrains {
        /// The request.
        request: &'a RequestId,
        /// Its handle.
        handle: Handle,
    },
    /// Reader: the verdict about a read.
    ReadDone {
        /// The request.
        request: &'a RequestId,
        /// Its handle.
        handle: Handle,
        /// Whether the bytes may be used.
        verdict: Verdict,
    },
    /// Reader: the request is done with and its handle is free.
    Resolved {
        /// The request.
        request: &'a RequestId,
        /// Its handle.
        handle: Handle,
    },
    /// Reader: a holder extends by less or more than can be worked with; its extension was clamped.
    TermsUnsatisfiable {
        /// The holder's engine id.
        engine: &'a [u8],
        /// What it granted.
        granted: Duration,
    },
}

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$item])* $variant,)*
        }

        impl $name {
            /// All of them, in order.
            pub const ALL: [Self; [$(Self::$variant),*].len()] = [$(Self::$variant),*];

            /// Its name in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

#[cfg(kvlease_broken)]
pub(crate) use named;

named! {
    /// How a lease ended.
    Freed {
        /// Every rank that reads it has read it.
        Completed = "completed",
        /// Nobody will read it.
        Released = "released",
        /// Nobody renewed it.
        Expired = "expired",
        /// The holder's engine aborted the request.
        Aborted = "aborted",
        /// The holder shut down.
        Drained = "drained",
        /// Somebody else with the token gave it up while a promise was open; the promise was kept.
        Revoked = "revoked",
    }
}

named! {
    /// Why a well-formed request was refused.
    Refused {
        /// Never heard of, or forgotten.
        Unknown = "unknown",
        /// It ran out.
        Expired = "expired",
        /// This rank has not been told of it yet.
        NotYet = "not_yet",
        /// Another incarnation reads it.
        Claimed = "claimed",
        /// Counts of ranks that do not fit together.
        Inconsistent = "inconsistent",
        /// It was taken back.
        Revoked = "revoked",
        /// It is there already.
        Duplicate = "duplicate",
        /// No slot is free.
        Full = "full",
        /// The holder shuts down.
        Draining = "draining",
        /// The number is right and the secret is not.
        ForeignToken = "foreign_token",
        /// vLLM's text cannot carry the id.
        IdNotEncodable = "id_not_encodable",
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Expired => Self::Expired,
            Refusal::NotYet => Self::NotYet,
            Refusal::Claimed => Self::Claimed,
            Refusal::Inconsistent => Self::Inconsistent,
            Refusal::Revoked | Refusal::Failed | Refusal::Draining => Self::Revoked,
            Refusal::Unknown | Refusal::Completed | Refusal::Released => Self::Unknown,
        }
    }
}

named! {
    /// Why a reader counts a lease as gone.
    Lost {
        /// The holder says it ran out.
        Expired = "expired",
        /// The holder does not know it.
        Unknown = "unknown",
        /// The holder took it back; what was promised stays promised.
        Revoked = "revoked",
        /// Another incarnation reads it.
        Claimed = "claimed",
        /// The holder's process is another one now.
        PeerRestarted = "peer_restarted",
        /// The holder did not answer for `lost_after`.
        NoAnswer = "no_answer",
        /// The holder's engine failed at producing the blocks.
        Failed = "failed",
    }
}

impl From<Refusal> for Lost {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Expired => Self::Expired,
            Refusal::Claimed | Refusal::Inconsistent => Self::Claimed,
            Refusal::Revoked | Refusal::Draining => Self::Revoked,
            Refusal::Failed => Self::Failed,
            Refusal::Unknown | Refusal::NotYet | Refusal::Completed | Refusal::Released => Self::Unknown,
        }
    }
}

named! {
    /// Whether the bytes of a read may be used, and what proves it (law 4).
    Verdict {
        /// Proof (A): the read ended before the promise did.
        ValidByDeadline = "valid by deadline",
        /// Proof (B): the holder answered that it held the blocks until after the read.
        ValidByCompletion = "valid by completion",
        /// Proof (C): the holder served the bytes itself.
        ValidServed = "valid, served",
        /// Proof (D): the fabric fenced the region.
        ValidFenced = "valid, fenced",
        /// The blocks were given away before the end of the read, as the holder says.
        Expired = "expired",
        /// Nobody can tell.
        Unverified = "unverified",
        /// The transport failed.
        Failed = "failed",
    }
}

impl Verdict {
    /// Whether the bytes may be used.
    pub const fn is_valid(self) -> bool {
        matches!(self, Self::ValidByDeadline | Self::ValidByCompletion | Self::ValidServed | Self::ValidFenced)
    }

    /// The verdict without its proof: `valid`, `expired`, `unverified` or `failed`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Unverified => "unverified",
            Self::Failed => "failed",
            _ => "valid",
        }
    }

    /// What proves a valid one: `deadline`, `completion`, `served` or `fenced`.
    pub const fn proof(self) -> Option<&'static str> {
        match self {
            Self::ValidByDeadline => Some("deadline"),
            Self::ValidByCompletion => Some("completion"),
            Self::ValidServed => Some("served"),
            Self::ValidFenced => Some("fenced"),
            _ => None,
        }
    }
}
