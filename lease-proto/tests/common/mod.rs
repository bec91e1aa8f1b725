//! Holders and readers on a loopback fabric, each with its own clock, stepped to the next thing that happens.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

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
    wire::{Rejected, Wire},
};

pub type TestHolder = Holder<Box<[Slot<Lease>]>, Box<[Slot<HolderPeer>]>, Box<[Slot<Ended>]>>;
pub type TestReader = Reader<Box<[Slot<Request>]>, Box<[Slot<Leg>]>, Box<[Slot<ReaderPeer<Vec<u8>>>]>, Vec<u8>>;

/// An event, owned, so that tests can look at it later.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Granted(String, Instant),
    Renewed(String, Instant),
    Freed { request: String, why: Freed, expires: Instant, now: Instant, previous_poll: Instant },
    Overdue(String),
    Drained,
    Refused(Option<String>, Refused),
    Rejected(Rejected),
    Foreign(Vec<u8>),
    Connected(String),
    OneWay(String),
    PeerLost(String),
    PeerRestarted(String),
    Heartbeat(u16, usize),
    Confirmed(String),
    Unproven(String),
    Lost(String, Lost),
    HolderDrains(String),
    ReadDone(String, Verdict),
    Resolved(String),
    Other(String),
}

fn seen(event: Event<'_>) -> Seen {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match event {
        Event::Granted { request, expires, .. } => Seen::Granted(request.to_string(), expires),
        Event::Renewed { request, expires } => Seen::Renewed(request.to_string(), expires),
        Event::Freed { request, why, expires, now, previous_poll, .. } => {
            Seen::Freed { request: request.to_string(), why, expires, now, previous_poll }
        }
        Event::Overdue { request } => Seen::Overdue(request.to_string()),
        Event::Drained => Seen::Drained,
        Event::Refused { request, why, .. } => Seen::Refused(request.map(text), why),
        Event::Rejected { why } => Seen::Rejected(why),
        Event::Foreign { bytes, .. } => Seen::Foreign(bytes.to_vec()),
        Event::Connected { engine } => Seen::Connected(text(engine)),
        Event::OneWay { engine } => Seen::OneWay(text(engine)),
        Event::PeerLost { engine } => Seen::PeerLost(text(engine)),
        Event::PeerRestarted { engine } => Seen::PeerRestarted(text(engine)),
        Event::HeartbeatSent { leases, bytes, .. } => Seen::Heartbeat(leases, bytes),
        Event::Confirmed { request, .. } => Seen::Confirmed(request.to_string()),
        Event::Unproven { request, .. } => Seen::Unproven(request.to_string()),
        Event::Lost { request, why, .. } => Seen::Lost(request.to_string(), why),
        Event::HolderDrains { request, .. } => Seen::HolderDrains(request.to_string()),
        Event::ReadDone { request, verdict, .. } => Seen::ReadDone(request.to_string(), verdict),
        Event::Resolved { request, .. } => Seen::Resolved(request.to_string()),
        other => Seen::Other(format!("{other:?}")),
    }
}

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
    config: Config,
    incarnations: u64,
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
        self.nodes.remove(name);
        self.incarnations += 1;
        let transport = self.fabric.endpoint();
        let incarnation = Incarnation(0x1000 + self.incarnations);
        let identity = Identity {
            engine: EngineId::try_from(name).unwrap(),
            incarnation,
            rank: 0,
            ranks: 1,
            clock: ClockId(self.incarnations),
            max_message: 65_536,
        };
        let mut frame = vec![0; 128];
        let length = Frame::encode(incarnation, transport.local_metadata(), &mut frame).unwrap();
        frame.truncate(length);
        let (terms, seed) = (self.terms(), [self.incarnations as u8; 16]);
        let node = Node {
            transport,
            holder: Holder::new(identity.clone(), terms.clone(), seed, boxed(slots), boxed(16), boxed(slots)),
            reader: Reader::new(identity.clone(), terms.clone(), seed, frame.clone(), boxed(slots), boxed(slots), boxed(16)),
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
        let (terms, world, request) = (self.terms(), self.now(), id(request));
        let params = Parameters {
            token,
            incarnation: identity.incarnation,
            engine: identity.engine.as_bytes(),
            ranks: 1,
            extension: terms.extension(),
            drift_ppm: terms.drift_ppm(),
            frames: frame,
        };
        self.node(node)
            .with(world, |_, at, cx| at.track(cx, Track { request: &request, params: &params, reader }, [(0, frame.to_vec())]))
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
        let (now, mut buffer) = (node.now(world), vec![0; 65_536]);
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

    /// Events of a node, in order, without their times.
    pub fn events(&self, node: &'static str) -> Vec<&Seen> {
        self.nodes[node].seen.iter().map(|(_, seen)| seen).collect()
    }

    pub fn saw(&self, node: &'static str, event: &Seen) -> bool {
        self.nodes[node].seen.iter().any(|(_, seen)| seen == event)
    }

    /// When and how a request's lease ended on a node.
    pub fn freed(&self, node: &'static str, request: &str) -> Option<(Instant, Freed)> {
        let mut all = self.nodes[node].seen.iter().filter_map(|(at, seen)| match seen {
            Seen::Freed { request: freed, why, .. } if freed == request => Some((*at, *why)),
            _ => None,
        });
        let first = all.next();
        assert_eq!(all.next(), None, "{request} was freed twice");
        first
    }

    pub fn verdict(&self, node: &'static str, request: &str) -> Option<Verdict> {
        self.nodes[node].seen.iter().find_map(|(_, seen)| match seen {
            Seen::ReadDone(read, verdict) if read == request => Some(*verdict),
            _ => None,
        })
    }

    pub fn lost(&self, node: &'static str, request: &str) -> Option<Lost> {
        self.nodes[node].seen.iter().find_map(|(_, seen)| match seen {
            Seen::Lost(lost, why) if lost == request => Some(*why),
            _ => None,
        })
    }
}
