//! Judging reads: law 4, all of it in one place.

use super::{
    Declined, Handle, Leg, Peer, Reader, Request,
    leg::{Phase, Status},
};
use crate::{
    config::Proof,
    counters::add,
    event::{Context, Event, Lost, Verdict},
    table::Slots,
    time::Instant,
    transport::{ErrorKind, Landed},
    wire::Wire,
};

/// What the transport said of a read that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// All parts landed; the fabric moved them without asking the holder.
    OneSided,
    /// All parts landed; the holder itself served them and checked token and bounds while serving.
    Served,
    /// All parts landed, out of a region that was registered for this lease alone and is invalidated before its blocks are reused.
    Fenced,
    /// It failed.
    Failed,
}

impl From<Result<Landed, ErrorKind>> for ReadOutcome {
    fn from(result: Result<Landed, ErrorKind>) -> Self {
        match result {
            Ok(Landed::OneSided) => Self::OneSided,
            Ok(Landed::Served) => Self::Served,
            Ok(Landed::Fenced) => Self::Fenced,
            Err(_) => Self::Failed,
        }
    }
}

impl<R: Slots<Request>, G: Slots<Leg>, P: Slots<Peer<M>>, M: AsRef<[u8]>> Reader<R, G, P, M> {
    /// A read is over. `cx.now` must be read AFTER that was observed; the verdict comes as [`Event::ReadDone`], now or within
    /// `verdict_timeout`.
    ///
    /// # Errors
    /// `NotTracked` if the handle is stale or no read was begun.
    pub fn read_ended(&mut self, cx: &mut Context<'_>, handle: Handle, outcome: ReadOutcome) -> Result<(), Declined> {
        let cx = &mut self.tick(cx);
        let request = self.request(handle).ok_or(Declined::NotTracked)?;
        let Phase::Reading { abandoned } = request.phase else { return Err(Declined::NotTracked) };
        request.phase = Phase::Judging { ended: cx.now };
        let index = handle.index;
        let outcome = if abandoned && !broken!(AbandonedIsJudged) { ReadOutcome::Failed } else { outcome };
        match outcome {
            ReadOutcome::Failed => self.decide(cx, index, Verdict::Failed),
            // Held or not, the blocks were never written.
            _ if self.any_leg(index, |leg| leg.status == Status::Lost(Lost::Failed)) => self.decide(cx, index, Verdict::Expired),
            // Without tokens nobody could check, or fence, for this lease alone.
            _ if self.terms.wire() == Wire::Vllm => self.decide(cx, index, Verdict::Unverified),
            ReadOutcome::Served => self.decide(cx, index, Verdict::ValidServed),
            ReadOutcome::Fenced => self.decide(cx, index, Verdict::ValidFenced),
            ReadOutcome::OneSided => {
                self.judge(cx, index);
                if self.ended(index).is_some() {
                    self.close_legs(cx, index, true); // ask for proof (B), renewing meanwhile
                }
            }
        }
        Ok(())
    }

    /// Decides as soon as it can be decided.
    pub(super) fn judge(&mut self, cx: &mut Context<'_>, index: u32) {
        let Some(ended) = self.ended(index) else { return };
        self.prove(index, ended);
        let all = !self.any_leg(index, |leg| !leg.proven);
        let all = all || (broken!(OneRankIsEnough) && self.any_leg(index, |leg| leg.proven));
        let hopeless = self.any_leg(index, |leg| !leg.proven && gone(leg));
        let by_completion = self.requests.get(index).is_some_and(|request| request.by_completion);
        match (all, hopeless) {
            (true, _) if by_completion => self.decide(cx, index, Verdict::ValidByCompletion),
            (true, _) => self.decide(cx, index, Verdict::ValidByDeadline),
            (_, true) => self.decide(cx, index, Verdict::Expired),
            _ => {}
        }
    }

    /// Proof (A): the read ended strictly before the promise did. It stays proven, whatever comes later.
    pub(super) fn prove(&mut self, index: u32, ended: Instant) {
        let by_deadline = self.terms.proof() == Proof::Deadline;
        self.each_leg(index, |leg| {
            let certain = !leg.doubtful || broken!(DoubtForgotten);
            leg.proven |= by_deadline && certain && leg.proof.is_some_and(|proof| ended < proof);
        });
    }

    /// When the read ended whose verdict is still open.
    pub(super) fn ended(&self, index: u32) -> Option<Instant> {
        match self.requests.get(index)?.phase {
            Phase::Judging { ended } => Some(ended),
            _ => None,
        }
    }

    pub(super) fn decide(&mut self, cx: &mut Context<'_>, index: u32, verdict: Verdict) {
        if let Some(request) = self.requests.get_mut(index) {
            request.phase = Phase::Closing;
        }
        cx.counters.count_verdict(verdict);
        self.tell(cx, index, |request, handle| Event::ReadDone { request, handle, verdict });
        // What failed will not be read: give it back at once.
        self.close_legs(cx, index, verdict != Verdict::Failed);
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

/// The holder will not answer that it held the blocks.
fn gone(leg: &Leg) -> bool {
    matches!(leg.status, Status::Lost(Lost::Expired | Lost::Unknown | Lost::Claimed | Lost::PeerRestarted | Lost::Failed))
}
