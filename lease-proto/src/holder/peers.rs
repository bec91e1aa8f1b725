//! The peers of a holder: sessions, the connection back, unasked notices.

use super::{Ended, Holder, Lease};
use crate::{
    counters::add,
    drive::{Sent, Transmit},
    event::{Context, Event, Freed},
    id::{EngineId, Incarnation, Seq, Session, Token},
    table::{Entry, Slots},
    time::{Duration, Instant},
    transport::{ErrorKind, PeerId, Ticket},
    wire::native::{self, Body, Gone, HelloAck, Party, Refusal},
};

/// Keys of the table.
pub(super) const BY_SESSION: usize = 0;
pub(super) const BY_ENGINE: usize = 1;

/// Answers per second and peer, and as many at once. A reader needs one per beat and one per lease.
const ANSWERS: u64 = 10_000;

/// A reader's process. Opaque: named only to give storage for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    pub(super) engine: EngineId,
    pub(super) incarnation: Incarnation,
    pub(super) rank: u16,
    engine_hash: u64,
    /// What it writes into its messages, chosen here; what we write into ours, chosen there.
    session: Session,
    pub(super) theirs: Session,
    pub(super) max_message: u32,
    /// The number of its latest hello.
    pub(super) hello: Seq,
    pub(super) connection: Option<PeerId>,
    /// An attempt to connect back, and when it is given up.
    pub(super) connecting: Option<(Ticket, Instant)>,
    one_way: bool,
    seq: u64,
    pub(super) heard: Instant,
    answers: u64,
    answers_at: Instant,
}

impl Peer {
    pub(super) fn new(
        engine: EngineId,
        engine_hash: u64,
        incarnation: Incarnation,
        rank: u16,
        session: Session,
        now: Instant,
    ) -> Self {
        Self {
            engine,
            incarnation,
            rank,
            engine_hash,
            session,
            theirs: Session(0),
            max_message: 0,
            hello: Seq(0),
            connection: None,
            connecting: None,
            one_way: false,
            seq: 0,
            heard: now,
            answers: ANSWERS,
            answers_at: now,
        }
    }

    pub(super) fn session(&self) -> Session {
        self.session
    }

    /// The number of the next message to it.
    pub(super) fn next_seq(&mut self) -> Seq {
        self.seq = self.seq.saturating_add(1);
        Seq(self.seq)
    }

    /// Whether one more answer may be given now.
    pub(super) fn may_answer(&mut self, now: Instant) -> bool {
        let earned = now.saturating_since(self.answers_at).scale(ANSWERS, 1_000_000_000).as_nanos();
        if earned > 0 {
            self.answers = self.answers.saturating_add(earned).min(ANSWERS);
            self.answers_at = now;
        }
        match self.answers.checked_sub(1) {
            Some(left) => {
                self.answers = left;
                true
            }
            None => false,
        }
    }
}

impl Entry for Peer {
    fn hash(&self, key: usize) -> Option<u64> {
        Some(if key == BY_SESSION { self.session.0 } else { self.engine_hash })
    }
}

/// Something to say without being asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Notice {
    pub(super) peer: u32,
    /// Our side's session of that peer: its slot may be somebody else's by now.
    pub(super) session: Session,
    pub(super) say: Say,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Say {
    Welcome,
    Gone { token: Token, why: Refusal },
}

impl<L: Slots<Lease>, P: Slots<Peer>, E: Slots<Ended>> Holder<L, P, E> {
    /// The answer to a peer's latest hello.
    pub(super) fn welcome(&mut self, key: u32, out: &mut [u8]) -> Option<Transmit> {
        let peer = self.peers.get_mut(key)?;
        let party = Party::of(&self.identity, &self.terms, peer.session);
        let ack = HelloAck { re: peer.hello, version: native::VERSION, party };
        let (to, theirs, seq) = (peer.connection?, peer.theirs, peer.next_seq());
        let length = native::encode(theirs, seq, &Body::HelloAck(ack), out).ok()?;
        Some(Transmit { to, length, key, sent: Sent::Answer })
    }

    pub(super) fn next_notice(&mut self, _: &mut Context<'_>, out: &mut [u8]) -> Option<Transmit> {
        while let Some(Notice { peer: key, session, say }) = self.outbox.pop() {
            let Some(peer) = self.peers.get_mut(key).filter(|peer| peer.session == session) else { continue };
            let transmit = match say {
                Say::Welcome => self.welcome(key, out),
                Say::Gone { token, why } => peer.connection.and_then(|to| {
                    let gone = Body::Gone(Gone { re: Seq(0), token, why });
                    let length = native::encode(peer.theirs, peer.next_seq(), &gone, out).ok()?;
                    Some(Transmit { to, length, key, sent: Sent::Answer })
                }),
            };
            if transmit.is_some() {
                return transmit;
            }
        }
        None
    }

    pub(super) fn connected_back(&mut self, cx: &mut Context<'_>, ticket: Ticket, result: Result<PeerId, ErrorKind>) -> bool {
        let waits = |index: &u32| {
            self.peers.get(*index).is_some_and(|peer| peer.connecting.is_some_and(|(running, _)| running == ticket))
        };
        let Some(key) = self.peers.indexes().find(waits) else { return false };
        let Some(peer) = self.peers.get_mut(key) else { return false };
        peer.connecting = None;
        match result {
            Ok(connection) => {
                peer.connection = Some(connection);
                peer.one_way = false;
                add(&mut cx.counters.connected);
                cx.emit(Event::Connected { engine: peer.engine.as_bytes() });
                let notice = Notice { peer: key, session: peer.session, say: Say::Welcome };
                if self.outbox.push(notice).is_err() {
                    add(&mut cx.counters.notices_dropped); // the reader greets again
                }
            }
            Err(_) => self.cannot_reach(cx, key),
        }
        true
    }

    pub(super) fn cannot_reach(&mut self, cx: &mut Context<'_>, key: u32) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        peer.connecting = None;
        add(&mut cx.counters.connect_failed);
        if !core::mem::replace(&mut peer.one_way, true) {
            add(&mut cx.counters.one_way);
            cx.emit(Event::OneWay { engine: peer.engine.as_bytes() });
        }
    }

    /// Gives an attempt to connect back up that takes too long (case 48); the next hello starts another one.
    pub(super) fn give_up_connecting(&mut self, cx: &mut Context<'_>, key: u32) {
        let attempt = self.peers.get(key).and_then(|peer| peer.connecting);
        if let Some((ticket, _)) = attempt.filter(|(_, give_up)| *give_up <= cx.now)
            && self.cancels.push(ticket).is_ok()
        {
            self.cannot_reach(cx, key);
        }
    }

    pub(super) fn forget_connection(&mut self, cx: &mut Context<'_>, lost: PeerId) -> bool {
        let has = |index: &u32| self.peers.get(*index).is_some_and(|peer| peer.connection == Some(lost));
        let Some(key) = self.peers.indexes().find(has) else { return false };
        if let Some(peer) = self.peers.get_mut(key) {
            peer.connection = None; // its session stays: only time ends a lease
            add(&mut cx.counters.peer_lost);
            cx.emit(Event::PeerLost { engine: peer.engine.as_bytes() });
        }
        let its = |lease: &Lease| lease.renewer.is_some_and(|(peer, _)| peer == key);
        while broken!(PeerLostFrees)
            && let Some(index) = self.leases.indexes().find(|index| self.leases.get(*index).is_some_and(its))
        {
            self.end(cx, index, Freed::Expired);
        }
        true
    }

    /// By the clock, not when somebody new appears (case 24).
    pub(super) fn forget_silent_peers(&mut self, cx: &mut Context<'_>) {
        while let Some(key) = self.peers.pop_due(cx.now) {
            let silent_at = self.peers.get(key).map_or(cx.now, |peer| peer.heard.saturating_add(self.terms.engine_ttl()));
            if silent_at > cx.now {
                self.peers.set_deadline(key, Some(silent_at));
            } else if !self.forget(key) {
                self.peers.set_deadline(key, Some(cx.now.saturating_add(Duration::from_secs(1))));
                break;
            } else {
                add(&mut cx.counters.evicted);
            }
        }
    }

    /// `false` if its connection cannot be given up yet, because too many wait for it.
    pub(super) fn forget(&mut self, key: u32) -> bool {
        if self.cancels.is_full() || self.disconnects.is_full() {
            return false;
        }
        if let Some(peer) = self.peers.remove(key) {
            self.cancels.push_some(peer.connecting.map(|(ticket, _)| ticket));
            self.disconnects.push_some(peer.connection);
        }
        true
    }
}
