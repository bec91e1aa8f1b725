//! The seven laws, each held against what is true.

use std::{collections::hash_map::Entry, rc::Rc};

use lease_proto::{
    config::LONGEST_LEASE,
    event::{Freed, Refused, Verdict},
    id::Token,
    reader::Handle,
    time::{Duration, Instant},
    wire::{
        self, Message as Decoded, Wire,
        native::{Body, Renew, Renewed},
    },
};

use super::{
    Court,
    lease::{LeaseTruth, ReadTruth, State},
};
use crate::sim::{net::Sender, trace::Node};

impl Court<'_, '_> {
    pub(super) fn granted(&mut self, worker: u32, request: &str, number: u64, expires: Instant) {
        let desk = self.desk_mut(worker);
        desk.live += 1;
        if !self.checks {
            return;
        }
        let lease = LeaseTruth {
            request: request.into(),
            expires,
            promised: None,
            promised_to: None,
            renewed: false,
            fixed: false,
            stopped: false,
            ended: None,
        };
        let twice = match self.leases(worker).entry(number) {
            Entry::Occupied(_) => true,
            Entry::Vacant(vacant) => {
                vacant.insert(lease);
                false
            }
        };
        if twice {
            self.violation(worker, 6, Some(request), "the number of a lease was used before");
        }
    }

    pub(super) fn renewed(&mut self, worker: u32, request: &str, number: u64, expires: Instant) {
        let (wire, asker) = (self.wire, self.asker(worker));
        self.desk_mut(worker).current.met += 1;
        if !self.checks {
            return;
        }
        self.obeys(worker, request);
        let longest = self.local(worker).saturating_add(self.node_of(worker).terms.extension());
        let Some(lease) = self.leases(worker).get_mut(&number) else {
            return self.violation(worker, 6, Some(request), "renewed, but never granted");
        };
        let before = lease.expires;
        (lease.expires, lease.renewed) = (before.max(expires), true);
        if wire == Wire::Vllm {
            // Nothing is answered: what the renewal gives is all there is to a promise.
            lease.promised = Some(lease.promised.map_or(expires, |promised| promised.max(expires)));
            lease.promised_to = asker;
        }
        let broken = match lease {
            LeaseTruth { ended: Some(_), .. } => Some((6, "renewed after its end")),
            LeaseTruth { stopped: true, .. } => Some((1, "renewed after it was taken back")),
            LeaseTruth { fixed: true, .. } if expires != before => Some((2, "a renewal moved a fixed time to live")),
            _ if expires > before.max(longest) => Some((2, "a renewal holds the lease for longer than the extension")),
            _ if expires < before => Some((3, "a renewal shortened the lease")),
            _ => None,
        };
        if let Some((law, detail)) = broken {
            self.violation(worker, law, Some(request), detail);
        }
    }

    pub(super) fn freed(&mut self, worker: u32, request: &str, number: u64, why: Freed) {
        let desk = self.desk_mut(worker);
        desk.live = desk.live.saturating_sub(1);
        if !self.checks {
            return self.forget(worker, number);
        }
        if why == Freed::Expired {
            self.desk_mut(worker).expired.push((number, request.into()));
        }
        let (local, wire) = (self.local(worker), self.wire);
        let (polled, terms) = (self.desk(worker).polled, &self.node_of(worker).terms);
        let holds = terms.hold_until_ack();
        let Some(lease) = self.leases(worker).get(&number) else {
            return self.violation(worker, 6, Some(request), "freed, but never granted");
        };
        if lease.ended.is_some() {
            return self.violation(worker, 6, Some(request), "freed twice");
        }
        let (promised, to, expires) = (lease.promised, lease.promised_to, lease.expires);
        let closed = matches!(why, Freed::Completed | Freed::Released);
        if let Some(promised) = promised.filter(|promised| local < *promised) {
            // Whoever knows an id may complete it on vLLM's wire.
            let kept = closed && (wire == Wire::Vllm || to.is_none_or(|to| self.reader_is_done(worker, number, to)));
            if !kept {
                let detail = format!(
                    "freed as {} at {local}, promised until {promised} on the holder's clock, and a rank that reads it is not done",
                    why.name()
                );
                self.violation(worker, 1, Some(request), &detail);
            }
        }
        if !holds && polled >= expires {
            let detail = format!("ran out at {expires} on the holder's clock, was live after the poll at {polled}");
            self.violation(worker, 2, Some(request), &detail);
        }
        self.ended(worker, number, Some(why));
    }

    /// The blocks of a lease are given away, or gone with their process (`why` is `None`).
    pub(super) fn ended(&mut self, worker: u32, number: u64, why: Option<Freed>) {
        let end = (self.now, self.step, why);
        if let Some(lease) = self.leases(worker).get_mut(&number) {
            lease.ended = Some(end);
        }
    }

    pub(super) fn refused(&mut self, worker: u32, token: Option<Token>, request: Option<&str>, why: Refused) {
        self.desk_mut(worker).current.met += 1;
        if !self.checks {
            return;
        }
        let named = |number: &u64, name: &str| token.map_or(request == Some(name), |token| token.number == *number);
        if why == Refused::Expired && self.desk(worker).expired.iter().any(|(number, name)| named(number, name)) {
            self.violation(worker, 5, request, "expired in the turn in which its renewal or completion waited");
        }
        // Tombstones remember how a lease ended.
        if let (Refused::Unknown, Some(token)) = (why, token)
            && self.grant_of(worker, token).is_some()
            && let Some(lease) = self.leases(worker).get(&token.number)
            && let Some((at, _, Some(Freed::Expired | Freed::Aborted | Freed::Drained | Freed::Revoked))) = lease.ended
            && self.now.since(at) < self.node_of(worker).terms.tombstone_ttl().scale(9, 10)
        {
            self.violation(worker, 6, request, "refused as unknown while its end must be remembered");
        }
    }

    /// A read is called valid (law 4): every rank that was read from must have held its lease until after the true end.
    pub(super) fn judged_valid(&mut self, worker: u32, handle: Handle, verdict: Verdict) {
        let Some(tracked) = self.desk(worker).tracked.get(&handle) else { return };
        if !self.checks {
            return;
        }
        let (grant, read) = (Rc::clone(&tracked.grant), tracked.read);
        let request = Some(&*grant.request);
        if self.wire == Wire::Vllm {
            self.violation(worker, 4, request, "valid on vLLM's wire, where nothing proves it");
        }
        let well = |read: &ReadTruth| !read.fails && !read.abandoned;
        let Some((ended, step)) = read.filter(well).and_then(|read| read.ended) else {
            return self.violation(worker, 4, request, "valid, but no read of it ended well");
        };
        for rank in 0..grant.metadata.len() {
            let Some((holder, freed)) = self.end_on(&grant, rank) else { continue };
            let (at, freed_step, why) = freed;
            // What is over at the very instant of the end may be so because of the end, or the holder answered first.
            let closed = matches!(why, Some(Freed::Completed | Freed::Released));
            let after = freed_step > step && (closed || verdict == Verdict::ValidByCompletion);
            if at < ended || (at == ended && !after) {
                let name = &self.node_of(holder).name;
                let how = why.map_or("lost_in_crash", Freed::name);
                let again = if self.granted_again(holder, &grant) { ", granted again since" } else { "" };
                let detail = format!("called valid; read until {ended}, but freed as {how} by {name} at {at}{again}");
                self.violation(worker, 4, request, &detail);
            }
        }
    }

    /// How and when the lease of that rank ended, if it did: the worker, and the end.
    fn end_on(&self, grant: &super::Grant, rank: usize) -> Option<(u32, super::lease::End)> {
        let holder = self.desks.iter().position(|desk| desk.node == grant.node && usize::from(desk.rank) == rank)?;
        let lease = self.desks[holder].leases.get(grant.life as usize)?.get(&grant.token.number)?;
        Some((holder as u32, lease.ended?))
    }

    fn granted_again(&self, holder: u32, grant: &super::Grant) -> bool {
        let later = |number: &u64| *number > grant.token.number;
        self.desk(holder).leases.get(grant.life as usize).is_some_and(|leases| leases.keys().any(later))
    }

    /// A rank of a reader is done with a request: it reads it no more.
    pub(in crate::sim) fn done(&mut self, worker: u32, handle: Handle) {
        let local = self.local(worker);
        let desk = self.desk_mut(worker);
        let me = (desk.node, desk.life);
        let Some(tracked) = desk.tracked.get_mut(&handle) else { return };
        tracked.state = State::Over;
        tracked.closed.get_or_insert(local);
        let bit = 1 << tracked.reader;
        let mut done = tracked.grant.done.borrow_mut();
        match done.iter_mut().find(|done| (done.0, done.1, done.2) == (me.0, me.1, tracked.of)) {
            Some(done) => done.3 |= bit,
            None => done.push((me.0, me.1, tracked.of, bit)),
        }
    }

    fn reader_is_done(&self, worker: u32, number: u64, reader: Sender) -> bool {
        let desk = self.desk(worker);
        let node = self.desk(reader.worker).node;
        self.grants.get(desk.node, desk.life, number).is_some_and(|grant| grant.all_done(node, reader.life))
    }

    /// A worker hands a message over: promises are what a reader is told.
    pub(in crate::sim) fn sent(&mut self, worker: u32, bytes: &[u8]) {
        if !self.checks || self.wire == Wire::Vllm {
            return;
        }
        let Ok(Decoded::Native { body, .. }) = wire::decode(Wire::Native, bytes) else { return };
        self.speaks(worker, &body);
        let Body::Renewed(renewed) = body else { return };
        let Some(asked) = self.desk_mut(worker).current.message.take() else { return };
        if let Ok(Decoded::Native { body: Body::Renew(renew), .. }) = wire::decode(Wire::Native, &asked.bytes) {
            self.promised(worker, &renew, &renewed, asked.from);
        }
        self.desk_mut(worker).current.message = Some(asked);
    }

    fn promised(&mut self, worker: u32, renew: &Renew<'_>, renewed: &Renewed<'_>, to: Option<Sender>) {
        let local = self.local(worker);
        let leases = self.leases(worker);
        let mut beyond = None;
        let mut exceptions = renewed.exceptions.iter().peekable();
        for (index, token) in renew.tokens.iter().enumerate() {
            let exception = exceptions.next_if(|(exception, _)| usize::from(*exception) == index);
            let Ok(granted) = exception.map_or(Ok(renewed.granted), |(_, what)| what) else { continue };
            if let Some(lease) = leases.get_mut(&token.number).filter(|_| granted > Duration::ZERO) {
                let until = local.saturating_add(granted);
                if until > lease.expires {
                    beyond = Some((Rc::clone(&lease.request), until, lease.expires));
                }
                if lease.promised.is_none_or(|promised| promised < until) {
                    (lease.promised, lease.promised_to) = (Some(until), to);
                }
            }
        }
        if let Some((request, until, expires)) = beyond {
            let detail = format!("promised until {until} on the holder's clock, but it ends at {expires}");
            self.violation(worker, 3, Some(&request), &detail);
        }
    }

    /// A grant holds for its time to live, no less and no more.
    pub(in crate::sim) fn holds_for(&mut self, worker: u32, token: Token, request: &str, ttl: Option<Duration>) {
        if !self.checks {
            return;
        }
        let ttl = ttl.unwrap_or(self.node_of(worker).terms.lease()).min(LONGEST_LEASE);
        let due = self.local(worker).saturating_add(ttl);
        let expires = self.leases(worker).get(&token.number).map(|lease| lease.expires);
        if expires.is_some_and(|expires| expires != due) {
            let detail = "a grant does not hold for its time to live";
            self.violation(worker, 2, Some(request), detail);
        }
    }

    /// The machines have done with the message they had in hand.
    pub(in crate::sim) fn handled(&mut self, worker: u32) {
        if !self.checks {
            return;
        }
        let current = core::mem::take(&mut self.desk_mut(worker).current);
        if !current.rejected && current.met < current.asked {
            let detail = format!("a renew of {} leases, {} of them renewed or refused", current.asked, current.met);
            self.violation(worker, 5, None, &detail);
        }
    }

    /// A worker's turn is over.
    pub(in crate::sim) fn turned(&mut self, worker: u32, holds: u32, tracks: u32, more: bool) {
        let local = self.local(worker);
        let desk = self.desk_mut(worker);
        // With messages left the poll goes on, for `drain_grace` at most: nothing need have expired yet.
        desk.more = more;
        if !more {
            desk.polled = local;
        }
        desk.expired.clear();
        let (live, open) = (desk.live, desk.open);
        if (live, open) != (holds, tracks) && !core::mem::replace(&mut desk.told, true) {
            let detail = format!("holds {holds} leases and tracks {tracks} requests, but {live} and {open} are not over");
            self.violation(worker, 6, None, &detail);
        }
    }

    /// The worker's loop came round then and found nothing to do.
    pub(in crate::sim) fn polled(&mut self, worker: u32, at: Instant) {
        let desk = self.desk_mut(worker);
        desk.polled = desk.polled.max(at);
    }

    /// The world ends: what should be over by now?
    pub(in crate::sim) fn closing(&mut self, worker: u32, running: bool) {
        let (local, node) = (self.local(worker), self.node_of(worker));
        if !self.checks || !running || self.desk(worker).more {
            return;
        }
        let (poll, holds) = (node.poll, node.terms.hold_until_ack());
        let patience = node.terms.lost_after().saturating_mul(2).saturating_add(poll.saturating_mul(2));
        for (number, request) in self.live_leases(worker) {
            let expires = self.leases(worker).get(&number).map_or(Instant::MAX, |lease| lease.expires);
            if !holds && expires.saturating_add(poll) < local {
                let detail = format!("ran out at {expires} on the holder's clock, is live at {local}");
                self.violation(worker, 2, Some(&request), &detail);
            }
        }
        let late = |closed: Option<Instant>| closed.is_some_and(|closed| closed.saturating_add(patience) < local);
        let desk = self.desk(worker);
        let mut open: Vec<_> = desk.tracked.iter().filter(|(_, tracked)| late(tracked.closed)).collect();
        open.sort_by_key(|(handle, _)| **handle);
        let open: Vec<Rc<str>> = open.into_iter().map(|(_, tracked)| Rc::clone(&tracked.grant.request)).collect();
        for request in open {
            self.violation(worker, 6, Some(&request), "its reader was done with it long ago, and it is not resolved");
        }
    }

    /// The live leases of a worker, in the order of their grants.
    pub(super) fn live_leases(&self, worker: u32) -> Vec<(u64, Rc<str>)> {
        let desk = self.desk(worker);
        let leases = desk.leases.get(desk.life as usize).into_iter().flatten();
        let mut live: Vec<_> = leases
            .filter(|(_, lease)| lease.ended.is_none())
            .map(|(number, lease)| (*number, Rc::clone(&lease.request)))
            .collect();
        live.sort_unstable();
        live
    }

    /// The engine took a lease back, or gave it a fixed time to live.
    pub(in crate::sim) fn mark(&mut self, worker: u32, token: Token, fixed: bool, stopped: bool) {
        if let Some(lease) = self.leases(worker).get_mut(&token.number) {
            lease.fixed |= fixed;
            lease.stopped |= stopped;
        }
    }

    /// The engine shuts down: what nobody ever renewed ends by then.
    pub(in crate::sim) fn draining(&mut self, worker: u32, within: Duration) {
        let deadline = self.local(worker).saturating_add(within);
        for lease in self.leases(worker).values_mut().filter(|lease| !lease.renewed) {
            lease.expires = lease.expires.min(deadline);
        }
    }

    /// The request of a token, if it is one of this worker's.
    pub(super) fn request_of(&self, worker: u32, token: Token) -> Option<Rc<str>> {
        self.grant_of(worker, token).map(|grant| Rc::clone(&grant.request))
    }

    fn grant_of(&self, worker: u32, token: Token) -> Option<&Rc<super::Grant>> {
        let desk = self.desk(worker);
        self.grants.get(desk.node, desk.life, token.number).filter(|grant| grant.token == token)
    }

    /// Without checks nothing is remembered of a lease that is over.
    fn forget(&mut self, worker: u32, number: u64) {
        let desk = self.desk(worker);
        if let Some(grant) = self.grants.get(desk.node, desk.life, number).map(Rc::clone) {
            self.grants.forget(&grant);
        }
    }

    fn leases(&mut self, worker: u32) -> &mut rustc_hash::FxHashMap<u64, LeaseTruth> {
        let desk = &mut self.desks[worker as usize];
        &mut desk.leases[desk.life as usize]
    }

    fn node_of(&self, worker: u32) -> &Node {
        &self.nodes[self.desk(worker).node as usize]
    }
}
