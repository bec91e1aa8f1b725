//! One worker of an engine: the real state machines, driven as every engine drives them, over the simulated network.

use std::{cell::RefCell, collections::VecDeque, rc::Rc, task::Waker};

use lease_proto::{
    counters::Counters,
    drive::{Drive, Engine, Machine, Turn},
    event::{Context, Event},
    frame::{Frame, HEADER},
    holder::{Ended, Holder, Lease, Peer as HolderPeer},
    id::{ClockId, EngineId, Entropy, Identity, Incarnation},
    reader::{Handle, Leg, Peer as ReaderPeer, Reader, Request},
    table::{Slot, boxed},
    time::{Duration, Instant},
    transport::{Capabilities, Control, ErrorKind, Incoming, PeerId, Ticket},
};
use rustc_hash::FxHashMap;

use super::{
    net::{Message, Net, Sender},
    queue::{Queue, Then},
    time::WorldTime,
    trace::Node,
    truth::Court,
};

pub(super) type Metadata = Rc<[u8]>;
pub(super) type SimHolder = Holder<Box<[Slot<Lease>]>, Box<[Slot<HolderPeer>]>, Box<[Slot<Ended>]>>;
pub(super) type SimReader = Reader<Box<[Slot<Request>]>, Box<[Slot<Leg>]>, Box<[Slot<ReaderPeer<Metadata>>]>, Metadata>;

/// Room for the tables of one worker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub(super) leases: usize,
    pub(super) ended: usize,
    pub(super) requests: usize,
    pub(super) legs: usize,
    pub(super) readers: usize,
    pub(super) holders: usize,
}

/// What waits for the worker's next turn.
#[derive(Debug)]
pub(super) enum Mail {
    Message(Message),
    Connected(Ticket, PeerId),
}

pub(super) struct Worker {
    pub(super) node: u32,
    pub(super) rank: u16,
    pub(super) sizes: Sizes,
    /// How often the process was started again.
    pub(super) life: u32,
    pub(super) incarnation: Incarnation,
    pub(super) holder: SimHolder,
    pub(super) reader: SimReader,
    drive: Drive,
    pub(super) counters: Counters,
    /// In its frame: how peers reach it.
    pub(super) metadata: Metadata,
    pub(super) mail: VecDeque<Mail>,
    /// Reads that have ended and wait to be seen.
    pub(super) landed: VecDeque<Handle>,
    connections: FxHashMap<PeerId, u32>,
    connected: u64,
    capabilities: Capabilities,
    /// When it wants its next turn, on its own clock.
    pub(super) next: Option<Instant>,
}

impl Worker {
    pub(super) fn new(world: (u64, u32), node: (u32, &Node), rank: u16, ranks: u16, life: u32, sizes: Sizes) -> Self {
        let ((seed, max_message), (number, node)) = (world, node);
        let incarnation = Incarnation(entropy(seed, number, 0, life, 0).draw());
        let identity = Identity {
            engine: EngineId::try_from(node.name.as_str()).unwrap_or_default(),
            incarnation,
            rank,
            ranks,
            clock: ClockId(u64::from(number) + 1),
            max_message,
        };
        let metadata: Metadata = framed(incarnation, number, rank).into();
        let seed = |purpose| seed_of(&mut entropy(seed, number, rank, life, purpose));
        Self {
            node: number,
            rank,
            sizes,
            life,
            incarnation,
            holder: Holder::new(
                identity.clone(),
                node.terms.clone(),
                seed(1),
                boxed(sizes.leases),
                boxed(sizes.readers),
                boxed(sizes.ended),
            ),
            reader: Reader::new(
                identity,
                node.terms.clone(),
                seed(2),
                Rc::clone(&metadata),
                boxed(sizes.requests),
                boxed(sizes.legs),
                boxed(sizes.holders),
            ),
            drive: Drive::new(&node.terms, max_message),
            counters: Counters::default(),
            metadata,
            mail: VecDeque::new(),
            landed: VecDeque::new(),
            connections: FxHashMap::default(),
            connected: 0,
            capabilities: Capabilities::notifications(max_message as usize),
            next: None,
        }
    }

    /// One turn of the engine's loop at a moment of its clock, which stands still meanwhile.
    pub(super) fn turn(
        &mut self,
        id: u32,
        local: Instant,
        at: WorldTime,
        surroundings: (&mut Net, &mut Queue, &RefCell<Court<'_, '_>>, &Addresses),
        buffer: &mut [u8],
    ) -> Turn {
        let (net, queue, court, addresses) = surroundings;
        let Self { holder, reader, drive, counters, mail, connections, connected, capabilities, life, node, sizes, .. } = self;
        let mut port = Port {
            me: Sender { worker: id, life: *life },
            node: *node,
            at,
            net,
            queue,
            court,
            addresses,
            mail,
            connections,
            connected,
            capabilities,
            current: Box::default(),
        };
        let mut told = |event: Event<'_>| court.borrow_mut().event(id, &event);
        // One without room has nothing to do.
        let machines: &mut [&mut dyn Machine] = match sizes {
            Sizes { requests: 0, .. } => &mut [holder],
            Sizes { leases: 0, .. } => &mut [reader],
            _ => &mut [holder, reader],
        };
        let engine = Engine { clock: &mut || local, counters, events: &mut told, buffer };
        let turn = drive.turn(&mut port, machines, engine, Duration::ZERO).unwrap_or(Turn { next: None, more: false });
        court.borrow_mut().handled(id);
        self.next = if turn.more { Some(local) } else { turn.next };
        turn
    }

    /// Calls the state machines as the engine does between two turns.
    pub(super) fn call<R>(
        &mut self,
        id: u32,
        local: Instant,
        court: &RefCell<Court<'_, '_>>,
        f: impl FnOnce(&mut SimHolder, &mut SimReader, &mut Context<'_>) -> R,
    ) -> R {
        let mut told = |event: Event<'_>| court.borrow_mut().event(id, &event);
        let cx = &mut Context { now: local, counters: &mut self.counters, events: &mut told };
        let result = f(&mut self.holder, &mut self.reader, cx);
        self.next = Some(local);
        result
    }
}

/// The first worker of every node, and how many it has.
#[derive(Debug)]
pub(super) struct Addresses(pub(super) Vec<(u32, u16)>);

impl Addresses {
    pub(super) fn worker(&self, node: u32, rank: u16) -> Option<u32> {
        let (first, count) = self.0.get(node as usize)?;
        (rank < *count).then(|| first + u32::from(rank))
    }

    /// The node of a worker.
    pub(super) fn node(&self, worker: u32) -> u32 {
        (self.0.partition_point(|(first, _)| *first <= worker) as u32).saturating_sub(1)
    }
}

/// The generator of one purpose of one life of a worker: all derive from the world's seed.
pub(super) fn entropy(seed: u64, node: u32, rank: u16, life: u32, purpose: u8) -> Entropy {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..10].copy_from_slice(&(node as u16).to_le_bytes());
    key[10..12].copy_from_slice(&rank.to_le_bytes());
    key[12..15].copy_from_slice(&life.to_le_bytes()[..3]);
    key[15] = purpose;
    Entropy::from_seed(key)
}

pub(super) fn seed_of(entropy: &mut Entropy) -> [u8; 16] {
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&entropy.draw().to_le_bytes());
    seed[8..].copy_from_slice(&entropy.draw().to_le_bytes());
    seed
}

/// Bytes of an address: node and rank.
const ADDRESS: usize = 6;

fn framed(incarnation: Incarnation, node: u32, rank: u16) -> Vec<u8> {
    let mut address = [0; ADDRESS];
    address[..4].copy_from_slice(&node.to_le_bytes());
    address[4..].copy_from_slice(&rank.to_le_bytes());
    let mut frame = vec![0; HEADER + ADDRESS];
    let length = Frame::encode(incarnation, &address, &mut frame).unwrap_or(0); // there is room for it
    frame.truncate(length);
    frame
}

/// The network as one worker sees it during one turn.
struct Port<'a, 'c, 's> {
    me: Sender,
    node: u32,
    at: WorldTime,
    net: &'a mut Net,
    queue: &'a mut Queue,
    court: &'a RefCell<Court<'c, 's>>,
    addresses: &'a Addresses,
    mail: &'a mut VecDeque<Mail>,
    connections: &'a mut FxHashMap<PeerId, u32>,
    connected: &'a mut u64,
    capabilities: &'a Capabilities,
    /// The message that was returned last.
    current: Box<[u8]>,
}

impl Control for Port<'_, '_, '_> {
    type Error = ErrorKind;

    fn capabilities(&self) -> &Capabilities {
        self.capabilities
    }

    fn local_metadata(&self) -> &[u8] {
        &[] // the engine has it in its frame
    }

    /// An address is all that it takes; whether somebody is there shows when he answers.
    fn connect(&mut self, metadata: Frame<'_>) -> Result<Ticket, ErrorKind> {
        let address: [u8; ADDRESS] = metadata.payload().try_into().map_err(|_| ErrorKind::Invalid)?;
        let [n0, n1, n2, n3, rank @ ..] = address;
        let (node, rank) = (u32::from_le_bytes([n0, n1, n2, n3]), u16::from_le_bytes(rank));
        let to = self.addresses.worker(node, rank).ok_or(ErrorKind::Invalid)?;
        *self.connected += 1;
        let (ticket, peer) = (Ticket(*self.connected), PeerId(*self.connected));
        self.connections.insert(peer, to);
        self.mail.push_back(Mail::Connected(ticket, peer));
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.mail.retain(|mail| !matches!(mail, Mail::Connected(open, _) if *open == ticket));
        self.connections.remove(&PeerId(ticket.0));
    }

    fn notify(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), ErrorKind> {
        if bytes.len() > self.capabilities.max_notification {
            return Err(ErrorKind::TooLarge);
        }
        let to = *self.connections.get(&peer).ok_or(ErrorKind::NotConnected)?;
        self.court.borrow_mut().sent(self.me.worker, bytes);
        let link = (self.node, self.addresses.node(to));
        let message = Message { from: Some(self.me), to, bytes: bytes.into() };
        let queue = &mut *self.queue;
        self.net.send(self.at, link, message, &mut |at, number| queue.push(at, Then::Deliver(number)));
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Incoming<'_>>, ErrorKind> {
        Ok(match self.mail.pop_front() {
            None => None,
            Some(Mail::Connected(ticket, peer)) => Some(Incoming::Connected { ticket, peer }),
            Some(Mail::Message(message)) => {
                self.court.borrow_mut().delivered(self.me.worker, &message);
                let from = message.from.map(told_apart);
                self.current = message.bytes;
                Some(Incoming::Notification { from, bytes: &self.current })
            }
        })
    }

    fn flush(&mut self, _: Duration) -> Result<(), ErrorKind> {
        Ok(())
    }

    fn in_flight(&self, _: PeerId) -> usize {
        0 // what is accepted has left
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.connections.remove(&peer);
    }

    fn register_waker(&mut self, _: &Waker) -> Result<(), ErrorKind> {
        Err(ErrorKind::Unsupported) // the world knows when to poll
    }

    fn next_timeout(&self) -> Option<Duration> {
        None
    }
}

/// The fabric tells senders apart, as an agent's name does: each life of each worker is one.
fn told_apart(sender: Sender) -> PeerId {
    PeerId(1 << 63 | u64::from(sender.life) << 32 | u64::from(sender.worker))
}
