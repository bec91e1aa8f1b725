//! An in-memory fabric with faults: the transport that every machine has.
//!
//! Time is the fabric's own and moves only by [`Fabric::advance_to`]: nothing sleeps, and the same calls give the same result.
//! Faults are decided at the moment of sending; where several apply, in this order: drop, hold, delay, duplicate, reorder.
//!
//! ```
//! use conformance::loopback::Fabric;
//! use lease_proto::{frame::Frame, id::Incarnation, transport::{Control, Incoming}};
//!
//! let fabric = Fabric::new(7);
//! let (mut p, mut d) = (fabric.endpoint(), fabric.endpoint());
//! let mut framed = [0; 64];
//! let n = Frame::encode(Incarnation(1), p.local_metadata(), &mut framed)?;
//! let ticket = d.connect(Frame::decode(&framed[..n])?)?;
//! let Some(Incoming::Connected { peer, .. }) = d.poll()? else { panic!("not connected") };
//! d.notify(peer, b"hello")?;
//! assert!(matches!(p.poll()?, Some(Incoming::Notification { bytes: b"hello", .. })));
//! # let _ = ticket;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod memory;
mod reads;
mod state;

pub use memory::Region;
pub use state::{Fault, Link};

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

use lease_proto::{
    frame::Frame,
    permits::Permits,
    time::{Duration, Instant},
    transport::{Capabilities, Control, DeadPeer, Error, ErrorKind, Incoming, PeerId, Reads, Ticket},
};
use state::{Arrived, State};

/// Largest notification, as UCX and NIXL are set up by default.
pub const MAX_NOTIFICATION: usize = 65_536;
/// Messages that may be under way from one endpoint to another, and their bytes; a further one is refused with `WouldBlock`.
pub const MOST_UNDER_WAY: usize = 4096;
/// See [`MOST_UNDER_WAY`]. One message may always be under way.
pub const MOST_BYTES_UNDER_WAY: usize = 16 << 20;
/// Marks the metadata as this transport's.
const TAG: &[u8; 8] = b"loopback";

/// Where endpoints meet.
#[derive(Clone, Debug)]
pub struct Fabric(Arc<Mutex<State>>);

/// One endpoint by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u64);

impl Fabric {
    /// A fabric at time zero; the seed decides what a reordering fault swaps.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State::new(seed))))
    }

    /// A new endpoint. It lives until it is dropped or killed.
    pub fn endpoint(&self) -> Loopback {
        self.endpoint_with(MAX_NOTIFICATION)
    }

    /// A new endpoint that takes notifications of up to `max_notification` bytes.
    pub fn endpoint_with(&self, max_notification: usize) -> Loopback {
        self.open(max_notification, Reads::OneSided)
    }

    /// A new endpoint that serves reads of its memory itself, to who has a token that its [`Loopback::permits`] hold. It cannot fence.
    pub fn endpoint_served(&self) -> Loopback {
        self.open(MAX_NOTIFICATION, Reads::OwnerServed)
    }

    fn open(&self, max_notification: usize, reads: Reads) -> Loopback {
        let (permits, served) = (Permits::new(), reads == Reads::OwnerServed);
        let id = self.state().open(served.then(|| permits.clone()));
        let mut capabilities = Capabilities::notifications(max_notification);
        capabilities.reads = reads;
        capabilities.reads_need_owner = served;
        capabilities.fence = !served;
        capabilities.dead_peer = DeadPeer::Within(Duration::ZERO);
        let metadata = [TAG.as_slice(), &id.0.to_le_bytes()].concat();
        Loopback { fabric: self.clone(), id, capabilities, metadata, permits, current: Vec::new() }
    }

    /// The fabric's time.
    pub fn now(&self) -> Instant {
        self.state().now
    }

    /// Moves time on; it never goes back.
    pub fn advance_to(&self, now: Instant) {
        self.state().advance_to(now);
    }

    /// When the next message under way will arrive.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.state().next_arrival()
    }

    /// Puts a fault on one direction of a link, in place of the one before. Messages that were held are delivered now.
    pub fn fault(&self, link: Link, fault: Fault) {
        self.state().fault(link, fault);
    }

    /// Lets the next `count` messages on a link get lost.
    pub fn drop_next(&self, link: Link, count: usize) {
        self.state().drop_next(link, count);
    }

    /// Delivers the `nth` message ever sent on a link again (from 0); `false` if there was none.
    pub fn replay(&self, link: Link, nth: usize) -> bool {
        self.state().replay(link, nth)
    }

    /// Delivers bytes that nobody sent, as from `from`.
    pub fn inject(&self, to: EndpointId, bytes: &[u8]) {
        self.state().inject(to, bytes);
    }

    /// The endpoint's process dies: it is gone at once, and peers are told as fast as the fabric can.
    pub fn kill(&self, id: EndpointId) {
        self.state().close(id);
    }

    /// The endpoint's process stands still, or goes on: attempts to connect to it stay open meanwhile.
    pub fn stop(&self, id: EndpointId, stopped: bool) {
        self.state().stop(id, stopped);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One endpoint of a [`Fabric`].
#[derive(Debug)]
pub struct Loopback {
    fabric: Fabric,
    id: EndpointId,
    capabilities: Capabilities,
    metadata: Vec<u8>,
    permits: Permits,
    /// The notification that was returned last.
    current: Vec<u8>,
}

impl Loopback {
    /// Its number on the fabric.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Which leases stand, if it serves reads itself; its engine tells it. Nobody asks them elsewhere.
    pub fn permits(&self) -> Permits {
        self.permits.clone()
    }

    /// Whether [`Control::poll`] would return something now, or move a read on.
    pub fn has_mail(&self) -> bool {
        self.fabric.state().has_mail(self.id)
    }
}

impl AsRef<Loopback> for Loopback {
    fn as_ref(&self) -> &Loopback {
        self
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.fabric.kill(self.id);
    }
}

/// A loopback error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("loopback: {kind}: {hint}")]
pub struct LoopbackError {
    kind: ErrorKind,
    hint: &'static str,
}

impl Error for LoopbackError {
    fn kind(&self) -> ErrorKind {
        self.kind
    }
}

pub(crate) fn error(kind: ErrorKind) -> LoopbackError {
    let hint = match kind {
        ErrorKind::TooLarge => "send at most what the capabilities say",
        ErrorKind::WouldBlock => "poll, then try again",
        ErrorKind::NotConnected => "connect first",
        ErrorKind::Invalid => "expected what this fabric gave out, and ranges inside it",
        _ => "not possible here",
    };
    LoopbackError { kind, hint }
}

impl Control for Loopback {
    type Error = LoopbackError;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_metadata(&self) -> &[u8] {
        &self.metadata
    }

    fn connect(&mut self, metadata: Frame<'_>) -> Result<Ticket, LoopbackError> {
        let to = metadata.payload().strip_prefix(TAG).and_then(|id| <[u8; 8]>::try_from(id).ok());
        let to = EndpointId(u64::from_le_bytes(to.ok_or(error(ErrorKind::Invalid))?));
        Ok(self.fabric.state().connect(self.id, to))
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.fabric.state().cancel(self.id, ticket);
    }

    fn notify(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), LoopbackError> {
        if bytes.len() > self.capabilities.max_notification {
            return Err(error(ErrorKind::TooLarge));
        }
        self.fabric.state().send(self.id, peer, bytes).map_err(error)
    }

    fn poll(&mut self) -> Result<Option<Incoming<'_>>, LoopbackError> {
        let arrived = self.fabric.state().poll(self.id);
        Ok(arrived.map(|arrived| match arrived {
            Arrived::Message { from, bytes } => {
                self.current = bytes;
                Incoming::Notification { from, bytes: &self.current }
            }
            Arrived::Connected { ticket, peer } => Incoming::Connected { ticket, peer },
            Arrived::ConnectFailed { ticket } => Incoming::ConnectFailed { ticket, kind: ErrorKind::NotConnected },
            Arrived::PeerLost { peer } => Incoming::PeerLost { peer },
            Arrived::ReadDone { read, result } => Incoming::ReadDone { read, result },
        }))
    }

    fn flush(&mut self, _: Duration) -> Result<(), LoopbackError> {
        Ok(())
    }

    fn in_flight(&self, _: PeerId) -> usize {
        0 // what is accepted has left
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.fabric.state().disconnect(self.id, peer);
    }

    fn register_waker(&mut self, waker: &Waker) -> Result<(), LoopbackError> {
        self.fabric.state().register_waker(self.id, waker);
        Ok(())
    }

    fn next_timeout(&self) -> Option<Duration> {
        None
    }
}
