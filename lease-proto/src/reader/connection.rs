//! Connections to the holders: made, welcomed, lost, and those of an earlier life.

use super::{Handle, Leg, Peer, Reader, Request, leg::NIL};
use crate::{
    counters::add,
    event::{Context, Event, Lost},
    table::Slots,
    time::Duration,
    transport::{ErrorKind, PeerId, Ticket},
    wire::{
        Wire,
        native::{self, HelloAck},
    },
};

impl<R: Slots<Request>, G: Slots<Leg>, P: Slots<Peer<M>>, M: AsRef<[u8]>> Reader<R, G, P, M> {
    /// The connection over which a request's blocks on this rank of its holder are read. `None` while there is none, for a rank
    /// that is not read from, and for a handle that is stale.
    pub fn connection(&self, handle: Handle, rank: u16) -> Option<PeerId> {
        self.requests.generation(handle.index).filter(|generation| *generation == handle.generation)?;
        let mut at = self.requests.get(handle.index)?.first;
        while let Some(leg) = self.legs.get(at) {
            match self.peers.get(leg.peer) {
                Some(peer) if peer.rank == rank => return peer.connection(),
                _ => at = leg.sibling,
            }
        }
        None
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
            || peer.connection.is_none()
            || (ack.party.incarnation != peer.incarnation && !broken!(RestartUnnoticed))
            || ack.party.rank != peer.rank
            || ack.party.engine != peer.engine.as_bytes()
        {
            add(&mut cx.counters.answers_discarded);
            return;
        }
        peer.max_message = ack.party.max_message;
        peer.watch.clock = ack.party.clock;
        peer.met = true;
        peer.suspected = None;
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
        (peer.cursor, peer.whole) = (peer.head, true);
        peer.begins = true;
        peer.suspected = None;
        if broken!(ThrottleSpentWhileConnecting) {
            (peer.answered, peer.cursor) = (true, NIL);
            peer.beat_due = cx.now.saturating_add(self.terms.interval_for(peer.extension));
        }
        add(&mut cx.counters.connected);
        cx.emit(Event::Connected { engine: peer.engine.as_bytes() });
        let (rank, born, engine) = (peer.rank, peer.born, peer.engine.clone());
        self.ready_peers.push(&mut self.peers, key);
        // Completions and releases that could not be told before.
        for index in self.legs.indexes() {
            if self.legs.get(index).is_some_and(|leg| leg.peer == key && leg.closing.is_some()) {
                self.ready_legs.push(&mut self.legs, index);
                self.arm_leg(index);
            }
        }
        for index in self.peers.indexes() {
            if self
                .peers
                .get(index)
                .is_some_and(|peer| peer.engine == engine && peer.rank == rank && peer.born < born && peer.legs > 0)
            {
                self.suspect(cx, index);
            }
        }
    }

    /// A later life of its engine was met, so it is over (cases 8, 21), unless it can still answer: then two engines have the
    /// same id.
    fn suspect(&mut self, cx: &mut Context<'_>, key: u32) {
        let answers = self.terms.wire() == Wire::Native;
        let soon = self.terms.interval().min(Duration::from_secs(1)).saturating_add(self.terms.path_budget());
        let Some(peer) = self.peers.get_mut(key) else { return };
        if answers || peer.connection.is_none() {
            let patience = if peer.met || !answers { soon } else { self.terms.connect_deadline() };
            peer.suspected.get_or_insert(cx.now.saturating_add(patience));
            peer.beat_due = cx.now; // asked at once
        }
        self.arm_peer(key);
    }

    pub(super) fn restarted(&mut self, cx: &mut Context<'_>, key: u32) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        peer.suspected = None;
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
        let Some(connection) = peer.connection else { return };
        if self.disconnects.push(connection).is_err() {
            return; // too many at once: it is noticed again
        }
        peer.connection = None;
        peer.theirs = None;
        peer.failures = 0;
        peer.answered = false;
        (peer.cursor, peer.whole) = (NIL, false);
        peer.handshake.lost(cx.now, &patience);
        add(&mut cx.counters.peer_lost);
        cx.emit(Event::PeerLost { engine: peer.engine.as_bytes() });
        self.arm_peer(key);
    }

    /// Gives up its connection, or the attempt at one; `false` if too many wait to be given up.
    pub(super) fn hang_up(&mut self, key: u32) -> bool {
        if self.cancels.is_full() || self.disconnects.is_full() {
            return false;
        }
        let Some(peer) = self.peers.get_mut(key) else { return true };
        let (attempt, connection) = (peer.handshake.cancel(), peer.connection.take());
        peer.theirs = None;
        self.cancels.push_some(attempt);
        self.disconnects.push_some(connection);
        true
    }
}
