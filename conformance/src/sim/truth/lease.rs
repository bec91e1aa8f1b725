//! What is true of one lease, one grant, one request.

use std::{cell::RefCell, rc::Rc};

use lease_proto::{
    event::Freed,
    id::{Incarnation, Session, Token},
    time::{Instant, PeerInstant},
    wire::{self, Message as Decoded, Wire, native::Body},
};

use crate::sim::{
    net::{Message, Sender},
    time::WorldTime,
    worker::Metadata,
};

/// Ranks of a reader that are done: its node and life, how many ranks it has, those that are.
type Done = (u32, u32, u16, u64);

/// A grant, as the router sees it: one token on every worker of an engine.
#[derive(Debug)]
pub(in crate::sim) struct Grant {
    pub(in crate::sim) node: u32,
    pub(in crate::sim) life: u32,
    pub(in crate::sim) request: Rc<str>,
    pub(in crate::sim) token: Token,
    pub(in crate::sim) incarnation: Incarnation,
    /// The metadata of every worker that holds it.
    pub(in crate::sim) metadata: Rc<[Metadata]>,
    /// On vLLM's wire a fixed time to live is exported as an instant of the holder's clock.
    pub(in crate::sim) deadline: Option<PeerInstant>,
    /// Which ranks of which reader are done with it.
    pub(super) done: Rc<RefCell<Vec<Done>>>,
}

impl Grant {
    pub(in crate::sim) fn new(
        owner: (u32, u32, Incarnation),
        request: &str,
        token: Token,
        metadata: Rc<[Metadata]>,
        deadline: Option<PeerInstant>,
    ) -> Self {
        let (node, life, incarnation) = owner;
        Self { node, life, request: request.into(), token, incarnation, metadata, deadline, done: Rc::default() }
    }

    /// Whether every rank of that reader is done.
    pub(super) fn all_done(&self, node: u32, life: u32) -> bool {
        let all = |of: u16| u64::MAX >> (64 - u32::from(of.clamp(1, 64)));
        self.done.borrow().iter().any(|done| (done.0, done.1) == (node, life) && done.3 & all(done.2) == all(done.2))
    }
}

/// A lease on one worker.
#[derive(Debug)]
pub(super) struct LeaseTruth {
    pub(super) request: Rc<str>,
    /// The latest end that it ever had, and the latest that a reader was told; on the holder's clock.
    pub(super) expires: Instant,
    pub(super) promised: Option<Instant>,
    pub(super) promised_to: Option<Sender>,
    pub(super) renewed: bool,
    /// A fixed time to live does not move.
    pub(super) fixed: bool,
    /// It was taken back: nothing more may be promised.
    pub(super) stopped: bool,
    pub(super) ended: Option<End>,
}

/// When a lease ended, in which step, and how (`None`: with its process).
pub(super) type End = (WorldTime, u64, Option<Freed>);

/// A request that a reader tracks.
#[derive(Debug)]
pub(in crate::sim) struct Tracked {
    pub(in crate::sim) grant: Rc<Grant>,
    pub(in crate::sim) reader: u16,
    pub(in crate::sim) of: u16,
    pub(in crate::sim) state: State,
    pub(in crate::sim) read: Option<ReadTruth>,
    /// The reader's clock when it was done with it.
    pub(super) closed: Option<Instant>,
}

impl Tracked {
    pub(in crate::sim) fn new(grant: Rc<Grant>, reader: u16, of: u16) -> Self {
        Self { grant, reader, of, state: State::Waiting, read: None, closed: None }
    }
}

/// Where a tracked request stands for its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum State {
    /// In the queue.
    Waiting,
    /// A read runs.
    Reading,
    /// Read, finished or lost.
    Over,
}

/// A read as it really went.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) struct ReadTruth {
    pub(in crate::sim) number: u64,
    /// The transport will fail.
    pub(in crate::sim) fails: bool,
    /// The engine was done with it while it ran.
    pub(in crate::sim) abandoned: bool,
    /// When the last byte landed, and in which step.
    pub(in crate::sim) ended: Option<(WorldTime, u64)>,
}

/// The message that a worker's machines have in hand, and what it led to.
#[derive(Debug, Default)]
pub(super) struct Current {
    pub(super) message: Option<Message>,
    /// How many leases it asks to renew, and how many were renewed or refused.
    pub(super) asked: usize,
    pub(super) met: usize,
    pub(super) rejected: bool,
    /// The session that it claims to belong to; a greeting belongs to none.
    pub(super) session: Option<Session>,
}

impl Current {
    pub(super) fn of(wire: Wire, message: &Message) -> Self {
        let (asked, session) = match wire::decode(wire, &message.bytes) {
            Ok(Decoded::Native { body: Body::Hello(_), .. }) => (0, None),
            Ok(Decoded::Native { session, body: Body::Renew(renew), .. }) => (renew.tokens.iter().count(), Some(session)),
            Ok(Decoded::Native { session, .. }) => (0, Some(session)),
            _ => (0, None),
        };
        Self { message: Some(message.clone()), asked, session, ..Self::default() }
    }
}
