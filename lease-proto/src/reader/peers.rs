//! The holders that a reader beats, and the legs that it has with each.

use super::{Leg, Reader, Request, leg::NIL, offset::Watch, queue::Waits};
use crate::{
    config::{LONGEST_EXTENSION, SHORTEST},
    counters::add,
    event::{Context, Refused},
    handshake::{Handshake, Step},
    id::{EngineId, Incarnation, Seq, Session},
    params::Parameters,
    table::{Entry, Slots},
    time::{Duration, Instant},
    transport::PeerId,
    wire::Wire,
};

/// Keys of the table.
pub(super) const BY_SESSION: usize = 0;
pub(super) const BY_ENGINE: usize = 1;
/// Renews that are remembered per peer.
const RECORDS: usize = 16;

/// A holder's process. Opaque: named only to give storage for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer<M> {
    pub(super) engine: EngineId,
    pub(super) incarnation: Incarnation,
    pub(super) rank: u16,
    pub(super) engine_hash: u64,
    pub(super) metadata: M,
    /// Later ones are later lives.
    pub(super) born: u64,
    /// What it writes into its messages, chosen here; what we write into ours, chosen there.
    pub(super) session: Session,
    pub(super) theirs: Option<Session>,
    pub(super) connection: Option<PeerId>,
    pub(super) handshake: Handshake,
    pub(super) extension: Duration,
    pub(super) drift_ppm: u32,
    pub(super) max_message: u32,
    pub(super) seq: u64,
    /// The leg whose token the last hello named.
    pub(super) named: u32,
    /// Legs to renew, in the order of the renews, and how many legs there are in all.
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) legs: u32,
    /// Where the beat under way goes on.
    pub(super) cursor: u32,
    /// Whether it began with the first leg. A beat of what is new does not stand for the one that is due.
    pub(super) whole: bool,
    pub(super) beat_due: Instant,
    /// A beat under way that had to wait goes on then. The next renew is the first of a beat.
    pub(super) resume: Instant,
    pub(super) begins: bool,
    /// The transport took the last renew, and may hold it still.
    pub(super) queued: bool,
    pub(super) records: [Option<Record>; RECORDS],
    /// The highest number of a lease that was completed or released without an answer that this is over: the message may still
    /// come, whatever the reader does with that lease later.
    pub(super) doubted: u64,
    /// Beats since the last answer.
    pub(super) since_answer: u32,
    pub(super) answered: bool,
    pub(super) failures: u32,
    pub(super) one_way: bool,
    pub(super) told_terms: bool,
    /// It has answered a hello, ever.
    pub(super) met: bool,
    /// A later life of its engine was met: this one is over unless it is heard of by then.
    pub(super) suspected: Option<Instant>,
    pub(super) hello_due: bool,
    pub(super) watch: Watch,
    pub(super) ready: Option<u32>,
    pub(super) idle_since: Instant,
}

/// A renew that may still be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub(super) seq: Seq,
    /// Read before it was handed over.
    pub(super) at: Instant,
    pub(super) count: u16,
    /// The first leg that it names and that is still renewed; the others follow it.
    pub(super) first: u32,
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

    /// An answer came: it lives, and has not forgotten us.
    pub(super) fn heard(&mut self) {
        self.suspected = None;
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

    pub(super) fn record(&mut self, seq: Seq) -> Option<&mut Option<Record>> {
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

impl<M> Waits for Peer<M> {
    fn link(&mut self) -> &mut Option<u32> {
        &mut self.ready
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
        let hash = self.id_hash.of_rank(params.engine, rank);
        let life = |peer: &Peer<M>| peer.incarnation == params.incarnation || broken!(RestartUnnoticed);
        let same = |peer: &Peer<M>| peer.engine == engine && peer.rank == rank && life(peer);
        if let Some(index) = self.peers.find(BY_ENGINE, hash, same) {
            return Ok(index);
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
            whole: false,
            beat_due: cx.now,
            resume: cx.now,
            begins: true,
            queued: false,
            records: [None; RECORDS],
            doubted: self.doubted,
            since_answer: 0,
            answered: false,
            failures: 0,
            one_way: false,
            told_terms: false,
            met: false,
            suspected: None,
            hello_due: false,
            watch: Watch::new(params.drift_ppm.max(self.terms.drift_ppm())),
            ready: None,
            idle_since: cx.now,
        };
        if self.peers.is_full() {
            // One that nothing is read from any more makes room.
            let idle = |index: &u32| self.peers.get(*index).is_some_and(|peer| peer.legs == 0);
            let oldest = self.peers.indexes().filter(idle).min_by_key(|index| self.peers.get(*index).map(|peer| peer.idle_since));
            if !self.forget_peer(oldest.ok_or(Refused::Full)?) {
                return Err(Refused::Full);
            }
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
            peer.whole = peer.head == index;
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
        self.ready_peers.push(&mut self.peers, key);
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
            for record in peer.records.iter_mut().flatten().filter(|record| record.first == index) {
                record.first = next;
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

    pub(super) fn arm_peer(&mut self, index: u32) {
        let Some(peer) = self.peers.get(index) else { return };
        // One that waits to be sent is in the queue already.
        let beats = peer.head != NIL && peer.ready.is_none() && peer.reachable(self.terms.wire()).is_some();
        let beat = beats.then_some(match peer.cursor {
            NIL => peer.beat_due,
            _ if peer.whole => peer.resume,
            _ => peer.resume.min(peer.beat_due),
        });
        let idle = (peer.legs == 0).then(|| peer.idle_since.saturating_add(self.terms.engine_ttl()));
        let greeting = (peer.legs > 0).then(|| peer.handshake.next_timeout()).flatten();
        self.peers.set_deadline(index, [beat, idle, greeting, peer.suspected].into_iter().flatten().min());
    }

    pub(super) fn peer_due(&mut self, cx: &mut Context<'_>, index: u32) {
        if self.cancels.is_full() || self.disconnects.is_full() {
            // None may be forgotten: the transport keeps what is not given up. They are taken at once, so soon is enough.
            self.peers.set_deadline(index, Some(cx.now.saturating_add(Duration::from_millis(1))));
            return;
        }
        let patience = self.patience();
        let Some(peer) = self.peers.get_mut(index) else { return };
        if peer.legs == 0 && peer.idle_since.saturating_add(self.terms.engine_ttl()) <= cx.now {
            add(&mut cx.counters.evicted);
            self.forget_peer(index);
            return;
        }
        if peer.suspected.is_some_and(|until| until <= cx.now) {
            self.restarted(cx, index);
            return;
        }
        while let Some(step) = peer.handshake.step(cx.now, &patience) {
            match step {
                Step::Connect if self.connects.push(index).is_ok() => {}
                Step::Connect => peer.handshake.failed(cx.now, &patience),
                Step::Cancel(ticket) => {
                    add(&mut cx.counters.connect_failed);
                    let _ = self.cancels.push(ticket); // there is room, see above
                }
                Step::Hello => peer.hello_due = true,
            }
        }
        self.ready_peers.push(&mut self.peers, index);
        self.arm_peer(index);
    }

    /// `false` if too many connections wait to be given up.
    pub(super) fn forget_peer(&mut self, key: u32) -> bool {
        let gone = self.hang_up(key);
        if gone {
            self.ready_peers.remove(&mut self.peers, key);
            // Should it come back, its numbers are compared with those of all who were forgotten: too careful, never wrong.
            self.doubted = self.peers.remove(key).map_or(self.doubted, |peer| self.doubted.max(peer.doubted));
        }
        gone
    }
}
