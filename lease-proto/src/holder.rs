//! The holder: keeps blocks for readers, and frees each lease exactly once.
//!
//! P holds for D; in the bidirectional case D holds for P. A lease goes `granted -> (claimed) -> ended`; the laws that this file
//! keeps are 1 (promises), 2 (bounded hold), 3 (monotone), 5 (junk is inert) and 6 (conservation).

mod lease;
mod native;
mod peers;
mod vllm;

pub use lease::{Ended, Lease};
pub use peers::Peer;

use crate::{
    config::{LONGEST_LEASE, Terms},
    counters::add,
    drive::{ConnectRequest, Handled, Machine, Transmit},
    event::{Context, Event, Freed, Refused},
    fifo::Fifo,
    id::{Entropy, IdHash, Identity, RequestId, Token},
    table::{Slots, Table},
    time::{Duration, Instant},
    transport::{ErrorKind, PeerId, Ticket},
    wire::{Message, Wire, native::Refusal},
};
use lease::{BY_ID, BY_NUMBER, Claim, Completion, Counted, Stop};
use peers::{Notice, Say};

/// Unasked notices that may wait for the next transmission. They are best effort: a reader's own deadline does without them.
const OUTBOX: usize = 128;

/// The holder's state. Tables lie in storage that the caller gives: slots for leases (also of announced ones), for peers, and for
/// the memory of ended leases.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder<L, P, E> {
    identity: Identity,
    terms: Terms,
    entropy: Entropy,
    id_hash: IdHash,
    leases: Table<Lease, L>,
    peers: Table<Peer, P>,
    ended: Table<Ended, E>,
    /// Highest number drawn here, and highest number ever granted here.
    minted: u64,
    highest: u64,
    live: u32,
    clock: Instant,
    polled: Instant,
    drain: Option<Instant>,
    drained: bool,
    outbox: Fifo<Notice, OUTBOX>,
    disconnects: Fifo<PeerId, 16>,
    cancels: Fifo<Ticket, 16>,
}

/// What an engine asks for.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    /// The request whose blocks are held.
    pub request: &'a RequestId,
    /// Drawn by [`Holder::mint`] on the engine's one authority, the same on every rank.
    pub token: Token,
    /// How many ranks will read this rank's blocks, as a check; `None` leaves it to the first message.
    pub consumers: Option<u16>,
    /// A fixed time to live in place of a lease that can be renewed (the bidirectional case).
    pub ttl: Option<Duration>,
}

/// What an engine takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// The request was cancelled.
    Cancelled,
    /// The blocks could not be produced (case 17).
    Failed,
}

impl<L: Slots<Lease>, P: Slots<Peer>, E: Slots<Ended>> Holder<L, P, E> {
    /// A holder over empty storage. `seed` is sixteen bytes of the system's random source.
    pub fn new(identity: Identity, terms: Terms, seed: [u8; 16], leases: L, peers: P, ended: E) -> Self {
        let mut entropy = Entropy::from_seed(seed);
        let id_hash = IdHash::drawn(&mut entropy);
        Self {
            identity,
            terms,
            entropy,
            id_hash,
            leases: Table::new(leases),
            peers: Table::new(peers),
            ended: Table::new(ended),
            minted: 0,
            highest: 0,
            live: 0,
            clock: Instant::ZERO,
            polled: Instant::ZERO,
            drain: None,
            drained: false,
            outbox: Fifo::new(),
            disconnects: Fifo::new(),
            cancels: Fifo::new(),
        }
    }

    /// The terms that hold.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Who this process is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Leases granted and not ended.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Draws the next token. Only the engine's one authority does; the other ranks are told.
    pub fn mint(&mut self) -> Token {
        self.minted = self.minted.max(self.highest).saturating_add(1);
        Token { number: self.minted, nonce: self.entropy.draw() }
    }

    /// The token under which a request was announced and not yet granted.
    pub fn announced(&self, request: &RequestId) -> Option<Token> {
        let index = self.find_request(request.as_bytes(), |lease| !lease.granted)?;
        self.leases.get(index).map(|lease| lease.token)
    }

    /// The token of the lease of this request that was granted last and is not over.
    pub fn leased(&self, request: &RequestId) -> Option<Token> {
        let index = self.find_request(request.as_bytes(), |lease| lease.granted)?;
        self.leases.get(index).map(|lease| lease.token)
    }

    /// Announces a request before its grant, so that a completion that comes first is kept (cases 10, 11).
    ///
    /// From then on its parameters may be handed out, and who reads by them is answered that the blocks are held: announce only
    /// what is written.
    ///
    /// # Errors
    /// `Duplicate` if the token is used or the request announced already, `Full`, `Draining`, on vLLM's wire `IdNotEncodable`.
    pub fn expect(&mut self, cx: &mut Context<'_>, request: &RequestId, token: Token) -> Result<(), Refused> {
        let cx = &mut self.tick(cx);
        self.try_expect(request, token).inspect_err(|why| cx.refuse(Some(request.as_bytes()), Some(token), *why))
    }

    fn try_expect(&mut self, request: &RequestId, token: Token) -> Result<(), Refused> {
        self.admit(request, token)?;
        if self.announced(request).is_some() {
            return Err(Refused::Duplicate);
        }
        let lease = Lease::announced(request.clone(), token, self.id_hash.of(request.as_bytes()));
        self.leases.insert(lease).map(|_| ()).map_err(|_| Refused::Full)
    }

    /// Grants a lease and returns when it ends unless renewed. The engine's word is taken that the blocks are written.
    ///
    /// # Errors
    /// `Duplicate` if the token is used (on vLLM's wire: the id is leased), `Full`, `Draining`, on vLLM's wire `IdNotEncodable`.
    pub fn grant(&mut self, cx: &mut Context<'_>, grant: Grant<'_>) -> Result<Instant, Refused> {
        let cx = &mut self.tick(cx);
        self.try_grant(cx, grant).inspect_err(|why| cx.refuse(Some(grant.request.as_bytes()), Some(grant.token), *why))
    }

    fn try_grant(&mut self, cx: &mut Context<'_>, grant: Grant<'_>) -> Result<Instant, Refused> {
        let Grant { request, token, consumers, ttl } = grant;
        if self.drain.is_some() {
            return Err(Refused::Draining);
        }
        let announced = self.find_request(request.as_bytes(), |lease| !lease.granted && lease.token == token);
        let index = match announced {
            Some(index) => index,
            None => {
                self.admit(request, token)?;
                let lease = Lease::announced(request.clone(), token, self.id_hash.of(request.as_bytes()));
                self.leases.insert(lease).map_err(|_| Refused::Full)?
            }
        };
        let expires = cx.now.saturating_add(ttl.unwrap_or(self.terms.lease()).min(LONGEST_LEASE));
        let lease = self.leases.get_mut(index).ok_or(Refused::Full)?;
        lease.granted = true;
        lease.expires = expires;
        lease.fixed = ttl.is_some();
        lease.consumers = consumers;
        if lease.claim.is_some_and(|claim| consumers.is_some_and(|consumers| consumers != claim.of)) {
            lease.claim = None; // what came before the grant did not fit it
            cx.refuse(Some(request.as_bytes()), Some(token), Refused::Inconsistent);
        }
        let early = lease.is_done();
        self.leases.set_deadline(index, Some(expires));
        self.highest = self.highest.max(token.number);
        self.live = self.live.saturating_add(1);
        add(&mut cx.counters.granted);
        cx.emit(Event::Granted { request, token, expires });
        if let Some(freed) = early {
            self.end(cx, index, freed);
        }
        Ok(expires)
    }

    /// Takes a lease, or an announcement, back. Its blocks are free at once if no reader was ever promised anything; else no
    /// further promise is made, readers are told, and the last one is kept (law 1).
    ///
    /// # Errors
    /// `Unknown` if there is no such lease.
    pub fn abort(&mut self, cx: &mut Context<'_>, token: Token, why: Abort) -> Result<(), Refused> {
        let cx = &mut self.tick(cx);
        let found = self.leases.find(BY_NUMBER, token.number, |lease| lease.token == token);
        let Some(index) = found else {
            cx.refuse(None, Some(token), Refused::Unknown);
            return Err(Refused::Unknown);
        };
        self.stop(
            cx,
            index,
            match why {
                Abort::Cancelled => Stop::Aborted,
                Abort::Failed => Stop::Failed,
            },
        );
        Ok(())
    }

    /// Starts to shut down: no new grants; renewals are honoured up to `within` from now and then refused; what no reader was
    /// promised is free by then. [`Event::Drained`] tells when nothing is left; only then deregister memory (case 35).
    pub fn drain(&mut self, cx: &mut Context<'_>, within: Duration) {
        let cx = &mut self.tick(cx);
        let deadline = cx.now.saturating_add(within);
        self.drain = Some(self.drain.map_or(deadline, |earlier| earlier.min(deadline)));
        for index in self.leases.indexes() {
            let Some(lease) = self.leases.get_mut(index) else { continue };
            if !lease.granted {
                self.leases.remove(index);
            } else if lease.promised && !broken!(DrainFreesPromised) {
                self.tell(cx, index, Refusal::Draining);
            } else if lease.expires > deadline {
                lease.expires = deadline;
                self.leases.set_deadline(index, Some(deadline));
            }
        }
    }

    fn admit(&self, request: &RequestId, token: Token) -> Result<(), Refused> {
        if self.drain.is_some() {
            return Err(Refused::Draining);
        }
        let by_id = match self.terms.wire() {
            Wire::Native => None,
            Wire::Vllm if crate::wire::vllm::check_id(request.as_bytes()).is_err() => return Err(Refused::IdNotEncodable),
            Wire::Vllm => self.find_request(request.as_bytes(), |_| true),
        };
        // Numbers ascend; one that was passed over may only come by an announcement.
        let used = token.number <= self.highest
            || self.leases.find(BY_NUMBER, token.number, |lease| lease.token.number == token.number).is_some();
        if by_id.is_some() || used {
            return Err(Refused::Duplicate);
        }
        // Taken back before it was granted: the abort wins, whichever comes first (case 54).
        let aborted = self.ended(token).is_some();
        if aborted { Err(Refused::Revoked) } else { Ok(()) }
    }

    /// No further promises about a lease.
    fn stop(&mut self, cx: &mut Context<'_>, index: u32, stop: Stop) {
        let Some(lease) = self.leases.get_mut(index) else { return };
        let open = match stop {
            Stop::Revoked if broken!(ReleaseFreesPromised) => false,
            Stop::Aborted | Stop::Failed if broken!(AbortFreesPromised) => false,
            _ => lease.promised && lease.expires > cx.now,
        };
        if !lease.granted {
            lease.stop.get_or_insert(stop);
            self.leases.remove(index).into_iter().for_each(|lease| self.remember(cx, &lease, stop.freed(false)));
        } else if open {
            lease.stop.get_or_insert(stop);
            self.tell(cx, index, stop.refusal());
        } else {
            lease.stop.get_or_insert(stop);
            self.end(cx, index, stop.freed(false));
        }
    }

    /// The one place where a lease ends.
    fn end(&mut self, cx: &mut Context<'_>, index: u32, why: Freed) {
        if broken!(CompletionLeaks) && why == Freed::Completed {
            return self.leases.set_deadline(index, None);
        }
        if matches!(why, Freed::Expired | Freed::Aborted | Freed::Drained | Freed::Revoked) {
            let otherwise = if why == Freed::Drained { Refusal::Revoked } else { Refusal::Expired };
            let refusal = self.leases.get(index).and_then(|lease| lease.stop).map_or(otherwise, Stop::refusal);
            self.tell(cx, index, refusal);
        }
        let stays = self.leases.get(index).filter(|_| broken!(FreedTwice) && why == Freed::Expired).cloned();
        let Some(lease) = stays.or_else(|| self.leases.remove(index)) else { return };
        self.live = self.live.saturating_sub(1);
        cx.counters.count_freed(why);
        if lease.claim.is_none() && lease.counted.is_none() && !lease.promised {
            add(&mut cx.counters.unclaimed);
        }
        self.remember(cx, &lease, why);
        let Lease { request, token, expires, .. } = &lease;
        cx.emit(Event::Freed { request, token: *token, why, expires: *expires, now: cx.now, previous_poll: self.polled });
    }

    /// Keeps a tombstone.
    fn remember(&mut self, cx: &Context<'_>, lease: &Lease, why: Freed) {
        if broken!(TombstonesForgotten) {
            return;
        }
        let ended = Ended::new(lease, why, cx.now.saturating_add(self.terms.tombstone_ttl()));
        let until = ended.until();
        if let Ok(index) = self.ended.insert(ended.clone()).or_else(|_| {
            // Full: forget the oldest.
            self.ended.pop_due(Instant::MAX).and_then(|oldest| self.ended.remove(oldest));
            self.ended.insert(ended)
        }) {
            self.ended.set_deadline(index, Some(until));
        }
    }

    /// Promises a lease to a reader anew; returns for how long, rounded down.
    fn extend(&mut self, cx: &mut Context<'_>, index: u32) -> Result<Duration, Refusal> {
        let granted = self.extension(cx.now);
        let Some(lease) = self.leases.get_mut(index) else { return Err(Refusal::Unknown) };
        if !lease.granted {
            return Err(Refusal::NotYet);
        }
        if let Some(stop) = lease.stop.filter(|_| !broken!(RevokedIsRenewed)) {
            return Err(stop.refusal());
        }
        let left = lease.expires.saturating_since(cx.now);
        let granted = if lease.fixed && !broken!(FixedTtlMoves) { left } else { granted };
        if granted.is_zero() {
            return Err(if lease.fixed { Refusal::Expired } else { Refusal::Revoked });
        }
        if left < self.terms.interval() && !lease.fixed {
            add(&mut cx.counters.late_heartbeat);
        }
        lease.promised = true;
        let until = cx.now.saturating_add(if broken!(HeldForLonger) { granted.saturating_mul(3) } else { granted });
        lease.expires = if broken!(RenewalShortens) { until } else { lease.expires.max(until) };
        let granted = if broken!(PromiseBeyondDrain) && !lease.fixed { self.terms.extension() } else { granted };
        let expires = lease.expires;
        add(&mut cx.counters.renewed);
        cx.emit(Event::Renewed { request: &lease.request, token: lease.token, expires });
        self.leases.set_deadline(index, Some(expires));
        Ok(granted)
    }

    /// How a lease ended, while that is remembered.
    fn ended(&self, token: Token) -> Option<&Ended> {
        let same = |ended: &Ended| ended.token() == token && ended.until() > self.clock;
        self.ended.find(BY_NUMBER, token.number, same).and_then(|at| self.ended.get(at))
    }

    /// By how much a renewal extends now: less while draining, nothing after that.
    fn extension(&self, now: Instant) -> Duration {
        let left = self.drain.map_or(Duration::MAX, |deadline| deadline.saturating_since(now));
        self.terms.extension().min(left)
    }

    /// When a live lease ends that was granted before this one. No lease waits for that, unless this very rule is broken.
    fn behind(&self, lease: &Lease, now: Instant) -> Option<Instant> {
        let earlier = |first: &&Lease| first.granted && first.token.number < lease.token.number && first.expires > now;
        self.leases.indexes().filter_map(|index| self.leases.get(index)).find(earlier).map(|first| first.expires)
    }

    fn find_request(&self, id: &[u8], is: impl Fn(&Lease) -> bool) -> Option<u32> {
        self.leases.find(BY_ID, self.id_hash.of(id), |lease| lease.request.as_bytes() == id && is(lease))
    }

    /// A clock that goes back is clamped and counted, for this call only.
    fn tick<'c>(&mut self, cx: &'c mut Context<'_>) -> Context<'c> {
        if cx.now < self.clock {
            add(&mut cx.counters.clock_backwards);
        }
        self.clock = self.clock.max(cx.now);
        cx.at(self.clock)
    }
}

impl<L: Slots<Lease>, P: Slots<Peer>, E: Slots<Ended>> Machine for Holder<L, P, E> {
    fn handle<'m>(&mut self, cx: &mut Context<'_>, from: Option<PeerId>, message: Message<'m>, out: &mut [u8]) -> Handled<'m> {
        let cx = &mut self.tick(cx);
        match message {
            Message::Native { session, seq, body } => self.handle_native(cx, session, seq, body, out),
            Message::Vllm(message) => self.handle_vllm(cx, from, message),
            Message::Foreign(_) => Handled::NotMine,
        }
    }

    fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        let cx = &mut self.tick(cx);
        while let Some(index) = self.leases.pop_due(cx.now) {
            let Some(lease) = self.leases.get(index) else { continue };
            if broken!(ReaperStopsAtFirstLive)
                && let Some(until) = self.behind(lease, cx.now)
            {
                self.leases.set_deadline(index, Some(until));
                continue;
            }
            if (self.terms.hold_until_ack() || broken!(HeldUntilAck)) && lease.promised && lease.stop.is_none() {
                add(&mut cx.counters.overdue);
                cx.emit(Event::Overdue { request: &lease.request });
                continue;
            }
            let drained = self.drain.is_some_and(|deadline| cx.now >= deadline);
            let why = match lease.stop {
                Some(stop) => stop.freed(lease.promised),
                None if drained => Freed::Drained,
                None => Freed::Expired,
            };
            self.end(cx, index, why);
        }
        while let Some(index) = self.ended.pop_due(cx.now) {
            self.ended.remove(index);
        }
        self.forget_silent_peers(cx);
        if self.drain.is_some() && self.live == 0 && !self.drained {
            self.drained = true;
            cx.emit(Event::Drained);
        }
        self.polled = cx.now;
    }

    fn next_timeout(&self) -> Option<Instant> {
        let drained = self.drain.is_some() && self.live == 0 && !self.drained;
        let waits = drained || !self.outbox.is_empty() || !self.disconnects.is_empty() || !self.cancels.is_empty();
        [waits.then_some(self.clock), self.leases.next_due(), self.peers.next_due()].into_iter().flatten().min()
    }

    fn poll_transmit(&mut self, cx: &mut Context<'_>, out: &mut [u8]) -> Option<Transmit> {
        let cx = &mut self.tick(cx);
        self.next_notice(cx, out)
    }

    fn poll_connect(&mut self, _: &mut Context<'_>) -> Option<ConnectRequest<'_>> {
        None // connects back only when greeted, see `Handled::Connect`
    }

    fn poll_cancel(&mut self) -> Option<Ticket> {
        self.cancels.pop()
    }

    fn poll_disconnect(&mut self) -> Option<PeerId> {
        self.disconnects.pop()
    }

    fn connecting(&mut self, cx: &mut Context<'_>, key: u32, attempt: Result<Ticket, ErrorKind>) {
        let cx = &mut self.tick(cx);
        match (attempt, self.peers.get_mut(key)) {
            (Ok(ticket), Some(peer)) => peer.connecting = Some((ticket, cx.now.saturating_add(self.terms.connect_deadline()))),
            (Ok(_), None) => {}
            (Err(_), _) => self.cannot_reach(cx, key),
        }
    }

    fn resolved(&mut self, cx: &mut Context<'_>, ticket: Ticket, result: Result<PeerId, ErrorKind>) -> bool {
        let cx = &mut self.tick(cx);
        self.connected_back(cx, ticket, result)
    }

    fn peer_lost(&mut self, cx: &mut Context<'_>, peer: PeerId) -> bool {
        let cx = &mut self.tick(cx);
        self.forget_connection(cx, peer)
    }

    fn sent(&mut self, _: &mut Context<'_>, _: &Transmit, _: Result<(), ErrorKind>) {
        // Answers and notices are sent once: the reader asks again, or does without.
    }
}

impl<L: Slots<Lease>, P: Slots<Peer>, E: Slots<Ended>> Holder<L, P, E> {
    /// Queues an unasked notice to the peer that renewed a lease last (case 7).
    fn tell(&mut self, cx: &mut Context<'_>, index: u32, why: Refusal) {
        let Some(lease) = self.leases.get(index) else { return };
        let Some((peer, session)) = lease.renewer else { return };
        let notice = Notice { peer, session, say: Say::Gone { token: lease.token, why } };
        if self.outbox.push(notice).is_err() {
            add(&mut cx.counters.notices_dropped);
        }
    }
}
