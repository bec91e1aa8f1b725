//! The bodies, one struct each. Their field order is the wire.

use serde::{Deserialize, Serialize};

use super::{
    Rejected,
    batch::{Exceptions, Tokens},
};
use crate::{
    config::Terms,
    id::{ClockId, Identity, Incarnation, MAX_ID, ReaderRank, Seq, Session, Token},
    time::{Duration, PeerInstant},
    wire::canonical::{prefix, whole},
};

/// What a native message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body<'a> {
    /// Reader to holder: who I am and how to reach me.
    Hello(Hello<'a>),
    /// Holder to reader: welcome.
    HelloAck(HelloAck<'a>),
    /// Reader to holder: keep these leases.
    Renew(Renew<'a>),
    /// Holder to reader: for how long each of them is promised.
    Renewed(Renewed<'a>),
    /// Reader to holder: this rank has read the blocks.
    Complete(About),
    /// Holder to reader: they were held until your complete.
    Completed(Answer),
    /// Reader to holder, or a third party with the token: they will not be read.
    Release(About),
    /// Holder to reader: this lease is over, or will be.
    Gone(Gone),
    /// Reader to holder: what does your clock say?
    Time,
    /// Holder to reader: this.
    TimeReply(TimeReply),
}

impl Body<'_> {
    /// The kind byte in the header.
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::HelloAck(_) => 2,
            Self::Renew(_) => 3,
            Self::Renewed(_) => 4,
            Self::Complete(_) => 5,
            Self::Completed(_) => 6,
            Self::Release(_) => 7,
            Self::Gone(_) => 8,
            Self::Time => 9,
            Self::TimeReply(_) => 10,
        }
    }

    /// The kind's name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::HelloAck(_) => "hello_ack",
            Self::Renew(_) => "renew",
            Self::Renewed(_) => "renewed",
            Self::Complete(_) => "complete",
            Self::Completed(_) => "completed",
            Self::Release(_) => "release",
            Self::Gone(_) => "gone",
            Self::Time => "time",
            Self::TimeReply(_) => "time_reply",
        }
    }
}

/// One side of a handshake, as it describes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party<'a> {
    /// The engine's id, up to [`MAX_ID`] bytes.
    #[serde(borrow)]
    pub engine: &'a [u8],
    /// Its life.
    pub incarnation: Incarnation,
    /// The rank of this process in its engine.
    pub rank: u16,
    /// How many ranks the engine has.
    pub ranks: u16,
    /// The clock that stamps its times.
    pub clock: ClockId,
    /// What its peer must write into the header of everything that follows.
    pub session: Session,
    /// By how much it extends a lease at a renewal.
    pub extension: Duration,
    /// Drift bound of its clock in parts per million.
    pub drift_ppm: u32,
    /// Largest message that it takes, in bytes.
    pub max_message: u32,
    /// Bits that have no meaning yet; written as zero, not looked at.
    pub capabilities: u32,
}

impl<'a> Party<'a> {
    /// This process, which wants to be addressed by `session`.
    pub(crate) fn of(identity: &'a Identity, terms: &Terms, session: Session) -> Self {
        Self {
            engine: identity.engine.as_bytes(),
            incarnation: identity.incarnation,
            rank: identity.rank,
            ranks: identity.ranks,
            clock: identity.clock,
            session,
            extension: terms.extension(),
            drift_ppm: terms.drift_ppm(),
            max_message: identity.max_message,
            capabilities: 0,
        }
    }
}

/// The first message of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello<'a> {
    /// Lowest version that the sender speaks.
    pub lowest: u8,
    /// Highest version that the sender speaks.
    pub highest: u8,
    /// One live token: a holder does not parse a stranger's address.
    pub token: Token,
    /// Who is speaking.
    #[serde(borrow)]
    pub party: Party<'a>,
    /// Its transport metadata, in a frame.
    #[serde(borrow)]
    pub metadata: &'a [u8],
}

/// The answer to a hello. Its header carries the session that the hello offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloAck<'a> {
    /// The number of the hello.
    pub re: Seq,
    /// The version that both will speak.
    pub version: u8,
    /// Who is speaking.
    #[serde(borrow)]
    pub party: Party<'a>,
}

/// Leases to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renew<'a> {
    /// The rank that will read them.
    pub reader: ReaderRank,
    /// The leases, in the order that the sender remembers.
    pub tokens: Tokens<'a>,
}

/// The answer to a renew. What is not covered by it stays unproven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed<'a> {
    /// The number of the renew.
    pub re: Seq,
    /// How many tokens it named.
    pub count: u16,
    /// Every one of them is promised for this long from now, except those below. Rounded down.
    pub granted: Duration,
    /// Those for which it is otherwise, by their index in the renew, ascending.
    pub exceptions: Exceptions<'a>,
}

/// One lease, and the rank that speaks of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The lease.
    pub token: Token,
    /// The rank.
    pub reader: ReaderRank,
}

/// An answer about one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The number of the message that it answers.
    pub re: Seq,
    /// The lease.
    pub token: Token,
}

/// The end of one lease, as an answer or told unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    /// The number of the message that it answers; zero if unasked.
    pub re: Seq,
    /// The lease.
    pub token: Token,
    /// Why.
    pub why: Refusal,
}

/// What the holder's clock said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeReply {
    /// The number of the question.
    pub re: Seq,
    /// When the question was taken up.
    pub received: PeerInstant,
    /// When the answer was written.
    pub sent: PeerInstant,
}

/// Why a holder promises nothing more about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
#[non_exhaustive]
pub enum Refusal {
    /// Never heard of, or ended so long ago that it is forgotten.
    Unknown,
    /// It ran out.
    Expired,
    /// This rank has not been told of it yet: no loss, ask again.
    NotYet,
    /// Another incarnation reads it.
    Claimed,
    /// Another count of ranks than the first message, or the grant, said.
    Inconsistent,
    /// The holder's engine, or somebody with the token, took it back.
    Revoked,
    /// Every rank has completed it.
    Completed,
    /// Every rank has given it up.
    Released,
    /// The holder's engine failed at producing the blocks (case 17).
    Failed,
    /// The holder is shutting down: it honours renewals up to its deadline. A hint, not an end.
    Draining,
}

impl Refusal {
    /// All of them, by their code on the wire, from 1.
    pub const ALL: [Self; 10] = [
        Self::Unknown,
        Self::Expired,
        Self::NotYet,
        Self::Claimed,
        Self::Inconsistent,
        Self::Revoked,
        Self::Completed,
        Self::Released,
        Self::Failed,
        Self::Draining,
    ];

    /// Its code on the wire.
    pub const fn code(self) -> u8 {
        match self {
            Self::Unknown => 1,
            Self::Expired => 2,
            Self::NotYet => 3,
            Self::Claimed => 4,
            Self::Inconsistent => 5,
            Self::Revoked => 6,
            Self::Completed => 7,
            Self::Released => 8,
            Self::Failed => 9,
            Self::Draining => 10,
        }
    }

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::NotYet => "not_yet",
            Self::Claimed => "claimed",
            Self::Inconsistent => "inconsistent",
            Self::Revoked => "revoked",
            Self::Completed => "completed",
            Self::Released => "released",
            Self::Failed => "failed",
            Self::Draining => "draining",
        }
    }
}

impl From<Refusal> for u8 {
    fn from(refusal: Refusal) -> Self {
        refusal.code()
    }
}

impl TryFrom<u8> for Refusal {
    type Error = Rejected;

    fn try_from(code: u8) -> Result<Self, Rejected> {
        Self::ALL.into_iter().find(|refusal| refusal.code() == code).ok_or(Rejected::BadCount)
    }
}

/// What precedes the tokens of a renew.
pub(super) type RenewPrefix = ReaderRank;

/// What precedes the exceptions of a renewed. Fixed in size, so that it can be written last.
#[derive(Serialize, Deserialize)]
pub(super) struct RenewedPrefix {
    pub(super) re: Seq,
    #[serde(with = "postcard::fixint::le")]
    pub(super) count: u16,
    pub(super) granted: Duration,
}

pub(super) fn decode(kind: u8, bytes: &[u8]) -> Result<Body<'_>, Rejected> {
    Ok(match kind {
        1 => Body::Hello(whole::<Hello<'_>>(bytes).and_then(|hello| party(&hello.party).map(|()| hello))?),
        2 => Body::HelloAck(whole::<HelloAck<'_>>(bytes).and_then(|ack| party(&ack.party).map(|()| ack))?),
        3 => {
            let (reader, tokens) = prefix::<RenewPrefix>(bytes)?;
            Body::Renew(Renew { reader, tokens: Tokens::decode(tokens)? })
        }
        4 => {
            let (RenewedPrefix { re, count, granted }, rest) = prefix(bytes)?;
            Body::Renewed(Renewed { re, count, granted, exceptions: Exceptions::decode(rest, count)? })
        }
        5 => Body::Complete(whole(bytes)?),
        6 => Body::Completed(whole(bytes)?),
        7 => Body::Release(whole(bytes)?),
        8 => Body::Gone(whole(bytes)?),
        9 if bytes.is_empty() => Body::Time,
        9 => return Err(Rejected::TrailingBytes),
        10 => Body::TimeReply(whole(bytes)?),
        _ => return Err(Rejected::UnknownKind),
    })
}

/// Writes the body and returns its length, or `None` if it does not fit.
pub(super) fn encode(body: &Body<'_>, out: &mut [u8]) -> Option<usize> {
    match body {
        Body::Hello(hello) => put(hello, &[], out),
        Body::HelloAck(ack) => put(ack, &[], out),
        Body::Renew(Renew { reader, tokens }) => put(reader, tokens.as_bytes(), out),
        Body::Renewed(Renewed { re, count, granted, exceptions }) => {
            put(&RenewedPrefix { re: *re, count: *count, granted: *granted }, exceptions.as_bytes(), out)
        }
        Body::Complete(about) | Body::Release(about) => put(about, &[], out),
        Body::Completed(answer) => put(answer, &[], out),
        Body::Gone(gone) => put(gone, &[], out),
        Body::Time => Some(0),
        Body::TimeReply(reply) => put(reply, &[], out),
    }
}

pub(super) fn put(prefix: &impl Serialize, run: &[u8], out: &mut [u8]) -> Option<usize> {
    let start = postcard::to_slice(prefix, out).ok()?.len();
    let end = start.saturating_add(run.len());
    out.get_mut(start..end)?.copy_from_slice(run);
    Some(end)
}

fn party(party: &Party<'_>) -> Result<(), Rejected> {
    match party {
        Party { engine, .. } if engine.len() > MAX_ID => Err(Rejected::TooLarge),
        Party { rank, ranks, .. } if rank >= ranks => Err(Rejected::BadCount),
        _ => Ok(()),
    }
}
