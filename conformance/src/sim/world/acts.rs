//! What a node is told to do.

use std::{ops::Range, rc::Rc};

use lease_proto::{
    config::LONGEST_LEASE,
    event::Refused,
    holder::{Abort, Grant as Granting},
    id::{ReaderRank, RequestId, Token},
    params::Parameters,
    reader::{Handle, Track},
    time::{Duration, PeerInstant},
    wire::Wire,
};

use super::World;
use crate::sim::{
    line::Line,
    net::{Message, Sender},
    queue::Then,
    time::WorldTime,
    trace::Action,
    truth::{Grant, State, Tracked},
    worker::{Mail, Worker},
};

impl World<'_, '_> {
    /// A node does as it is told, or tells why not. `line` is where it is told.
    pub(in crate::sim) fn act(&mut self, node: u32, line: usize, action: &Action) {
        match action {
            Action::Crash => return self.crash(node),
            Action::Restart => self.restart(node),
            Action::Stall { until } => self.stall(node, *until),
            Action::Suspend { until, counted } => self.suspend(node, *until, *counted),
            Action::Drift { ppm } => {
                let now = self.now;
                self.court.get_mut().clocks[node as usize].drift(now, *ppm);
            }
            _ if self.nodes[node as usize].crashed => return,
            Action::Grant { request, consumers, ttl } => self.grant(node, line, request, *consumers, *ttl),
            Action::Expect { request } => self.expect(node, request),
            Action::Abort { request } => self.abort(node, request),
            Action::Drain { within } => self.drain(node, *within),
            Action::Enqueue { request, from, grant, reader, of } => {
                let grant = match grant {
                    Some(line) => self.nodes[*from].granted.get(line).cloned(),
                    None => self.court.borrow().grants.latest(*from as u32, request),
                };
                self.enqueue(node, request, grant, *reader, *of);
            }
            Action::Read { request, takes, fails } => self.read(node, request, *takes, *fails),
            Action::Finish { request } if self.finish(node, request) == 0 => self.refuse(node, request, Refused::Unknown),
            Action::Finish { .. } => {}
            Action::Release { request } => self.release(node, request),
            Action::Receive { bytes, from } => self.receive(node, bytes, *from),
        }
        self.schedule(node);
    }

    fn refuse(&mut self, node: u32, request: &str, why: Refused) {
        let first = self.workers_of(node).start;
        self.say(first, Line { event: "refused", request: Some(request), why: Some(why.name()), ..Line::default() });
    }

    /// The workers of a node that hold leases; the first is the authority.
    fn holders(&self, node: u32) -> Range<u32> {
        let first = self.workers_of(node).start;
        first..first + u32::from(self.spec.nodes[node as usize].ranks)
    }

    /// The request's id, unless it is too long for any wire.
    fn id(&mut self, node: u32, request: &str) -> Option<RequestId> {
        let id = RequestId::try_from(request).ok();
        if id.is_none() {
            self.refuse(node, request, Refused::IdNotEncodable);
        }
        id
    }

    fn grant(&mut self, node: u32, line: usize, request: &str, consumers: Option<u16>, ttl: Option<Duration>) {
        let Some(id) = self.id(node, request) else { return };
        let holders = self.holders(node);
        let announced = self.nodes[node as usize].announced.remove(request);
        let token = announced.unwrap_or_else(|| self.workers[holders.start as usize].holder.mint());
        let ends = self.local(node).saturating_add(ttl.unwrap_or(LONGEST_LEASE).min(LONGEST_LEASE));
        let exported = ttl.is_some() && self.spec.wire == Wire::Vllm;
        let deadline = exported.then(|| PeerInstant::from_nanos(ends.as_nanos()));
        let grant = self.new_grant(node, request, token, deadline);
        let grant = Rc::new(self.court.get_mut().grants.continued(grant));
        self.court.get_mut().grants.know(&grant);
        let mut granted = false;
        for worker in holders {
            let asked = Granting { request: &id, token, consumers, ttl };
            let taken = self.call(worker, |holder, _, cx| holder.grant(cx, asked)).is_ok();
            granted |= taken;
            self.court.get_mut().mark(worker, token, ttl.is_some(), false);
            if taken {
                self.court.get_mut().holds_for(worker, token, request, ttl);
            }
        }
        let court = self.court.get_mut();
        match granted {
            true => court.grants.add(&grant),
            false => court.not_granted(&grant),
        }
        if granted && court.remembers() {
            self.nodes[node as usize].granted.insert(line, grant);
        }
    }

    fn new_grant(&self, node: u32, request: &str, token: Token, deadline: Option<PeerInstant>) -> Grant {
        let first = &self.workers[self.workers_of(node).start as usize];
        let metadata = self.holders(node).map(|worker| Rc::clone(&self.workers[worker as usize].metadata)).collect();
        Grant::new((node, first.life, first.incarnation), request, token, metadata, deadline)
    }

    fn expect(&mut self, node: u32, request: &str) {
        let Some(id) = self.id(node, request) else { return };
        let holders = self.holders(node);
        let token = self.workers[holders.start as usize].holder.mint();
        let mut taken = false;
        for worker in holders {
            taken |= self.call(worker, |holder, _, cx| holder.expect(cx, &id, token)).is_ok();
        }
        if taken {
            let grant = Rc::new(self.new_grant(node, request, token, None));
            self.court.get_mut().grants.add(&grant);
            self.nodes[node as usize].announced.insert(request.into(), token);
        }
    }

    fn abort(&mut self, node: u32, request: &str) {
        let mut found = self.finish(node, request);
        if let Ok(id) = RequestId::try_from(request) {
            for worker in self.holders(node) {
                let holder = &self.workers[worker as usize].holder;
                let Some(token) = holder.leased(&id).or_else(|| holder.announced(&id)) else { continue };
                found += 1;
                self.court.get_mut().mark(worker, token, false, true);
                let aborted = self.call(worker, |holder, _, cx| holder.abort(cx, token, Abort::Cancelled));
                debug_assert!(aborted.is_ok(), "it is there");
            }
        }
        if found == 0 {
            self.refuse(node, request, Refused::Unknown);
        }
    }

    fn drain(&mut self, node: u32, within: Duration) {
        for worker in self.holders(node) {
            self.call(worker, |holder, _, cx| holder.drain(cx, within));
            self.court.get_mut().draining(worker, within);
        }
    }

    /// A request arrives in the queue of one rank.
    fn enqueue(&mut self, node: u32, request: &str, grant: Option<Rc<Grant>>, reader: u16, of: u16) {
        let Some(id) = self.id(node, request) else { return };
        let (Some(grant), Some(rank)) = (grant, ReaderRank::new(reader, of)) else {
            return self.refuse(node, request, Refused::Unknown); // no parameters to come with
        };
        let worker = self.workers_of(node).start + u32::from(reader);
        if self.track(worker, &id, &grant, rank).is_some() {
            self.ask_clock(worker, &grant);
        }
    }

    fn track(&mut self, worker: u32, id: &RequestId, grant: &Rc<Grant>, reader: ReaderRank) -> Option<Handle> {
        let holder = &self.spec.nodes[grant.node as usize];
        let params = Parameters {
            token: grant.token,
            incarnation: grant.incarnation,
            engine: holder.name.as_bytes(),
            ranks: holder.ranks,
            extension: holder.terms.extension(),
            drift_ppm: holder.terms.drift_ppm(),
            frames: &[], // each rank's is handed in beside
            regions: &[],
        };
        let track = Track { request: id, params: &params, reader };
        let targets = (0..).zip(grant.metadata.iter().cloned());
        let handle = self.call(worker, |_, machine, cx| machine.track(cx, track, targets)).ok()?;
        self.court.get_mut().tracked(worker, handle, Tracked::new(Rc::clone(grant), reader.rank(), reader.of()));
        Some(handle)
    }

    /// Every rank of the node is done with the request; how many there were.
    fn finish(&mut self, node: u32, request: &str) -> usize {
        let mut found = 0;
        for worker in self.workers_of(node) {
            for handle in self.court.get_mut().handles(worker, request).to_vec() {
                found += 1;
                self.finish_one(worker, handle);
            }
        }
        found
    }

    fn finish_one(&mut self, worker: u32, handle: Handle) {
        let court = self.court.get_mut();
        // A read that runs stays the transport's until it ends.
        match court.desk_mut(worker).tracked.get_mut(&handle) {
            Some(tracked) if tracked.state == State::Waiting => court.done(worker, handle),
            Some(Tracked { state: State::Reading, read: Some(read), .. }) => read.abandoned = true,
            _ => {}
        }
        let finished = self.call(worker, |_, reader, cx| reader.finish(cx, handle));
        debug_assert!(finished.is_ok(), "it is tracked");
    }

    /// A router has seen the token of the latest grant of that id, whoever made it.
    fn release(&mut self, node: u32, request: &str) {
        let Some(id) = self.id(node, request) else { return };
        let Some(grant) = self.court.borrow().grants.newest(request) else {
            return self.refuse(node, request, Refused::Unknown);
        };
        let worker = self.workers_of(node).start;
        if let Some(handle) = self.track(worker, &id, &grant, ReaderRank::ONLY) {
            self.finish_one(worker, handle);
        }
    }

    fn receive(&mut self, node: u32, bytes: &[u8], from: Option<usize>) {
        let to = self.workers_of(node).start;
        let sender = from.map(|node| self.workers_of(node as u32).start);
        let from = sender.map(|worker| Sender { worker, life: self.workers[worker as usize].life });
        self.workers[to as usize].mail.push_back(Mail::Message(Message { from, to, bytes: bytes.into() }));
    }

    fn stall(&mut self, node: u32, until: WorldTime) {
        let state = &mut self.nodes[node as usize];
        state.stalled = state.stalled.max(until);
    }

    fn suspend(&mut self, node: u32, until: WorldTime, counted: bool) {
        self.stall(node, until);
        if !counted {
            let now = self.now;
            self.court.get_mut().clocks[node as usize].stop(now, true);
            self.nodes[node as usize].suspended = self.nodes[node as usize].suspended.max(until);
            self.queue.push(until, Then::Resume(node));
        }
    }

    pub(super) fn resume(&mut self, node: u32) {
        if self.nodes[node as usize].suspended <= self.now {
            let now = self.now;
            self.court.get_mut().clocks[node as usize].stop(now, false);
            self.schedule(node);
        }
    }

    fn crash(&mut self, node: u32) {
        let state = &mut self.nodes[node as usize];
        if core::mem::replace(&mut state.crashed, true) {
            return;
        }
        state.due = None;
        state.stalled = WorldTime::ZERO;
        state.announced.clear();
        // Whoever takes its place runs on a clock that goes.
        if core::mem::take(&mut state.suspended) > self.now {
            let now = self.now;
            self.court.get_mut().clocks[node as usize].stop(now, false);
        }
        for id in self.workers_of(node) {
            self.court.get_mut().crashed(id);
            let worker = &mut self.workers[id as usize];
            worker.mail.clear();
            worker.landed.clear();
            worker.next = None;
        }
    }

    /// A new incarnation on the same addresses; one that still ran dies first.
    fn restart(&mut self, node: u32) {
        self.crash(node);
        self.nodes[node as usize].crashed = false;
        let count = self.workers_of(node).len() as u16;
        for id in self.workers_of(node) {
            let Worker { rank, life, sizes, .. } = self.workers[id as usize];
            let whole = (self.spec.seed, self.spec.max_notification);
            let spec = &self.spec.nodes[node as usize];
            self.workers[id as usize] = Worker::new(whole, (node, spec), rank, count, life + 1, sizes);
            self.court.get_mut().restarted(id);
        }
    }
}
