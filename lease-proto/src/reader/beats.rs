//! Hellos and renews: what is sent to the holders, and when the next beat is due.

use super::{Leg, Peer, Reader, Request, leg::NIL, peers::Record};
use crate::{
    counters::add,
    drive::{Sent, Transmit},
    event::{Context, Event},
    id::{Seq, Session},
    table::Slots,
    time::{Duration, Instant},
    transport::ErrorKind,
    wire::{
        Wire,
        native::{self, Body, Hello, Party, RenewWriter, tokens_that_fit},
        vllm::HeartbeatWriter,
    },
};

/// Send errors in a row that make a new handshake (case 23).
const FAILURES: u32 = 3;
/// Unanswered hellos after which a connected peer counts as one-way.
const UNHEARD_HELLOS: u32 = 3;

impl<R: Slots<Request>, G: Slots<Leg>, P: Slots<Peer<M>>, M: AsRef<[u8]>> Reader<R, G, P, M> {
    /// The next hello or renew that is due.
    pub(super) fn next_from_peers(&mut self, cx: &mut Context<'_>, out: &mut [u8]) -> Option<Transmit> {
        loop {
            let key = self.ready_peers.first();
            let transmit = match self.peers.get(key)? {
                peer if peer.hello_due => self.hello(cx, key, out),
                peer if peer.watch.due => self.time_question(cx, key, out).or_else(|| self.beat(cx, key, out)),
                _ => self.beat(cx, key, out),
            };
            if transmit.is_some() {
                return transmit;
            }
            self.ready_peers.pop(&mut self.peers);
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
        let party = Party::of(&self.identity, &self.terms, peer.session);
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
        if peer.beat_due <= cx.now && !peer.whole {
            // Of what is new too, if that waits.
            (peer.cursor, peer.whole, peer.begins) = (peer.head, true, true);
        }
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
            if let Some(peer) = self.peers.get_mut(key) {
                peer.queued = false;
            }
            return Some(Transmit { to, length, key, sent: Sent::Heartbeat { leases } });
        }
        let peer = self.peers.get_mut(key)?;
        peer.cursor = NIL;
        let whole = core::mem::take(&mut peer.whole);
        if whole && peer.beat_due <= cx.now {
            self.plan_beat(cx.now, key);
        }
        None
    }

    /// One datagram, one number, one list: the legs from the cursor on that speak for the same rank, as many as fit.
    fn renew(&mut self, key: u32, session: Session, out: &mut [u8]) -> Option<(usize, u16)> {
        let stamp = self.stamp;
        let fit = tokens_that_fit(out.len(), self.identity.max_message as usize);
        let peer = self.peers.get_mut(key)?;
        let (seq, first) = (peer.next_seq(), peer.cursor);
        let mut at = first;
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
            *slot = Some(Record { seq, at: stamp, count, first });
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
            self.ready_peers.push(&mut self.peers, key);
        }
    }

    pub(super) fn beat_sent(&mut self, cx: &mut Context<'_>, transmit: &Transmit, leases: u16, result: Result<(), ErrorKind>) {
        let wire = self.terms.wire();
        let Some(peer) = self.peers.get_mut(transmit.key).filter(|peer| peer.connection == Some(transmit.to)) else { return };
        if result.is_ok() {
            peer.failures = 0;
            peer.queued = true;
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
            if !peer.queued {
                (peer.cursor, peer.whole) = (NIL, false);
            }
            // The record stays: if it left after all, its answer counts.
            let soon = self.terms.interval_for(peer.extension).scale(1, 8);
            peer.beat_due = cx.now.saturating_add(soon);
            // A stuck peer is not asked faster, and a beat that waits in its queue leaves by itself: another would wait behind it.
            let stuck = peer.queued || peer.since_answer >= self.terms.max_unanswered();
            if stuck || broken!(ThrottleSpentWhileConnecting) {
                self.plan_beat(cx.now, transmit.key);
            }
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
}
