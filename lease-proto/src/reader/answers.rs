//! What the holder's answers mean. An answer that fits no renew that is remembered, exactly, is discarded whole.

use super::{
    Leg, Peer, Reader, Request, Status,
    leg::{BY_TOKEN, NIL},
    peers::BY_SESSION,
};
use crate::{
    clock::proof_deadline,
    config::{LONGEST_EXTENSION, SHORTEST},
    counters::add,
    event::{Context, Event},
    id::{Seq, Session, Token},
    table::Slots,
    time::{Duration, Instant},
    wire::{
        Rejected,
        native::{Body, Gone, Refusal, Renewed},
    },
};

impl<R: Slots<Request>, G: Slots<Leg>, P: Slots<Peer<M>>, M: AsRef<[u8]>> Reader<R, G, P, M> {
    pub(super) fn answered(&mut self, cx: &mut Context<'_>, session: Session, body: Body<'_>) {
        let Some(key) = self.peers.find(BY_SESSION, session.0, |peer| peer.session() == session) else {
            cx.reject(Rejected::StaleSession);
            return;
        };
        match body {
            Body::HelloAck(ack) => self.welcomed(cx, key, &ack),
            Body::Renewed(renewed) => self.renewed(cx, key, renewed),
            Body::Completed(answer) => self.closed(cx, key, answer.re, answer.token, Ok(())),
            Body::Gone(Gone { re: Seq(0), token, why }) => self.told(cx, key, token, why),
            Body::Gone(gone) => self.closed(cx, key, gone.re, gone.token, Err(gone.why)),
            Body::TimeReply(reply) => self.time_told(cx, key, reply),
            _ => {}
        }
    }

    fn renewed(&mut self, cx: &mut Context<'_>, key: u32, renewed: Renewed<'_>) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let Some(record) = peer.take_record(renewed.re, renewed.count) else {
            add(&mut cx.counters.answers_discarded);
            return;
        };
        add(&mut cx.counters.answers);
        peer.heard();
        if !renewed.granted.is_zero() {
            peer.extension = renewed.granted.max(SHORTEST).min(LONGEST_EXTENSION);
            if peer.extension != renewed.granted && !core::mem::replace(&mut peer.told_terms, true) {
                cx.emit(Event::TermsUnsatisfiable { engine: peer.engine.as_bytes(), granted: renewed.granted });
            }
        }
        let sent = match record.at {
            _ if broken!(AnchoredAtReceipt) => cx.now,
            at if broken!(AnchoredAtLatestBeat) => peer.records.iter().flatten().fold(at, |at, record| at.max(record.at)),
            at => at,
        };
        let (holder_ppm, all) = (peer.drift_ppm, broken!(AnswerCoversAll));
        let (mut at, named) = if all { (peer.head, u32::MAX) } else { (record.first, u32::from(record.count)) };
        let mut exceptions = renewed.exceptions.iter().peekable();
        // Legs stand in the order in which the renew named them, with gaps where some were closed since.
        for _ in 0..named {
            let Some(leg) = self.legs.get(at) else { break };
            let next = leg.links.map_or(NIL, |(_, next)| next);
            let named = leg.index_in(renewed.re);
            if named.is_some() || all {
                let exception = named.and_then(|index| {
                    while exceptions.next_if(|(exception, _)| *exception < index).is_some() {}
                    exceptions.next_if(|(exception, _)| *exception == index)
                });
                match exception.map_or(Ok(renewed.granted), |(_, what)| what) {
                    Ok(granted) => self.promised(cx, at, sent, granted, holder_ppm),
                    Err(Refusal::NotYet) => {}
                    // By our own completion, whose answer is on its way or will be asked for again.
                    Err(Refusal::Completed) if self.legs.get(at).is_some_and(|leg| leg.closing.is_some()) => {}
                    Err(refusal) => self.lose(cx, at, refusal.into()),
                }
            }
            at = next;
        }
        self.go_on(key);
    }

    /// The holder has promised `granted` from some time not before `sent`.
    fn promised(&mut self, cx: &mut Context<'_>, index: u32, sent: Instant, granted: Duration, holder_ppm: u32) {
        let proof = proof_deadline(sent, granted, self.terms.drift_ppm(), holder_ppm);
        let Some(leg) = self.legs.get_mut(index) else { return };
        leg.heard = cx.now;
        let proof = leg.proof.map_or(proof, |earlier| earlier.max(proof));
        leg.proof = Some(proof);
        if proof > cx.now {
            leg.status = Status::Confirmed;
        }
        let request = leg.request;
        self.arm_leg(index);
        self.review(cx, request);
        self.judge(cx, request);
    }

    /// Told unasked that a lease is over or will be.
    fn told(&mut self, cx: &mut Context<'_>, key: u32, token: Token, why: Refusal) {
        let Some(index) = self.find_leg(key, token, |leg| leg.closing.is_none()) else { return };
        match why {
            Refusal::NotYet => {}
            Refusal::Draining => {
                let request = self.legs.get(index).map_or(NIL, |leg| leg.request);
                self.tell(cx, request, |request, handle| Event::HolderDrains { request, handle });
            }
            _ => self.lose(cx, index, why.into()),
        }
    }

    pub(super) fn find_leg(&self, key: u32, token: Token, is: impl Fn(&Leg) -> bool) -> Option<u32> {
        self.legs.find(BY_TOKEN, token.nonce, |leg| leg.peer == key && leg.token == token && is(leg))
    }
}
