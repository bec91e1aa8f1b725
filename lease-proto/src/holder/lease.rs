//! One lease, and what is remembered of it when it is over.

use heapless::Vec;

use crate::{
    event::Freed,
    id::{Incarnation, ReaderRank, RequestId, Seq, Session, Token},
    table::Entry,
    time::Instant,
    transport::PeerId,
    wire::native::Refusal,
};

/// Keys of the tables.
pub(super) const BY_NUMBER: usize = 0;
pub(super) const BY_ID: usize = 1;

/// vLLM's wire: completions of one lease that can be told apart by their sender.
const SENDERS: usize = 16;

/// Ranks whose completion is remembered so well that its answer can be repeated when the lease is over.
const REPEATED: usize = 8;

/// The number of a completion, in the session of its sender's choice.
pub(super) type Completion = (Session, Seq);

/// A lease, or a request that was announced and has none yet. Opaque: named only to give storage for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub(super) request: RequestId,
    pub(super) token: Token,
    id_hash: u64,
    pub(super) granted: bool,
    pub(super) expires: Instant,
    /// A fixed time to live: renewals promise what is left of it.
    pub(super) fixed: bool,
    pub(super) consumers: Option<u16>,
    /// Whether any reader was ever promised anything.
    pub(super) promised: bool,
    pub(super) claim: Option<Claim>,
    pub(super) stop: Option<Stop>,
    /// The holder's entry and session of the peer that renewed last.
    pub(super) renewer: Option<(u32, Session)>,
    pub(super) counted: Option<Counted>,
}

/// Native wire: who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Claim {
    pub(super) reader: Incarnation,
    /// How many ranks, as a rank's set of all.
    pub(super) of: u16,
    all: u64,
    /// Ranks that are done, and those among them that have read.
    done: u64,
    pub(super) read: u64,
    completions: [Option<Completion>; REPEATED],
}

impl Claim {
    pub(super) fn new(reader: Incarnation, rank: ReaderRank) -> Self {
        Self { reader, of: rank.of(), all: rank.all(), done: 0, read: 0, completions: [None; REPEATED] }
    }

    /// What a rank that is done is told: it reads no more, so nothing is promised to it.
    pub(super) fn finished(&self, rank: ReaderRank) -> Option<Refusal> {
        let is = |set: u64| set & rank.bit() != 0;
        is(self.done).then_some(if is(self.read) { Refusal::Completed } else { Refusal::Released })
    }

    pub(super) fn finish(&mut self, rank: ReaderRank, read: Option<Completion>) {
        let next = self.all & !self.done & self.done.wrapping_add(1);
        let bit = if broken!(CompletionWithoutRank) { next } else { rank.bit() };
        self.done |= bit;
        let Some((session, seq)) = read else { return };
        self.read |= bit;
        if let Some(slot) = self.completions.get_mut(usize::from(rank.rank()))
            && slot.is_none_or(|(before, earlier)| before != session || earlier < seq)
        {
            *slot = Some((session, seq));
        }
    }
}

/// vLLM's wire: completions so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Counted {
    senders: Vec<PeerId, SENDERS>,
    count: u32,
    /// As the last message said.
    expected: u32,
}

impl Counted {
    /// vLLM's rule, except that one sender is counted once where it can be told. `false` if it disagrees with those before.
    pub(super) fn add(&mut self, from: Option<PeerId>, expected: u32) -> bool {
        if let Some(from) = from.filter(|_| !broken!(CompletionWithoutRank)) {
            if self.senders.contains(&from) {
                return self.expected == expected;
            }
            // A full list means only that later repeats are not noticed.
            let _ = self.senders.push(from);
        }
        let agrees = self.count == 0 || self.expected == expected;
        self.expected = expected;
        self.count = self.count.saturating_add(1);
        agrees
    }
}

/// Why nothing more is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stop {
    Aborted,
    Failed,
    /// Released by somebody who does not read it.
    Revoked,
}

impl Stop {
    pub(super) fn refusal(self) -> Refusal {
        match self {
            Self::Failed => Refusal::Failed,
            Self::Aborted | Self::Revoked => Refusal::Revoked,
        }
    }

    /// How a lease ends that was stopped: revoked only if a promise had to be kept for somebody who did not ask.
    pub(super) fn freed(self, promised: bool) -> Freed {
        match self {
            Self::Aborted | Self::Failed => Freed::Aborted,
            Self::Revoked if promised => Freed::Revoked,
            Self::Revoked => Freed::Released,
        }
    }
}

impl Lease {
    pub(super) fn announced(request: RequestId, token: Token, id_hash: u64) -> Self {
        Self {
            request,
            token,
            id_hash,
            granted: false,
            expires: Instant::MAX,
            fixed: false,
            consumers: None,
            promised: false,
            claim: None,
            stop: None,
            renewer: None,
            counted: None,
        }
    }

    /// How it ends, if everybody who reads it is done.
    pub(super) fn is_done(&self) -> Option<Freed> {
        if self.counted.as_ref().is_some_and(|counted| counted.count == counted.expected) {
            return Some(Freed::Completed);
        }
        let claim = self.claim.filter(|claim| claim.done == claim.all)?;
        Some(if claim.read == 0 { Freed::Released } else { Freed::Completed })
    }
}

impl Entry for Lease {
    fn hash(&self, key: usize) -> Option<u64> {
        Some(if key == BY_NUMBER { self.token.number } else { self.id_hash })
    }
}

/// How a lease ended and who had read it. Opaque: named only to give storage for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ended {
    token: Token,
    id_hash: u64,
    why: Freed,
    failed: bool,
    claim: Option<Claim>,
    until: Instant,
}

impl Ended {
    pub(super) fn new(lease: &Lease, why: Freed, until: Instant) -> Self {
        let Lease { token, id_hash, claim, .. } = *lease;
        Self { token, id_hash, why, failed: lease.stop == Some(Stop::Failed), claim, until }
    }

    pub(super) fn until(&self) -> Instant {
        self.until
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    pub(super) fn id_hash(&self) -> u64 {
        self.id_hash
    }

    pub(super) fn why(&self) -> Freed {
        self.why
    }

    /// The number under which this rank of this reader had completed it in this session.
    pub(super) fn completed_by(&self, reader: Incarnation, rank: ReaderRank, session: Session) -> Option<Seq> {
        let claim = self.claim.filter(|claim| claim.reader == reader)?;
        let (before, seq) = claim.completions.get(usize::from(rank.rank())).copied()??;
        (before == session).then_some(seq)
    }

    pub(super) fn refusal(&self) -> Refusal {
        match self.why {
            _ if self.failed => Refusal::Failed,
            Freed::Completed => Refusal::Completed,
            Freed::Released => Refusal::Released,
            Freed::Expired => Refusal::Expired,
            Freed::Aborted | Freed::Drained | Freed::Revoked => Refusal::Revoked,
        }
    }
}

impl Entry for Ended {
    fn hash(&self, key: usize) -> Option<u64> {
        Some(if key == BY_NUMBER { self.token.number } else { self.id_hash })
    }
}
