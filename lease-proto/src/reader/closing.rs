//! Telling the holder that a lease was read or will not be, until it answers.

use super::{
    Leg, Peer, Reader, Request,
    leg::{Closing, NIL, Status},
};
use crate::{
    counters::add,
    drive::{Sent, Transmit},
    event::{Context, Event, Lost, Verdict},
    id::{Seq, Token},
    table::Slots,
    time::Instant,
    transport::ErrorKind,
    wire::{
        Wire,
        native::{self, About, Body, Refusal},
        vllm,
    },
};

impl<R: Slots<Request>, G: Slots<Leg>, P: Slots<Peer<M>>, M: AsRef<[u8]>> Reader<R, G, P, M> {
    /// Whether any leg of a request is so.
    pub(super) fn any_leg(&self, request: u32, is: impl Fn(&Leg) -> bool) -> bool {
        let mut at = self.requests.get(request).map_or(NIL, |request| request.first);
        while let Some(leg) = self.legs.get(at) {
            if is(leg) {
                return true;
            }
            at = leg.sibling;
        }
        false
    }

    pub(super) fn each_leg(&mut self, request: u32, mut visit: impl FnMut(&mut Leg)) {
        let mut at = self.requests.get(request).map_or(NIL, |request| request.first);
        while let Some(leg) = self.legs.get_mut(at) {
            visit(leg);
            at = leg.sibling;
        }
    }

    /// Tells the holder on every rank that the request was read, or will not be.
    pub(super) fn close_legs(&mut self, cx: &mut Context<'_>, request: u32, read: bool) {
        let mut at = self.requests.get(request).map_or(NIL, |request| request.first);
        while let Some(leg) = self.legs.get_mut(at) {
            let (index, next) = (at, leg.sibling);
            at = next;
            match leg.status {
                // The holder has said that there is nothing to close, or there is no such holder.
                Status::Lost(Lost::Expired | Lost::Unknown | Lost::Claimed | Lost::PeerRestarted) => self.drop_leg(cx, index),
                // Where nobody answers, only time ends the lease.
                Status::Lost(Lost::NoAnswer) if !read => self.drop_leg(cx, index),
                _ => {
                    if leg.closing.is_none() {
                        leg.closing = Some(Closing { read, since: cx.now, due: cx.now, first: None });
                        self.ready_legs.push(&mut self.legs, index);
                    }
                    if self.ended(request).is_none() {
                        self.unlink(index);
                    }
                    self.arm_leg(index);
                }
            }
        }
    }

    /// The next completion or release that is due.
    pub(super) fn next_closing(&mut self, cx: &mut Context<'_>, out: &mut [u8]) -> Option<Transmit> {
        loop {
            let index = self.ready_legs.pop(&mut self.legs)?;
            if let Some(transmit) = self.closing(cx, index, out) {
                return Some(transmit);
            }
        }
    }

    fn closing(&mut self, cx: &mut Context<'_>, index: u32, out: &mut [u8]) -> Option<Transmit> {
        let wire = self.terms.wire();
        let leg = self.legs.get_mut(index)?;
        let peer = self.peers.get_mut(leg.peer)?;
        let closing = leg.closing.as_mut()?;
        // Repeated at the beat's rhythm until any answer, also where the handshake is not done yet.
        closing.due = cx.now.saturating_add(self.terms.interval_for(peer.extension).min(crate::time::Duration::from_secs(1)));
        let reachable = peer.reachable(wire);
        let key = leg.peer;
        let (token, reader, read, request) = (leg.token, leg.reader, closing.read, leg.request);
        let transmit = reachable.and_then(|(to, session)| {
            let length = match wire {
                Wire::Native => {
                    let seq = peer.next_seq();
                    closing.first.get_or_insert(seq);
                    let about = About { token, reader };
                    native::encode(session, seq, &if read { Body::Complete(about) } else { Body::Release(about) }, out).ok()?
                }
                Wire::Vllm => {
                    let id = self.requests.get(request)?.id.as_bytes();
                    vllm::encode_completion(id, u32::from(reader.of()), out).ok()?
                }
            };
            Some(Transmit { to, length, key, sent: Sent::Closing { leg: index } })
        });
        self.arm_leg(index);
        transmit
    }

    /// On vLLM's wire nothing is answered, and a completion that is sent twice counts twice: accepted for sending is all there is.
    pub(super) fn closing_sent(&mut self, cx: &mut Context<'_>, index: u32, result: Result<(), ErrorKind>) {
        if self.terms.wire() == Wire::Vllm && result.is_ok() {
            self.drop_leg(cx, index);
        }
    }

    /// The holder's answer to a completion or a release.
    pub(super) fn closed(&mut self, cx: &mut Context<'_>, key: u32, re: Seq, token: Token, answer: Result<(), Refusal>) {
        let is = |leg: &Leg| leg.closing.is_some_and(|closing| closing.first.is_some_and(|first| first <= re));
        let Some(index) = self.find_leg(key, token, is) else {
            add(&mut cx.counters.answers_discarded);
            return;
        };
        let Some(leg) = self.legs.get_mut(index) else { return };
        leg.over = !matches!(answer, Err(Refusal::NotYet | Refusal::Claimed | Refusal::Inconsistent | Refusal::Draining));
        let (request, read) = (leg.request, leg.closing.is_some_and(|closing| closing.read));
        let proven = leg.proven;
        match answer {
            Err(Refusal::NotYet) => return,
            Ok(()) if read && !proven => {
                leg.proven = true;
                if let Some(request) = self.requests.get_mut(request) {
                    request.by_completion = true;
                }
                self.judge(cx, request);
            }
            Err(_) if !proven && self.ended(request).is_some() => self.decide(cx, request, Verdict::Expired),
            _ => {}
        }
        self.drop_leg(cx, index);
    }

    /// What became due for a leg.
    pub(super) fn leg_due(&mut self, cx: &mut Context<'_>, index: u32) {
        let Some(leg) = self.legs.get_mut(index) else { return };
        let request = leg.request;
        if leg.status == Status::Confirmed && leg.proof.is_some_and(|proof| proof <= cx.now) {
            leg.status = Status::Unproven;
            self.review(cx, request);
        }
        let Some(leg) = self.legs.get_mut(index) else { return };
        let patience = self.terms.lost_after();
        match leg.closing {
            Some(closing) if closing.since.saturating_add(patience) <= cx.now => {
                add(&mut cx.counters.unanswered);
                if self.ended(request).is_some() {
                    self.decide(cx, request, Verdict::Unverified);
                }
                self.drop_leg(cx, index);
                return;
            }
            Some(closing) if closing.due <= cx.now => self.ready_legs.push(&mut self.legs, index),
            Some(_) => {}
            None if self.terms.wire() == Wire::Native && leg.heard.saturating_add(patience) <= cx.now => {
                self.lose(cx, index, Lost::NoAnswer);
            }
            None => {}
        }
        if self.ended(request).is_some_and(|ended| ended.saturating_add(self.terms.verdict_timeout()) <= cx.now) {
            self.decide(cx, request, Verdict::Unverified);
        }
        self.arm_leg(index);
    }

    /// When a leg wants to be looked at next.
    pub(super) fn arm_leg(&mut self, index: u32) {
        let Some(leg) = self.legs.get(index) else { return };
        let patience = self.terms.lost_after();
        let lapse = leg.proof.filter(|_| leg.status == Status::Confirmed);
        let silence = match leg.closing {
            Some(closing) => {
                let give_up = closing.since.saturating_add(patience);
                // One that waits to be sent is in the queue already.
                Some(if leg.ready.is_some() { give_up } else { closing.due.min(give_up) })
            }
            None if matches!(leg.status, Status::Lost(_)) || self.terms.wire() == Wire::Vllm => None,
            None => Some(leg.heard.saturating_add(patience)),
        };
        let verdict = self.ended(leg.request).map(|ended| ended.saturating_add(self.terms.verdict_timeout()));
        let due: Option<Instant> = [lapse, silence, verdict].into_iter().flatten().min();
        self.legs.set_deadline(index, due);
    }

    /// A leg is done with; with its last one the request is resolved.
    pub(super) fn drop_leg(&mut self, cx: &mut Context<'_>, index: u32) {
        let Some(leg) = self.legs.get(index) else { return };
        let (request, peer) = (leg.request, leg.peer);
        self.doubt(index);
        self.detach(index);
        self.leave(peer);
        if self.requests.get(request).is_some_and(|request| request.first == NIL) {
            add(&mut cx.counters.resolved);
            self.tell(cx, request, |request, handle| Event::Resolved { request, handle });
            self.requests.remove(request);
        }
    }

    /// A completion or release that is not known to have come may come at any time.
    fn doubt(&mut self, index: u32) {
        let Some(leg) = self.legs.get(index) else { return };
        let told = leg.closing.is_some_and(|closing| closing.first.is_some());
        let over = leg.over
            || matches!(
                leg.status,
                Status::Lost(Lost::Expired | Lost::Unknown | Lost::Revoked | Lost::Failed | Lost::PeerRestarted)
            );
        let (key, number) = (leg.peer, leg.token.number);
        if let Some(peer) = self.peers.get_mut(key).filter(|_| told && !over) {
            peer.doubted = peer.doubted.max(number);
        }
    }

    /// Takes all legs of a request that was never told to the engine out again.
    pub(super) fn drop_legs(&mut self, request: u32) {
        while let Some(index) = self.requests.get(request).map(|request| request.first).filter(|first| *first != NIL) {
            let peer = self.legs.get(index).map_or(NIL, |leg| leg.peer);
            self.detach(index);
            self.leave(peer);
        }
    }

    fn detach(&mut self, index: u32) {
        self.unlink(index);
        self.ready_legs.remove(&mut self.legs, index);
        let Some(Leg { request, sibling, .. }) = self.legs.remove(index) else { return };
        let mut at = match self.requests.get_mut(request) {
            Some(request) if request.first == index => {
                request.first = sibling;
                return;
            }
            Some(request) => request.first,
            None => return,
        };
        while let Some(leg) = self.legs.get_mut(at) {
            if leg.sibling == index {
                leg.sibling = sibling;
                return;
            }
            at = leg.sibling;
        }
    }
}
