//! The holders that a reader beats: connection, handshake, and when a beat is due.

use super::{
    Leg, Queue, Reader, Request,
    leg::{NIL, Phase, Status},
    offset::Watch,
};
use crate::{
    config::{LONGEST_EXTENSION, SHORTEST},
    counters::add,
    drive::{Sent, Transmit},
    event::{Context, Event, Lost, Refused},
    handshake::{Handshake, Step},
    id::{EngineId, Incarnation, Seq, Session},
    params::Parameters,
    table::{Entry, Slots},
    time::{Duration, Instant},
    transport::{ErrorKind, PeerId, Ticket},
    wire::{
        Wire,
        native::{self, Body, Hello, HelloAck, Party, RenewWriter, tokens_that_fit},
        vllm::HeartbeatWriter,
    },
};

/// Keys of the table.
pub(super) const BY_SESSION: usize = 0;
pub(super) const BY_ENGINE: usize = 1;
/// Renews that are remembered per peer.
const RECORDS: usize = 16;
/// Send errors in a row that make a new handshake (case 23).
const FAILURES: u32 = 3;
/// Unanswered hellos after which a connected peer counts as one-way.
const UNHEARD_HELLOS: u32 = 3;

/// A holder's process. Opaque: named only to give storage for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer<M> {
    pub(super) engine: EngineId,
    pub(super) incarnation: Incarnation,
    pub(super) rank: u16,
    engine_hash: u64,
    metadata: M,
    /// Later ones are later lives.
    born: u64,
    /// What it writes into its messages, chosen here; what we write into ours, chosen there.
    session: Session,
    theirs: Option<Session>,
    connection: Option<PeerId>,
    handshake: Handshake,
    pub(super) extension: Duration,
    pub(super) drift_ppm: u32,
    max_message: u32,
    seq: u64,
    /// The leg whose token the last hello named.
    named: u32,
    /// Legs to renew, in the order of the renews, and how many legs there are in all.
    pub(super) head: u32,
    tail: u32,
    legs: u32,
    /// Where the beat under way goes on.
    cursor: u32,
    beat_due: Instant,
    /// A beat under way that had to wait goes on then. The next renew is the first of a beat.
    resume: Instant,
    begins: bool,
    pub(super) records: [Option<Record>; RECORDS],
    /// Beats since the last answer.
    pub(super) since_answer: u32,
    pub(super) answered: bool,
    failures: u32,
    one_way: bool,
    pub(super) told_terms: bool,
    /// A later life of its engine was met.
    over: bool,
    hello_due: bool,
    pub(super) watch: Watch,
    ready: Option<u32>,
    idle_since: Instant,
}

/// A renew that may still be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub(super) seq: Seq,
    /// Read before it was handed over.
    pub(super) at: Instant,
    pub(super) count: u16,
}

impl<M> Peer<M> {
    pub(super) fn connection(&self) -> Option<PeerId> {
        self.connection
    }

    pub(super) fn session(&self) -> Session {
        self.session
    }

    pub(super) fn next_seq(&mut self) -> Seq {
        self.seq = self.seq.saturating_add(1);
        Seq(self.seq)
    }

    /// The connection and the session to write, once there are both.
    pub(super) fn reachable(&self, wire: Wire) -> Option<(PeerId, Session)> {
        let session = if wire == Wire::Vllm { Some(Session(0)) } else { self.theirs };
        self.connection.zip(session)
    }

    pub(super) fn wants_connection(&self) -> bool {
        self.handshake.wants_ticket()
    }

    /// An answer came: it has not forgotten us.
    pub(super) fn heard(&mut self) {
        self.since_answer = 0;
        self.answered = true;
        if self.theirs.is_some() {
            self.handshake.established();
        }
    }

    /// Whether it is a rank of the engine, and of the life of it, that these parameters name.
    pub(super) fn is_of(&self, params: &Parameters<'_>) -> bool {
        self.engine.as_bytes() == params.engine && self.incarnation == params.incarnation
    }

    fn record(&mut self, seq: Seq) -> Option<&mut Option<Record>> {
        self.records.get_mut((seq.0 as usize).checked_rem(RECORDS)?)
    }

    /// The renew with this number and so many leases, forgotten from now on.
    pub(super) fn take_record(&mut self, seq: Seq, count: u16) -> Option<Record> {
        let slot = self.record(seq)?;
        slot.filter(|record| record.seq == seq && record.count == count)?;
        slot.take()
    }
}

impl<M: AsRef<[u8]>> Peer<M> {
    pub(super) fn metadata(&self) -> &[u8] {
        self.metadata.as_ref()
    }
}

impl<M> Entry for Peer<M> {
    fn hash(&self, key: usize) -> Option<u64> {
        Some(if key == BY_SESSION { self.session.0 } else { self.engine_hash })
    }
}

impl<R: Slots<Request>, G: Slots<Leg>, P: Slots<Peer<M>>, M: AsRef<[u8]>> Reader<R, G, P, M> {
    /// The peer that holds a rank's blocks, new or known.
    pub(super) fn peer_for(
        &mut self,
        cx: &mut Context<'_>,
        params: &Parameters<'_>,
        rank: u16,
        metadata: M,
    ) -> Result<u32, Refused> {
        let engine = EngineId::new(params.engine).map_err(|_| Refused::Unknown)?;
        let hash = self.hash_id(params.engine).wrapping_add(u64::from(rank));
        let same = |peer: &Peer<M>| peer.engine == engine && peer.rank == rank && peer.incarnation == params.incarnation;
        if let Some(index) = self.peers.find(BY_ENGINE, hash, same) {
            return self.peers.get(index).filter(|peer| !peer.over).map(|_| index).ok_or(Refused::Unknown);
        }
        self.born = self.born.saturating_add(1);
        let peer = Peer {
            engine,
            incarnation: params.incarnation,
            rank,
            engine_hash: hash,
            metadata,
            born: self.born,
            session: Session(self.entropy.draw()),
            theirs: None,
            connection: None,
            handshake: Handshake::default(),
            extension: params.extension.max(SHORTEST).min(LONGEST_EXTENSION),
            drift_ppm: params.drift_ppm,
            max_message: u32::MAX,
            seq: 0,
            named: NIL,
            head: NIL,
            tail: NIL,
            legs: 0,
            cursor: NIL,
            beat_due: cx.now,
            resume: cx.now,
            begins: true,
            records: [None; RECORDS],
            since_answer: 0,
            answered: false,
            failures: 0,
            one_way: false,
            told_terms: false,
            over: false,
            hello_due: false,
            watch: Watch::new(params.drift_ppm.max(self.terms.drift_ppm())),
            ready: None,
            idle_since: cx.now,
        };
        if self.peers.is_full() {
            // One that nothing is read from any more makes room.
            let idle = |index: &u32| self.peers.get(*index).is_some_and(|peer| peer.legs == 0);
            let oldest = self.peers.indexes().filter(idle).min_by_key(|index| self.peers.get(*index).map(|peer| peer.idle_since));
            self.forget_peer(oldest.ok_or(Refused::Full)?);
            add(&mut cx.counters.evicted);
        }
        self.peers.insert(peer).map_err(|_| Refused::Full)
    }

    /// A new leg joins its request and its peer, and is renewed at once where the peer can be reached.
    pub(super) fn join(&mut self, cx: &mut Context<'_>, index: u32) {
        let Some((request, key)) = self.legs.get(index).map(|leg| (leg.request, leg.peer)) else { return };
        let first = self.requests.get_mut(request).map_or(NIL, |request| core::mem::replace(&mut request.first, index));
        let Some(peer) = self.peers.get_mut(key) else { return };
        let prev = core::mem::replace(&mut peer.tail, index);
        if peer.head == NIL {
            peer.head = index;
        }
        if peer.cursor == NIL {
            peer.cursor = index; // a beat of what is new
        }
        peer.legs = peer.legs.saturating_add(1);
        peer.handshake.start(cx.now);
        if let Some(leg) = self.legs.get_mut(index) {
            leg.sibling = first;
            leg.links = Some((prev, NIL));
        }
        if let Some(links) = self.legs.get_mut(prev).and_then(|leg| leg.links.as_mut()) {
            links.1 = index;
        }
        self.arm_leg(index);
        self.peer_ready(key);
        self.arm_peer(key);
    }

    /// A leg is not renewed any more.
    pub(super) fn unlink(&mut self, index: u32) {
        let Some((key, (prev, next))) = self.legs.get_mut(index).and_then(|leg| Some((leg.peer, leg.links.take()?))) else {
            return;
        };
        if let Some(links) = self.legs.get_mut(prev).and_then(|leg| leg.links.as_mut()) {
            links.1 = next;
        }
        if let Some(links) = self.legs.get_mut(next).and_then(|leg| leg.links.as_mut()) {
            links.0 = prev;
        }
        if let Some(peer) = self.peers.get_mut(key) {
            for (end, neighbour) in [(&mut peer.head, next), (&mut peer.tail, prev), (&mut peer.cursor, next)] {
                if *end == index {
                    *end = neighbour;
                }
            }
        }
    }

    /// A leg is gone.
    pub(super) fn leave(&mut self, key: u32) {
        if let Some(peer) = self.peers.get_mut(key) {
            peer.legs = peer.legs.saturating_sub(1);
            peer.idle_since = self.clock;
        }
        self.arm_peer(key);
    }

    pub(super) fn peer_ready(&mut self, index: u32) {
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.ready.is_none()) else { return };
        peer.ready = Some(NIL);
        let tail = core::mem::replace(&mut self.ready_peers.tail, index);
        match self.peers.get_mut(tail) {
            Some(last) => last.ready = Some(index),
            None => self.ready_peers.head = index,
        }
    }

    fn arm_peer(&mut self, index: u32) {
        let Some(peer) = self.peers.get(index) else { return };
        // One that waits to be sent is in the queue already.
        let beats = peer.head != NIL && peer.ready.is_none() && peer.reachable(self.terms.wire()).is_some();
        let beat = beats.then_some(if peer.cursor == NIL { peer.beat_due } else { peer.resume });
        let idle = (peer.legs == 0).then(|| peer.idle_since.saturating_add(self.terms.engine_ttl()));
        let greeting = (peer.legs > 0 && !peer.over).then(|| peer.handshake.next_timeout()).flatten();
        self.peers.set_deadline(index, [beat, idle, greeting].into_iter().flatten().min());
    }

    pub(super) fn peer_due(&mut self, cx: &mut Context<'_>, index: u32) {
        let patience = self.patience();
        let Some(peer) = self.peers.get_mut(index) else { return };
        if peer.legs == 0 && peer.idle_since.saturating_add(self.terms.engine_ttl()) <= cx.now {
            add(&mut cx.counters.evicted);
            self.forget_peer(index);
            return;
        }
        while let Some(step) = peer.handshake.step(cx.now, &patience) {
            match step {
                Step::Connect if self.connects.push(index).is_ok() => {}
                Step::Connect => peer.handshake.failed(cx.now, &patience),
                Step::Cancel(ticket) => {
                    add(&mut cx.counters.connect_failed);
                    let _ = self.cancels.push(ticket); // full: a late result finds no taker
                }
                Step::Hello => peer.hello_due = true,
            }
        }
        if peer.beat_due <= cx.now && peer.cursor == NIL {
            peer.cursor = peer.head;
            peer.begins = true;
        }
        self.peer_ready(index);
        self.arm_peer(index);
    }

    /// The next hello or renew that is due.
    pub(super) fn next_from_peers(&mut self, cx: &mut Context<'_>, out: &mut [u8]) -> Option<Transmit> {
        loop {
            let key = self.ready_peers.head;
            let transmit = match self.peers.get(key)? {
                peer if peer.hello_due => self.hello(cx, key, out),
                peer if peer.watch.due => self.time_question(cx, key, out).or_else(|| self.beat(cx, key, out)),
                _ => self.beat(cx, key, out),
            };
            if transmit.is_some() {
                return transmit;
            }
            self.ready_peers.head = self.peers.get_mut(key)?.ready.take().unwrap_or(NIL);
            if self.ready_peers.head == NIL {
                self.ready_peers = Queue::EMPTY;
            }
            self.arm_peer(key);
        }
    }

    fn hello(&mut self, cx: &mut Context<'_>, key: u32, out: &mut [u8]) -> Option<Transmit> {
        let peer = self.peers.get_mut(key)?;
        peer.hello_due = false;
        let to = peer.connection?;
        let unheard = peer.theirs.is_none() && peer.handshake.unanswered_hellos() > UNHEARD_HELLOS;
        if unheard && !core::mem::replace(&mut peer.one_way, true) {
            add(&mut cx.counters.one_way);
            cx.emit(Event::OneWay { engine: peer.engine.as_bytes() });
        }
        let party = Party {
            engine: self.identity.engine.as_bytes(),
            incarnation: self.identity.incarnation,
            rank: self.identity.rank,
            ranks: self.identity.ranks,
            clock: self.identity.clock,
            session: peer.session,
            extension: self.terms.extension(),
            drift_ppm: self.terms.drift_ppm(),
            max_message: self.identity.max_message,
            capabilities: 0,
        };
        // Each of its legs in turn, also one that is closing: a token that is not live must not keep the others waiting.
        let of_peer = |index: &u32| self.legs.get(*index).is_some_and(|leg| leg.peer == key);
        let after = self.legs.indexes().filter(|index| *index > peer.named).find(of_peer);
        peer.named = after.or_else(|| self.legs.indexes().find(of_peer))?;
        let token = self.legs.get(peer.named)?.token;
        let hello = Hello { lowest: native::VERSION, highest: native::VERSION, token, party, metadata: self.metadata.as_ref() };
        let length = native::encode(Session(0), peer.next_seq(), &Body::Hello(hello), out).ok()?;
        Some(Transmit { to, length, key, sent: Sent::Greeting })
    }

    /// The next renew of the beat under way. When there is none, the beat is spent and the next one planned.
    fn beat(&mut self, cx: &mut Context<'_>, key: u32, out: &mut [u8]) -> Option<Transmit> {
        let wire = self.terms.wire();
        let peer = self.peers.get_mut(key)?;
        let (to, session) = peer.reachable(wire)?;
        // A renew that is forgotten for a later one is never proven by its answer: wait for that, as long as it may be on its way.
        let (next, grace) = (Seq(peer.seq.saturating_add(1)), self.terms.path_budget());
        let remembered = peer.record(next).and_then(|record| record.map(|record| record.at.saturating_add(grace)));
        let under_way = self.legs.get(peer.cursor).is_some();
        if let Some(until) = remembered.filter(|until| under_way && *until > cx.now) {
            peer.resume = until;
            return None;
        }
        let room = out.len().min(peer.max_message as usize);
        let built = out.get_mut(..room).filter(|_| under_way).and_then(|out| match wire {
            Wire::Native => self.renew(key, session, out),
            Wire::Vllm => self.heartbeat(key, out),
        });
        if let Some((length, leases)) = built {
            return Some(Transmit { to, length, key, sent: Sent::Heartbeat { leases } });
        }
        let peer = self.peers.get_mut(key)?;
        peer.cursor = NIL;
        if peer.beat_due <= cx.now {
            self.plan_beat(cx.now, key);
        }
        None
    }

    /// One datagram, one number, one list: the legs from the cursor on that speak for the same rank, as many as fit.
    fn renew(&mut self, key: u32, session: Session, out: &mut [u8]) -> Option<(usize, u16)> {
        let stamp = self.stamp;
        let fit = tokens_that_fit(out.len(), self.identity.max_message as usize);
        let peer = self.peers.get_mut(key)?;
        let (seq, mut at) = (peer.next_seq(), peer.cursor);
        let reader = self.legs.get(at)?.reader;
        let mut writer = RenewWriter::new(out, reader).ok()?;
        while let Some(leg) = self.legs.get_mut(at).filter(|leg| leg.reader == reader) {
            if usize::from(writer.count()) >= fit || !writer.push(leg.token) {
                break;
            }
            leg.named(seq, writer.count().saturating_sub(1));
            at = leg.links.map_or(NIL, |(_, next)| next);
        }
        let count = writer.count();
        let length = writer.finish(session, seq);
        peer.cursor = if count == 0 { NIL } else { at };
        if let Some(slot) = peer.record(seq) {
            *slot = Some(Record { seq, at: stamp, count });
        }
        (count > 0).then_some((length, count))
    }

    fn heartbeat(&mut self, key: u32, out: &mut [u8]) -> Option<(usize, u16)> {
        let peer = self.peers.get_mut(key)?;
        let (mut at, mut count) = (peer.cursor, 0u16);
        let mut writer = HeartbeatWriter::new(out);
        while let Some(leg) = self.legs.get(at) {
            let id = self.requests.get(leg.request)?.id.as_bytes();
            if count == u16::MAX || !matches!(writer.push(id), Ok(true)) {
                break;
            }
            count = count.saturating_add(1);
            at = leg.links.map_or(NIL, |(_, next)| next);
        }
        peer.cursor = if count == 0 { NIL } else { at };
        Some((writer.finish()?, count))
    }

    /// The first beats come fast, until one is answered; then by the interval, earlier by up to an eighth so that beats spread.
    /// Unanswered ones slow it down and never stop it.
    fn plan_beat(&mut self, now: Instant, key: u32) {
        let draw = self.entropy.draw();
        let wire = self.terms.wire();
        let Some(peer) = self.peers.get_mut(key) else { return };
        let interval = self.terms.interval_for(peer.extension);
        let slowed = peer.since_answer >= self.terms.max_unanswered() && wire == Wire::Native;
        let pause = match wire {
            _ if slowed => interval.saturating_mul(2).min(peer.extension.scale(1, 2)),
            Wire::Native if !peer.answered => interval.min(Duration::from_secs(1)),
            Wire::Native => interval.saturating_sub(interval.scale(draw % 1024, 8 * 1024)),
            Wire::Vllm => interval,
        };
        peer.beat_due = now.saturating_add(pause);
    }

    /// An answer made room: the beat under way goes on, if it had to wait.
    pub(super) fn go_on(&mut self, key: u32) {
        if self.peers.get(key).is_some_and(|peer| peer.cursor != NIL) {
            self.peer_ready(key);
        }
    }

    pub(super) fn beat_sent(&mut self, cx: &mut Context<'_>, transmit: &Transmit, leases: u16, result: Result<(), ErrorKind>) {
        let wire = self.terms.wire();
        let Some(peer) = self.peers.get_mut(transmit.key).filter(|peer| peer.connection == Some(transmit.to)) else { return };
        if result.is_ok() {
            peer.failures = 0;
            let begins = core::mem::take(&mut peer.begins);
            peer.since_answer = peer.since_answer.saturating_add(u32::from(begins));
            add(&mut cx.counters.heartbeats);
            cx.emit(Event::HeartbeatSent { engine: peer.engine.as_bytes(), leases, bytes: transmit.length });
            if begins && wire == Wire::Native && peer.since_answer == self.terms.max_unanswered().min(FAILURES) {
                peer.handshake.greet_again(cx.now); // it may have forgotten us
            }
        } else {
            // Not spent: again soon, from the start, under another number.
            add(&mut cx.counters.unsent);
            peer.cursor = NIL;
            let soon = self.terms.interval_for(peer.extension).scale(1, 8);
            peer.beat_due = cx.now.saturating_add(soon); // the record stays: if it left after all, its answer counts
        }
        self.arm_peer(transmit.key);
    }

    pub(super) fn send_failed(&mut self, cx: &mut Context<'_>, transmit: &Transmit, kind: ErrorKind) {
        let Some(peer) = self.peers.get_mut(transmit.key).filter(|peer| peer.connection == Some(transmit.to)) else { return };
        match kind {
            ErrorKind::WouldBlock => return,
            ErrorKind::NotConnected | ErrorKind::PeerLost => {}
            _ => {
                peer.failures = peer.failures.saturating_add(1);
                if peer.failures < FAILURES {
                    return;
                }
            }
        }
        self.connection_lost(cx, transmit.key);
    }

    pub(super) fn connect_began(&mut self, cx: &mut Context<'_>, key: u32, attempt: Result<Ticket, ErrorKind>) {
        let patience = self.patience();
        if let Some(peer) = self.peers.get_mut(key) {
            match attempt {
                Ok(ticket) => peer.handshake.connecting(ticket),
                Err(_) => {
                    add(&mut cx.counters.connect_failed);
                    peer.handshake.failed(cx.now, &patience);
                }
            }
        }
        self.arm_peer(key);
    }

    pub(super) fn connect_ended(&mut self, cx: &mut Context<'_>, ticket: Ticket, result: Result<PeerId, ErrorKind>) -> bool {
        let patience = self.patience();
        let waits = |index: &u32| self.peers.get(*index).is_some_and(|peer| peer.handshake.awaits(ticket));
        let Some(key) = self.peers.indexes().find(waits) else { return false };
        let Some(peer) = self.peers.get_mut(key) else { return false };
        match result {
            Ok(connection) => {
                peer.connection = Some(connection);
                peer.handshake.connected(cx.now, &patience);
                if peer.handshake.is_established() {
                    self.established(cx, key);
                }
            }
            Err(_) => {
                add(&mut cx.counters.connect_failed);
                peer.handshake.failed(cx.now, &patience);
            }
        }
        self.arm_peer(key);
        true
    }

    /// The holder has answered our hello.
    pub(super) fn welcomed(&mut self, cx: &mut Context<'_>, key: u32, ack: &HelloAck<'_>) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let ours = ack.re.0 > 0 && ack.re.0 <= peer.seq && ack.version == native::VERSION;
        if !ours
            || peer.over
            || peer.connection.is_none()
            || ack.party.incarnation != peer.incarnation
            || ack.party.rank != peer.rank
            || ack.party.engine != peer.engine.as_bytes()
        {
            add(&mut cx.counters.answers_discarded);
            return;
        }
        peer.max_message = ack.party.max_message;
        peer.watch.clock = ack.party.clock;
        peer.drift_ppm = peer.drift_ppm.max(ack.party.drift_ppm);
        let known = peer.theirs.replace(ack.party.session) == Some(ack.party.session);
        peer.handshake.established();
        if !known {
            self.established(cx, key);
        }
        self.arm_peer(key);
    }

    /// From now on it can be beaten: the first beat is due.
    fn established(&mut self, cx: &mut Context<'_>, key: u32) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        peer.one_way = false;
        peer.beat_due = cx.now;
        peer.cursor = peer.head;
        peer.begins = true;
        let (hash, rank, born, engine) = (peer.engine_hash, peer.rank, peer.born, peer.engine.clone());
        add(&mut cx.counters.connected);
        cx.emit(Event::Connected { engine: peer.engine.as_bytes() });
        self.peer_ready(key);
        // An earlier life of the same engine is over (cases 8, 21).
        let earlier = |peer: &Peer<M>| peer.engine == engine && peer.rank == rank && peer.born < born && !peer.over;
        while let Some(earlier) = self.peers.find(BY_ENGINE, hash, earlier) {
            self.restarted(cx, earlier);
        }
    }

    fn restarted(&mut self, cx: &mut Context<'_>, key: u32) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        peer.over = true;
        add(&mut cx.counters.peer_restarted);
        cx.emit(Event::PeerRestarted { engine: peer.engine.as_bytes() });
        self.hang_up(key);
        for index in self.legs.indexes() {
            if self.legs.get(index).is_some_and(|leg| leg.peer == key) {
                self.lose(cx, index, Lost::PeerRestarted);
            }
        }
    }

    pub(super) fn connection_lost(&mut self, cx: &mut Context<'_>, key: u32) {
        let patience = self.patience();
        let Some(peer) = self.peers.get_mut(key) else { return };
        let Some(connection) = peer.connection.take() else { return };
        let _ = self.disconnects.push(connection); // full: the transport has dropped it already, or will by its own limits
        peer.theirs = None;
        peer.failures = 0;
        peer.answered = false;
        peer.cursor = NIL;
        peer.handshake.lost(cx.now, &patience);
        add(&mut cx.counters.peer_lost);
        cx.emit(Event::PeerLost { engine: peer.engine.as_bytes() });
        self.arm_peer(key);
    }

    fn forget_peer(&mut self, key: u32) {
        self.hang_up(key);
        self.unready_peer(key);
        self.peers.remove(key);
    }

    /// Gives up its connection, or the attempt at one.
    fn hang_up(&mut self, key: u32) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if let Some(ticket) = peer.handshake.cancel() {
            let _ = self.cancels.push(ticket); // full: a late result finds no taker
        }
        if let Some(connection) = peer.connection.take() {
            let _ = self.disconnects.push(connection); // full: the transport's own limits will have to do
        }
    }

    fn unready_peer(&mut self, key: u32) {
        if self.peers.get(key).is_none_or(|peer| peer.ready.is_none()) {
            return;
        }
        let (mut before, mut at) = (NIL, self.ready_peers.head);
        while let Some(next) = self.peers.get(at).and_then(|peer| peer.ready) {
            if at == key {
                match self.peers.get_mut(before) {
                    Some(peer) => peer.ready = Some(next),
                    None => self.ready_peers.head = next,
                }
                if self.ready_peers.tail == key {
                    self.ready_peers.tail = before;
                }
                return;
            }
            (before, at) = (at, next);
        }
    }

    /// A leg's request has every leg confirmed, or not any more.
    pub(super) fn review(&mut self, cx: &mut Context<'_>, request: u32) {
        let confirmed = !self.any_leg(request, |leg| leg.status != Status::Confirmed);
        let Some(entry) = self.requests.get_mut(request) else { return };
        let told = core::mem::replace(&mut entry.confirmed, confirmed);
        if told == confirmed || !matches!(entry.phase, Phase::Waiting | Phase::Reading { .. }) || entry.lost {
            return;
        }
        if confirmed {
            self.tell(cx, request, |request, handle| Event::Confirmed { request, handle });
        } else {
            add(&mut cx.counters.unproven);
            self.tell(cx, request, |request, handle| Event::Unproven { request, handle });
        }
    }
}
