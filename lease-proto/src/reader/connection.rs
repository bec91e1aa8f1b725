//! Connections to the holders: made, welcomed, lost, and those of an earlier life.

use super::{Leg, Peer, Reader, Request, leg::NIL, peers::BY_ENGINE};
use crate::{
    counters::add,
    event::{Context, Event, Lost},
    table::Slots,
    transport::{ErrorKind, PeerId, Ticket},
    wire::native::{self, HelloAck},
};

impl<R: Slots<Request>, G: Slots<Leg>, P: Slots<Peer<M>>, M: AsRef<[u8]>> Reader<R, G, P, M> {
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

    /// Gives up its connection, or the attempt at one.
    pub(super) fn hang_up(&mut self, key: u32) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if let Some(ticket) = peer.handshake.cancel() {
            let _ = self.cancels.push(ticket); // full: a late result finds no taker
        }
        if let Some(connection) = peer.connection.take() {
            let _ = self.disconnects.push(connection); // full: the transport's own limits will have to do
        }
    }
}
