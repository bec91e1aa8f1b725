//! The thread's side: commands into UCX, arrivals out of it, and sleep.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, atomic::Ordering},
};

use lease_proto::{
    frame::Frame,
    sync::queue::{Consumer, PopError, Producer},
    time::Duration,
    transport::{Control as _, Error as _, ErrorKind, Incoming, Landed, PeerId, ReadId, Ticket},
};

use super::{
    doorbell::{Doorbell, readable, sleep},
    shared::{Arrival, Command, Load, Shared, Wanted},
};
use crate::{UcxError, UcxTransport, regions::RemoteRegion};

/// Commands, and arrivals, that one round takes: neither waits for a long run of the other.
const ROUND: usize = 64;

pub(super) struct Progress {
    // Dropped in this order: a thread that fails takes no commands by the time it is heard of, which is before UCX is closed.
    commands: Consumer<Command>,
    arrivals: Producer<Arrival>,
    shared: Arc<Shared>,
    doorbell: Doorbell,
    transport: UcxTransport,
    links: HashMap<u64, Link>,
    /// The handle's numbers by the transport's, which are the same for an attempt and its connection.
    numbers: HashMap<u64, u64>,
    /// Attempts that wait until closing connections have made room.
    waiting: VecDeque<(u64, Vec<u8>, Arc<Load>)>,
    /// Reads by the transport's numbers: the handle's number, and the load that they are part of.
    reads: HashMap<u64, (u64, Arc<Load>)>,
    /// What failed here, not yet told.
    failed: VecDeque<Arrival>,
    /// Numbers of links with something in flight.
    busy: Vec<u64>,
}

/// A connection, or an attempt, that the transport knows as `key`.
struct Link {
    key: u64,
    connected: bool,
    load: Arc<Load>,
    /// Of the load, what the transport had in flight when it was last asked: operations and bytes.
    handed: (usize, usize),
}

/// Why a round of arrivals is over.
#[derive(PartialEq, Eq)]
enum Taken {
    /// All of it.
    All,
    /// A round's worth.
    Some,
    /// The handle has not polled: nothing more is taken from UCX.
    HeldBack,
}

impl Progress {
    pub(super) fn new(
        transport: UcxTransport,
        commands: Consumer<Command>,
        arrivals: Producer<Arrival>,
        shared: Arc<Shared>,
    ) -> Result<Self, UcxError> {
        Ok(Self {
            commands,
            arrivals,
            shared,
            doorbell: Doorbell::new()?,
            transport,
            links: HashMap::new(),
            numbers: HashMap::new(),
            waiting: VecDeque::new(),
            reads: HashMap::new(),
            failed: VecDeque::new(),
            busy: Vec::new(),
        })
    }

    /// Until the handle is dropped and all its commands are carried out.
    pub(super) fn run(&mut self) -> Result<(), UcxError> {
        loop {
            let open = self.obey();
            self.connect_waiting();
            let taken = self.deliver()?;
            self.settle();
            self.shared.refused.store(self.transport.refused(), Ordering::Release);
            match taken {
                _ if !open => return Ok(()),
                Taken::Some => {}
                Taken::All => self.sleep()?,
                Taken::HeldBack => self.sleep_held_back()?,
            }
        }
    }

    /// Carries commands out. `false` once there will be none any more.
    fn obey(&mut self) -> bool {
        for _ in 0..ROUND {
            match self.commands.pop() {
                // Cancelled meanwhile: not worth an endpoint.
                Ok(Command::Connect { load, .. }) if load.is_gone() => {}
                Ok(Command::Connect { number, metadata, load }) => self.waiting.push_back((number, metadata, load)),
                Ok(Command::Notify { number, bytes }) => {
                    self.notify(number, &bytes);
                    self.shared.spares.recycle(bytes);
                }
                Ok(Command::Read { number, read, wanted }) => self.read(number, read, wanted),
                Ok(Command::End { number }) => self.end(number),
                Err(PopError::Empty) => return true,
                Err(PopError::Closed) => return false,
            }
        }
        true
    }

    fn connect_waiting(&mut self) {
        while let Some((number, metadata, load)) = self.waiting.pop_front() {
            let ticket = match Frame::decode(&metadata) {
                Ok(frame) => self.transport.connect(frame),
                Err(_) => Err(UcxError::Metadata("damaged")),
            };
            match ticket {
                Ok(Ticket(key)) => {
                    self.numbers.insert(key, number);
                    self.links.insert(number, Link { key, connected: false, load, handed: (0, 0) });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.waiting.push_front((number, metadata, load));
                    return;
                }
                Err(error) => self.failed.push_back(Arrival::ConnectFailed { number, kind: error.kind() }),
            }
        }
    }

    fn notify(&mut self, number: u64, bytes: &[u8]) {
        let Some(link) = self.links.get_mut(&number) else { return };
        match self.transport.notify(PeerId(link.key), bytes) {
            Ok(()) => {
                if link.handed.0 == 0 {
                    self.busy.push(number);
                }
                link.handed.0 += 1;
                link.handed.1 += bytes.len();
            }
            // The transport will tell.
            Err(UcxError::PeerLost { .. } | UcxError::NotConnected) => {}
            // It was accepted and cannot be sent: the peer must not go on as if nothing had been there.
            Err(error) => {
                tracing::warn!(peer = number, %error, "a notification is lost, and with it the connection");
                self.transport.disconnect(PeerId(link.key));
                link.load.lose();
                self.numbers.remove(&link.key);
                self.links.remove(&number);
                self.failed.push_back(Arrival::Lost { number });
            }
        }
    }

    fn read(&mut self, number: u64, read: u64, wanted: Wanted) {
        let Wanted { token, region, ranges, into, at } = wanted;
        let begun = match (self.links.get(&number), Frame::decode(&region)) {
            (Some(link), Ok(frame)) => RemoteRegion::decode(frame)
                .and_then(|region| self.transport.begin_read(PeerId(link.key), token, &region, ranges, (&into, at)))
                .map(|ReadId(begun)| self.reads.insert(begun, (read, Arc::clone(&link.load)))),
            (None, _) => Err(UcxError::NotConnected),
            (_, Err(_)) => Err(UcxError::Region("damaged")),
        };
        if let Err(error) = begun {
            if let Some(link) = self.links.get(&number) {
                link.load.settle_read();
            }
            self.failed.push_back(Arrival::Read { read, result: Err(error.kind()) });
        }
    }

    fn end(&mut self, number: u64) {
        self.waiting.retain(|(waiting, ..)| *waiting != number);
        let Some(link) = self.links.remove(&number) else { return };
        self.numbers.remove(&link.key);
        if link.connected {
            self.transport.disconnect(PeerId(link.key));
        } else {
            self.transport.cancel(Ticket(link.key));
        }
    }

    /// Hands over what came in, as long as there is room.
    fn deliver(&mut self) -> Result<Taken, UcxError> {
        for _ in 0..ROUND {
            if !self.arrivals.has_room() {
                // Sending goes on.
                self.transport.flush(Duration::ZERO)?;
                return Ok(Taken::HeldBack);
            }
            let (arrival, weight) = if let Some(failed) = self.failed.pop_front() {
                (Some(failed), 0)
            } else {
                match self.transport.poll()? {
                    None => return Ok(Taken::All),
                    Some(Incoming::Notification { bytes, .. }) => {
                        (Some(Arrival::Message(self.shared.spares.copy(bytes))), bytes.len())
                    }
                    Some(Incoming::Connected { ticket: Ticket(key), .. }) => (self.connected(key), 0),
                    Some(Incoming::ConnectFailed { ticket: Ticket(key), kind }) => {
                        (self.forget(key).map(|number| Arrival::ConnectFailed { number, kind }), 0)
                    }
                    Some(Incoming::PeerLost { peer: PeerId(key) }) => {
                        (self.forget(key).map(|number| Arrival::Lost { number }), 0)
                    }
                    Some(Incoming::ReadDone { read, result }) => (self.read_done(read, result), 0),
                    Some(_) => (None, 0),
                }
            };
            if let Some(arrival) = arrival {
                // There is room, unless the handle is just going.
                let _ = self.arrivals.push(arrival, weight);
            }
        }
        Ok(Taken::Some)
    }

    fn connected(&mut self, key: u64) -> Option<Arrival> {
        let number = *self.numbers.get(&key)?;
        self.links.get_mut(&number)?.connected = true;
        Some(Arrival::Connected { number, resources: self.transport.peer_resources(PeerId(key)) })
    }

    fn read_done(&mut self, ReadId(read): ReadId, result: Result<Landed, ErrorKind>) -> Option<Arrival> {
        let (read, load) = self.reads.remove(&read)?;
        load.settle_read();
        Some(Arrival::Read { read, result })
    }

    /// The transport has no such connection any more. Its number, if the handle may still go by it.
    fn forget(&mut self, key: u64) -> Option<u64> {
        let number = self.numbers.remove(&key)?;
        self.links.remove(&number)?.load.lose();
        Some(number)
    }

    /// Tells the handle what has left.
    fn settle(&mut self) {
        let (links, transport) = (&mut self.links, &self.transport);
        self.busy.retain(|number| {
            let Some(link) = links.get_mut(number) else { return false };
            let now = transport.connected(PeerId(link.key)).map_or((0, 0), |peer| peer.endpoint.in_flight());
            link.load.settle(link.handed.0.saturating_sub(now.0), link.handed.1.saturating_sub(now.1));
            link.handed = now;
            now.0 > 0
        });
    }

    /// Until a command or something from UCX comes in, or the transport has work of its own.
    fn sleep(&mut self) -> Result<(), UcxError> {
        if !self.commands.arm(self.doorbell.waker()) {
            return Ok(());
        }
        self.transport.collect(); // may leave something to do
        let timeout = self.transport.next_timeout().unwrap_or(Duration::MAX);
        let Some(ucx) = self.transport.arm()? else { return Ok(()) };
        let bell = self.doorbell.fd();
        let mut fds = [readable(&bell), readable(&ucx)];
        sleep(&mut fds, timeout)?;
        let [bell, _] = fds;
        if !bell.revents().is_empty() {
            self.doorbell.silence();
        }
        Ok(())
    }

    /// Until a command comes in or the handle has polled. UCX's descriptor would not let it sleep.
    fn sleep_held_back(&mut self) -> Result<(), UcxError> {
        let waker = self.doorbell.waker();
        if !self.commands.arm(waker) || !self.arrivals.arm(waker) {
            return Ok(());
        }
        let bell = self.doorbell.fd();
        self.transport.note_what_is_stuck();
        sleep(&mut [readable(&bell)], self.transport.own_work())?;
        self.doorbell.silence();
        Ok(())
    }
    /// As if it had come in.
    #[cfg(test)]
    pub(super) fn tell(&self, arrival: Arrival) {
        assert!(self.arrivals.push(arrival, 0).is_ok());
    }

    /// Does nothing until the handle is dropped or has polled half of what is in a full queue.
    #[cfg(test)]
    pub(super) fn stall(&self) -> Result<(), UcxError> {
        while self.arrivals.arm(self.doorbell.waker()) {
            sleep(&mut [readable(&self.doorbell.fd())], Duration::MAX)?;
            self.doorbell.silence();
        }
        Ok(())
    }
}
