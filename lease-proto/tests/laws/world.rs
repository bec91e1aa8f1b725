//! Runs a script: engines on a loopback fabric, each process with its own clock, each turned only when it is due.

mod acts;

use std::collections::BTreeMap;

use conformance::loopback::{Fabric, Fault, Link};
use lease_proto::{
    config::Terms,
    counters::Counters,
    drive::{Drive, Engine, Machine},
    event::{Context, Freed},
    frame::Frame,
    holder::{Ended, Holder, Lease, Peer as HolderPeer},
    id::{ClockId, EngineId, Identity, Incarnation, RequestId, Token},
    reader::{Handle, Leg, Peer as ReaderPeer, Reader, Request},
    table::{Slot, boxed},
    time::{Duration, Instant},
    transport::Control as _,
};

use super::{
    script::{Clock, How, Script, Step},
    trace::{Tap, Trace, What},
};

pub type TestHolder = Holder<Box<[Slot<Lease>]>, Box<[Slot<HolderPeer>]>, Box<[Slot<Ended>]>>;
pub type TestReader = Reader<Box<[Slot<Request>]>, Box<[Slot<Leg>]>, Box<[Slot<ReaderPeer<Vec<u8>>>]>, Vec<u8>>;

const SLOTS: usize = 24;
/// Turns of one process within one instant, beyond which something is due for ever.
const TURNS: u32 = 64;

/// How the harness itself misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harness {
    Honest,
    /// What is injected is not: the other half of law 5.
    Silent,
    /// Reads are reported with a clock value from before their end.
    JudgesEarly,
    /// Processes are told a time that is this old.
    Late(u64),
}

/// One life of a process: its machines while it lives, and what stays known of it.
pub struct Life {
    pub identity: Identity,
    pub clock: Clock,
    pub counters: Counters,
    pub node: Option<Node>,
    /// When its scheduler's latest word reaches it: grants keep their order on the way to each rank.
    told: u64,
}

pub struct Node {
    pub holder: TestHolder,
    pub reader: TestReader,
    tap: Tap,
    drive: Drive,
    frame: Vec<u8>,
    due: Option<u64>,
    stalled_until: u64,
    turns: (u64, u32),
}

/// What a router would know of a lease.
pub struct Granted {
    pub engine: usize,
    /// The holder's process of each rank.
    pub lives: Vec<usize>,
    pub request: RequestId,
    pub token: Token,
    pub ttl: Option<Duration>,
    frames: Vec<(u16, Vec<u8>)>,
}

pub struct Tracked {
    pub life: usize,
    pub handle: Handle,
    pub lease: usize,
    /// Since when it waits for nothing but its holder.
    pub since: u64,
    pub reading: bool,
    pub abandoned: bool,
    pub began: u64,
}

enum Later {
    Grant { life: usize, id: u8, token: Token, consumers: Option<u16>, ttl: Option<Duration> },
    EndRead { track: usize, how: How },
    Heal(Link),
}

pub struct World {
    pub script: Script,
    pub terms: Terms,
    pub trace: Trace,
    pub lives: Vec<Life>,
    pub leases: Vec<Granted>,
    pub tracks: Vec<Tracked>,
    /// What was seen to be wrong at once.
    pub wrong: Option<String>,
    fabric: Fabric,
    engines: Vec<Vec<usize>>,
    later: BTreeMap<(u64, u64), Later>,
    numbers: u64,
    harness: Harness,
    buffer: Vec<u8>,
}

impl World {
    /// The whole script.
    pub fn play(script: &Script, harness: Harness) -> Self {
        let mut world = Self::new(script, harness);
        let mut at = 0;
        for Step { after, act } in &script.steps {
            at += after;
            world.run_to(at);
            world.act(act.clone());
        }
        world
    }

    pub fn new(script: &Script, harness: Harness) -> Self {
        let fabric = Fabric::new(7);
        let mut world = Self {
            terms: script.config.validate(script.wire).expect("the script's terms hold"),
            trace: Trace::new(&fabric),
            script: script.clone(),
            lives: Vec::new(),
            leases: Vec::new(),
            tracks: Vec::new(),
            wrong: None,
            fabric,
            engines: vec![Vec::new(); script.engines.len()],
            later: BTreeMap::new(),
            numbers: 0,
            harness,
            buffer: vec![0; 65_536],
        };
        for engine in 0..script.engines.len() {
            world.start(engine, script.engines[engine].1.origin);
        }
        world
    }

    pub fn now(&self) -> u64 {
        self.fabric.now().as_nanos()
    }

    /// The first of all wrongs is the one that is told.
    fn wrong(&mut self, what: String) {
        let now = self.now();
        self.wrong.get_or_insert(format!("at {now}: {what}"));
    }

    fn start(&mut self, engine: usize, origin: u64) {
        self.kill(engine);
        let (ranks, Clock { ppm, .. }) = self.script.engines[engine];
        self.numbers += 1;
        let incarnation = Incarnation(0x1000 + self.numbers);
        for rank in 0..ranks {
            let life = self.lives.len();
            let tap = Tap::new(self.fabric.endpoint(), self.trace.clone(), life, self.script.nature);
            let identity = Identity {
                engine: EngineId::new(format!("e{engine}").as_bytes()).unwrap(),
                incarnation,
                rank,
                ranks,
                clock: ClockId(self.numbers),
                max_message: 65_536,
            };
            let mut frame = vec![0; 128];
            let length = Frame::encode(incarnation, tap.local_metadata(), &mut frame).unwrap();
            frame.truncate(length);
            let (terms, mut seed) = (self.terms.clone(), [life as u8; 16]);
            seed[0] ^= 0x55;
            let node = Node {
                holder: Holder::new(identity.clone(), terms.clone(), seed, boxed(SLOTS), boxed(8), boxed(SLOTS)),
                reader: Reader::new(
                    identity.clone(),
                    terms.clone(),
                    seed,
                    frame.clone(),
                    boxed(SLOTS),
                    boxed(2 * SLOTS),
                    boxed(8),
                ),
                tap,
                drive: Drive::new(&terms, identity.max_message),
                frame,
                due: Some(0),
                stalled_until: 0,
                turns: (0, 0),
            };
            let clock = Clock { origin, ppm };
            self.lives.push(Life { identity, clock, counters: Counters::default(), node: Some(node), told: 0 });
            self.engines[engine].push(life);
            for other in 0..life {
                for link in [self.link(life, other), self.link(other, life)].into_iter().flatten() {
                    self.fault(link, Fault::default());
                }
            }
        }
    }

    fn kill(&mut self, engine: usize) {
        for life in std::mem::take(&mut self.engines[engine]) {
            self.lives[life].node = None;
            self.trace.put(life, What::Died);
        }
        self.trace.stir();
    }

    fn link(&self, from: usize, to: usize) -> Option<Link> {
        let endpoint = |life: usize| self.lives[life].node.as_ref().map(|node| node.tap.inner.id());
        Some(Link { from: endpoint(from)?, to: endpoint(to)? })
    }

    fn fault(&mut self, link: Link, fault: Fault) {
        let delay = fault.delay.max(Duration::from_nanos(self.script.flight));
        self.fabric.fault(link, Fault { delay, ..fault });
        self.trace.stir();
    }

    fn later(&mut self, at: u64, what: Later) {
        self.numbers += 1;
        self.later.insert((at, self.numbers), what);
    }

    /// The engine of a process calls its machines. It is due then when they say so, not before.
    fn call<T>(&mut self, life: usize, f: impl FnOnce(&mut TestHolder, &mut TestReader, &mut Context<'_>) -> T) -> Option<T> {
        let (now, stale, trace) = (self.clock(life), self.stale(), self.trace.clone());
        let Life { counters, node, clock, .. } = &mut self.lives[life];
        let node = node.as_mut()?;
        let mut events = |event: lease_proto::event::Event<'_>| trace.event(life, event);
        let result = f(&mut node.holder, &mut node.reader, &mut Context { now, counters, events: &mut events });
        let next = [node.holder.next_timeout(), node.reader.next_timeout()].into_iter().flatten().min();
        node.due = next.map(|next| clock.when(next.as_nanos()) + stale);
        let idle = node.due.is_none_or(|due| due > self.fabric.now().as_nanos());
        if idle {
            let (mut holder, mut counters) = (node.holder.clone(), counters.clone());
            let cx = &mut Context { now, counters: &mut counters, events: &mut |_| {} };
            if holder.poll_transmit(cx, &mut self.buffer).is_some() {
                self.wrong(format!("process {life} has something to send and is not due"));
            }
        }
        self.conserves(life);
        Some(result)
    }

    fn clock(&self, life: usize) -> Instant {
        Instant::from_nanos(self.lives[life].clock.read(self.now().saturating_sub(self.stale())))
    }

    fn stale(&self) -> u64 {
        if let Harness::Late(by) = self.harness { by } else { 0 }
    }

    /// Law 6, at every step.
    fn conserves(&mut self, life: usize) {
        let Life { counters, node: Some(node), .. } = &self.lives[life] else { return };
        let freed: u64 = Freed::ALL.iter().map(|why| counters.freed(*why)).sum();
        let held = counters.granted == freed + u64::from(node.holder.live());
        let kept = counters.tracked == counters.resolved + u64::from(node.reader.open());
        if !held || !kept {
            let (live, open) = (node.holder.live(), node.reader.open());
            self.wrong(format!("law 6: process {life} granted and tracked what is not accounted for: {live} live, {open} open"));
        }
    }

    /// No fault lasts, and nobody stalls any more.
    pub fn heal(&mut self) {
        for from in 0..self.lives.len() {
            for link in (0..self.lives.len()).filter_map(|to| self.link(from, to)).collect::<Vec<_>>() {
                self.fault(link, Fault::default());
            }
        }
        self.later.retain(|_, later| !matches!(later, Later::Heal(_)));
        self.lives.iter_mut().filter_map(|life| life.node.as_mut()).for_each(|node| node.stalled_until = 0);
    }

    pub fn run_to(&mut self, end: u64) {
        loop {
            self.do_what_is_due();
            let arrived = self.fabric.next_arrival().is_some_and(|at| at.as_nanos() <= self.now());
            let mut all = self.trace.take_stirred() || arrived;
            loop {
                let due: Vec<usize> = (0..self.lives.len()).filter(|life| all || self.is_due(*life)).collect();
                due.iter().for_each(|life| self.turn(*life));
                all = self.trace.take_stirred();
                if due.is_empty() && !all || self.wrong.is_some() {
                    break;
                }
            }
            if self.now() >= end || self.wrong.is_some() {
                return;
            }
            let nodes = self.lives.iter().filter_map(|life| life.node.as_ref());
            let wakes = nodes.filter_map(|node| {
                let due = node.due.map(|due| due.max(node.stalled_until));
                let stalled = (node.stalled_until > self.now()).then_some(node.stalled_until);
                [due, stalled].into_iter().flatten().min()
            });
            let arrival = self.fabric.next_arrival().map(Instant::as_nanos).filter(|at| *at > self.now());
            let later = self.later.first_key_value().map(|((at, _), _)| *at);
            let next = wakes.chain(arrival).chain(later).chain([end]).min().unwrap_or(end);
            let stall_ends = self.lives.iter().filter_map(|life| life.node.as_ref()).any(|node| node.stalled_until == next);
            self.fabric.advance_to(Instant::from_nanos(next.min(end)));
            if stall_ends {
                self.trace.stir();
            }
        }
    }

    fn is_due(&self, life: usize) -> bool {
        let is = |node: &Node| node.due.is_some_and(|due| due <= self.now()) && node.stalled_until <= self.now();
        self.lives[life].node.as_ref().is_some_and(is)
    }

    fn turn(&mut self, life: usize) {
        let (world, now, stale, trace) = (self.now(), self.clock(life), self.stale(), self.trace.clone());
        let Life { counters, node, clock, .. } = &mut self.lives[life];
        let Some(node) = node.as_mut().filter(|node| node.stalled_until <= world) else { return };
        let mut events = |event: lease_proto::event::Event<'_>| trace.event(life, event);
        let machines: &mut [&mut dyn Machine] = &mut [&mut node.holder, &mut node.reader];
        let engine = Engine { clock: &mut || now, counters, events: &mut events, buffer: &mut self.buffer };
        let turn = node.drive.turn(&mut node.tap, machines, engine, Duration::ZERO).unwrap();
        node.due = if turn.more { Some(world) } else { turn.next.map(|next| clock.when(next.as_nanos()) + stale) };
        let next = node.holder.next_timeout().map(Instant::as_nanos);
        self.trace.put(life, What::Turned { next, more: turn.more });
        node.turns = if node.turns.0 == world { (world, node.turns.1 + 1) } else { (world, 1) };
        let for_ever = node.turns.1 > TURNS;
        if for_ever {
            self.wrong(format!("process {life} is due for ever"));
        }
        self.conserves(life);
    }
}
