//! P's side: answers who asks for a rank's metadata.

mod counters;

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    fmt, io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use lease_proto::topology::Ranks;
use tokio::{
    net::TcpStream,
    sync::oneshot,
    task::{AbortHandle, Id, JoinSet},
    time::sleep,
};

pub use counters::{Count, Counters};

use super::{
    CodecError,
    clock::Clock,
    decode_request, encode_stamp, host,
    payload::{MAX_PAYLOAD, at_most},
    zmtp::{Bounds, Connection, Role, ZmtpError, within},
};

/// Of a request: the empty frame of a REQ socket and one body. What has more frames or bytes ends its connection.
const REQUEST: Bounds = Bounds { frames: 8, bytes: 256 };

/// How long accepting rests after the system refused, such as for want of file descriptors.
const REST: Duration = Duration::from_millis(100);

/// How a server treats its peers.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Most connections at once, at least 1. One more takes the place of the one that has done nothing useful for the longest time.
    pub max_connections: usize,
    /// A peer has so long to greet, and to take an answer.
    pub deadline: Duration,
    /// A connection without a request ends after. ZeroMQ sockets connect again by themselves.
    pub idle: Duration,
    /// The clock that answers are stamped by, in seconds: the very one that stamps the deadlines in this engine's transfer parameters.
    pub clock: Clock<f64>,
}

/// 256 connections, 5 s, 60 s, [`perf_counter`](super::perf_counter).
impl Default for ServerConfig {
    fn default() -> Self {
        Self { max_connections: 256, deadline: Duration::from_secs(5), idle: Duration::from_secs(60), clock: Clock::default() }
    }
}

/// What is answered for each (pipeline, tensor) rank; shared by its clones, and with the server.
#[derive(Clone, Default)]
pub struct Payloads(Arc<Mutex<BTreeMap<Ranks, Arc<[u8]>>>>);

impl Payloads {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers `payload`, an encoded [`Payload`](super::Payload), for `rank` from now on.
    ///
    /// # Errors
    /// `TooLong` above [`MAX_PAYLOAD`] bytes.
    pub fn publish(&self, rank: Ranks, payload: impl Into<Arc<[u8]>>) -> Result<(), CodecError> {
        let payload = payload.into();
        at_most("payload", payload.len(), MAX_PAYLOAD)?;
        self.lock().insert(rank, payload);
        Ok(())
    }

    /// Answers nothing for `rank` from now on. Whether it was there.
    pub fn withdraw(&self, rank: Ranks) -> bool {
        self.lock().remove(&rank).is_some()
    }

    fn get(&self, rank: Ranks) -> Option<Arc<[u8]>> {
        self.lock().get(&rank).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ranks, Arc<[u8]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Payloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.lock().iter().map(|(rank, payload)| (*rank, payload.len()))).finish()
    }
}

/// A listener on a thread of its own. Dropping it ends the thread and every connection, and waits for that.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    counters: Arc<Counters>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Listens on `host`, a name or an address, IPv6 with or without brackets, and `port`; 0 for any, see [`Server::address`]. Names
    /// are looked up here and now; of several addresses IPv4 comes first, since that is what ZeroMQ connects to.
    ///
    /// # Errors
    /// The system's, if the address is not to be had.
    pub fn bind(host: &str, port: u16, payloads: Payloads, config: ServerConfig) -> io::Result<Self> {
        let mut addresses: Vec<_> = (host::without_brackets(host), port).to_socket_addrs()?.collect();
        addresses.sort_by_key(SocketAddr::is_ipv6);
        let listener = TcpListener::bind(&*addresses)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let counters = Arc::new(Counters::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = Arc::clone(&counters);
        let thread = thread::Builder::new().name("kvlease-side-p".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    result = serve(listener, payloads, config, serving) => {
                        if let Err(error) = result {
                            tracing::error!(%error, "the side channel does not listen");
                        }
                    }
                }
            });
        })?;
        Ok(Self { address, counters, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was printed there; there is nothing to add in a drop.
            let _ = thread.join();
        }
    }
}

/// A [`Server`] on the caller's own tokio runtime, which needs its I/O and its timers: serves until the future is dropped.
///
/// # Errors
/// The system's, if the listener cannot be used at all. No peer can cause one.
pub async fn serve(listener: TcpListener, payloads: Payloads, config: ServerConfig, counters: Arc<Counters>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let shared = Arc::new(Shared { payloads, config, counters, moments: AtomicU64::new(0) });
    let mut connections = Connections::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(ended) = connections.tasks.join_next_with_id() => {
                connections.forget(ended);
                continue;
            }
        };
        match accepted {
            Ok((stream, _)) => {
                shared.counters.add(Count::Connections);
                while connections.open.len() >= shared.config.max_connections.max(1) {
                    shared.counters.add(Count::Evicted);
                    connections.evict().await;
                }
                connections.spawn(stream, &shared);
            }
            Err(error) => {
                // Out of descriptors, most likely: one of ours is given up, and others may be closed meanwhile.
                shared.counters.add(Count::NotAccepted);
                tracing::warn!(%error, "the side channel could not accept a connection");
                connections.evict().await;
                sleep(REST).await;
            }
        }
    }
}

struct Shared {
    payloads: Payloads,
    config: ServerConfig,
    counters: Arc<Counters>,
    /// Orders what was useful when.
    moments: AtomicU64,
}

impl Shared {
    fn moment(&self) -> u64 {
        self.moments.fetch_add(1, Relaxed)
    }
}

#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    /// When each did something useful last.
    open: HashMap<Id, (AbortHandle, Arc<AtomicU64>)>,
}

impl Connections {
    fn spawn(&mut self, stream: TcpStream, shared: &Arc<Shared>) {
        let useful = Arc::new(AtomicU64::new(shared.moment()));
        let task = self.tasks.spawn(attend(stream, Arc::clone(shared), Arc::clone(&useful)));
        self.open.insert(task.id(), (task, useful));
    }

    /// Ends the connection that was useful the longest time ago, and waits until one has ended.
    async fn evict(&mut self) {
        if let Some((task, _)) = self.open.values().min_by_key(|(_, useful)| useful.load(Relaxed)) {
            task.abort();
        }
        match self.tasks.join_next_with_id().await {
            Some(ended) => self.forget(ended),
            None => self.open.clear(),
        }
    }

    fn forget(&mut self, ended: Result<(Id, ()), tokio::task::JoinError>) {
        let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
        self.open.remove(&id);
    }
}

/// One connection, to its end.
async fn attend(stream: TcpStream, shared: Arc<Shared>, useful: Arc<AtomicU64>) {
    let Err(end) = converse(stream, &shared, &useful).await;
    shared.counters.add(match end {
        ZmtpError::Stalled => Count::Stalled,
        ZmtpError::Io(_) => Count::Closed,
        ZmtpError::Peer(_) => Count::NotZeroMq,
        ZmtpError::TooLarge(_) => Count::Oversized,
    });
}

async fn converse(stream: TcpStream, shared: &Shared, useful: &AtomicU64) -> Result<Infallible, ZmtpError> {
    let ServerConfig { deadline, idle, clock, .. } = &shared.config;
    let mut connection = within(*deadline, Connection::greet(stream, Role::Router)).await?;
    loop {
        let frames = within(*idle, connection.receive(REQUEST)).await?;
        match payload(&frames, &shared.payloads) {
            Ok(payload) => {
                let stamp = encode_stamp(clock.now());
                within(*deadline, connection.send(&[b"", &payload, &stamp])).await?;
                shared.counters.add(Count::Answered);
                useful.store(shared.moment(), Relaxed);
            }
            Err(count) => shared.counters.add(count),
        }
    }
}

/// What is asked for, or why that is not answered.
fn payload(frames: &[Vec<u8>], payloads: &Payloads) -> Result<Arc<[u8]>, Count> {
    let [delimiter, body] = frames else { return Err(Count::WrongFrames) };
    if !delimiter.is_empty() {
        return Err(Count::WrongFrames);
    }
    let rank = decode_request(body).map_err(|_| Count::Malformed)?;
    payloads.get(rank).ok_or(Count::UnknownRank)
}
