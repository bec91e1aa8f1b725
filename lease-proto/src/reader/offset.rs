//! How far a holder's clock is from ours, for engines that are told instants of it (law 7). The native wire itself needs none.

use super::{Declined, Handle, Leg, Peer, Reader, Request};
use crate::{
    clock::{Added, OffsetWindow, Sample},
    counters::add,
    drive::{Sent, Transmit},
    event::Context,
    id::{ClockId, Seq},
    table::Slots,
    time::Instant,
    wire::{
        Wire,
        native::{self, Body, TimeReply},
    },
};

/// What is known of one holder's clock, and the question that is open.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Watch {
    pub(super) clock: ClockId,
    pub(super) due: bool,
    asked: Option<(Seq, Instant)>,
    window: OffsetWindow,
}

impl Watch {
    pub(super) fn new(drift_ppm: u32) -> Self {
        Self { clock: ClockId(0), due: false, asked: None, window: OffsetWindow::new(drift_ppm) }
    }
}

impl<R: Slots<Request>, G: Slots<Leg>, P: Slots<Peer<M>>, M: AsRef<[u8]>> Reader<R, G, P, M> {
    /// Asks the holder of a request for its clock, once; a few samples make a good interval. On vLLM's wire there is no such
    /// question: its handshake brings the samples.
    ///
    /// # Errors
    /// `NotTracked` if the handle is stale.
    pub fn ask_time(&mut self, handle: Handle) -> Result<(), Declined> {
        let key = self.holder_of(handle).ok_or(Declined::NotTracked)?;
        if let Some(peer) = self.peers.get_mut(key) {
            peer.watch.due = true;
        }
        self.ready_peers.push(&mut self.peers, key);
        Ok(())
    }

    /// What the samples of that holder's clock allow to say about its instants.
    pub fn offset(&mut self, handle: Handle) -> Option<&OffsetWindow> {
        let key = self.holder_of(handle)?;
        self.peers.get(key).map(|peer| &peer.watch.window)
    }

    fn holder_of(&mut self, handle: Handle) -> Option<u32> {
        let first = self.request(handle)?.first;
        self.legs.get(first).map(|leg| leg.peer)
    }

    pub(super) fn time_question(&mut self, cx: &mut Context<'_>, key: u32, out: &mut [u8]) -> Option<Transmit> {
        let peer = self.peers.get_mut(key)?;
        peer.watch.due = false;
        let (to, session) = peer.reachable(Wire::Native).filter(|_| self.terms.wire() == Wire::Native)?;
        let seq = peer.next_seq();
        let length = native::encode(session, seq, &Body::Time, out).ok()?;
        peer.watch.asked = Some((seq, cx.now));
        Some(Transmit { to, length, key, sent: Sent::Greeting })
    }

    pub(super) fn time_told(&mut self, cx: &mut Context<'_>, key: u32, reply: TimeReply) {
        let Some(watch) = self.peers.get_mut(key).map(|peer| &mut peer.watch) else { return };
        let Some((_, sent)) = watch.asked.take_if(|(seq, _)| *seq == reply.re) else {
            add(&mut cx.counters.answers_discarded);
            return;
        };
        let sample = Sample { clock: watch.clock, sent, peer_received: reply.received, peer_sent: reply.sent, received: cx.now };
        match watch.window.add(sample, cx.now) {
            Added::Kept | Added::NewClock => {}
            Added::NegativeRoundTrip | Added::Voided => add(&mut cx.counters.offsets_void),
        }
    }
}
