//! A world: nodes on clocks of their own, the network between them, and the order in which things happen.
//!
//! At one instant: link faults, actions in the order of the file, read ends, deliveries in order of sending, timeouts; nodes by
//! name. All that arrives at an instant is there before anybody's timers run.

mod acts;
mod reads;

use std::{cell::RefCell, rc::Rc};

use lease_proto::{event::Context, id::Token, reader::Handle, time::Instant};
use rustc_hash::FxHashMap;

use super::{
    line::{Line, Sink},
    net::{Link, Net, Traffic},
    queue::{Queue, Then},
    time::{NodeClock, WorldTime},
    trace::{self, Action, Fault},
    truth::{Court, Grant},
    worker::{Addresses, Mail, SimHolder, SimReader, Sizes, Worker, entropy},
};
use reads::Sampling;

/// Turns of one node at one instant after which it will never come to rest.
const RESTLESS: u32 = 10_000;

/// A world that runs.
pub struct World<'t, 's> {
    spec: &'t trace::World,
    now: WorldTime,
    queue: Queue,
    net: Net,
    addresses: Addresses,
    nodes: Vec<Node>,
    workers: Vec<Worker>,
    court: RefCell<Court<'t, 's>>,
    sampling: Sampling,
    /// Reads that run: worker and handle, by number.
    reads: FxHashMap<u64, (u32, Handle)>,
    read_numbers: u64,
    buffer: Vec<u8>,
    restless: bool,
}

/// What is known of a node beside its workers.
#[derive(Debug, Default)]
struct Node {
    crashed: bool,
    /// It neither polls nor sends before.
    stalled: WorldTime,
    /// Its clock stands still before.
    suspended: WorldTime,
    /// When its forward loop comes round next.
    due: Option<WorldTime>,
    /// Turns at this instant.
    turns: (WorldTime, u32),
    /// Tokens of requests that were announced and not granted, and the latest grants.
    announced: FxHashMap<Rc<str>, Token>,
    /// Lines whose action waits for the end of a stall, and the life that was told.
    deferred: FxHashMap<usize, u32>,
    /// Grants by the line that made them.
    granted: FxHashMap<usize, Rc<Grant>>,
}

/// How many workers a node has, and how much room each of them needs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    pub(super) workers: u16,
    pub(super) sizes: Sizes,
}

impl<'t, 's> World<'t, 's> {
    /// A world at time zero. `rooms` are those of its nodes; with `checks` it is held against the laws.
    pub(super) fn new(spec: &'t trace::World, rooms: &[Room], checks: bool, sink: Sink<'s>) -> Self {
        let (mut workers, mut first) = (Vec::new(), Vec::new());
        for (number, (node, room)) in spec.nodes.iter().zip(rooms).enumerate() {
            first.push((workers.len() as u32, room.workers));
            let whole = (spec.seed, spec.max_notification);
            let of = |rank| Worker::new(whole, (number as u32, node), rank, room.workers, 0, room.sizes);
            workers.extend((0..room.workers).map(of));
        }
        let desks: Vec<(u32, u16)> = workers.iter().map(|worker| (worker.node, worker.rank)).collect();
        let mut world = Self {
            spec,
            now: WorldTime::ZERO,
            queue: Queue::default(),
            net: Net::new(spec.delay, entropy(spec.seed, u32::from(u16::MAX), 0, 0, 0)),
            addresses: Addresses(first),
            nodes: spec.nodes.iter().map(|_| Node::default()).collect(),
            workers,
            court: RefCell::new(Court::new(&spec.nodes, spec.wire, &desks, checks, sink)),
            sampling: Sampling::default(),
            reads: FxHashMap::default(),
            read_numbers: 0,
            buffer: vec![0; spec.max_notification as usize],
            restless: false,
        };
        (0..world.nodes.len() as u32).for_each(|node| world.schedule(node));
        world
    }

    /// What a trace does is put in line.
    pub(super) fn load(&mut self, lines: &[trace::Line]) {
        for (index, line) in lines.iter().enumerate() {
            match &line.what {
                trace::What::Do { at, .. } => self.queue.push(*at, Then::Act(index)),
                trace::What::Link { at, from, to, fault } => {
                    if let Fault::Replay { nth } = fault {
                        self.net.will_replay((*from as u32, *to as u32), *nth);
                    }
                    self.queue.push(*at, Then::Fault(index));
                }
                trace::What::Expect { .. } | trace::What::Never { .. } => {}
            }
        }
    }

    /// Lets everything happen up to and including `by`. `lines` are what was loaded.
    pub(super) fn run(&mut self, by: WorldTime, lines: &[trace::Line]) {
        while let Some((at, then)) = self.queue.pop(by) {
            self.advance(at);
            match then {
                Then::Resume(node) => self.resume(node),
                Then::Fault(index) => self.fault(&lines[index]),
                Then::Act(index) => self.act_line(index, &lines[index]),
                Then::ReadEnd(_, number) => self.read_ends(number),
                Then::Deliver(number) => self.deliver(number),
                Then::Sample(number) => self.sample(number),
                Then::Turn(node) => self.come_round(node, at),
            }
            if self.restless {
                return;
            }
        }
        self.advance(by);
    }

    /// The world ends.
    pub(super) fn close(&mut self) {
        for worker in 0..self.workers.len() as u32 {
            let node = self.node(worker);
            let running = !node.crashed && node.stalled <= self.now && !self.restless;
            self.court.get_mut().closing(worker, running);
        }
    }

    /// Leases that are held now.
    pub(super) fn live(&self) -> u64 {
        self.workers
            .iter()
            .filter(|worker| !self.nodes[worker.node as usize].crashed)
            .map(|worker| u64::from(worker.holder.live()))
            .sum()
    }

    /// The present.
    pub(super) fn now(&self) -> WorldTime {
        self.now
    }

    /// From now on each message gets lost with that probability.
    pub(super) fn lose(&mut self, probability: f64) {
        self.net.lose(probability);
    }

    /// What was sent; a new count may be begun.
    pub(super) fn traffic(&mut self) -> &mut Traffic {
        &mut self.net.traffic
    }

    fn advance(&mut self, at: WorldTime) {
        self.now = self.now.max(at);
        self.court.get_mut().now = self.now;
    }

    fn node(&self, worker: u32) -> &Node {
        &self.nodes[self.workers[worker as usize].node as usize]
    }

    fn local(&self, node: u32) -> Instant {
        self.court.borrow().clocks[node as usize].local(self.now)
    }

    /// How often the engine was started again.
    fn life(&self, node: u32) -> u32 {
        self.workers[self.addresses.0[node as usize].0 as usize].life
    }

    fn workers_of(&self, node: u32) -> std::ops::Range<u32> {
        let (first, count) = self.addresses.0[node as usize];
        first..first + u32::from(count)
    }

    fn fault(&mut self, line: &trace::Line) {
        let trace::What::Link { from, to, fault, .. } = &line.what else { return };
        let (link, queue): (Link, _) = ((*from as u32, *to as u32), &mut self.queue);
        self.net.fault(self.now, link, fault, &mut |at, number| queue.push(at, Then::Deliver(number)));
    }

    fn act_line(&mut self, index: usize, line: &trace::Line) {
        let trace::What::Do { node, action, .. } = &line.what else { return };
        let node = *node as u32;
        let (life, waits) = (self.life(node), self.nodes[node as usize].stalled);
        let deferred = &mut self.nodes[node as usize].deferred;
        if deferred.remove(&index).is_some_and(|told| told != life) {
            return; // who was told has died
        }
        if waits > self.now && by_the_engine(action) {
            deferred.insert(index, life);
            self.queue.push(waits, Then::Act(index)); // takes effect when the stall ends
            return;
        }
        self.act(node, line.number, action);
    }

    /// Messages wait for the forward loop; without a period it comes round as soon as all that arrives now is there.
    fn deliver(&mut self, number: u64) {
        let Some(message) = self.net.take(number) else { return };
        let worker = &mut self.workers[message.to as usize];
        let node = worker.node;
        if !self.nodes[node as usize].crashed {
            worker.mail.push_back(Mail::Message(message));
            self.schedule(node);
        }
    }

    fn come_round(&mut self, node: u32, at: WorldTime) {
        if self.nodes[node as usize].due == Some(at) {
            self.nodes[node as usize].due = None;
            self.turn(node);
        }
    }

    /// One turn of every worker of a node that has something to do.
    fn turn(&mut self, node: u32) {
        let state = &mut self.nodes[node as usize];
        if state.crashed || state.stalled > self.now {
            return self.schedule(node);
        }
        state.turns = (self.now, if state.turns.0 == self.now { state.turns.1 + 1 } else { 1 });
        if state.turns.1 > RESTLESS {
            self.restless = true;
            let detail = "it does not come to rest: at one instant, one message leads to another without end";
            let first = self.workers_of(node).start;
            return self.court.get_mut().violation(first, 5, None, detail);
        }
        let local = self.local(node);
        let passed = self.beats(node).and_then(|beats| {
            let court = self.court.borrow();
            beats.last_before(&court.clocks[node as usize], self.now, self.nodes[node as usize].stalled)
        });
        for id in self.workers_of(node) {
            if let Some(passed) = passed {
                self.court.get_mut().polled(id, passed);
            }
            let worker = &self.workers[id as usize];
            let due = worker.next.is_some_and(|next| next <= local);
            if due || !worker.mail.is_empty() || !worker.landed.is_empty() {
                self.turn_worker(id, local);
            }
        }
        self.schedule(node);
    }

    fn turn_worker(&mut self, id: u32, local: Instant) {
        while let Some(handle) = self.workers[id as usize].landed.pop_front() {
            self.saw_end(id, handle);
        }
        let Self { workers, net, queue, court, addresses, buffer, .. } = self;
        let worker = &mut workers[id as usize];
        let turn = worker.turn(id, local, self.now, (net, queue, court, addresses), buffer);
        court.get_mut().turned(id, worker.holder.live(), worker.reader.open(), turn.more);
    }

    /// The beats of a node's forward loop, if it has a period.
    fn beats(&self, node: u32) -> Option<Beats> {
        let spec = &self.spec.nodes[node as usize];
        (!spec.poll.is_zero()).then(|| Beats { start: spec.clock.as_nanos(), period: spec.poll.as_nanos() })
    }

    /// When the node's loop comes round next.
    fn schedule(&mut self, node: u32) {
        let state = &self.nodes[node as usize];
        // One that is due now stays so: a stall may have ended.
        if state.crashed || state.due == Some(self.now) {
            return;
        }
        let court = self.court.borrow();
        let clock = &court.clocks[node as usize];
        let workers = &self.workers[self.workers_of(node).start as usize..self.workers_of(node).end as usize];
        let busy = workers.iter().any(|worker| !worker.mail.is_empty() || !worker.landed.is_empty());
        let wanted = if busy { Some(clock.local(self.now)) } else { workers.iter().filter_map(|worker| worker.next).min() };
        let next = wanted.and_then(|wanted| match self.beats(node) {
            None => clock.world(wanted),
            // Those of its beats that find nothing to do are passed over.
            Some(beats) => beats.first_from(clock, self.now, state.turns.0 == self.now && state.turns.1 > 0, wanted),
        });
        drop(court);
        let stalled = self.nodes[node as usize].stalled;
        if stalled > self.now {
            // One turn when the stall ends.
            return self.due(node, stalled);
        }
        match next {
            Some(next) => self.due(node, next.max(self.now)),
            None => self.nodes[node as usize].due = None,
        }
    }

    fn due(&mut self, node: u32, at: WorldTime) {
        let due = &mut self.nodes[node as usize].due;
        if *due != Some(at) {
            *due = Some(at);
            self.queue.push(at, Then::Turn(node));
        }
    }

    fn say(&mut self, worker: u32, line: Line<'_>) {
        self.court.get_mut().say(worker, line);
    }

    /// Calls the state machines of a worker as its engine does between two turns.
    fn call<R>(&mut self, worker: u32, f: impl FnOnce(&mut SimHolder, &mut SimReader, &mut Context<'_>) -> R) -> R {
        let local = self.court.borrow().local(worker);
        self.workers[worker as usize].call(worker, local, &self.court, f)
    }
}

/// The beats of a forward loop on its node's clock: one when the world begins, then one each period. Those that a stall skips are
/// not made up.
struct Beats {
    start: u64,
    period: u64,
}

impl Beats {
    fn at(&self, beat: u64) -> Instant {
        Instant::from_nanos(self.start.saturating_add(self.period.saturating_mul(beat)))
    }

    /// How many there have been after the first.
    fn count(&self, clock: &NodeClock, now: WorldTime) -> u64 {
        clock.local(now).as_nanos().saturating_sub(self.start) / self.period
    }

    /// The first beat from now on, or after now if that of now is `over`, at which the clock shows `local` or more.
    fn first_from(&self, clock: &NodeClock, now: WorldTime, over: bool, local: Instant) -> Option<WorldTime> {
        let count = self.count(clock, now);
        if !over && clock.world(self.at(count)) == Some(now) && local <= clock.local(now) {
            return Some(now);
        }
        let wanted = local.as_nanos().saturating_sub(self.start).div_ceil(self.period);
        clock.world(self.at(wanted.max(count + 1)))
    }

    /// What the clock showed at the last beat before now, if that was not before `stalled`.
    fn last_before(&self, clock: &NodeClock, now: WorldTime, stalled: WorldTime) -> Option<Instant> {
        let count = self.count(clock, now);
        let count = if clock.world(self.at(count)) == Some(now) { count.checked_sub(1)? } else { count };
        let beat = self.at(count);
        clock.world(beat).filter(|at| *at >= stalled && *at < now).map(|_| beat)
    }
}

/// What the engine does waits for the end of a stall; what befalls it does not.
fn by_the_engine(action: &Action) -> bool {
    use Action::{Abort, Drain, Enqueue, Expect, Finish, Grant, Read, Release};
    matches!(
        action,
        Grant { .. }
            | Expect { .. }
            | Abort { .. }
            | Drain { .. }
            | Enqueue { .. }
            | Read { .. }
            | Finish { .. }
            | Release { .. }
    )
}
