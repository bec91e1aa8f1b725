//! What is true in a world, beside what its nodes believe: every event passes here, is printed, and is held against the laws.
//!
//! Truth comes from outside of the state machines wherever it can: promises are read off the wire, reads end when the world ends
//! them, a lease is over when its blocks are given away or its process dies.

mod laws;
mod lease;
mod sessions;

use std::rc::Rc;

use lease_proto::{event::Event, id::Session, reader::Handle, time::Instant, wire::Wire};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    line::{Line, Sink},
    net::{Message, Sender},
    time::{NodeClock, WorldTime},
    trace::Node,
};
use lease::{Current, LeaseTruth};
pub(super) use lease::{Grant, ReadTruth, State, Tracked};

/// The court that hears everything.
pub(super) struct Court<'c, 's> {
    pub(super) nodes: &'c [Node],
    wire: Wire,
    /// Whether the laws are checked; without, nothing is remembered of what is over.
    checks: bool,
    pub(super) clocks: Vec<NodeClock>,
    pub(super) now: WorldTime,
    /// One more at each event: tells before from after within an instant.
    step: u64,
    pub(super) desks: Vec<Desk>,
    pub(super) grants: Grants,
    sink: Sink<'s>,
}

/// Grants by node, life and number, and the latest of each request.
#[derive(Default)]
pub(super) struct Grants {
    all: FxHashMap<(u32, u32, u64), Rc<Grant>>,
    /// By node and request, and by request.
    latest: FxHashMap<(u32, Rc<str>), Rc<Grant>>,
    newest: FxHashMap<Rc<str>, Rc<Grant>>,
}

/// What is known of one worker.
#[derive(Default)]
pub(super) struct Desk {
    pub(super) node: u32,
    pub(super) rank: u16,
    pub(super) life: u32,
    live: u32,
    open: u32,
    /// Its clock at its last turn.
    polled: Instant,
    current: Current,
    /// Those that its present life gave to others.
    sessions: FxHashSet<Session>,
    /// By life, then number.
    leases: Vec<FxHashMap<u64, LeaseTruth>>,
    pub(super) tracked: FxHashMap<Handle, Tracked>,
    by_request: FxHashMap<Rc<str>, Vec<Handle>>,
    /// Leases that expired in the turn under way.
    expired: Vec<(u64, Rc<str>)>,
    /// Its turn has left messages.
    more: bool,
    /// A mismatch of counts is told once.
    told: bool,
}

impl<'c, 's> Court<'c, 's> {
    pub(super) fn new(nodes: &'c [Node], wire: Wire, workers: &[(u32, u16)], checks: bool, sink: Sink<'s>) -> Self {
        let leases = || vec![FxHashMap::default()];
        let desk = |(node, rank): &(u32, u16)| Desk { node: *node, rank: *rank, leases: leases(), ..Desk::default() };
        Self {
            nodes,
            wire,
            checks,
            clocks: nodes.iter().map(|node| NodeClock::new(node.clock, node.drift_ppm)).collect(),
            now: WorldTime::ZERO,
            step: 0,
            desks: workers.iter().map(desk).collect(),
            grants: Grants::default(),
            sink,
        }
    }

    /// Whether it remembers what is over.
    pub(super) fn remembers(&self) -> bool {
        self.checks
    }

    /// Nothing came of a grant.
    pub(super) fn not_granted(&mut self, grant: &Grant) {
        if !self.checks {
            self.grants.forget(grant);
        }
    }

    /// What the clock of a worker's node shows now.
    pub(super) fn local(&self, worker: u32) -> Instant {
        self.clock_of(worker).local(self.now)
    }

    fn clock_of(&self, worker: u32) -> &NodeClock {
        &self.clocks[self.desk(worker).node as usize]
    }

    /// A step of its own, for something that is not printed.
    pub(super) fn step(&mut self) -> u64 {
        self.step += 1;
        self.step
    }

    pub(super) fn desk(&self, worker: u32) -> &Desk {
        &self.desks[worker as usize]
    }

    pub(super) fn desk_mut(&mut self, worker: u32) -> &mut Desk {
        &mut self.desks[worker as usize]
    }

    /// Prints a line about a worker.
    pub(super) fn say(&mut self, worker: u32, line: Line<'_>) {
        let mut line = line; // it lives for no longer than this
        self.step += 1;
        let node = &self.nodes[self.desks[worker as usize].node as usize];
        (line.at, line.node) = (self.now, Some(node.name.as_str()));
        (self.sink)(&line);
    }

    /// A law is broken.
    pub(super) fn violation(&mut self, worker: u32, law: u8, request: Option<&str>, detail: &str) {
        self.say(worker, Line { event: "violation", law: Some(law), request, detail: Some(detail), ..Line::default() });
    }

    /// A machine tells something.
    pub(super) fn event(&mut self, worker: u32, event: &Event<'_>) {
        match event {
            Event::Granted { request, token, expires } => {
                self.say_lease(worker, "granted", text(request.as_bytes()), *expires);
                self.granted(worker, text(request.as_bytes()), token.number, *expires);
            }
            Event::Renewed { request, token, expires } => {
                self.say_lease(worker, "renewed", text(request.as_bytes()), *expires);
                self.renewed(worker, text(request.as_bytes()), token.number, *expires);
            }
            Event::Freed { request, token, why, .. } => {
                let request = text(request.as_bytes());
                let line = Line { event: "freed", request: Some(request), reason: Some(why.name()), ..Line::default() };
                self.say(worker, line);
                self.freed(worker, request, token.number, *why);
            }
            Event::Refused { request, token, why } => {
                let named = token.and_then(|token| self.request_of(worker, token));
                let given = request.map(String::from_utf8_lossy);
                let request = given.as_deref().or(named.as_deref());
                self.say(worker, Line { event: "refused", request, why: Some(why.name()), ..Line::default() });
                self.refused(worker, *token, request, *why);
            }
            Event::Rejected { why } => {
                self.desk_mut(worker).current.rejected = true;
                self.say(worker, Line { event: "rejected", why: Some(why.name()), ..Line::default() });
            }
            Event::Connected { engine } => self.say_peer(worker, "connected", engine),
            Event::OneWay { engine } => self.say_peer(worker, "one_way", engine),
            Event::PeerLost { engine } => self.say_peer(worker, "peer_lost", engine),
            Event::PeerRestarted { engine } => self.say_peer(worker, "peer_restarted", engine),
            Event::HeartbeatSent { engine, leases, bytes } => {
                let peer = String::from_utf8_lossy(engine);
                let (leases, bytes) = (Some(*leases), Some(*bytes));
                let line = Line { event: "heartbeat_sent", peer: Some(&peer), leases, bytes, ..Line::default() };
                self.say(worker, line);
            }
            Event::Confirmed { request, .. } => {
                self.say_request(worker, "confirmed", request.as_bytes());
                self.obeys(worker, text(request.as_bytes()));
            }
            Event::Unproven { request, .. } => self.say_request(worker, "unproven", request.as_bytes()),
            Event::Lost { request, handle, why } => {
                let request = Some(text(request.as_bytes()));
                self.say(worker, Line { event: "lost", request, why: Some(why.name()), ..Line::default() });
                self.lost(worker, *handle);
            }
            Event::ReadDone { request, handle, verdict } => {
                let (request, proof) = (Some(text(request.as_bytes())), verdict.proof());
                let line = Line { event: "read_done", request, verdict: Some(verdict.word()), proof, ..Line::default() };
                self.say(worker, line);
                if verdict.is_valid() {
                    self.judged_valid(worker, *handle, *verdict);
                }
            }
            Event::Resolved { handle, .. } => self.resolved(worker, *handle),
            _ => {} // not for traces
        }
    }

    fn say_lease(&mut self, worker: u32, event: &'static str, request: &str, expires: Instant) {
        let expires = self.clock_of(worker).world(expires);
        self.say(worker, Line { event, request: Some(request), expires, ..Line::default() });
    }

    fn say_peer(&mut self, worker: u32, event: &'static str, engine: &[u8]) {
        self.say(worker, Line { event, peer: Some(&String::from_utf8_lossy(engine)), ..Line::default() });
    }

    fn say_request(&mut self, worker: u32, event: &'static str, request: &[u8]) {
        self.say(worker, Line { event, request: Some(text(request)), ..Line::default() });
    }

    /// A reader's request is over.
    fn resolved(&mut self, worker: u32, handle: Handle) {
        let desk = self.desk_mut(worker);
        let Some(tracked) = desk.tracked.remove(&handle) else { return };
        desk.open -= 1;
        if let Some(handles) = desk.by_request.get_mut(&*tracked.grant.request) {
            handles.retain(|other| *other != handle);
            if handles.is_empty() {
                desk.by_request.remove(&*tracked.grant.request);
            }
        }
    }

    /// What is lost while it waits will not be read.
    fn lost(&mut self, worker: u32, handle: Handle) {
        if self.desk(worker).tracked.get(&handle).is_some_and(|tracked| tracked.state == State::Waiting) {
            self.done(worker, handle);
        }
    }

    /// A request is tracked from now on.
    pub(super) fn tracked(&mut self, worker: u32, handle: Handle, tracked: Tracked) {
        let desk = self.desk_mut(worker);
        desk.by_request.entry(Rc::clone(&tracked.grant.request)).or_default().push(handle);
        desk.tracked.insert(handle, tracked);
        desk.open += 1;
    }

    /// The handles of a request, the earliest first.
    pub(super) fn handles(&self, worker: u32, request: &str) -> &[Handle] {
        self.desk(worker).by_request.get(request).map_or(&[], Vec::as_slice)
    }

    /// A message is handed to a worker's machines.
    pub(super) fn delivered(&mut self, worker: u32, message: &Message) {
        if self.checks {
            self.handled(worker);
            self.desk_mut(worker).current = Current::of(self.wire, message);
        }
    }

    /// Whose message a worker's machines have in hand.
    fn asker(&self, worker: u32) -> Option<Sender> {
        self.desk(worker).current.message.as_ref().and_then(|message| message.from)
    }

    /// The process of a worker has died: what it held is gone.
    pub(super) fn crashed(&mut self, worker: u32) {
        for (number, request) in self.live_leases(worker) {
            let line = Line { event: "freed", request: Some(&request), reason: Some("lost_in_crash"), ..Line::default() };
            self.say(worker, line);
            self.ended(worker, number, None);
        }
        let desk = self.desk_mut(worker);
        desk.tracked.clear();
        desk.by_request.clear();
        desk.current = Current::default();
        (desk.live, desk.open) = (0, 0);
    }

    /// It lives again, and knows nothing.
    pub(super) fn restarted(&mut self, worker: u32) {
        let desk = self.desk_mut(worker);
        desk.life += 1;
        desk.leases.push(FxHashMap::default());
        desk.sessions.clear();
        desk.polled = Instant::ZERO;
    }
}

impl Grants {
    /// What was announced under that token is granted now: who is done with it stays so.
    pub(super) fn continued(&self, grant: Grant) -> Grant {
        match self.get(grant.node, grant.life, grant.token.number) {
            Some(announced) if announced.token == grant.token => Grant { done: Rc::clone(&announced.done), ..grant },
            _ => grant,
        }
    }

    /// A grant is tried.
    pub(super) fn know(&mut self, grant: &Rc<Grant>) {
        self.all.insert((grant.node, grant.life, grant.token.number), Rc::clone(grant));
    }

    /// A request was granted or announced.
    pub(super) fn add(&mut self, grant: &Rc<Grant>) {
        self.know(grant);
        self.latest.insert((grant.node, Rc::clone(&grant.request)), Rc::clone(grant));
        self.newest.insert(Rc::clone(&grant.request), Rc::clone(grant));
    }

    /// The latest grant of a request, whoever made it.
    pub(super) fn newest(&self, request: &str) -> Option<Rc<Grant>> {
        self.newest.get(request).cloned()
    }

    pub(super) fn latest(&self, node: u32, request: &str) -> Option<Rc<Grant>> {
        self.latest.get(&(node, Rc::from(request))).cloned()
    }

    fn get(&self, node: u32, life: u32, number: u64) -> Option<&Rc<Grant>> {
        self.all.get(&(node, life, number))
    }

    fn forget(&mut self, grant: &Grant) {
        self.all.remove(&(grant.node, grant.life, grant.token.number));
        let key = (grant.node, Rc::clone(&grant.request));
        let same = |known: &Rc<Grant>| (known.node, known.life, known.token) == (grant.node, grant.life, grant.token);
        if self.latest.get(&key).is_some_and(same) {
            self.latest.remove(&key);
        }
        if self.newest.get(&grant.request).is_some_and(same) {
            self.newest.remove(&grant.request);
        }
    }
}

/// Requests of a trace are text.
fn text(request: &[u8]) -> &str {
    std::str::from_utf8(request).unwrap_or("?")
}
