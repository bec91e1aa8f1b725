//! Connections and notifications, from the handle's side.

use std::{sync::Arc, task::Waker};

use lease_proto::{
    frame::{Frame, HEADER},
    sync::queue::{PopError, PushError},
    time::Duration,
    transport::{Capabilities, Control, Incoming, PeerId, ReadId, Ticket},
};

use super::{
    Open, UcxThread,
    shared::{Arrival, Command, Load},
    start::PANICKED,
};
use crate::{UcxError, metadata::Address};

impl Control for UcxThread {
    type Error = UcxError;

    fn capabilities(&self) -> &Capabilities {
        &self.up.capabilities
    }

    fn local_metadata(&self) -> &[u8] {
        &self.up.metadata
    }

    fn connect(&mut self, metadata: Frame<'_>) -> Result<Ticket, UcxError> {
        Address::decode(metadata)?;
        if self.open.len() >= self.config.max_peers {
            return Err(UcxError::TooManyPeers { max: self.config.max_peers });
        }
        if !self.commands.set_aside() {
            return Err(UcxError::Busy);
        }
        let (number, load) = (self.next, Arc::new(Load::default()));
        let command = Command::Connect { number, metadata: framed(metadata), load: Arc::clone(&load) };
        if let Err(refused) = self.commands.push(command, 0) {
            self.commands.give_back();
            return Err(self.refusal(&refused));
        }
        self.next += 1;
        self.open.insert(number, Open { incarnation: metadata.incarnation(), load, connected: None });
        Ok(Ticket(number))
    }

    fn cancel(&mut self, Ticket(ticket): Ticket) {
        if let Some(open) = self.open.get(&ticket).filter(|open| open.connected.is_none()) {
            open.load.lose();
            self.end(ticket);
        }
    }

    fn notify(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), UcxError> {
        let max = self.config.max_notification;
        if bytes.len() > max {
            return Err(UcxError::TooLarge { got: bytes.len(), max });
        }
        let load = &self.connected(peer).ok_or(UcxError::NotConnected)?.load;
        load.accept(bytes.len(), &self.config)?;
        let command = Command::Notify { number: peer.0, bytes: self.shared.spares.copy(bytes) };
        self.commands.push(command, 0).map_err(|refused| {
            load.settle(1, bytes.len());
            self.refusal(&refused)
        })
    }

    fn poll(&mut self) -> Result<Option<Incoming<'_>>, UcxError> {
        let arrival = self.take()?;
        Ok(arrival.map(|arrival| self.show(arrival)))
    }

    /// Wakes the thread, which does not let anything lie anyway, and does not wait: `budget` is not used up.
    fn flush(&mut self, _budget: Duration) -> Result<(), UcxError> {
        self.commands.wake();
        self.shared.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    fn in_flight(&self, peer: PeerId) -> usize {
        self.connected(peer).map_or(0, |open| open.load.ops())
    }

    fn disconnect(&mut self, PeerId(peer): PeerId) {
        if self.open.get(&peer).is_some_and(|open| open.connected.is_some()) {
            self.end(peer);
        }
    }

    /// # Errors
    /// None.
    fn register_waker(&mut self, waker: &Waker) -> Result<(), UcxError> {
        if !self.arrivals.arm(waker) {
            waker.wake_by_ref();
        }
        Ok(())
    }

    fn next_timeout(&self) -> Option<Duration> {
        (!self.arrivals.is_empty()).then_some(Duration::ZERO)
    }
}

impl UcxThread {
    pub(super) fn connected(&self, peer: PeerId) -> Option<&Open> {
        self.open.get(&peer.0).filter(|open| open.connected.is_some() && !open.load.is_gone())
    }

    /// The next arrival that concerns the caller: not of what was cancelled or disconnected.
    pub(super) fn take(&mut self) -> Result<Option<Arrival>, UcxError> {
        loop {
            let arrival = match self.arrivals.pop() {
                Ok(arrival) => arrival,
                Err(PopError::Empty) => return Ok(None),
                Err(PopError::Closed) => return Err(self.failure()),
            };
            let concerns = match &arrival {
                Arrival::Message(_) | Arrival::Read { .. } => true,
                Arrival::Connected { number, .. } => self.open.contains_key(number),
                Arrival::ConnectFailed { number, .. } | Arrival::Lost { number } => self.forget(*number),
            };
            if concerns {
                return Ok(Some(arrival));
            }
        }
    }

    pub(super) fn show(&mut self, arrival: Arrival) -> Incoming<'_> {
        match arrival {
            Arrival::Message(bytes) => {
                self.shared.spares.recycle(std::mem::replace(&mut self.current, bytes));
                Incoming::Notification { from: None, bytes: &self.current }
            }
            Arrival::Connected { number, resources } => {
                if let Some(open) = self.open.get_mut(&number) {
                    open.connected = Some(resources);
                }
                Incoming::Connected { ticket: Ticket(number), peer: PeerId(number) }
            }
            Arrival::ConnectFailed { number, kind } => Incoming::ConnectFailed { ticket: Ticket(number), kind },
            Arrival::Lost { number } => Incoming::PeerLost { peer: PeerId(number) },
            Arrival::Read { read, result } => Incoming::ReadDone { read: ReadId(read), result },
        }
    }

    /// The connection is over without the caller's doing. Whether there was one.
    fn forget(&mut self, number: u64) -> bool {
        let known = self.open.remove(&number).is_some();
        if known {
            self.commands.give_back();
        }
        known
    }

    /// Ends what the caller does not want any more.
    fn end(&mut self, number: u64) {
        if self.open.remove(&number).is_some() {
            // It has its place; and where the thread is gone, so is the connection.
            let _ = self.commands.push_set_aside(Command::End { number });
        }
    }

    fn failure(&self) -> UcxError {
        self.shared.failure.get().cloned().unwrap_or(PANICKED)
    }

    pub(super) fn refusal<T>(&self, refused: &PushError<T>) -> UcxError {
        match refused {
            PushError::Full(_) => UcxError::Busy,
            PushError::Closed(_) => self.failure(),
        }
    }
}

/// A frame as it came, to be taken apart again by the thread.
pub(super) fn framed(frame: Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; HEADER.saturating_add(frame.payload().len())];
    // What came in a frame fits into one.
    let _ = Frame::encode(frame.incarnation(), frame.payload(), &mut bytes);
    bytes
}
