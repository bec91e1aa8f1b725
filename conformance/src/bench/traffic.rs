//! The loops that are timed: one connected peer, and notifications there and back. No transport is known here.
//!
//! Both ends run the same number of turns, so nothing but the traffic itself crosses the fabric while it is timed.

use std::time::Instant;

use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Control, Error as _, ErrorKind, Incoming, PeerId, ReadId},
};

use super::node::Wait;

/// A sleep ends by an event, or when the transport wants to be polled. A timer of ours would only cost time: a lost event is
/// noticed when the run does not end.
const LONGEST_SLEEP: Duration = Duration::MAX;

/// A transport, and the one peer that it talks to.
pub(super) struct Traffic<T: Control> {
    transport: T,
    peer: PeerId,
    /// `None`: it polls without pause.
    wait: Option<Wait<T>>,
}

/// What came in, without its bytes.
pub(super) enum Came {
    Connected(PeerId),
    Message,
    Read(ReadId),
}

impl<T: Control> Traffic<T> {
    /// Connects. It is the peer's turn to connect, too: notifications go one way.
    pub(super) fn connect(mut transport: T, metadata: Frame<'_>, wait: Option<Wait<T>>) -> Result<Self, String> {
        transport.connect(metadata).map_err(text)?;
        let mut traffic = Self { transport, peer: PeerId(0), wait };
        match traffic.next()? {
            Came::Connected(peer) => traffic.peer = peer,
            _ => return Err("something came in before the connection was there".into()),
        }
        Ok(traffic)
    }

    pub(super) fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    pub(super) fn peer(&self) -> PeerId {
        self.peer
    }

    /// Sends a notification, for as long as it takes until it is accepted.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        loop {
            match self.transport.notify(self.peer, bytes) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => match self.step()? {
                    None => {}
                    Some(_) => return Err("something came in that was not asked for".into()),
                },
                Err(error) => return Err(text(error)),
            }
        }
    }

    /// Waits for one notification.
    pub(super) fn receive(&mut self) -> Result<(), String> {
        match self.next()? {
            Came::Message => Ok(()),
            _ => Err("expected a notification, and something else came in".into()),
        }
    }

    /// Waits for whatever is next.
    pub(super) fn next(&mut self) -> Result<Came, String> {
        loop {
            if let Some(came) = self.step()? {
                return Ok(came);
            }
        }
    }

    /// One poll, and where nothing came the pause that belongs to the mode.
    fn step(&mut self) -> Result<Option<Came>, String> {
        let came = match self.transport.poll().map_err(text)? {
            Some(Incoming::Notification { .. }) => Came::Message,
            Some(Incoming::Connected { peer, .. }) => Came::Connected(peer),
            Some(Incoming::ReadDone { read, result: Ok(_) }) => Came::Read(read),
            Some(Incoming::ReadDone { result: Err(kind), .. }) => return Err(format!("a read failed: {kind}")),
            Some(Incoming::ConnectFailed { kind, .. }) => return Err(format!("cannot connect: {kind}")),
            Some(_) => return Err("the connection broke".into()),
            None => {
                if let Some(wait) = self.wait {
                    wait(&mut self.transport, LONGEST_SLEEP).map_err(text)?;
                }
                return Ok(None);
            }
        };
        Ok(Some(came))
    }

    /// Half of each round trip, in nanoseconds.
    pub(super) fn ping(&mut self, bytes: &[u8], times: u64) -> Result<Vec<u64>, String> {
        let mut halves = Vec::with_capacity(times as usize);
        let mut start = Instant::now();
        for _ in 0..times {
            self.send(bytes)?;
            self.receive()?;
            let end = Instant::now();
            halves.push((end - start).as_nanos() as u64 / 2);
            start = end;
        }
        Ok(halves)
    }

    /// Answers each notification with one.
    pub(super) fn echo(&mut self, bytes: &[u8], times: u64) -> Result<(), String> {
        (0..times).try_for_each(|_| self.receive().and_then(|()| self.send(bytes)))
    }

    /// Sends so many, and waits until the peer has them all.
    pub(super) fn stream(&mut self, bytes: &[u8], times: u64) -> Result<(), String> {
        (0..times).try_for_each(|_| self.send(bytes))?;
        self.receive()
    }

    /// Takes so many, and says so.
    pub(super) fn sink(&mut self, times: u64) -> Result<(), String> {
        (0..times).try_for_each(|_| self.receive())?;
        self.send(&[])
    }
}

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
