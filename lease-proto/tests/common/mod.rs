//! Holders and readers on a loopback fabric, each with its own clock, stepped to the next thing that happens.
#![allow(dead_code, unused_imports, unreachable_pub)] // each test file uses its part

pub mod lone;
mod lone_holder;
mod lone_reader;
mod seen;

pub use seen::{Seen, seen};

use std::collections::BTreeMap;

use conformance::loopback::{EndpointId, Fabric, Link, Loopback};
use lease_proto::{
    config::{Config, Terms},
    counters::Counters,
    drive::{Drive, Engine, Machine},
    event::{Context, Event, Freed, Lost, Refused, Verdict},
    frame::Frame,
    holder::{Abort, Ended, Grant, Holder, Lease, Peer as HolderPeer},
    id::{ClockId, EngineId, Identity, Incarnation, ReaderRank, RequestId, Token},
    params::Parameters,
    reader::{Handle, Leg, Peer as ReaderPeer, ReadOutcome, Reader, Request, Track},
    table::{Slot, boxed},
    time::{Duration, Instant},
    transport::Control as _,
    wire::Wire,
};

pub type TestHolder = Holder<Box<[Slot<Lease>]>, Box<[Slot<HolderPeer>]>, Box<[Slot<Ended>]>>;
pub type TestReader = Reader<Box<[Slot<Request>]>, Box<[Slot<Leg>]>, Box<[Slot<ReaderPeer<Vec<u8>>>]>, Vec<u8>>;

/// An engine process: a transport, and either or both sides of the protocol.
pub struct Node {
    pub transport: Loopback,
    pub holder: TestHolder,
    pub reader: TestReader,
    pub counters: Counters,
    /// With the world's time at which they came.
    pub seen: Vec<(Instant, Seen)>,
    pub identity: Identity,
    drive: Drive,
    /// What its clock showed at world time zero.
    pub clock: u64,
    /// Neither polls nor sends before this world time.
    pub stalled_until: Instant,
    frame: Vec<u8>,
}

impl Node {
    pub fn now(&self, world: Instant) -> Instant {
        Instant::from_nanos(self.clock + world.as_nanos())
    }

    fn with<T>(&mut self, world: Instant, f: impl FnOnce(&mut TestHolder, &mut TestReader, &mut Context<'_>) -> T) -> T {
        let (now, seen_events) = (self.now(world), &mut self.seen);
        let mut events = |event: Event<'_>| seen_events.push((world, seen(event)));
        f(&mut self.holder, &mut self.reader, &mut Context { now, counters: &mut self.counters, events: &mut events })
    }
}

pub struct World {
    pub fabric: Fabric,
    pub nodes: BTreeMap<&'static str, Node>,
    wire: Wire,
    /// Of the processes that are started from now on.
    pub config: Config,
    incarnations: u64,
}

/// A process to start, where it differs from the usual one.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub engine: &'static str,
    /// `None` for a new one.
    pub incarnation: Option<u64>,
    pub rank: u16,
    pub ranks: u16,
    pub clock: u64,
    pub slots: usize,
    pub peers: usize,
    pub max_message: usize,
}

impl Spec {
    pub fn of(engine: &'static str) -> Self {
        Self { engine, incarnation: None, rank: 0, ranks: 1, clock: 0, slots: 64, peers: 16, max_message: 65_536 }
    }
}

pub fn secs(text: &str) -> Duration {
    text.parse().unwrap()
}

pub fn at(text: &str) -> Instant {
    text.parse().unwrap()
}

pub fn id(text: &str) -> RequestId {
    RequestId::try_from(text).unwrap()
}

impl World {
    pub fn new(wire: Wire) -> Self {
        Self::with(wire, Config::default())
    }

    pub fn with(wire: Wire, config: Config) -> Self {
        Self { fabric: Fabric::new(7), nodes: BTreeMap::new(), wire, config, incarnations: 0 }
    }

    pub fn terms(&self) -> Terms {
        self.config.validate(self.wire).unwrap()
    }

    /// Starts a process; one of the same name that runs is killed first.
    pub fn start(&mut self, name: &'static str, clock: u64) -> &mut Node {
        self.start_with(name, clock, 64)
    }

    pub fn start_with(&mut self, name: &'static str, clock: u64, slots: usize) -> &mut Node {
        self.spawn(name, Spec { clock, slots, ..Spec::of(name) })
    }

    pub fn spawn(&mut self, name: &'static str, spec: Spec) -> &mut Node {
        self.nodes.remove(name);
        self.incarnations += 1;
        let Spec { engine, incarnation, rank, ranks, clock, slots, peers, max_message } = spec;
        let transport = self.fabric.endpoint_with(max_message);
        let incarnation = Incarnation(incarnation.unwrap_or(0x1000 + self.incarnations));
        let identity = Identity {
            engine: EngineId::try_from(engine).unwrap(),
            incarnation,
            rank,
            ranks,
            clock: ClockId(self.incarnations),
            max_message: max_message as u32,
        };
        let mut frame = vec![0; 128];
        let length = Frame::encode(incarnation, transport.local_metadata(), &mut frame).unwrap();
        frame.truncate(length);
        let (terms, seed) = (self.terms(), [self.incarnations as u8; 16]);
        let node = Node {
            transport,
            holder: Holder::new(identity.clone(), terms.clone(), seed, boxed(slots), boxed(peers), boxed(slots)),
            reader: Reader::new(identity.clone(), terms.clone(), seed, frame.clone(), boxed(slots), boxed(slots), boxed(peers)),
            counters: Counters::default(),
            seen: Vec::new(),
            drive: Drive::new(&terms, identity.max_message),
            identity,
            clock,
            stalled_until: Instant::ZERO,
            frame,
        };
        self.nodes.insert(name, node);
        self.nodes.get_mut(name).unwrap()
    }

    pub fn kill(&mut self, name: &'static str) {
        self.nodes.remove(name).expect("it runs");
    }

    pub fn node(&mut self, name: &'static str) -> &mut Node {
        self.nodes.get_mut(name).unwrap()
    }

    pub fn link(&self, from: &'static str, to: &'static str) -> Link {
        Link { from: self.endpoint(from), to: self.endpoint(to) }
    }

    pub fn endpoint(&self, name: &'static str) -> EndpointId {
        self.nodes[name].transport.id()
    }

    pub fn now(&self) -> Instant {
        self.fabric.now()
    }

    pub fn grant(&mut self, node: &'static str, request: &str) -> Result<Token, Refused> {
        self.grant_with(node, request, None, None)
    }

    pub fn grant_with(
        &mut self,
        node: &'static str,
        request: &str,
        consumers: Option<u16>,
        ttl: Option<Duration>,
    ) -> Result<Token, Refused> {
        let (world, request) = (self.now(), id(request));
        self.node(node).with(world, |holder, _, cx| {
            let token = holder.announced(&request).unwrap_or_else(|| holder.mint());
            holder.grant(cx, Grant { request: &request, token, consumers, ttl }).map(|_| token)
        })
    }

    /// Grants under a token that another rank has drawn.
    pub fn grant_token(&mut self, node: &'static str, request: &str, token: Token) -> Result<Token, Refused> {
        let (world, request) = (self.now(), id(request));
        self.node(node).with(world, |holder, _, cx| {
            holder.grant(cx, Grant { request: &request, token, consumers: None, ttl: None }).map(|_| token)
        })
    }

    pub fn expect(&mut self, node: &'static str, request: &str) -> Token {
        let (world, request) = (self.now(), id(request));
        self.node(node).with(world, |holder, _, cx| {
            let token = holder.mint();
            holder.expect(cx, &request, token).unwrap();
            token
        })
    }

    pub fn abort(&mut self, node: &'static str, token: Token, why: Abort) -> Result<(), Refused> {
        let world = self.now();
        self.node(node).with(world, |holder, _, cx| holder.abort(cx, token, why))
    }

    pub fn drain(&mut self, node: &'static str, within: Duration) {
        let world = self.now();
        self.node(node).with(world, |holder, _, cx| holder.drain(cx, within));
    }

    /// What a router would hand to a reader for this lease.
    pub fn track(&mut self, node: &'static str, holder: &'static str, request: &str, token: Token) -> Result<Handle, Refused> {
        self.track_as(node, holder, request, token, ReaderRank::ONLY)
    }

    pub fn track_as(
        &mut self,
        node: &'static str,
        holder: &'static str,
        request: &str,
        token: Token,
        reader: ReaderRank,
    ) -> Result<Handle, Refused> {
        let (identity, frame) = (self.nodes[holder].identity.clone(), self.nodes[holder].frame.clone());
        self.track_at(node, (&identity, &frame), request, token, reader)
    }

    /// Like `track_as`, with parameters of a process that may be gone.
    pub fn track_at(
        &mut self,
        node: &'static str,
        (identity, frame): (&Identity, &[u8]),
        request: &str,
        token: Token,
        reader: ReaderRank,
    ) -> Result<Handle, Refused> {
        self.track_ranks(node, identity, &[(0, frame.to_vec())], request, token, reader)
    }

    /// Tracks a request whose blocks lie on several ranks of a holder.
    pub fn track_ranks(
        &mut self,
        node: &'static str,
        identity: &Identity,
        targets: &[(u16, Vec<u8>)],
        request: &str,
        token: Token,
        reader: ReaderRank,
    ) -> Result<Handle, Refused> {
        let (terms, world, request) = (self.terms(), self.now(), id(request));
        let frames = targets.iter().flat_map(|(_, frame)| frame.clone()).collect::<Vec<u8>>();
        let params = Parameters {
            token,
            incarnation: identity.incarnation,
            engine: identity.engine.as_bytes(),
            ranks: targets.len() as u16,
            extension: terms.extension(),
            drift_ppm: terms.drift_ppm(),
            frames: &frames,
            regions: &[],
        };
        self.node(node)
            .with(world, |_, at, cx| at.track(cx, Track { request: &request, params: &params, reader }, targets.to_vec()))
    }

    pub fn frame(&self, name: &'static str) -> (Identity, Vec<u8>) {
        (self.nodes[name].identity.clone(), self.nodes[name].frame.clone())
    }

    pub fn begin_read(&mut self, node: &'static str, handle: Handle) -> Result<(), lease_proto::reader::Declined> {
        let world = self.now();
        self.node(node).with(world, |_, reader, cx| reader.begin_read(cx, handle))
    }

    pub fn read_ended(
        &mut self,
        node: &'static str,
        handle: Handle,
        outcome: ReadOutcome,
    ) -> Result<(), lease_proto::reader::Declined> {
        let world = self.now();
        self.node(node).with(world, |_, reader, cx| reader.read_ended(cx, handle, outcome))
    }

    pub fn finish(&mut self, node: &'static str, handle: Handle) -> Result<(), lease_proto::reader::Declined> {
        let world = self.now();
        self.node(node).with(world, |_, reader, cx| reader.finish(cx, handle))
    }

    /// Delivers bytes to a node as a notification.
    pub fn receive(&mut self, node: &'static str, bytes: &[u8]) {
        let to = self.endpoint(node);
        self.fabric.inject(to, bytes);
    }

    /// One turn of a node's loop, whatever the time.
    pub fn turn(&mut self, name: &'static str) -> Option<Instant> {
        let world = self.fabric.now();
        let node = self.nodes.get_mut(name).unwrap();
        let (now, mut buffer) = (node.now(world), vec![0; node.transport.capabilities().max_notification]);
        let Node { transport, holder, reader, counters, seen: list, drive, .. } = node;
        let mut events = |event: Event<'_>| list.push((world, seen(event)));
        let machines: &mut [&mut dyn Machine] = &mut [holder, reader];
        let engine = Engine { clock: &mut || now, counters, events: &mut events, buffer: &mut buffer };
        let turn = drive.turn(transport, machines, engine, Duration::ZERO).unwrap();
        turn.next.map(|next| Instant::from_nanos(next.as_nanos().saturating_sub(node.clock)))
    }

    /// Runs every node, at every arrival and at its own timeouts, until world time `end`.
    pub fn run_to(&mut self, end: &str) {
        let end = at(end);
        // A timer that is due for ever would hang here: a thousand instants without progress of a microsecond are one.
        let (mut busy, mut since) = (0, self.now());
        loop {
            let mut next = end;
            // Twice, so that answers sent in this instant are taken in within it.
            for _ in 0..4 {
                next = end;
                let names: Vec<&'static str> = self.nodes.keys().copied().collect();
                for name in names {
                    let stalled = self.nodes[name].stalled_until;
                    if stalled > self.now() {
                        next = next.min(stalled);
                    } else if let Some(due) = self.turn(name) {
                        next = next.min(due);
                    }
                }
            }
            if self.now() >= end {
                return;
            }
            let arrival = self.fabric.next_arrival().filter(|arrival| *arrival > self.now()).unwrap_or(Instant::MAX);
            let step = next.min(arrival).max(self.now().saturating_add(Duration::from_nanos(1))).min(end);
            self.fabric.advance_to(step);
            busy += 1;
            if self.now().saturating_since(since) > Duration::from_nanos(1_000) {
                (busy, since) = (0, self.now());
            }
            assert!(busy < 1_000, "something is due for ever at {since}");
        }
    }
}

/// Law 6.
pub fn conserved(name: &str, counters: &Counters, live: u32, open: u32) {
    let freed: u64 = Freed::ALL.iter().map(|why| counters.freed(*why)).sum();
    assert_eq!(counters.granted, freed + u64::from(live), "{name}: granted = freed + live");
    assert_eq!(counters.tracked, counters.resolved + u64::from(open), "{name}: tracked = resolved + open");
}
