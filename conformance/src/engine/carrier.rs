//! Engines that carry bytes themselves: the depths of adoption at which the agent is the engine's.

use gpu_mem::Memory;
use lease_proto::{
    drive::{ConnectRequest, Handled, Machine, Transmit},
    event::{Context, Event},
    frame::Frame,
    time::{Duration, Instant},
    transport::{Data, Error as _, ErrorKind, Incoming, PeerId, Ticket},
    wire::{Message, decode},
};

use super::{EngineError, rank::Rank, transport_error};

/// How bytes come and go where the agent is the engine's.
pub enum Carrier<T> {
    /// Depth 2: before each turn the engine hands to the borrowed transport what its agent received.
    HandsIn(HandIn<T>),
    /// Depth 1: the engine passes bytes between its agent and the protocol by hand; the transport only connects, and reads.
    ByHand(Box<dyn Hand<T>>),
}

/// See [`Carrier::HandsIn`].
pub type HandIn<T> = Box<dyn FnMut(&mut T) -> Result<(), EngineError>>;

/// What an engine's own agent does with bytes.
pub trait Hand<T> {
    /// What it received since it was last asked.
    ///
    /// # Errors
    /// The agent's.
    fn receive(&mut self) -> Result<Vec<Vec<u8>>, EngineError>;

    /// Sends to a peer of the transport's.
    ///
    /// # Errors
    /// What the agent says, as a transport would.
    fn send(&mut self, transport: &T, to: PeerId, bytes: &[u8]) -> Result<(), ErrorKind>;
}

impl<T: Data<Memory = Memory>> Rank<T> {
    /// One turn without `Drive`, as an engine writes it that has no transport: the five steps of lease-proto's README.
    pub(super) fn turn_by_hand(&mut self, hand: &mut dyn Hand<T>) -> Result<Option<Duration>, EngineError> {
        let Self { transport, clock, ear, holder, reader, counters, buffer, .. } = self;
        let wire = holder.terms().wire();
        let mut hear = |event: Event<'_>| ear.hear(&event, clock());
        let cx = &mut Context { now: clock(), counters, events: &mut hear };
        let machines: &mut [&mut dyn Machine] = &mut [holder, reader];
        for bytes in hand.receive()? {
            cx.now = clock();
            match decode(wire, &bytes) {
                Ok(Message::Foreign(bytes)) => (cx.events)(Event::Foreign { from: None, bytes }),
                Ok(message) => {
                    for machine in machines.iter_mut() {
                        match machine.handle(cx, None, message, buffer) {
                            Handled::NotMine => continue,
                            Handled::Done => {}
                            Handled::Answer(answer) => send(hand, transport, *machine, cx, &answer, buffer),
                            Handled::Connect { key, metadata } => {
                                machine.connecting(cx, key, connect(transport, metadata));
                            }
                        }
                        break;
                    }
                }
                Err(why) => (cx.events)(Event::Rejected { why }),
            }
        }
        while let Some(incoming) = transport.poll().map_err(transport_error)? {
            cx.now = clock();
            if let Some(nobodys) = settle(machines, cx, incoming) {
                transport.disconnect(nobodys);
            }
        }
        for machine in machines.iter_mut() {
            cx.now = clock();
            machine.handle_timeout(cx); // only now: a beat that waited rescues its lease
            while let Some(ticket) = machine.poll_cancel() {
                transport.cancel(ticket);
            }
            while let Some(peer) = machine.poll_disconnect() {
                transport.disconnect(peer);
            }
            while let Some(ConnectRequest { key, metadata }) = machine.poll_connect(cx) {
                let attempt = connect(transport, metadata);
                machine.connecting(cx, key, attempt);
            }
            while let Some(transmit) = machine.poll_transmit(cx, buffer) {
                send(hand, transport, *machine, cx, &transmit, buffer);
                cx.now = clock(); // a renew's stamp is taken before it is handed over
            }
        }
        transport.flush(super::rank::FLUSH).map_err(transport_error)?;
        let now = clock();
        let due = |next: Option<Instant>| next.map(|next| next.saturating_since(now));
        let timers = machines.iter().filter_map(|machine| due(machine.next_timeout()));
        Ok(timers.chain(transport.next_timeout()).min())
    }
}

/// Returns a connection that no machine has asked for.
fn settle(machines: &mut [&mut dyn Machine], cx: &mut Context<'_>, incoming: Incoming<'_>) -> Option<PeerId> {
    let (mut taken, mut of) = (false, None);
    match incoming {
        Incoming::Connected { ticket, peer } => {
            of = Some(peer);
            taken = machines.iter_mut().any(|machine| machine.resolved(cx, ticket, Ok(peer)));
        }
        Incoming::ConnectFailed { ticket, kind } => {
            taken = machines.iter_mut().any(|machine| machine.resolved(cx, ticket, Err(kind)));
        }
        Incoming::PeerLost { peer } => taken = machines.iter_mut().any(|machine| machine.peer_lost(cx, peer)),
        Incoming::ReadDone { read, result } => (cx.events)(Event::ReadLanded { read, outcome: result.into() }),
        _ => {} // bytes come by hand
    }
    of.filter(|_| !taken)
}

fn connect<T: Data>(transport: &mut T, metadata: &[u8]) -> Result<Ticket, ErrorKind> {
    let frame = Frame::decode(metadata).map_err(|_| ErrorKind::Invalid)?;
    transport.connect(frame).map_err(|error| error.kind())
}

fn send<T>(
    hand: &mut dyn Hand<T>,
    transport: &T,
    machine: &mut dyn Machine,
    cx: &mut Context<'_>,
    transmit: &Transmit,
    buffer: &[u8],
) {
    let bytes = buffer.get(..transmit.length).ok_or(ErrorKind::TooLarge);
    let sent = bytes.and_then(|bytes| hand.send(transport, transmit.to, bytes));
    machine.sent(cx, transmit, sent);
}
