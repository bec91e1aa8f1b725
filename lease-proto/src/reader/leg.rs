//! What a reader knows of one request, and of its lease on each rank of the holder.

use super::queue::Waits;
use crate::{
    event::Lost,
    id::{ReaderRank, RequestId, Seq, Token},
    table::Entry,
    time::Instant,
};

/// No entry.
pub(super) const NIL: u32 = u32::MAX;
/// Key of the table of legs.
pub(super) const BY_TOKEN: usize = 0;
/// How many of the latest renews that named it a leg remembers. An older answer does not cover it.
const REMEMBERED: usize = 4;

/// A request that is tracked. Opaque: named only to give storage for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub(super) id: RequestId,
    pub(super) first: u32,
    pub(super) phase: Phase,
    /// Told to the engine: all legs confirmed; one lost.
    pub(super) confirmed: bool,
    pub(super) lost: bool,
    /// Proof (B) was needed for one leg at least.
    pub(super) by_completion: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// In the queue.
    Waiting,
    /// A read runs.
    Reading { abandoned: bool },
    /// It has ended; its verdict waits for the holder's answer.
    Judging { ended: Instant },
    /// Nothing is left but to tell the holder.
    Closing,
}

impl Request {
    pub(super) fn new(id: RequestId) -> Self {
        Self { id, first: NIL, phase: Phase::Waiting, confirmed: false, lost: false, by_completion: false }
    }
}

impl Entry for Request {
    fn hash(&self, _: usize) -> Option<u64> {
        None
    }
}

/// A request's lease on one rank of its holder. Opaque: named only to give storage for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leg {
    pub(super) request: u32,
    pub(super) peer: u32,
    pub(super) token: Token,
    hash: u64,
    pub(super) reader: ReaderRank,
    pub(super) status: Status,
    /// A read that ended strictly before this is proven (A).
    pub(super) proof: Option<Instant>,
    /// A proof stands for the read that has ended.
    pub(super) proven: bool,
    /// Something that was said of this lease before may still reach the holder and end it: only its answer proves a read (B).
    pub(super) doubtful: bool,
    /// The holder has answered that its part in the lease is over for good.
    pub(super) over: bool,
    /// When an answer last covered it.
    pub(super) heard: Instant,
    sent: [(Seq, u16); REMEMBERED],
    pub(super) closing: Option<Closing>,
    /// The same request's next leg; the same peer's neighbours among those to renew; the next one with something to send.
    pub(super) sibling: u32,
    pub(super) links: Option<(u32, u32)>,
    pub(super) ready: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Status {
    Unconfirmed,
    Confirmed,
    Unproven,
    Lost(Lost),
}

/// What is being told to the holder until it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Closing {
    /// A completion; else a release.
    pub(super) read: bool,
    pub(super) since: Instant,
    pub(super) due: Instant,
    /// Number of the first message that told it.
    pub(super) first: Option<Seq>,
}

impl Leg {
    pub(super) fn new(request: u32, peer: u32, token: Token, hash: u64, reader: ReaderRank, now: Instant) -> Self {
        Self {
            request,
            peer,
            token,
            hash,
            reader,
            status: Status::Unconfirmed,
            proof: None,
            proven: false,
            doubtful: false,
            over: false,
            heard: now,
            sent: [(Seq(0), 0); REMEMBERED],
            closing: None,
            sibling: NIL,
            links: None,
            ready: None,
        }
    }

    /// A renew with this number names it at this index.
    pub(super) fn named(&mut self, seq: Seq, index: u16) {
        self.sent.rotate_right(1);
        if let Some(latest) = self.sent.first_mut() {
            *latest = (seq, index);
        }
    }

    /// At which index that renew named it, if it did.
    pub(super) fn index_in(&self, seq: Seq) -> Option<u16> {
        self.sent.iter().find(|(sent, _)| *sent == seq).map(|(_, index)| *index)
    }
}

impl Waits for Leg {
    fn link(&mut self) -> &mut Option<u32> {
        &mut self.ready
    }
}

impl Entry for Leg {
    fn hash(&self, key: usize) -> Option<u64> {
        (key == BY_TOKEN).then_some(self.hash)
    }
}
