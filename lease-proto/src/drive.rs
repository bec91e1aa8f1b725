//! One turn of an engine's loop, in the one right order; every crate that drives the protocol uses [`Drive::turn`].
//!
//! 1. Drain the transport; each message is handed in with a clock value read AFTER the transport returned it.
//! 2. Then, and only then, let things expire: a beat that waited in the queue rescues its lease.
//! 3. Connect, build what is due, hand it over. The stamp of a renew is read before it is handed over.
//! 4. Flush. What did not leave counts as not sent.

use heapless::Vec;

use crate::{
    config::Terms,
    counters::{Counters, add},
    event::{Context, Event},
    frame::Frame,
    time::{Duration, Instant},
    transport::{Control, ErrorKind, Incoming, PeerId, Ticket},
    wire::{self, Message, Rejected, Wire},
};

/// Messages taken in per turn before the turn goes on.
const MESSAGES_PER_TURN: usize = 4096;
/// Beats per turn that are followed up after the flush; more than this many count as sent when accepted.
const FOLLOWED: usize = 64;

/// A state machine of the protocol, as a turn drives it: the holder, the reader, or both side by side.
pub trait Machine {
    /// Takes a message in. An answer lies in `out`.
    fn handle<'m>(&mut self, cx: &mut Context<'_>, from: Option<PeerId>, message: Message<'m>, out: &mut [u8]) -> Handled<'m>;

    /// Lets things expire.
    fn handle_timeout(&mut self, cx: &mut Context<'_>);

    /// When [`Machine::handle_timeout`] may have something to do. Never late.
    fn next_timeout(&self) -> Option<Instant>;

    /// The next message that is due, built into `out`.
    fn poll_transmit(&mut self, cx: &mut Context<'_>, out: &mut [u8]) -> Option<Transmit>;

    /// What became of a [`Transmit`], answers included. `WouldBlock` after `Ok` means that it has not left this process yet.
    fn sent(&mut self, cx: &mut Context<'_>, transmit: &Transmit, result: Result<(), ErrorKind>);

    /// The next peer to connect to; [`Machine::connecting`] tells how that began.
    fn poll_connect(&mut self, cx: &mut Context<'_>) -> Option<ConnectRequest<'_>>;

    /// A connection attempt began, or could not.
    fn connecting(&mut self, cx: &mut Context<'_>, key: u32, attempt: Result<Ticket, ErrorKind>);

    /// A connection attempt ended; `false` if it is not this machine's.
    fn resolved(&mut self, cx: &mut Context<'_>, ticket: Ticket, result: Result<PeerId, ErrorKind>) -> bool;

    /// The fabric reports a peer dead; `false` if it is not this machine's.
    fn peer_lost(&mut self, cx: &mut Context<'_>, peer: PeerId) -> bool;

    /// The next connection attempt to give up.
    fn poll_cancel(&mut self) -> Option<Ticket>;

    /// The next connection to close.
    fn poll_disconnect(&mut self) -> Option<PeerId>;
}

/// What a machine did with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled<'m> {
    /// It is for another machine.
    NotMine,
    /// Nothing is to be sent.
    Done,
    /// Send this answer.
    Answer(Transmit),
    /// Connect back to who sent it, then call [`Machine::connecting`].
    Connect {
        /// The machine's number for the peer.
        key: u32,
        /// The peer's metadata, in its frame.
        metadata: &'m [u8],
    },
}

/// A peer to connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest<'a> {
    /// The machine's number for the peer.
    pub key: u32,
    /// The peer's metadata, in its frame.
    pub metadata: &'a [u8],
}

/// A message to hand over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// To this connection.
    pub to: PeerId,
    /// Bytes of the buffer.
    pub length: usize,
    /// The machine's number for the peer.
    pub key: u32,
    /// What it is.
    pub sent: Sent,
}

/// What a message to hand over is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// An answer or a notice: sent once, best effort.
    Answer,
    /// A hello or a question: repeated by its own timer.
    Greeting,
    /// A renew of this many leases.
    Heartbeat {
        /// How many leases it names.
        leases: u16,
    },
    /// A completion or release of the machine's entry with this number.
    Closing {
        /// The entry.
        leg: u32,
    },
}

/// What a turn needs of the engine.
pub struct Engine<'a> {
    /// The clock, read several times a turn.
    pub clock: &'a mut dyn FnMut() -> Instant,
    /// Where things are counted.
    pub counters: &'a mut Counters,
    /// Where events go.
    pub events: &'a mut dyn FnMut(Event<'_>),
    /// Room for the largest message to send.
    pub buffer: &'a mut [u8],
}

impl core::fmt::Debug for Engine<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// What a turn found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// When the next turn is due even if nothing arrives.
    pub next: Option<Instant>,
    /// Whether messages are left: take the next turn at once.
    pub more: bool,
}

/// The state between turns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Drive {
    wire: Wire,
    max_message: usize,
    /// A gap between turns longer than this makes the next one drain to the bottom first.
    stall: Duration,
    grace: Duration,
    last: Option<Instant>,
    /// While the queue is not known to be empty, nothing expires before this.
    drain_until: Option<Instant>,
}

impl Drive {
    /// Drives machines that live by `terms` and take messages of up to `max_message` bytes.
    pub fn new(terms: &Terms, max_message: u32) -> Self {
        Self {
            wire: terms.wire(),
            max_message: max_message as usize,
            stall: terms.extension().scale(1, 4),
            grace: terms.drain_grace(),
            last: None,
            drain_until: None,
        }
    }

    /// One turn. `flush` bounds the time spent on flushing.
    ///
    /// # Errors
    /// What [`Control::poll`] and [`Control::flush`] return. The machines have kept their state; take the next turn.
    pub fn turn<T: Control>(
        &mut self,
        transport: &mut T,
        machines: &mut [&mut dyn Machine],
        engine: Engine<'_>,
        flush: Duration,
    ) -> Result<Turn, T::Error> {
        let Engine { clock, counters, events, buffer } = engine;
        let mut work = Work { drive: self, transport, machines, clock, counters, events, buffer };
        if broken!(ExpiresBeforeDraining) {
            work.expire(false);
        }
        // What the transport reports does not stop time: leases end all the same (law 2).
        let taken = work.take_in();
        work.expire(taken.as_ref().is_ok_and(|more| *more));
        let more = taken?;
        work.connect();
        work.hand_over(flush)?;
        let next = work.machines.iter().filter_map(|machine| machine.next_timeout()).min();
        let transport_next = work.transport.next_timeout();
        let now = (work.clock)();
        let next = next.into_iter().chain(transport_next.map(|within| now.saturating_add(within))).min();
        self.last = Some(now);
        Ok(Turn { next, more })
    }
}

/// One turn's borrowed things.
struct Work<'a, 'm, T> {
    drive: &'a mut Drive,
    transport: &'a mut T,
    machines: &'a mut [&'m mut dyn Machine],
    clock: &'a mut dyn FnMut() -> Instant,
    counters: &'a mut Counters,
    events: &'a mut dyn FnMut(Event<'_>),
    buffer: &'a mut [u8],
}

macro_rules! context {
    ($work:ident) => {
        &mut Context { now: ($work.clock)(), counters: &mut *$work.counters, events: &mut *$work.events }
    };
}

impl<T: Control> Work<'_, '_, T> {
    /// Takes messages in until the transport is empty; `true` if the turn's budget ended first.
    fn take_in(&mut self) -> Result<bool, T::Error> {
        let start = (self.clock)();
        let stalled = self.drive.last.is_some_and(|last| start.saturating_since(last) > self.drive.stall);
        // After a stall one empty poll may only mean that the transport has not caught up.
        let (mut empty, enough) = (0u8, if stalled { 2 } else { 1 });
        let until = *self.drive.drain_until.get_or_insert(start.saturating_add(self.drive.grace));
        for taken in 0.. {
            let incoming = self.transport.poll()?;
            let now = (self.clock)();
            let told = if broken!(StaleNow) { self.drive.last.unwrap_or(now) } else { now };
            let cx = &mut Context { now: told, counters: self.counters, events: self.events };
            match incoming {
                None => empty = empty.saturating_add(1),
                Some(Incoming::Notification { from, bytes }) => {
                    empty = 0;
                    let limit = self.drive.max_message;
                    let action = read(self.drive.wire, limit, self.machines, cx, from, bytes, self.buffer);
                    self.act(action);
                }
                Some(other) => {
                    empty = 0;
                    if let Some(peer) = settle(self.machines, cx, other) {
                        self.transport.disconnect(peer);
                    }
                }
            }
            if empty >= enough {
                self.drive.drain_until = None;
                return Ok(false);
            }
            if taken >= MESSAGES_PER_TURN || now >= until {
                break;
            }
        }
        Ok(true)
    }

    /// Lets things expire, unless the queue may still hold what rescues them.
    fn expire(&mut self, more: bool) {
        if more && self.drive.drain_until.is_some_and(|until| (self.clock)() < until) {
            return;
        }
        self.drive.drain_until = None;
        for machine in self.machines.iter_mut() {
            machine.handle_timeout(context!(self));
        }
    }

    fn connect(&mut self) {
        for machine in self.machines.iter_mut() {
            while let Some(ticket) = machine.poll_cancel() {
                self.transport.cancel(ticket);
            }
            while let Some(peer) = machine.poll_disconnect() {
                self.transport.disconnect(peer);
            }
            while let Some(ConnectRequest { key, metadata }) = machine.poll_connect(context!(self)) {
                let attempt = connect(self.transport, metadata);
                machine.connecting(context!(self), key, attempt);
            }
        }
    }

    fn hand_over(&mut self, flush: Duration) -> Result<(), T::Error> {
        let mut followed = Vec::<(usize, Transmit), FOLLOWED>::new();
        for (at, machine) in self.machines.iter_mut().enumerate() {
            while let Some(transmit) = machine.poll_transmit(context!(self), self.buffer) {
                let result = notify(self.transport, &transmit, self.buffer);
                let cx = context!(self);
                if let Err(kind) = result {
                    failed(cx, kind);
                } else if matches!(transmit.sent, Sent::Heartbeat { .. }) {
                    let _ = followed.push((at, transmit)); // full: the rest counts as sent when accepted
                }
                machine.sent(cx, &transmit, result);
            }
        }
        self.transport.flush(flush)?;
        for (at, transmit) in &followed {
            if self.transport.in_flight(transmit.to) > 0
                && let Some(machine) = self.machines.get_mut(*at)
            {
                machine.sent(context!(self), transmit, Err(ErrorKind::WouldBlock));
            }
        }
        Ok(())
    }

    fn act(&mut self, action: Action) {
        let (at, result) = match action {
            Action::None => return,
            Action::Answer { at, transmit } => {
                let result = notify(self.transport, &transmit, self.buffer);
                let cx = context!(self);
                if let Err(kind) = result {
                    failed(cx, kind);
                }
                if let Some(machine) = self.machines.get_mut(at) {
                    machine.sent(cx, &transmit, result);
                }
                return;
            }
            Action::Connect { at, key, length } => {
                let metadata = self.buffer.get(..length).unwrap_or_default();
                (at, (key, if length == 0 { Err(ErrorKind::TooLarge) } else { connect(self.transport, metadata) }))
            }
        };
        if let Some(machine) = self.machines.get_mut(at) {
            machine.connecting(context!(self), result.0, result.1);
        }
    }
}

/// What is left to do when the message's bytes are given back to the transport.
enum Action {
    None,
    Answer {
        at: usize,
        transmit: Transmit,
    },
    /// The metadata lies in the buffer.
    Connect {
        at: usize,
        key: u32,
        length: usize,
    },
}

fn read(
    wire: Wire,
    limit: usize,
    machines: &mut [&mut dyn Machine],
    cx: &mut Context<'_>,
    from: Option<PeerId>,
    bytes: &[u8],
    buffer: &mut [u8],
) -> Action {
    let message = match wire::decode(wire, bytes) {
        Ok(Message::Foreign(bytes)) => {
            add(&mut cx.counters.foreign);
            cx.emit(Event::Foreign { from, bytes });
            return Action::None;
        }
        // vLLM's beats hold all ids and have no upper size.
        Ok(Message::Native { .. }) if bytes.len() > limit => {
            cx.reject(Rejected::TooLarge);
            return Action::None;
        }
        Ok(message) => message,
        Err(why) => {
            cx.reject(why);
            return Action::None;
        }
    };
    for (at, machine) in machines.iter_mut().enumerate() {
        return match machine.handle(cx, from, message, buffer) {
            Handled::NotMine => continue,
            Handled::Done => Action::None,
            Handled::Answer(transmit) => Action::Answer { at, transmit },
            Handled::Connect { key, metadata } => {
                let length = match buffer.get_mut(..metadata.len()) {
                    Some(room) => {
                        room.copy_from_slice(metadata);
                        metadata.len()
                    }
                    None => 0,
                };
                Action::Connect { at, key, length }
            }
        };
    }
    // Nobody here holds such conversations.
    cx.reject(Rejected::StaleSession);
    Action::None
}

/// Tells whose it is, or the engine; a connection that nobody wants any more is given back to be closed.
fn settle(machines: &mut [&mut dyn Machine], cx: &mut Context<'_>, incoming: Incoming<'_>) -> Option<PeerId> {
    if let Incoming::ReadDone { read, result } = incoming {
        cx.emit(Event::ReadLanded { read, outcome: result.into() });
    }
    let taken = machines.iter_mut().any(|machine| match incoming {
        Incoming::Connected { ticket, peer } => machine.resolved(cx, ticket, Ok(peer)),
        Incoming::ConnectFailed { ticket, kind } => machine.resolved(cx, ticket, Err(kind)),
        Incoming::PeerLost { peer } => machine.peer_lost(cx, peer),
        Incoming::Notification { .. } | Incoming::ReadDone { .. } => true,
    });
    match incoming {
        Incoming::Connected { peer, .. } if !taken => Some(peer),
        _ => None,
    }
}

fn connect<T: Control>(transport: &mut T, metadata: &[u8]) -> Result<Ticket, ErrorKind> {
    let frame = Frame::decode(metadata).map_err(|_| ErrorKind::Invalid)?;
    transport.connect(frame).map_err(|error| crate::transport::Error::kind(&error))
}

fn notify<T: Control>(transport: &mut T, transmit: &Transmit, buffer: &[u8]) -> Result<(), ErrorKind> {
    let bytes = buffer.get(..transmit.length).ok_or(ErrorKind::TooLarge)?;
    transport.notify(transmit.to, bytes).map_err(|error| crate::transport::Error::kind(&error))
}

fn failed(cx: &mut Context<'_>, kind: ErrorKind) {
    if kind != ErrorKind::WouldBlock {
        add(&mut cx.counters.transport_errors);
        cx.emit(Event::TransportError { kind });
    }
}
