//! What is under way on the fabric, and what goes wrong there.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    task::Waker,
};

use lease_proto::{
    id::Entropy,
    permits::Permits,
    time::{Duration, Instant},
    transport::{ErrorKind, Landed, PeerId, ReadId, Ticket},
};

use super::{EndpointId, MOST_BYTES_UNDER_WAY, MOST_UNDER_WAY, memory::Memories, reads::Reading};

/// One direction between two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// The sender.
    pub from: EndpointId,
    /// The receiver.
    pub to: EndpointId,
}

/// What happens to messages on a link from now on. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// They get lost.
    pub drop: bool,
    /// They wait until the fault is taken away, then arrive in a burst.
    pub hold: bool,
    /// They take so long.
    pub delay: Duration,
    /// Each arrives so many times more.
    pub duplicate: usize,
    /// Each may overtake the one before it.
    pub reorder: bool,
    /// So many may be under way; a further one is refused with `WouldBlock`.
    pub limit: Option<usize>,
    /// Neither messages nor connections get through: messages are lost, attempts and reads wait.
    pub cut: bool,
}

#[derive(Debug)]
pub(super) enum Arrived {
    Message { from: Option<PeerId>, bytes: Vec<u8> },
    Connected { ticket: Ticket, peer: PeerId },
    ConnectFailed { ticket: Ticket },
    PeerLost { peer: PeerId },
    ReadDone { read: ReadId, result: Result<Landed, ErrorKind> },
}

#[derive(Debug, Default)]
struct Endpoint {
    arrived: VecDeque<Arrived>,
    /// By time of arrival, then order of sending.
    under_way: BTreeMap<(Instant, u64), Sent>,
    connections: BTreeMap<PeerId, EndpointId>,
    /// Attempts that a cut link or a stopped peer keeps open.
    attempts: Vec<(Ticket, EndpointId)>,
    waker: Option<Waker>,
    stopped: bool,
    /// It serves reads itself, by these.
    permits: Option<Permits>,
}

#[derive(Clone, Debug)]
struct Sent {
    from: EndpointId,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) fault: Fault,
    drop_next: usize,
    held: Vec<Sent>,
    log: Vec<Vec<u8>>,
    /// The message that was sent last, if it may still be overtaken.
    last: Option<(Instant, u64)>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) now: Instant,
    pub(super) memories: Memories,
    pub(super) reads: Vec<Reading>,
    endpoints: BTreeMap<EndpointId, Endpoint>,
    lanes: HashMap<Link, Lane>,
    numbers: u64,
    generator: Entropy,
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Self {
            now: Instant::ZERO,
            memories: Memories::default(),
            reads: Vec::new(),
            endpoints: BTreeMap::new(),
            lanes: HashMap::new(),
            numbers: 0,
            generator: Entropy::from_seed(key),
        }
    }

    /// Time goes on, and what arrives by it wakes who waits for it.
    pub(super) fn advance_to(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.wake_who_has_mail();
    }

    pub(super) fn wake_who_has_mail(&mut self) {
        let waiting: Vec<EndpointId> = self.endpoints.keys().copied().filter(|id| self.has_mail(*id)).collect();
        for id in waiting {
            self.endpoints.get_mut(&id).into_iter().for_each(Endpoint::wake);
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn open(&mut self, permits: Option<Permits>) -> EndpointId {
        let id = EndpointId(self.number());
        self.endpoints.insert(id, Endpoint { permits, ..Endpoint::default() });
        id
    }

    /// By which permits an endpoint serves reads, if it does so itself.
    pub(super) fn permits(&self, id: EndpointId) -> Option<&Permits> {
        self.endpoints.get(&id)?.permits.as_ref()
    }

    pub(super) fn arrive(&mut self, at: EndpointId, arrived: Arrived) {
        if let Some(endpoint) = self.endpoints.get_mut(&at) {
            endpoint.arrive(arrived);
        }
    }

    /// The endpoint is gone; those connected to it are told.
    pub(super) fn close(&mut self, id: EndpointId) {
        self.endpoints.remove(&id);
        self.memories.forget(id);
        self.end_reads_of(id);
        for endpoint in self.endpoints.values_mut() {
            let lost: Vec<PeerId> = endpoint.connections.iter().filter(|(_, to)| **to == id).map(|(peer, _)| *peer).collect();
            for peer in lost {
                endpoint.connections.remove(&peer);
                endpoint.arrive(Arrived::PeerLost { peer });
            }
        }
        self.settle_all_attempts();
    }

    pub(super) fn connect(&mut self, from: EndpointId, to: EndpointId) -> Ticket {
        let ticket = Ticket(self.number());
        if let Some(endpoint) = self.endpoints.get_mut(&from) {
            endpoint.attempts.push((ticket, to));
        }
        self.settle_attempts(from);
        ticket
    }

    pub(super) fn cancel(&mut self, id: EndpointId, ticket: Ticket) {
        let Some(Endpoint { attempts, arrived, connections, .. }) = self.endpoints.get_mut(&id) else { return };
        attempts.retain(|(open, _)| *open != ticket);
        let done = arrived.iter().position(|arrived| match arrived {
            Arrived::Connected { ticket: done, .. } | Arrived::ConnectFailed { ticket: done } => *done == ticket,
            _ => false,
        });
        // Nobody will ever be told of this peer, so it must not be one.
        if let Some(Arrived::Connected { peer, .. }) = done.and_then(|at| arrived.remove(at)) {
            connections.remove(&peer);
            arrived.retain(|arrived| !matches!(arrived, Arrived::PeerLost { peer: lost } if *lost == peer));
        }
    }

    fn settle_all_attempts(&mut self) {
        let all: Vec<EndpointId> = self.endpoints.keys().copied().collect();
        all.into_iter().for_each(|from| self.settle_attempts(from));
    }

    /// Attempts over a cut link, or to who stands still, stay open; others succeed if there is somebody.
    fn settle_attempts(&mut self, from: EndpointId) {
        let attempts = self.endpoints.get_mut(&from).map(|endpoint| std::mem::take(&mut endpoint.attempts)).unwrap_or_default();
        for (ticket, to) in attempts {
            let cut = self.is_cut(from, to);
            let peer = PeerId(self.number());
            let there = self.endpoints.contains_key(&to);
            let stopped = self.endpoints.get(&to).is_some_and(|endpoint| endpoint.stopped);
            let Some(endpoint) = self.endpoints.get_mut(&from) else { return };
            if cut || stopped {
                endpoint.attempts.push((ticket, to));
            } else if there {
                endpoint.connections.insert(peer, to);
                endpoint.arrive(Arrived::Connected { ticket, peer });
            } else {
                endpoint.arrive(Arrived::ConnectFailed { ticket });
            }
        }
    }

    pub(super) fn stop(&mut self, id: EndpointId, stopped: bool) {
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.stopped = stopped;
        }
        self.settle_all_attempts();
    }

    pub(super) fn disconnect(&mut self, id: EndpointId, peer: PeerId) {
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.connections.remove(&peer);
        }
        self.end_reads_over(id, peer);
    }

    pub(super) fn peer(&self, id: EndpointId, peer: PeerId) -> Option<EndpointId> {
        self.endpoints.get(&id)?.connections.get(&peer).copied()
    }

    pub(super) fn send(&mut self, from: EndpointId, peer: PeerId, bytes: &[u8]) -> Result<(), ErrorKind> {
        let to = self.peer(from, peer).ok_or(ErrorKind::NotConnected)?;
        let link = Link { from, to };
        let sent = self.endpoints.get(&to).into_iter().flat_map(|endpoint| endpoint.under_way.values());
        let lengths = sent.filter(|sent| sent.from == from).map(|sent| sent.bytes.len());
        let (under_way, length) = lengths.fold((0, 0), |(count, sum), length| (count + 1, sum + length));
        let lane = self.lane(link);
        let limit = lane.fault.limit.unwrap_or(MOST_UNDER_WAY);
        if under_way + lane.held.len() >= limit || (under_way > 0 && length + bytes.len() > MOST_BYTES_UNDER_WAY) {
            return Err(ErrorKind::WouldBlock);
        }
        lane.log.push(bytes.to_vec());
        let sent = Sent { from, bytes: bytes.to_vec() };
        if lane.drop_next > 0 {
            lane.drop_next -= 1;
        } else if lane.fault.drop || lane.fault.cut {
        } else if lane.fault.hold {
            lane.held.push(sent);
        } else {
            self.dispatch(link, sent);
        }
        Ok(())
    }

    fn dispatch(&mut self, link: Link, sent: Sent) {
        let fault = self.lane(link).fault;
        for _ in 0..=fault.duplicate {
            let at = (self.now.saturating_add(fault.delay), self.number());
            let swap = fault.reorder && self.generator.draw().is_multiple_of(2);
            let last = self.lane(link).last.replace(at);
            let now = self.now;
            let Some(endpoint) = self.endpoints.get_mut(&link.to) else { return };
            endpoint.under_way.insert(at, sent.clone());
            if let Some(last) = last.filter(|last| swap && endpoint.under_way.contains_key(last))
                && let (Some(earlier), Some(later)) = (endpoint.under_way.remove(&last), endpoint.under_way.remove(&at))
            {
                endpoint.under_way.insert(last, later);
                endpoint.under_way.insert(at, earlier);
            }
            if endpoint.has_mail(now) {
                endpoint.wake();
            }
        }
    }

    pub(super) fn fault(&mut self, link: Link, fault: Fault) {
        let lane = self.lane(link);
        lane.fault = fault;
        let held = if fault.hold { Vec::new() } else { std::mem::take(&mut lane.held) };
        for sent in held {
            self.dispatch(link, sent);
        }
        for id in [link.from, link.to] {
            self.settle_attempts(id);
        }
        self.wake_who_has_mail();
    }

    pub(super) fn drop_next(&mut self, link: Link, count: usize) {
        self.lane(link).drop_next = count;
    }

    pub(super) fn replay(&mut self, link: Link, nth: usize) -> bool {
        let Some(bytes) = self.lane(link).log.get(nth).cloned() else { return false };
        self.dispatch(link, Sent { from: link.from, bytes });
        true
    }

    pub(super) fn inject(&mut self, to: EndpointId, bytes: &[u8]) {
        if let Some(endpoint) = self.endpoints.get_mut(&to) {
            endpoint.arrive(Arrived::Message { from: None, bytes: bytes.to_vec() });
        }
    }

    pub(super) fn poll(&mut self, id: EndpointId) -> Option<Arrived> {
        self.move_reads(id);
        let now = self.now;
        let endpoint = self.endpoints.get_mut(&id)?;
        if let Some(arrived) = endpoint.arrived.pop_front() {
            return Some(arrived);
        }
        let first = endpoint.under_way.first_entry().filter(|first| first.key().0 <= now)?;
        let Sent { from, bytes } = first.remove();
        let from = endpoint.connections.iter().find(|(_, to)| **to == from).map(|(peer, _)| *peer);
        Some(Arrived::Message { from, bytes })
    }

    pub(super) fn next_arrival(&self) -> Option<Instant> {
        let messages = self.endpoints.values().filter_map(|endpoint| endpoint.under_way.first_key_value());
        messages.map(|((at, _), _)| *at).chain(self.next_read()).min()
    }

    pub(super) fn register_waker(&mut self, id: EndpointId, waker: &Waker) {
        let mail = self.has_mail(id);
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.waker = Some(waker.clone());
            if mail {
                endpoint.wake();
            }
        }
    }

    pub(super) fn has_mail(&self, id: EndpointId) -> bool {
        self.endpoints.get(&id).is_some_and(|endpoint| endpoint.has_mail(self.now)) || self.has_reads(id)
    }

    /// Whether nothing gets through between the two, one way or the other.
    pub(super) fn is_cut(&self, one: EndpointId, other: EndpointId) -> bool {
        let links = [Link { from: one, to: other }, Link { from: other, to: one }];
        links.iter().any(|link| self.lanes.get(link).is_some_and(|lane| lane.fault.cut))
    }

    pub(super) fn lane(&mut self, link: Link) -> &mut Lane {
        self.lanes.entry(link).or_default()
    }
}

impl Endpoint {
    fn has_mail(&self, now: Instant) -> bool {
        !self.arrived.is_empty() || self.under_way.first_key_value().is_some_and(|((at, _), _)| *at <= now)
    }

    fn arrive(&mut self, arrived: Arrived) {
        self.arrived.push_back(arrived);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
