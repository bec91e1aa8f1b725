//! The transport: connections, notifications, and what comes in.

use std::{
    collections::VecDeque,
    hash::{BuildHasher as _, RandomState},
    os::fd::BorrowedFd,
    rc::Rc,
    time::Instant,
};

use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Capabilities, Control, DeadPeer, ErrorKind, Incoming, PeerId, Ticket},
};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::{
    UcxConfig, UcxError,
    config::{KEEPALIVE, set_by_operator},
    metadata::{self, Address},
    peers::{Peer, Peers, State},
    sys::{Context, Endpoint, Event, Limits, Status, Worker},
};

/// UCX looks at its clock in one of so many calls.
const CALLS_PER_LOOK: u64 = 32;
/// While something waits to be sent: nothing tells when a peer's queue in shared memory has room again.
const RETRY: Duration = Duration::from_millis(1);
/// How often a transport that waits for nothing wants to be polled all the same: its descriptor was seen to stay silent when a
/// connection came in over tcp while there was no other.
pub const LOOK: Duration = Duration::from_millis(20);

/// Connections and notifications over UCX.
///
/// Belongs to the thread that made it, because UCX's worker does:
///
/// ```compile_fail
/// fn moves<T: Send>() {}
/// moves::<transport_ucx::UcxTransport>();
/// ```
///
/// Dropping it sends what was accepted for at most about [`UcxConfig::close_timeout`], then closes by force.
pub struct UcxTransport {
    config: UcxConfig,
    capabilities: Capabilities,
    resources: Vec<String>,
    metadata: Vec<u8>,
    worker: Rc<Worker>,
    peers: Peers,
    /// Connections being closed and when that ends by force, oldest first. Some may be gone already.
    closing: VecDeque<(u64, Instant)>,
    inbox: VecDeque<Arrival>,
    inbox_messages: usize,
    inbox_bytes: usize,
    /// The notification that the caller is looking at.
    current: Vec<u8>,
    /// Makes the numbers in pings, which a peer cannot guess for another's connection.
    secret: RandomState,
}

/// Whether this machine has any of the transports `tls`, named as in [`UcxConfig::tls`].
///
/// # Errors
/// As [`UcxTransport::new`].
pub fn available(tls: &str) -> Result<(), UcxError> {
    let config = UcxConfig { tls: Some(tls.to_owned()), ..UcxConfig::default() };
    config.validate()?;
    Context::new(&config.settings(set_by_operator), tls).map(drop)
}

/// What waits to be polled.
enum Arrival {
    Message(Vec<u8>),
    Connected(u64),
    ConnectFailed(u64, ErrorKind),
    Lost(u64),
}

impl UcxTransport {
    /// Starts UCX and a worker of its own, and logs which transports and devices it found.
    ///
    /// # Errors
    /// `Invalid` for a configuration that cannot work, `Unavailable` if none of the wanted transports is on this machine,
    /// `BackendFailed` otherwise.
    pub fn new(config: UcxConfig) -> Result<Self, UcxError> {
        config.validate()?;
        let tls = config.tls.clone().or_else(|| std::env::var("UCX_TLS").ok()).unwrap_or_else(|| "all".to_owned());
        let context = Context::new(&config.settings(set_by_operator), &tls)?;
        let resources = context.resources();
        let worker = Worker::new(context, Limits { message: config.max_notification, pongs: config.max_peers })?;
        let metadata = metadata::encode(&worker.address()?);
        tracing::info!(tls, ?resources, "ucx is ready");
        let mut capabilities = Capabilities::notifications(config.max_notification);
        // Over several rails a short notification may overtake a long one. UCX's own choice is one.
        capabilities.ordered = !set_by_operator("MAX_EAGER_RAILS") && !set_by_operator("MAX_EAGER_LANES");
        if !set_by_operator(KEEPALIVE) {
            capabilities.dead_peer = DeadPeer::Within(config.keepalive.saturating_mul(3));
        }
        Ok(Self {
            capabilities,
            resources,
            metadata,
            worker,
            peers: Peers::new(config.max_peers),
            closing: VecDeque::new(),
            inbox: VecDeque::new(),
            inbox_messages: 0,
            inbox_bytes: 0,
            current: Vec::new(),
            secret: RandomState::new(),
            config,
        })
    }

    /// The transports and devices that UCX found, each as `transport/device`: `tcp/eth0`.
    pub fn resources(&self) -> &[String] {
        &self.resources
    }

    /// The transports and devices that the connection to `peer` uses, as in [`UcxTransport::resources`]. Empty if it is not
    /// connected.
    pub fn peer_resources(&self, peer: PeerId) -> Vec<String> {
        self.connected(peer).map(|peer| peer.endpoint.resources()).unwrap_or_default()
    }

    /// Messages that arrived and were dropped, because no peer with the same configuration sends such: over the limit, or by
    /// rendezvous, or malformed pings. Grows with every one.
    pub fn refused(&self) -> usize {
        self.worker.refused()
    }

    /// A descriptor that becomes readable when [`Control::poll`] may have something. `None` if it may have something now: poll
    /// until it has nothing, then arm again. Good for one wait; sleep no longer than [`Control::next_timeout`] says.
    ///
    /// # Errors
    /// `BackendFailed`.
    pub fn arm(&mut self) -> Result<Option<BorrowedFd<'_>>, UcxError> {
        self.collect();
        if !self.inbox.is_empty() || !self.worker.arm()? {
            return Ok(None);
        }
        self.worker.event_fd().map(Some)
    }

    /// Sleeps until [`Control::poll`] may have something, or `timeout` has passed, or the transport has work of its own. For loops
    /// with nothing else to do: a forward loop polls instead.
    ///
    /// # Errors
    /// `BackendFailed`.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), UcxError> {
        // Keepalive is left out: its timer is behind the descriptor.
        let timeout = self.own_work().min(timeout);
        let Some(fd) = self.arm()? else { return Ok(()) };
        // Longer than the type can say is as good as for ever.
        let timeout = Timespec::try_from(std::time::Duration::from(timeout)).ok();
        match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(UcxError::Wait(errno)),
        }
    }

    fn connected(&self, peer: PeerId) -> Option<&Peer> {
        self.peers.get(peer.0).filter(|peer| peer.state == State::Connected)
    }

    /// Takes from the fabric what is there. Whether that was anything.
    fn progress(&mut self) -> bool {
        let moved = self.worker.progress();
        self.collect();
        self.end_closing();
        moved
    }

    /// Acts on what UCX's callbacks have left.
    fn collect(&mut self) {
        while let Some(event) = self.worker.next_event() {
            match event {
                Event::Message(bytes) => {
                    self.inbox_messages += 1;
                    self.inbox_bytes += bytes.len();
                    self.inbox.push_back(Arrival::Message(bytes));
                }
                Event::Pong { key, nonce } => {
                    if let Some(peer) = self.peers.get_mut(key)
                        && peer.state == (State::Connecting { nonce })
                    {
                        peer.state = State::Connected;
                        tracing::debug!(peer = key, resources = ?peer.endpoint.resources(), "connected");
                        self.inbox.push_back(Arrival::Connected(key));
                    }
                }
                Event::Failed { key, status } => self.failed(key, status),
                Event::Flushed { key } => {
                    if self.peers.get(key).is_some_and(|peer| peer.state == State::Closing) {
                        self.peers.remove(key);
                    }
                }
            }
        }
    }

    /// A connection is over. The caller hears of it once.
    fn failed(&mut self, key: u64, status: Status) {
        let Some(peer) = self.peers.remove(key) else { return };
        tracing::debug!(peer = key, status = status.text(), "connection failed");
        match peer.state {
            State::Connecting { .. } => self.inbox.push_back(Arrival::ConnectFailed(key, status.kind())),
            State::Connected => self.inbox.push_back(Arrival::Lost(key)),
            State::Closing => {}
        }
    }

    fn end_closing(&mut self) {
        while let Some(&(key, deadline)) = self.closing.front() {
            let open = self.peers.get(key).is_some();
            if open && Instant::now() < deadline {
                return;
            }
            self.peers.remove(key);
            self.closing.pop_front();
        }
    }

    /// Lets a connection send the rest, then closes it.
    fn close(&mut self, key: u64) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        peer.state = State::Closing;
        peer.endpoint.flush();
        self.closing.push_back((key, Instant::now() + self.config.close_timeout.into()));
        self.collect();
    }

    /// Takes what `unwanted` says out of the inbox, never a message. Whether there was any.
    fn forget(&mut self, unwanted: impl Fn(&Arrival) -> bool) -> bool {
        let before = self.inbox.len();
        self.inbox.retain(|arrival| !unwanted(arrival));
        self.inbox.len() < before
    }

    fn inbox_is_full(&self) -> bool {
        self.inbox_messages >= self.config.max_inbox_messages || self.inbox_bytes >= self.config.max_inbox_bytes
    }

    /// How long until this transport wants to be polled for its own sake, keepalive aside.
    fn own_work(&self) -> Duration {
        let retry = (self.worker.outstanding() > 0).then_some(RETRY);
        let closing = self.closing.front().map(|(_, deadline)| {
            let left = deadline.saturating_duration_since(Instant::now());
            Duration::try_from(left).unwrap_or(Duration::MAX)
        });
        retry.into_iter().chain(closing).fold(LOOK, Duration::min)
    }
}

impl Control for UcxTransport {
    type Error = UcxError;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_metadata(&self) -> &[u8] {
        &self.metadata
    }

    fn connect(&mut self, metadata: Frame<'_>) -> Result<Ticket, UcxError> {
        let address = Address::decode(metadata)?;
        let full = UcxError::TooManyPeers { max: self.config.max_peers };
        // Attempts that failed count until the caller has heard of it.
        if self.inbox.len() - self.inbox_messages >= self.config.max_peers {
            return Err(full);
        }
        let (worker, secret) = (&self.worker, &self.secret);
        let opened = self.peers.insert(|key| {
            let nonce = secret.hash_one(key);
            let endpoint = Endpoint::create(worker, address, key)?;
            endpoint.ping(nonce)?;
            Ok(Peer { endpoint, state: State::Connecting { nonce } })
        });
        let (key, result) = opened.ok_or(full)?;
        if let Err(status) = result {
            let status: Status = status;
            tracing::debug!(ticket = key, status = status.text(), "connection failed");
            self.inbox.push_back(Arrival::ConnectFailed(key, status.kind()));
        }
        Ok(Ticket(key))
    }

    fn cancel(&mut self, Ticket(ticket): Ticket) {
        if self.peers.get(ticket).is_some_and(|peer| matches!(peer.state, State::Connecting { .. })) {
            self.peers.remove(ticket);
        } else if self
            .forget(|arrival| matches!(arrival, Arrival::Connected(key) | Arrival::ConnectFailed(key, _) if *key == ticket))
        {
            self.disconnect(PeerId(ticket));
        }
    }

    fn notify(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), UcxError> {
        let max = self.config.max_notification;
        if bytes.len() > max {
            return Err(UcxError::TooLarge { got: bytes.len(), max });
        }
        let endpoint = &self.connected(peer).ok_or(UcxError::NotConnected)?.endpoint;
        let (ops, in_flight) = endpoint.in_flight();
        let too_many_bytes = in_flight.saturating_add(bytes.len()) > self.config.max_in_flight_bytes;
        if ops >= self.config.max_in_flight_ops || (ops > 0 && too_many_bytes) {
            return Err(UcxError::InFlight { ops, bytes: in_flight });
        }
        endpoint.notify(bytes).map_err(|status| {
            if status.kind() == ErrorKind::BackendFailed {
                return UcxError::Backend { call: "ucp_am_send_nbx", status: status.text() };
            }
            self.failed(peer.0, status);
            UcxError::PeerLost { status: status.text() }
        })
    }

    fn poll(&mut self) -> Result<Option<Incoming<'_>>, UcxError> {
        // What is here is handed over before more is taken: the bound of the inbox, and the peers are held back.
        if self.inbox.is_empty() {
            self.progress();
        }
        let Some(arrival) = self.inbox.pop_front() else { return Ok(None) };
        Ok(Some(match arrival {
            Arrival::Message(bytes) => {
                self.inbox_messages -= 1;
                self.inbox_bytes -= bytes.len();
                self.worker.recycle(std::mem::replace(&mut self.current, bytes));
                // UCX can tell the endpoint to answer on only from a number that the sender writes, so it does not count.
                Incoming::Notification { from: None, bytes: &self.current }
            }
            Arrival::Connected(key) => Incoming::Connected { ticket: Ticket(key), peer: PeerId(key) },
            Arrival::ConnectFailed(key, kind) => Incoming::ConnectFailed { ticket: Ticket(key), kind },
            Arrival::Lost(key) => Incoming::PeerLost { peer: PeerId(key) },
        }))
    }

    fn flush(&mut self, budget: Duration) -> Result<(), UcxError> {
        let (started, budget) = (Instant::now(), budget.into());
        // As soon as nothing moves, only a peer could help.
        while self.worker.outstanding() > 0 && !self.inbox_is_full() && self.progress() && started.elapsed() < budget {}
        Ok(())
    }

    fn in_flight(&self, peer: PeerId) -> usize {
        self.connected(peer).map_or(0, |peer| peer.endpoint.in_flight().0)
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.forget(|arrival| matches!(arrival, Arrival::Lost(key) if *key == peer.0));
        if self.connected(peer).is_some() {
            self.close(peer.0);
        }
    }

    /// # Errors
    /// Always `Unsupported`: UCX wakes by a file descriptor. See [`UcxTransport::arm`] and [`UcxTransport::wait`].
    fn register_waker(&mut self, _waker: &std::task::Waker) -> Result<(), UcxError> {
        Err(UcxError::Waker)
    }

    fn next_timeout(&self) -> Option<Duration> {
        let arrived = (!self.inbox.is_empty()).then_some(Duration::ZERO);
        let keepalive = (!self.peers.is_empty()).then(|| self.config.keepalive.scale(1, CALLS_PER_LOOK));
        arrived.into_iter().chain(keepalive).chain([self.own_work()]).min()
    }
}

impl Drop for UcxTransport {
    fn drop(&mut self) {
        for key in self.peers.open() {
            if self.connected(PeerId(key)).is_some() {
                self.close(key);
            } else {
                self.peers.remove(key);
            }
        }
        while !self.peers.is_empty() && !self.closing.is_empty() {
            // Nobody will read it.
            self.inbox.clear();
            if !self.progress() && self.wait(RETRY).is_err() {
                break;
            }
        }
        // What is left is closed by force, endpoint by endpoint; the worker goes with the last, and the context with the worker.
    }
}
