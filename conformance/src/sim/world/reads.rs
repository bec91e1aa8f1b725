//! Reads, which the world ends, and the clocks of holders that export an instant of theirs (vLLM's wire, fixed time to live).

use lease_proto::{
    clock::{Gate, OffsetWindow, Sample, VLLM_TURN2_MARGIN},
    id::ClockId,
    reader::{Handle, ReadOutcome},
    time::{Duration, Instant, PeerInstant},
    wire::Wire,
};
use rustc_hash::FxHashMap;

use super::World;
use crate::sim::{
    line::Line,
    queue::Then,
    truth::{Grant, ReadTruth, State},
};

/// What readers know of the clocks of holders, and the questions under way.
#[derive(Debug, Default)]
pub(super) struct Sampling {
    /// By who reads and who holds.
    windows: FxHashMap<(Living, Living), OffsetWindow>,
    asked: FxHashMap<u64, Question>,
    numbers: u64,
}

/// A worker or a node, in one of its lives.
type Living = (u32, u32);

#[derive(Clone, Copy, Debug)]
struct Question {
    /// A worker asks a node.
    reader: Living,
    holder: Living,
    sent: Instant,
    /// The holder's stamp, once the question has come to it.
    stamp: Option<PeerInstant>,
}

impl World<'_, '_> {
    /// A read begins, unless the reader declines.
    pub(super) fn read(&mut self, node: u32, request: &str, takes: Duration, fails: bool) {
        let declined = |why| Line { event: "read_declined", request: Some(request), why: Some(why), ..Line::default() };
        let Some((worker, handle)) = self.to_read(node, request) else {
            let first = self.workers_of(node).start;
            return self.say(first, declined("not_tracked"));
        };
        if let Err(why) = self.gate(worker, handle) {
            return self.say(worker, declined(why));
        }
        if let Err(why) = self.call(worker, |_, reader, cx| reader.begin_read(cx, handle)) {
            return self.say(worker, declined(why.name()));
        }
        self.say(worker, Line { event: "read_started", request: Some(request), ..Line::default() });
        self.read_numbers += 1;
        let number = self.read_numbers;
        if let Some(tracked) = self.court.get_mut().desk_mut(worker).tracked.get_mut(&handle) {
            tracked.state = State::Reading;
            tracked.read = Some(ReadTruth { number, fails, abandoned: false, ended: None });
        }
        self.reads.insert(number, (worker, handle));
        self.queue.push(self.now.saturating_add(takes), Then::ReadEnd(worker, number));
    }

    /// The first of its ranks, and there the first of its grants, that waits to be read; else one that the reader will decline.
    fn to_read(&self, node: u32, request: &str) -> Option<(u32, Handle)> {
        let court = self.court.borrow();
        let all = || {
            self.workers_of(node).flat_map(|worker| court.handles(worker, request).iter().map(move |handle| (worker, *handle)))
        };
        let waits = |(worker, handle): &(u32, Handle)| {
            court.desk(*worker).tracked.get(handle).is_some_and(|tracked| tracked.state == State::Waiting)
        };
        all().find(waits).or_else(|| all().next())
    }

    /// The last byte has landed, or the transport gave up: the reader sees it when its loop comes round.
    pub(super) fn read_ends(&mut self, number: u64) {
        let Some((worker, handle)) = self.reads.remove(&number) else { return };
        let step = self.court.get_mut().step();
        let Some(tracked) = self.court.get_mut().desk_mut(worker).tracked.get_mut(&handle) else { return };
        let (holder, life) = (tracked.grant.node, tracked.grant.life);
        let Some(read) = tracked.read.as_mut().filter(|read| read.number == number) else { return }; // of an earlier life
        read.ended = Some((self.now, step));
        let now_living = self.workers[self.addresses.0[holder as usize].0 as usize].life;
        read.fails |= self.nodes[holder as usize].crashed || now_living != life;
        let node = self.workers[worker as usize].node;
        if self.spec.nodes[node as usize].poll.is_zero() && self.nodes[node as usize].stalled <= self.now {
            self.saw_end(worker, handle);
        } else {
            self.workers[worker as usize].landed.push_back(handle);
        }
        self.schedule(node);
    }

    /// The reader has seen that its read is over, and judges it.
    pub(super) fn saw_end(&mut self, worker: u32, handle: Handle) {
        let court = self.court.get_mut();
        let Some(tracked) = court.desk(worker).tracked.get(&handle) else { return };
        let (request, failed) = (tracked.grant.request.clone(), tracked.read.is_none_or(|read| read.fails));
        court.say(worker, Line { event: "read_ended", request: Some(&request), ..Line::default() });
        court.done(worker, handle);
        let outcome = if failed { ReadOutcome::Failed } else { ReadOutcome::OneSided };
        let judged = self.call(worker, |_, reader, cx| reader.read_ended(cx, handle, outcome));
        debug_assert!(judged.is_ok(), "a read that was begun ends");
    }

    /// On vLLM's wire the end of a fixed time to live is an instant of the holder's clock, compared by the safe end of an interval.
    fn gate(&self, worker: u32, handle: Handle) -> Result<(), &'static str> {
        let court = self.court.borrow();
        let Some(grant) = court.desk(worker).tracked.get(&handle).map(|tracked| &tracked.grant) else { return Ok(()) };
        let Some(deadline) = grant.deadline else { return Ok(()) };
        let window = self.sampling.windows.get(&((worker, court.desk(worker).life), (grant.node, grant.life)));
        match window.map_or(Gate::Unknown, |window| window.before(deadline, VLLM_TURN2_MARGIN, court.local(worker))) {
            Gate::Read => Ok(()),
            Gate::TooLate => Err("too_late"),
            Gate::Unknown => Err("unknown_clock"),
        }
    }

    /// The handshake of vLLM's wire tells the holder's clock.
    pub(super) fn ask_clock(&mut self, worker: u32, grant: &Grant) {
        if self.spec.wire == Wire::Native || grant.deadline.is_none() {
            return;
        }
        let me = &self.workers[worker as usize];
        let sent = self.court.borrow().local(worker);
        let question = Question { reader: (worker, me.life), holder: (grant.node, grant.life), sent, stamp: None };
        let delay = self.net.delay_on(self.now, (me.node, grant.node));
        self.ask(question, delay);
    }

    fn ask(&mut self, question: Question, delay: Duration) {
        self.sampling.numbers += 1;
        self.sampling.asked.insert(self.sampling.numbers, question);
        self.queue.push(self.now.saturating_add(delay), Then::Sample(self.sampling.numbers));
    }

    /// The question has come to the holder, or its answer to the reader.
    pub(super) fn sample(&mut self, number: u64) {
        let Some(question) = self.sampling.asked.remove(&number) else { return };
        let alive = |node: u32, life: u32| !self.nodes[node as usize].crashed && self.life(node) == life;
        let (reader, holder) = (self.workers[question.reader.0 as usize].node, question.holder.0);
        match question.stamp {
            None if alive(holder, question.holder.1) => {
                let stamp = Some(PeerInstant::from_nanos(self.local(holder).as_nanos()));
                let delay = self.net.delay_on(self.now, (holder, reader));
                self.ask(Question { stamp, ..question }, delay);
            }
            Some(stamp) if alive(reader, question.reader.1) => self.sampled(question, stamp),
            _ => {}
        }
    }

    fn sampled(&mut self, question: Question, stamp: PeerInstant) {
        let (reader, holder) = (self.workers[question.reader.0 as usize].node, question.holder.0);
        let drift = |node: u32| self.spec.nodes[node as usize].terms.drift_ppm();
        let (ours, theirs) = (self.local(reader), self.local(holder));
        let bound = drift(reader).max(drift(holder));
        let window = self.sampling.windows.entry((question.reader, question.holder)).or_insert(OffsetWindow::new(bound));
        let clock = ClockId(u64::from(holder) + 1);
        window.add(Sample { clock, sent: question.sent, peer_received: stamp, peer_sent: stamp, received: ours }, ours);
        // Law 7: whatever the way was like, the truth lies in the interval, but for the nanosecond that both clocks are read to.
        let truth = i128::from(theirs.as_nanos()) - i128::from(ours.as_nanos());
        let wrong = window.interval(ours).is_some_and(|interval| truth < interval.low() - 1 || interval.high() + 1 < truth);
        let court = self.court.get_mut();
        let good = |node: u32| court.clocks[node as usize].keeps_within(i64::from(drift(node)));
        if wrong && good(reader) && good(holder) {
            court.violation(question.reader.0, 7, None, "the interval of a clock's offset does not hold the truth");
        }
    }
}
