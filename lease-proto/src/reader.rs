//! The reader: tracks leases from the moment a request is queued, beats for them, and judges reads.
//!
//! D reads from P; in the bidirectional case P reads from D. A lease is `unconfirmed` (nothing answered yet), `confirmed` (a
//! promise stands), `unproven` (it lapsed; beating goes on) or `lost`. The law that this file keeps is 4: no stale read is
//! accepted. A read is valid only with a proof, for every rank of the holder that it read from.

mod answers;
mod beats;
mod closing;
mod connection;
mod leg;
mod offset;
mod peers;
mod queue;
mod verdict;

pub use leg::{Leg, Request};
pub use peers::Peer;
pub use verdict::ReadOutcome;

use crate::{
    config::Terms,
    counters::add,
    drive::{ConnectRequest, Handled, Machine, Sent, Transmit},
    event::{Context, Event, Lost, Refused},
    fifo::Fifo,
    handshake::Patience,
    id::{Entropy, IdHash, Identity, ReaderRank, RequestId, Token},
    params::Parameters,
    table::{Slots, Table},
    time::{Duration, Instant},
    transport::{ErrorKind, PeerId, Ticket},
    wire::{Message, Wire, native::Body, vllm},
};
use leg::{BY_TOKEN, Phase, Status};
use queue::Queue;

/// A request that is tracked. Stale once the request is resolved; never names another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    index: u32,
    generation: u32,
}

/// The reader's state. Tables lie in storage that the caller gives: slots for requests, for legs (a request has one for each
/// rank of the holder that it reads from) and for peers. `M` owns a peer's framed metadata.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reader<R, G, P, M> {
    identity: Identity,
    terms: Terms,
    entropy: Entropy,
    id_hash: IdHash,
    /// Our own transport's, for hellos.
    metadata: M,
    requests: Table<Request, R>,
    legs: Table<Leg, G>,
    peers: Table<Peer<M>, P>,
    /// Peers and legs with something to send now, in order of becoming so.
    ready_peers: Queue,
    ready_legs: Queue,
    connects: Fifo<u32, 64>,
    cancels: Fifo<Ticket, 64>,
    disconnects: Fifo<PeerId, 64>,
    born: u64,
    /// What a peer that was forgotten was doubted for, see there.
    doubted: u64,
    clock: Instant,
    /// The clock as it was read last: behind `clock` once it went back.
    stamp: Instant,
}

/// A request to track.
#[derive(Clone, Copy, Debug)]
pub struct Track<'a> {
    /// The request as its holder names it.
    pub request: &'a RequestId,
    /// What came with it.
    pub params: &'a Parameters<'a>,
    /// Which of the ranks that read each holder rank's blocks this one is.
    pub reader: ReaderRank,
}

/// Why a read must not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// The handle is stale: the request was lost, finished or read already.
    #[error("the request is not tracked any more")]
    NotTracked,
    /// The promise lapsed: wait until it is confirmed again.
    #[error("no promise stands: wait until the lease is confirmed again")]
    Unproven,
    /// A read is running already.
    #[error("a read is running already")]
    Reading,
}

impl Declined {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotTracked => "not_tracked",
            Self::Unproven => "unproven",
            Self::Reading => "reading",
        }
    }
}

impl<R: Slots<Request>, G: Slots<Leg>, P: Slots<Peer<M>>, M: AsRef<[u8]>> Reader<R, G, P, M> {
    /// A reader over empty storage. `seed` is sixteen bytes of the system's random source; `metadata` is the local transport's,
    /// framed with the incarnation of `identity`, with which holders connect back.
    pub fn new(identity: Identity, terms: Terms, seed: [u8; 16], metadata: M, requests: R, legs: G, peers: P) -> Self {
        let mut entropy = Entropy::from_seed(seed);
        let id_hash = IdHash::drawn(&mut entropy);
        Self {
            identity,
            terms,
            entropy,
            id_hash,
            metadata,
            requests: Table::new(requests),
            legs: Table::new(legs),
            peers: Table::new(peers),
            ready_peers: Queue::EMPTY,
            ready_legs: Queue::EMPTY,
            connects: Fifo::new(),
            cancels: Fifo::new(),
            disconnects: Fifo::new(),
            born: 0,
            doubted: 0,
            clock: Instant::ZERO,
            stamp: Instant::ZERO,
        }
    }

    /// The terms that hold.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Requests tracked and not resolved.
    pub fn open(&self) -> u32 {
        self.requests.len()
    }

    /// Starts to keep a lease: the request is in this engine's queue. `targets` are the holder's ranks that will be read from
    /// (see [`crate::topology`]), each with its framed metadata; at least one.
    ///
    /// # Errors
    /// `Full`, `Duplicate` if it is tracked already or a rank is named twice, `Unknown` without targets, on vLLM's wire `IdNotEncodable`.
    pub fn track(
        &mut self,
        cx: &mut Context<'_>,
        track: Track<'_>,
        targets: impl IntoIterator<Item = (u16, M)>,
    ) -> Result<Handle, Refused> {
        let cx = &mut self.tick(cx);
        self.try_track(cx, track, targets).inspect_err(|why| {
            cx.refuse(Some(track.request.as_bytes()), Some(track.params.token), *why);
        })
    }

    fn try_track(
        &mut self,
        cx: &mut Context<'_>,
        track: Track<'_>,
        targets: impl IntoIterator<Item = (u16, M)>,
    ) -> Result<Handle, Refused> {
        let Track { request, params, reader } = track;
        if self.terms.wire() == Wire::Vllm && vllm::check_id(request.as_bytes()).is_err() {
            return Err(Refused::IdNotEncodable);
        }
        let hash = self.leg_hash(request, params.token);
        let same = |leg: &Leg| {
            leg.token == params.token
                && leg.reader == reader
                && self.requests.get(leg.request).is_some_and(|tracked| tracked.id == *request)
                && self.peers.get(leg.peer).is_some_and(|peer| peer.is_of(params))
        };
        if self.legs.find(BY_TOKEN, hash, same).is_some() {
            return Err(Refused::Duplicate);
        }
        let index = self.requests.insert(Request::new(request.clone())).map_err(|_| Refused::Full)?;
        let mut result = Err(Refused::Unknown);
        for (rank, metadata) in targets {
            result = self.peer_for(cx, params, rank, metadata).and_then(|peer| {
                if self.any_leg(index, |leg| leg.peer == peer) {
                    return Err(Refused::Duplicate);
                }
                let mut leg = Leg::new(index, peer, params.token, hash, reader, cx.now);
                leg.doubtful = self.peers.get(peer).is_some_and(|peer| params.token.number <= peer.doubted);
                self.legs.insert(leg).map_err(|_| Refused::Full).map(|leg| self.join(cx, leg))
            });
            if result.is_err() {
                break;
            }
        }
        if let Err(why) = result {
            self.drop_legs(index);
            self.requests.remove(index);
            return Err(why);
        }
        add(&mut cx.counters.tracked);
        self.requests.generation(index).map(|generation| Handle { index, generation }).ok_or(Refused::Full)
    }

    /// Asks whether a read may begin, and marks it as begun. A lease that nothing is known of yet may be read: the verdict then
    /// waits for the holder's answer.
    ///
    /// # Errors
    /// Why it must not.
    pub fn begin_read(&mut self, cx: &mut Context<'_>, handle: Handle) -> Result<(), Declined> {
        let cx = &mut self.tick(cx);
        let now = cx.now;
        let lapsed = |leg: &Leg| leg.status == Status::Unproven || leg.proof.is_some_and(|proof| proof <= now);
        let declined = self.any_leg(handle.index, lapsed);
        let request = self.request(handle).ok_or(Declined::NotTracked)?;
        match request.phase {
            Phase::Waiting if declined => Err(Declined::Unproven),
            Phase::Waiting => {
                request.phase = Phase::Reading { abandoned: false };
                if broken!(JudgedBeforeCompletion) {
                    self.prove(handle.index, now);
                }
                Ok(())
            }
            Phase::Reading { .. } => Err(Declined::Reading),
            Phase::Judging { .. } | Phase::Closing => Err(Declined::NotTracked),
        }
    }

    /// The engine will not read this request, or not any more: its lease is released. While a read runs, that read is
    /// abandoned: it stays the transport's until [`Reader::read_ended`], and is never valid.
    ///
    /// # Errors
    /// `NotTracked` if the handle is stale.
    pub fn finish(&mut self, cx: &mut Context<'_>, handle: Handle) -> Result<(), Declined> {
        let cx = &mut self.tick(cx);
        let request = self.request(handle).ok_or(Declined::NotTracked)?;
        match &mut request.phase {
            Phase::Waiting => {
                request.phase = Phase::Closing;
                self.close_legs(cx, handle.index, false);
            }
            Phase::Reading { abandoned } => *abandoned = true,
            Phase::Judging { .. } | Phase::Closing => {} // under way
        }
        Ok(())
    }

    fn request(&mut self, handle: Handle) -> Option<&mut Request> {
        if self.requests.generation(handle.index) != Some(handle.generation) {
            return None;
        }
        self.requests.get_mut(handle.index)
    }

    fn handle_of(&self, index: u32) -> Handle {
        Handle { index, generation: self.requests.generation(index).unwrap_or_default() }
    }

    /// Tells the engine something about a request.
    fn tell<'e>(&'e self, cx: &mut Context<'_>, index: u32, event: impl FnOnce(&'e RequestId, Handle) -> Event<'e>) {
        if let Some(request) = self.requests.get(index) {
            cx.emit(event(&request.id, self.handle_of(index)));
        }
    }

    /// Native tokens are random; vLLM's wire has none, so there the id is what tells leases apart.
    fn leg_hash(&self, request: &RequestId, token: Token) -> u64 {
        match self.terms.wire() {
            Wire::Native => token.nonce,
            Wire::Vllm => self.id_hash.of(request.as_bytes()),
        }
    }

    /// A clock that goes back is clamped and counted, for this call only. What was stamped before shows too little time since
    /// then: proofs move back with the clock.
    fn tick<'c>(&mut self, cx: &'c mut Context<'_>) -> Context<'c> {
        let back = self.stamp.saturating_since(cx.now);
        self.stamp = cx.now;
        if !back.is_zero() {
            for index in self.legs.indexes() {
                if let Some(proof) = self.legs.get_mut(index).and_then(|leg| leg.proof.as_mut()) {
                    *proof = proof.saturating_sub(back);
                }
            }
            for index in self.peers.indexes() {
                if let Some(peer) = self.peers.get_mut(index) {
                    peer.records.iter_mut().flatten().for_each(|record| record.at = record.at.saturating_sub(back));
                }
            }
        }
        if cx.now < self.clock {
            add(&mut cx.counters.clock_backwards);
        }
        self.clock = self.clock.max(cx.now);
        cx.at(self.clock)
    }

    fn patience(&self) -> Patience {
        let interval = self.terms.interval();
        Patience {
            connect_deadline: self.terms.connect_deadline(),
            first_pause: interval.scale(1, 16),
            longest_pause: interval,
            hello_interval: interval.min(Duration::from_secs(1)),
            greets: self.terms.wire() == Wire::Native,
        }
    }

    /// The reader counts the blocks behind a leg as gone.
    fn lose(&mut self, cx: &mut Context<'_>, index: u32, why: Lost) {
        let Some(leg) = self.legs.get_mut(index).filter(|leg| !matches!(leg.status, Status::Lost(_))) else { return };
        leg.status = Status::Lost(why);
        if why == Lost::Failed {
            (leg.proof, leg.proven) = (None, false); // the bytes are no good, however long they are held
        }
        let request = leg.request;
        self.unlink(index);
        let Some(entry) = self.requests.get_mut(request) else { return };
        let (phase, first) = (entry.phase, !core::mem::replace(&mut entry.lost, true));
        if phase == Phase::Waiting {
            entry.phase = Phase::Closing;
        }
        if first && phase != Phase::Closing {
            cx.counters.count_lost(why);
            self.tell(cx, request, |request, handle| Event::Lost { request, handle, why });
        }
        match phase {
            Phase::Waiting => {
                self.close_legs(cx, request, false);
            }
            Phase::Judging { .. } => self.judge(cx, request),
            Phase::Reading { .. } | Phase::Closing => self.arm_leg(index),
        }
    }
}

impl<R: Slots<Request>, G: Slots<Leg>, P: Slots<Peer<M>>, M: AsRef<[u8]>> Machine for Reader<R, G, P, M> {
    fn handle<'m>(&mut self, cx: &mut Context<'_>, _: Option<PeerId>, message: Message<'m>, _: &mut [u8]) -> Handled<'m> {
        let cx = &mut self.tick(cx);
        match message {
            Message::Native { session, body, .. } => match body {
                Body::HelloAck(_) | Body::Renewed(_) | Body::Completed(_) | Body::Gone(_) | Body::TimeReply(_) => {
                    self.answered(cx, session, body);
                    Handled::Done
                }
                _ => Handled::NotMine,
            },
            Message::Vllm(_) | Message::Foreign(_) => Handled::NotMine,
        }
    }

    fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        let cx = &mut self.tick(cx);
        while let Some(index) = self.legs.pop_due(cx.now) {
            self.leg_due(cx, index);
        }
        while let Some(index) = self.peers.pop_due(cx.now) {
            self.peer_due(cx, index);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let ready = self.ready_legs != Queue::EMPTY || self.ready_peers != Queue::EMPTY || !self.connects.is_empty();
        let now = ready.then_some(self.clock);
        [now, self.legs.next_due(), self.peers.next_due()].into_iter().flatten().min()
    }

    fn poll_transmit(&mut self, cx: &mut Context<'_>, out: &mut [u8]) -> Option<Transmit> {
        let cx = &mut self.tick(cx);
        self.next_closing(cx, out).or_else(|| self.next_from_peers(cx, out))
    }

    fn sent(&mut self, cx: &mut Context<'_>, transmit: &Transmit, result: Result<(), ErrorKind>) {
        let cx = &mut self.tick(cx);
        match transmit.sent {
            Sent::Heartbeat { leases } => self.beat_sent(cx, transmit, leases, result),
            Sent::Closing { leg } => self.closing_sent(cx, leg, result),
            Sent::Greeting | Sent::Answer => {}
        }
        if let Err(kind) = result {
            self.send_failed(cx, transmit, kind);
        }
    }

    fn poll_connect(&mut self, _: &mut Context<'_>) -> Option<ConnectRequest<'_>> {
        let key = loop {
            let key = self.connects.pop()?;
            if self.peers.get(key).is_some_and(Peer::wants_connection) {
                break key;
            }
        };
        self.peers.get(key).map(|peer| ConnectRequest { key, metadata: peer.metadata() })
    }

    fn connecting(&mut self, cx: &mut Context<'_>, key: u32, attempt: Result<Ticket, ErrorKind>) {
        let cx = &mut self.tick(cx);
        self.connect_began(cx, key, attempt);
    }

    fn resolved(&mut self, cx: &mut Context<'_>, ticket: Ticket, result: Result<PeerId, ErrorKind>) -> bool {
        let cx = &mut self.tick(cx);
        self.connect_ended(cx, ticket, result)
    }

    fn peer_lost(&mut self, cx: &mut Context<'_>, peer: PeerId) -> bool {
        let cx = &mut self.tick(cx);
        let has = |index: &u32| self.peers.get(*index).is_some_and(|at| at.connection() == Some(peer));
        let Some(key) = self.peers.indexes().find(has) else { return false };
        self.connection_lost(cx, key);
        true
    }

    fn poll_cancel(&mut self) -> Option<Ticket> {
        self.cancels.pop()
    }

    fn poll_disconnect(&mut self) -> Option<PeerId> {
        self.disconnects.pop()
    }
}
