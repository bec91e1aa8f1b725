//! What the tests share: transports, frames, and patience.
#![allow(dead_code)] // Each test binary uses its part.

use std::{fmt, time::Instant};

use lease_proto::{
    frame::{Frame, HEADER},
    id::Incarnation,
    time::Duration,
    transport::{Control as _, ErrorKind, Incoming, PeerId, Ticket},
};
use transport_ucx::{UcxConfig, UcxTransport};

/// Runs each scenario over tcp and over shared memory.
#[macro_export]
macro_rules! on_every_lane {
    ($($scenario:ident),* $(,)?) => {
        mod tcp { $(#[test] fn $scenario() { super::$scenario("tcp"); })* }
        mod shm { $(#[test] fn $scenario() { super::$scenario("shm"); })* }
    };
}

/// Only against hangs; no verdict depends on it.
pub(crate) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

pub(crate) fn config(lane: &str) -> UcxConfig {
    UcxConfig { tls: Some(lane.to_owned()), ..UcxConfig::default() }
}

pub(crate) fn transport(lane: &str) -> UcxTransport {
    UcxTransport::new(config(lane)).unwrap()
}

pub(crate) fn framed(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; payload.len() + HEADER];
    Frame::encode(Incarnation(7), payload, &mut bytes).unwrap();
    bytes
}

/// An [`Incoming`] that owns its bytes.
#[derive(PartialEq, Eq)]
pub(crate) enum Got {
    Message(Vec<u8>),
    Connected(Ticket, PeerId),
    ConnectFailed(Ticket, ErrorKind),
    Lost(PeerId),
}

impl fmt::Debug for Got {
    /// Of a message only its length, since some are long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(bytes) => write!(f, "a message of {} bytes", bytes.len()),
            Self::Connected(ticket, peer) => write!(f, "{ticket:?} connected as {peer:?}"),
            Self::ConnectFailed(ticket, kind) => write!(f, "{ticket:?} failed: {kind}"),
            Self::Lost(peer) => write!(f, "{peer:?} lost"),
        }
    }
}

pub(crate) fn poll(transport: &mut UcxTransport) -> Option<Got> {
    Some(match transport.poll().unwrap()? {
        Incoming::Notification { from, bytes } => {
            assert_eq!(from, None);
            Got::Message(bytes.to_vec())
        }
        Incoming::Connected { ticket, peer } => Got::Connected(ticket, peer),
        Incoming::ConnectFailed { ticket, kind } => Got::ConnectFailed(ticket, kind),
        Incoming::PeerLost { peer } => Got::Lost(peer),
        other => panic!("a transport of notifications gave {other:?}"),
    })
}

/// Runs `step` until it gives something.
pub(crate) fn until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(result) = step() {
            return result;
        }
        assert!(started.elapsed() < PATIENCE, "waited in vain: {what}");
    }
}

/// The next thing that comes in to `transport`, sleeping meanwhile.
pub(crate) fn next(transport: &mut UcxTransport) -> Got {
    until("something to come in", || {
        let got = poll(transport);
        if got.is_none() {
            transport.wait(Duration::from_secs(1)).unwrap();
        }
        got
    })
}

/// Starts to connect `from` to `to`.
pub(crate) fn dial(from: &mut UcxTransport, to: &UcxTransport) -> Ticket {
    let metadata = framed(to.local_metadata());
    from.connect(Frame::decode(&metadata).unwrap()).unwrap()
}

/// Connects `from` to `to`, both of this thread.
pub(crate) fn connect(from: &mut UcxTransport, to: &mut UcxTransport) -> PeerId {
    let ticket = dial(from, to);
    until("the connection", || {
        assert_eq!(poll(to), None);
        match poll(from)? {
            Got::Connected(resolved, peer) if resolved == ticket => Some(peer),
            other => panic!("expected the connection, got {other:?}"),
        }
    })
}

/// Two transports of this thread, the first connected to the second.
pub(crate) fn pair(lane: &str) -> (UcxTransport, UcxTransport, PeerId) {
    let (mut from, mut to) = (transport(lane), transport(lane));
    let peer = connect(&mut from, &mut to);
    (from, to, peer)
}
