//! The transport on a thread of its own: [`UcxThread`].

mod control;
mod data;
mod doorbell;
mod progress;
mod shared;
mod start;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    future::poll_fn,
    os::fd::BorrowedFd,
    sync::{Arc, atomic::Ordering},
    task::Poll,
};

use lease_proto::{
    id::Incarnation,
    permits::Permits,
    sync::queue::{Bounds, Consumer, Producer, queue},
    time::Duration,
    transport::{Incoming, PeerId},
};

use self::{
    doorbell::{Doorbell, readable, sleep},
    progress::Progress,
    shared::{Arrival, Command, Load, Shared},
    start::{Joined, Started, Work, start},
};
#[cfg(doc)]
use crate::UcxTransport;
use crate::{Found, Registrar, UcxConfig, UcxError};
#[cfg(doc)]
use lease_proto::transport::Control;

/// UCX on a progress thread: for engines whose forward loop comes by too seldom to send, receive and serve reads in time.
///
/// The handle can be given to another thread, and all its calls return at once, whatever the peers and UCX do: they leave commands
/// in a bounded queue and take arrivals out of another. One thread owns a [`UcxTransport`] and sleeps until there is something to
/// do.
///
/// - What [`UcxConfig`] bounds is bounded here by the same numbers. A notification is in flight from when it was accepted until it
///   has left UCX. Once as much as allowed waits to be polled, the thread takes nothing more from UCX (what comes while it sends
///   aside, up to as much again), so that senders are held back; readers are, too, where it serves them.
/// - An attempt to connect may wait, unresolved, until connections that are being closed have made room.
/// - A notification that was accepted and that UCX then cannot take loses the connection: [`Incoming::PeerLost`].
/// - A thread that fails or panics makes [`Control::poll`] fail, after all that had come in.
/// - Dropping the handle sends what was accepted and waits for the thread, for at most about [`UcxConfig::close_timeout`].
///
/// ```
/// use lease_proto::{frame::{Frame, HEADER}, id::Incarnation, time::Duration, transport::{Control as _, Incoming}};
/// use transport_ucx::{UcxConfig, UcxThread};
///
/// let config = UcxConfig { tls: Some("tcp".to_owned()), ..UcxConfig::default() };
/// let (mut holder, mut reader) = (UcxThread::spawn(config.clone())?, UcxThread::spawn(config)?);
///
/// let mut metadata = vec![0; holder.local_metadata().len() + HEADER];
/// Frame::encode(Incarnation(1), holder.local_metadata(), &mut metadata)?;
///
/// reader.connect(Frame::decode(&metadata)?)?;
/// let peer = loop {
///     if let Some(Incoming::Connected { peer, .. }) = reader.poll()? {
///         break peer;
///     }
///     reader.wait(Duration::from_secs(1))?; // a forward pass
/// };
/// reader.notify(peer, b"renew")?; // on its way, whatever this thread does next
/// holder.wait(Duration::from_secs(10))?;
/// assert!(matches!(holder.poll()?, Some(Incoming::Notification { bytes: b"renew", .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct UcxThread {
    // Dropped from here on: the thread sees that nobody gives commands any more, and is waited for last.
    commands: Producer<Command>,
    arrivals: Consumer<Arrival>,
    shared: Arc<Shared>,
    config: UcxConfig,
    up: Started,
    /// Attempts and connections that the caller has not ended, nor heard the end of. Each has a place among the commands set aside.
    open: HashMap<u64, Open>,
    /// The numbers of the next attempt and the next read.
    next: u64,
    next_read: u64,
    /// The notification that the caller is looking at.
    current: Vec<u8>,
    /// For [`UcxThread::arm`].
    doorbell: Doorbell,
    _thread: Joined,
}

/// A connection, or an attempt, as the caller knows it.
struct Open {
    /// Of the peer's process.
    incarnation: Incarnation,
    load: Arc<Load>,
    /// Once the caller has heard of it: what it uses.
    connected: Option<Vec<String>>,
}

impl UcxThread {
    /// Starts a thread with a transport of its own, and waits until that is up.
    ///
    /// # Errors
    /// As [`UcxTransport::new`], and `BackendFailed` if the system gives no thread or descriptor.
    pub fn spawn(config: UcxConfig) -> Result<Self, UcxError> {
        Self::spawn_with(config, Progress::run)
    }

    fn spawn_with(config: UcxConfig, work: Work) -> Result<Self, UcxError> {
        config.validate()?;
        let doorbell = Doorbell::new()?;
        // Each connection's end has its place; the rest is for attempts and notifications.
        let places = config.max_peers.saturating_mul(2).saturating_add(config.max_in_flight_ops);
        let (commands, inbox) = queue(Bounds { items: places, weight: usize::MAX });
        let (outbox, arrivals) = queue(Bounds { items: config.max_inbox_messages, weight: config.max_inbox_bytes });
        let shared = Arc::new(Shared::default());
        let (thread, up) = start(config.clone(), inbox, outbox, Arc::clone(&shared), work)?;
        Ok(Self {
            commands,
            arrivals,
            shared,
            config,
            up,
            open: HashMap::new(),
            next: 0,
            next_read: 0,
            current: Vec::new(),
            doorbell,
            _thread: thread,
        })
    }

    /// As [`UcxTransport::found`].
    pub fn found(&self) -> &Found {
        &self.up.found
    }

    /// As [`UcxTransport::permits`]. The thread asks them while it serves.
    pub fn permits(&self) -> Permits {
        self.up.permits.clone()
    }

    /// As [`UcxTransport::registrar`].
    pub fn registrar(&self) -> Registrar {
        self.up.registrar.clone()
    }

    /// The transports and devices that the connection to `peer` uses. Empty if it is not connected.
    pub fn peer_resources(&self, peer: PeerId) -> &[String] {
        self.connected(peer).and_then(|open| open.connected.as_deref()).unwrap_or_default()
    }

    /// As [`UcxTransport::refused`].
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::Acquire)
    }

    /// A descriptor that becomes readable when [`Control::poll`] may have something. `None` if it may have something now: poll
    /// until it has nothing, then arm again. Good for one wait; takes the place of a waker.
    pub fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.doorbell.silence();
        self.arrivals.arm(self.doorbell.waker()).then(|| self.doorbell.fd())
    }

    /// Sleeps until [`Control::poll`] may have something, or `timeout` has passed. For loops with nothing else to do.
    ///
    /// # Errors
    /// `BackendFailed`.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), UcxError> {
        match self.arm() {
            Some(fd) => sleep(&mut [readable(&fd)], timeout),
            None => Ok(()),
        }
    }

    /// The next thing that comes in, on any runtime. Nothing is lost where the future is dropped. Takes the place of a waker.
    ///
    /// # Errors
    /// As [`Control::poll`].
    pub async fn recv(&mut self) -> Result<Incoming<'_>, UcxError> {
        let arrival = loop {
            if let Some(arrival) = self.take()? {
                break arrival;
            }
            poll_fn(|context| if self.arrivals.arm(context.waker()) { Poll::Pending } else { Poll::Ready(()) }).await;
        };
        Ok(self.show(arrival))
    }
}
