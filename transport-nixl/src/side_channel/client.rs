//! D's side: handshakes in the background, for a forward loop that never waits.

mod attempt;
mod error;
mod resolver;

use std::{collections::BTreeMap, fmt, io, task::Waker, thread, time::Duration};

use lease_proto::{
    sync::queue::{Bounds, Consumer, Producer, queue},
    time::{Instant, PeerInstant},
    topology::Ranks,
};
use tokio::{runtime::Handle, sync::oneshot, task::AbortHandle};

pub use error::{HandshakeError, StartError};

use self::resolver::Resolver;
use super::{AgentMetadata, clock::Clock};

/// A domain name is not longer.
const MAX_HOST: usize = 255;

/// Which engines a client shakes hands with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Compatibility {
    /// Those with this very hash, as vLLM does by default.
    Expected(String),
    /// All, for an engine that has no hash of its own and takes over its peer's, see [`Handshake::compatibility_hash`].
    #[default]
    Learn,
    /// All, though this is our own hash: vLLM's `enforce_handshake_compat: false`. Another one is logged.
    NotEnforced(String),
}

/// How a client goes about it.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Most handshakes in flight, at least 1, with those whose result was not polled yet; a cancelled one counts until a poll, too.
    pub in_flight: usize,
    /// For looking the name up, connecting and greeting.
    pub connect_deadline: Duration,
    /// For the answer. This and `connect_deadline` together have to be shorter than the lease's extension: a lease would run out before
    /// the reader knows that it has to turn elsewhere (case 48).
    pub receive_deadline: Duration,
    /// Most bytes of an answer, up to [`MAX_PAYLOAD`](super::MAX_PAYLOAD). Answers of `in_flight` peers may be in memory, some twice as they are decoded.
    pub max_payload: usize,
    /// Which engines are taken.
    pub compatibility: Compatibility,
    /// The clock of [`OffsetSample`].
    pub clock: Clock<Instant>,
}

/// 256 in flight, 5 s each to connect and for the answer, 4 MiB, every engine, [`SystemClock`](lease_proto::clock::SystemClock).
impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            in_flight: 256,
            connect_deadline: Duration::from_secs(5),
            receive_deadline: Duration::from_secs(5),
            max_payload: 4 << 20,
            compatibility: Compatibility::default(),
            clock: Clock::default(),
        }
    }
}

/// Whom to shake hands with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `remote_host`: a name or an address, IPv6 with or without brackets.
    pub host: String,
    /// `remote_port`.
    pub port: u16,
    /// `remote_engine_id`, which the metadata must name.
    pub engine_id: String,
    /// The rank whose metadata is wanted.
    pub rank: Ranks,
}

/// A peer's clock, read between two readings of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetSample {
    /// This clock before the request was sent.
    pub sent: Instant,
    /// The peer's clock as it answered.
    pub stamped: PeerInstant,
    /// This clock after the answer arrived.
    pub received: Instant,
}

impl OffsetSample {
    /// Adds this to the offset that vLLM keeps, once for every rank of an engine.
    pub fn add_to(self, offset: &mut lease_proto::clock::VllmOffset) {
        offset.add(self.sent, self.stamped, self.received);
    }
}

/// What a peer answered; every check of vLLM's that needs no GPU is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// The rank's metadata.
    pub metadata: AgentMetadata,
    /// The peer's hash.
    pub compatibility_hash: String,
    /// For the offset between the clocks.
    pub offset: OffsetSample,
}

type Outcome = Result<Handshake, HandshakeError>;

/// Handshakes in flight on one background thread. No call waits. Dropping it cancels all of them, closes their connections and ends the
/// thread.
///
/// When to start, give up and start again is [`lease_proto::handshake::Handshake`]'s, which the caller drives: on its `Connect` comes
/// [`Client::start`], on its `Cancel` [`Client::cancel`], and what [`Client::poll`] returns is its `connected` or `failed`. Its
/// `connect_deadline` should be longer than both deadlines here, so that errors tell what happened; it `greets` nobody, since on vLLM's
/// wire this handshake is all there is.
pub struct Client {
    handle: Handle,
    config: ClientConfig,
    resolver: Resolver,
    /// Those that were started and neither cancelled nor polled.
    open: BTreeMap<u64, Open>,
    /// Tells a result from one of an earlier use of its id.
    serial: u64,
    outcomes: Consumer<(u64, u64, Outcome)>,
    /// From which each attempt's place is set aside.
    places: Producer<(u64, u64, Outcome)>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

struct Open {
    serial: u64,
    task: AbortHandle,
}

impl Client {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, without threads or descriptors to be had.
    pub fn spawn(config: ClientConfig) -> io::Result<Self> {
        let in_flight = config.in_flight.max(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(in_flight).build()?;
        let handle = runtime.handle().clone();
        let (places, outcomes) = queue(Bounds { items: in_flight, weight: usize::MAX });
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("kvlease-side-d".into()).spawn(move || {
            // It ends when its sender is dropped.
            let _ = runtime.block_on(stopped);
            // Not to wait for a look-up that hangs.
            runtime.shutdown_background();
        })?;
        Ok(Self {
            handle,
            config,
            resolver: Resolver::new(in_flight),
            open: BTreeMap::new(),
            serial: 0,
            outcomes,
            places,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Starts a handshake. `id` is the caller's, and free again once it was polled or cancelled.
    ///
    /// # Errors
    /// `WouldBlock` while as many as allowed are in flight, `InUse`, `Target`.
    pub fn start(&mut self, id: u64, target: Target) -> Result<(), StartError> {
        if target.host.is_empty() || target.host.len() > MAX_HOST || target.port == 0 {
            return Err(StartError::Target { host: target.host, port: target.port });
        }
        if self.open.contains_key(&id) {
            return Err(StartError::InUse { id });
        }
        if !self.places.set_aside() {
            return Err(StartError::WouldBlock { in_flight: self.config.in_flight.max(1) });
        }
        self.serial = self.serial.wrapping_add(1);
        let place = Place { places: self.places.clone(), id, serial: self.serial, filled: false };
        let (config, resolver) = (self.config.clone(), self.resolver.clone());
        let task = self.handle.spawn(async move {
            let outcome = attempt::shake_hands(&target, &config, &resolver).await;
            place.fill(outcome);
        });
        self.open.insert(id, Open { serial: self.serial, task: task.abort_handle() });
        Ok(())
    }

    /// Gives a handshake up: its connection is closed and its id never polled. Whether it was open.
    pub fn cancel(&mut self, id: u64) -> bool {
        match self.open.remove(&id) {
            Some(open) => {
                open.task.abort();
                true
            }
            None => false,
        }
    }

    /// How the next handshake ended, each once.
    pub fn poll(&mut self) -> Option<(u64, Result<Handshake, HandshakeError>)> {
        while let Ok((id, serial, outcome)) = self.outcomes.pop() {
            if self.open.get(&id).is_some_and(|open| open.serial == serial) {
                self.open.remove(&id);
                return Some((id, outcome));
            }
        }
        None
    }

    /// Wakes `waker` when [`Client::poll`] may have something, once; at once if it has.
    pub fn register_waker(&mut self, waker: &Waker) {
        if !self.outcomes.arm(waker) {
            waker.wake_by_ref();
        }
    }

    /// How many were started and neither polled nor cancelled.
    pub fn in_flight(&self) -> usize {
        self.open.len()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was printed there; there is nothing to add in a drop.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("in_flight", &self.open.len()).finish_non_exhaustive()
    }
}

/// Where one attempt's outcome goes. There is always one: an attempt that is dropped leaves `Ended`, which nobody sees after a cancel.
struct Place {
    places: Producer<(u64, u64, Outcome)>,
    id: u64,
    serial: u64,
    filled: bool,
}

impl Place {
    fn fill(mut self, outcome: Outcome) {
        self.put(outcome);
    }

    fn put(&mut self, outcome: Outcome) {
        self.filled = true;
        // The consumer may be gone, and then nobody wants to know.
        let _ = self.places.push_set_aside((self.id, self.serial, outcome));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.filled {
            self.put(Err(HandshakeError::Ended));
        }
    }
}
