//! The transport: how it starts, what it is made of, how it moves and how it ends.

use std::{collections::VecDeque, rc::Rc, sync::Arc, time::Instant};

use lease_proto::{
    permits::Permits,
    transport::{Capabilities, DeadPeer, ErrorKind, Landed, PeerId, ReadId, Reads as WhoReads},
};

use crate::{
    UcxConfig, UcxError,
    config::{KEEPALIVE, registrations_outlive, set_by_operator},
    cuda::CUDA,
    messages::Reason,
    metadata,
    peers::{Peer, Peers, State},
    reads::Reads,
    regions::{Regions, Registrar},
    sys::{Context, Event, Limits, Served, Status, Worker, reads_by_itself},
    wait::RETRY,
};

/// Connections, notifications and reads over UCX.
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
    pub(crate) config: UcxConfig,
    pub(crate) capabilities: Capabilities,
    found: Found,
    pub(crate) metadata: Vec<u8>,
    permits: Permits,
    pub(crate) registrar: Registrar,
    pub(crate) worker: Rc<Worker>,
    pub(crate) peers: Peers,
    pub(crate) reads: Reads,
    /// Connections that wait before they ask again, since an owner was too busy.
    pub(crate) paused: VecDeque<u64>,
    /// Connections being closed and when that ends by force, oldest first. Some may be gone already.
    pub(crate) closing: VecDeque<(u64, Instant)>,
    /// Whether UCX had something to do when it was last asked.
    pub(crate) moved: bool,
    /// Since when what waits to be sent does not move.
    pub(crate) stuck: Option<Instant>,
    pub(crate) inbox: VecDeque<Arrival>,
    pub(crate) inbox_messages: usize,
    pub(crate) inbox_bytes: usize,
    /// The notification that the caller is looking at.
    pub(crate) current: Vec<u8>,
}

/// What UCX found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The transports and devices, each as `transport/device`: `tcp/eth0`.
    pub resources: Vec<String>,
    /// The types of memory that UCX can tell apart: `host`, `cuda` and so on.
    pub memory_types: Vec<&'static str>,
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
pub(crate) enum Arrival {
    Message(Vec<u8>),
    Connected(u64),
    ConnectFailed(u64, ErrorKind),
    Lost(u64),
    Read(ReadId, Result<Landed, ErrorKind>),
}

impl UcxTransport {
    /// Starts UCX and a worker of its own, and logs what it found.
    ///
    /// # Errors
    /// `Invalid` for a configuration that cannot work, `Unavailable` if none of the wanted transports is on this machine,
    /// `BackendFailed` otherwise.
    pub fn new(config: UcxConfig) -> Result<Self, UcxError> {
        config.validate()?;
        let tls = config.tls.clone().or_else(|| std::env::var("UCX_TLS").ok()).unwrap_or_else(|| "all".to_owned());
        let context = Arc::new(Context::new(&config.settings(set_by_operator), &tls)?);
        let mut transport = Self::start(config, context, Worker::new)?;
        // What follows from settings of our own choice.
        if !set_by_operator(KEEPALIVE) {
            transport.capabilities.dead_peer = DeadPeer::Within(transport.config.keepalive.saturating_mul(3));
        }
        // With a cache, or one registration of everything, ending one revokes nothing.
        transport.capabilities.fence = transport.registrar.one_sided && !registrations_outlive();
        transport.registrar.fence = transport.capabilities.fence;
        Ok(transport)
    }

    pub(crate) fn start(
        config: UcxConfig,
        context: Arc<Context>,
        work: impl FnOnce(&Arc<Context>, Limits, Served) -> Result<Rc<Worker>, UcxError>,
    ) -> Result<Self, UcxError> {
        let found = Found { resources: context.resources(), memory_types: context.memory_types() };
        tracing::info!(resources = ?found.resources, memory_types = ?found.memory_types, "ucx is ready");
        let (permits, regions) = (Permits::new(), Regions::default());
        let served = Served { permits: permits.clone(), regions: regions.clone() };
        let limits = Limits {
            message: config.max_notification,
            pongs: config.max_peers,
            serving: config.max_serving,
            refusing: config.max_peers.saturating_mul(config.max_reads),
        };
        let worker = work(&context, limits, served)?;
        let metadata = metadata::encode(worker.ids(), &worker.address()?);
        let capabilities = capabilities(&config, &found);
        let one_sided = capabilities.reads == WhoReads::OneSided;
        Ok(Self {
            registrar: Registrar { context, regions, one_sided, fence: false },
            capabilities,
            found,
            metadata,
            permits,
            worker,
            peers: Peers::new(config.max_peers),
            reads: Reads::default(),
            paused: VecDeque::new(),
            closing: VecDeque::new(),
            moved: false,
            stuck: None,
            inbox: VecDeque::new(),
            inbox_messages: 0,
            inbox_bytes: 0,
            current: Vec::new(),
            config,
        })
    }

    /// What UCX found on this machine.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// The transports and devices that the connection to `peer` uses, as in [`Found::resources`]. Empty if it is not connected.
    pub fn peer_resources(&self, peer: PeerId) -> Vec<String> {
        self.connected(peer).map(|peer| peer.endpoint.resources()).unwrap_or_default()
    }

    /// Messages that arrived and were dropped: over the limit, malformed, more than honest peers send, or answers that nobody waits
    /// for, as late ones of a read that has failed. Grows with every one.
    pub fn refused(&self) -> usize {
        self.worker.refused()
    }

    /// Whom this side serves reads. Give the holder's events to it: [`Permits::hear`].
    pub fn permits(&self) -> Permits {
        self.permits.clone()
    }

    /// Registers memory from any thread.
    pub fn registrar(&self) -> Registrar {
        self.registrar.clone()
    }

    /// Only UCX's own progress, to measure the transport's against.
    #[doc(hidden)]
    pub fn bare_progress(&self) -> bool {
        self.worker.progress()
    }

    pub(crate) fn connected(&self, peer: PeerId) -> Option<&Peer> {
        self.peers.get(peer.0).filter(|peer| peer.state == State::Connected)
    }

    /// Takes from the fabric what is there. Whether that was anything.
    #[inline]
    pub(crate) fn progress(&mut self) -> bool {
        self.moved = self.worker.progress();
        // Most often there is nothing to do, and that should cost no more than asking UCX.
        if self.moved || !self.worker.is_quiet() || !self.paused.is_empty() || !self.closing.is_empty() {
            self.work();
        }
        self.moved
    }

    /// What is due without anything of UCX's.
    pub(crate) fn tend(&mut self) {
        self.collect();
        self.resume();
        self.end_closing();
    }

    fn work(&mut self) {
        if self.moved {
            self.stuck = None;
        }
        self.tend();
    }

    /// Acts on what UCX's callbacks have left.
    pub(crate) fn collect(&mut self) {
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
                Event::Landed { read, bytes, result } => {
                    let peer = self.reads.landed(read, result);
                    self.came(read, peer, bytes);
                }
                Event::Refused { read, offset, bytes, reason } => {
                    let peer = self.reads.refused(read, offset, bytes, reason);
                    if reason == Reason::Busy {
                        self.pause(peer);
                    }
                    self.came(read, peer, bytes);
                }
                Event::Flushed { key } => {
                    if self.peers.get(key).is_some_and(|peer| peer.state == State::Closing) {
                        self.peers.remove(key);
                    }
                }
            }
        }
    }

    /// A connection is over. The caller hears of it once.
    pub(crate) fn failed(&mut self, key: u64, status: Status) {
        let Some(peer) = self.peers.remove(key) else { return };
        self.fail_reads(key, ErrorKind::PeerLost);
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
    pub(crate) fn close(&mut self, key: u64) {
        self.fail_reads(key, ErrorKind::NotConnected);
        let Some(peer) = self.peers.get_mut(key) else { return };
        peer.state = State::Closing;
        peer.endpoint.flush();
        self.closing.push_back((key, Instant::now() + self.config.close_timeout.into()));
        self.collect();
        self.end_closing();
    }

    /// Takes what `unwanted` says out of the inbox, never a message. Whether there was any.
    pub(crate) fn forget(&mut self, unwanted: impl Fn(&Arrival) -> bool) -> bool {
        let before = self.inbox.len();
        self.inbox.retain(|arrival| !unwanted(arrival));
        self.inbox.len() < before
    }

    pub(crate) fn inbox_is_full(&self) -> bool {
        self.inbox_messages >= self.config.max_inbox_messages || self.inbox_bytes >= self.config.max_inbox_bytes
    }
}

/// What holds whoever made the worker.
fn capabilities(config: &UcxConfig, found: &Found) -> Capabilities {
    let mut capabilities = Capabilities::notifications(config.max_notification);
    // Over several rails a short notification may overtake a long one. UCX's own choice is one.
    capabilities.ordered = !set_by_operator("MAX_EAGER_RAILS") && !set_by_operator("MAX_EAGER_LANES");
    let one_sided = found.resources.iter().any(|resource| reads_by_itself(resource));
    capabilities.reads = if one_sided { WhoReads::OneSided } else { WhoReads::OwnerServed };
    capabilities.reads_need_owner = !one_sided;
    capabilities.cuda = found.memory_types.contains(&CUDA);
    capabilities
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
        // What is left is closed by force, and what touches memory for reads is waited for; the worker goes with the last that
        // needs it, and the context with the worker.
        self.peers.clear();
        self.worker.drain(self.config.close_timeout.into());
        self.reads.clear();
    }
}
