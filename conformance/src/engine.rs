//! A small engine around a transport: both sides of the protocol, told by [`Command`]s what to do, telling events as JSON.
//!
//! The two-terminal roles and the processes of a certification are this engine; so is each side of the in-memory lab.

mod command;
mod json;
mod live;
mod raw;

pub use command::{Command, Filling, Lease, Outcome, numbered};
pub use live::{Arm, LONGEST_SLEEP, say, serve};

use std::{
    collections::{HashMap, VecDeque},
    fmt::Write as _,
};

use lease_proto::{
    config::{Config, ConfigError, Terms, TermsError},
    counters::Counters,
    drive::{Drive, Engine as Surroundings, Machine},
    event::{Context, Event, Refused},
    frame::{Frame, HEADER},
    holder::{Abort, Ended, Grant, Holder, Lease as HeldLease, Peer as HolderPeer},
    id::{ClockId, EngineId, IdError, Identity, Incarnation, ReaderRank, RequestId, Token},
    params::Parameters,
    reader::{Handle, Leg, Peer as ReaderPeer, ReadOutcome, Reader, Request, Track},
    table::{Slot, boxed},
    time::{Duration, Instant},
    transport::{Control, PeerId, Ticket},
    wire::Wire,
};
use serde_json::{Map, Value, json};

/// What an engine is started with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its engine id.
    pub name: String,
    /// The wire that it speaks.
    pub wire: Wire,
    /// Its terms.
    pub config: Config,
    /// How many leases and requests it has room for.
    pub capacity: usize,
    /// Sixteen bytes of the system's random source, or a fixed seed in memory.
    pub seed: [u8; 16],
    /// Its life: random, too.
    pub incarnation: u64,
    /// Only the transport moves, and what comes in is told as it is: for cases about the transport alone.
    pub raw: bool,
}

/// Why an engine could not do what it was told.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum EngineError {
    #[error("{0}")]
    Terms(#[from] TermsError),
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("{0}")]
    Id(#[from] IdError),
    #[error("the parameters are not usable: {0}")]
    Params(String),
    #[error("no request of that name is known here: {0}")]
    NoSuchRequest(String),
    #[error("{}", refusal(*.0))]
    Refused(Refused),
    #[error("{0}")]
    Declined(#[from] lease_proto::reader::Declined),
    #[error("{kind}: {text}")]
    Transport { kind: lease_proto::transport::ErrorKind, text: String },
    #[error("{0}")]
    Invalid(String),
}

fn refusal(why: Refused) -> &'static str {
    match why {
        Refused::Duplicate => "it is there already",
        Refused::Full => "no room for another one",
        Refused::Draining => "this instance shuts down",
        Refused::IdNotEncodable => "vLLM's wire cannot carry the id: choose another, or the native wire",
        other => other.name(),
    }
}

type HolderOf = Holder<Box<[Slot<HeldLease>]>, Box<[Slot<HolderPeer>]>, Box<[Slot<Ended>]>>;
type ReaderOf = Reader<Box<[Slot<Request>]>, Box<[Slot<Leg>]>, Box<[Slot<ReaderPeer<Vec<u8>>>]>, Vec<u8>>;

/// Peers that one engine talks to.
const PEERS: usize = 256;
/// Time for pushing accepted messages out at the end of a turn.
const FLUSH: Duration = Duration::from_millis(1);

/// The engine.
pub struct Engine<T> {
    transport: T,
    clock: Box<dyn Fn() -> Instant>,
    started: Instant,
    identity: Identity,
    raw: bool,
    frame: Vec<u8>,
    holder: HolderOf,
    reader: ReaderOf,
    drive: Drive,
    counters: Counters,
    events: VecDeque<Value>,
    tokens: HashMap<String, Token>,
    handles: HashMap<String, Handle>,
    buffer: Vec<u8>,
}

impl<T: Control> Engine<T> {
    /// An engine over a transport; `clock` is read whenever the protocol wants to know the time.
    ///
    /// # Errors
    /// Terms that do not hold, an id that is too long.
    pub fn new(transport: T, clock: Box<dyn Fn() -> Instant>, setup: Setup) -> Result<Self, EngineError> {
        let terms = setup.config.validate(setup.wire)?;
        let max_message = u32::try_from(transport.capabilities().max_notification).unwrap_or(u32::MAX);
        let incarnation = Incarnation(setup.incarnation);
        let identity = Identity {
            engine: EngineId::try_from(setup.name.as_str())?,
            incarnation,
            rank: 0,
            ranks: 1,
            clock: ClockId(setup.incarnation),
            max_message,
        };
        let mut frame = vec![0; transport.local_metadata().len() + HEADER];
        Frame::encode(incarnation, transport.local_metadata(), &mut frame)
            .map_err(|error| EngineError::Params(error.to_string()))?;
        let started = clock();
        Ok(Self {
            holder: Holder::new(
                identity.clone(),
                terms.clone(),
                setup.seed,
                boxed(setup.capacity),
                boxed(PEERS),
                boxed(setup.capacity),
            ),
            reader: Reader::new(
                identity.clone(),
                terms.clone(),
                setup.seed.map(|byte| !byte),
                frame.clone(),
                boxed(setup.capacity),
                boxed(setup.capacity),
                boxed(PEERS),
            ),
            drive: Drive::new(&terms, max_message),
            buffer: vec![0; transport.capabilities().max_notification.max(frame.len() + 1024)],
            transport,
            clock,
            started,
            identity,
            raw: setup.raw,
            frame,
            counters: Counters::default(),
            events: VecDeque::new(),
            tokens: HashMap::new(),
            handles: HashMap::new(),
        })
    }

    /// The transport.
    pub fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// The terms that hold.
    pub fn terms(&self) -> &Terms {
        self.holder.terms()
    }

    /// The time on the engine's clock.
    pub fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Leases that are held, and requests that are tracked.
    pub fn busy(&self) -> (u32, u32) {
        (self.holder.live(), self.reader.open())
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Value> {
        self.events.pop_front()
    }

    /// Whether there is one.
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// One turn of the loop; returns when the next one is due, from now on.
    ///
    /// # Errors
    /// What the transport as a whole reports.
    pub fn turn(&mut self) -> Result<Option<Duration>, EngineError> {
        if self.raw {
            return self.raw_turn();
        }
        let Self { transport, clock, started, identity, holder, reader, drive, counters, events, buffer, .. } = self;
        let mut tell = |event: Event<'_>| {
            let now = clock();
            events.extend(json::event(&event, identity, *started, now));
        };
        let machines: &mut [&mut dyn Machine] = &mut [holder, reader];
        let surroundings = Surroundings { clock: &mut || clock(), counters, events: &mut tell, buffer };
        let turn = drive.turn(transport, machines, surroundings, FLUSH).map_err(transport_error)?;
        if turn.more {
            return Ok(Some(Duration::ZERO));
        }
        Ok(turn.next.map(|next| next.saturating_since((self.clock)())))
    }

    /// Does what it is told and answers.
    ///
    /// # Errors
    /// Why it could not.
    pub fn execute(&mut self, command: Command) -> Result<Value, EngineError> {
        match command {
            Command::Metadata => Ok(self.raw_metadata()),
            Command::Grant(lease) => self.grant(&lease),
            Command::Abort { request, failed } => {
                let token = self.token(&request)?;
                let why = if failed { Abort::Failed } else { Abort::Cancelled };
                self.with(|holder, _, cx| holder.abort(cx, token, why)).map_err(EngineError::Refused)?;
                Ok(json!({}))
            }
            Command::Drain { within } => {
                let within =
                    within.parse().map_err(|error: lease_proto::time::TimeError| EngineError::Invalid(error.to_string()))?;
                self.with(|holder, _, cx| holder.drain(cx, within));
                Ok(json!({}))
            }
            Command::Track { params, reader, of } => {
                let rank =
                    ReaderRank::new(reader, of).ok_or_else(|| EngineError::Invalid(format!("no rank {reader} of {of}")))?;
                self.track(&params, rank)
            }
            Command::Read { request } => {
                let handle = self.handle(&request)?;
                self.with(|_, reader, cx| reader.begin_read(cx, handle))?;
                self.tell("read_started", json!({"request": request}));
                Ok(json!({}))
            }
            Command::ReadEnded { request, outcome } => {
                let handle = self.handle(&request)?;
                let outcome = match outcome {
                    Outcome::OneSided => ReadOutcome::OneSided,
                    Outcome::Failed => ReadOutcome::Failed,
                };
                self.tell("read_ended", json!({"request": request}));
                self.with(|_, reader, cx| reader.read_ended(cx, handle, outcome))?;
                Ok(json!({}))
            }
            Command::Finish { request } => {
                let handle = self.handle(&request)?;
                self.with(|_, reader, cx| reader.finish(cx, handle))?;
                Ok(json!({}))
            }
            Command::Counters => {
                let mut counts = Map::new();
                self.counters.each(|name, kind, value| {
                    let name = kind.map_or(name.to_owned(), |kind| format!("{name}.{kind}"));
                    counts.insert(name, value.into());
                });
                Ok(Value::Object(counts))
            }
            Command::Connect { metadata } => self.raw_connect(&metadata),
            Command::Notify { peer, filling } => self.raw_notify(peer, &filling),
            Command::NotifyMany { peer, count, lengths } => self.raw_notify_many(peer, count, &lengths),
            Command::Cancel { ticket } => {
                self.transport.cancel(Ticket(ticket));
                Ok(json!({}))
            }
            Command::Disconnect { peer } => {
                self.transport.disconnect(PeerId(peer));
                Ok(json!({}))
            }
        }
    }

    /// Grants a lease and says what a router would be told.
    fn grant(&mut self, lease: &Lease) -> Result<Value, EngineError> {
        let request = RequestId::try_from(lease.request.as_str())?;
        let ttl = match &lease.ttl {
            Some(ttl) => {
                Some(ttl.parse().map_err(|error: lease_proto::time::TimeError| EngineError::Invalid(error.to_string()))?)
            }
            None => None,
        };
        let token = self.with(|holder, _, cx| {
            let token = holder.announced(&request).unwrap_or_else(|| holder.mint());
            let grant = Grant { request: &request, token, consumers: lease.consumers, ttl };
            holder.grant(cx, grant).map(|_| token)
        });
        let token = token.map_err(EngineError::Refused)?;
        self.tokens.insert(lease.request.clone(), token);
        let terms = self.holder.terms();
        let params = Parameters {
            token,
            incarnation: self.identity.incarnation,
            engine: self.identity.engine.as_bytes(),
            ranks: self.identity.ranks,
            extension: terms.extension(),
            drift_ppm: terms.drift_ppm(),
            frames: &self.frame,
        };
        let key = params.to_string().map_err(|error| EngineError::Params(error.to_string()))?;
        Ok(json::transfer_params(&self.identity, &lease.request, &key))
    }

    fn track(&mut self, params: &Value, rank: ReaderRank) -> Result<Value, EngineError> {
        let read = json::read_params(params).map_err(EngineError::Params)?;
        let mut buffer = vec![0; read.key.len().div_ceil(4) * 3];
        let parameters = Parameters::from_text(&read.key, &mut buffer).map_err(|error| EngineError::Params(error.to_string()))?;
        let request = RequestId::try_from(read.request.as_str())?;
        let targets = [(0, parameters.frames.to_vec())];
        let track = Track { request: &request, params: &parameters, reader: rank };
        let handle = self.with(|_, reader, cx| reader.track(cx, track, targets)).map_err(EngineError::Refused)?;
        self.handles.insert(read.request.clone(), handle);
        Ok(json!({"request": read.request, "peer": String::from_utf8_lossy(parameters.engine)}))
    }

    fn token(&self, request: &str) -> Result<Token, EngineError> {
        self.tokens.get(request).copied().ok_or_else(|| EngineError::NoSuchRequest(request.to_owned()))
    }

    fn handle(&self, request: &str) -> Result<Handle, EngineError> {
        self.handles.get(request).copied().ok_or_else(|| EngineError::NoSuchRequest(request.to_owned()))
    }

    /// An event that is the engine's own, not the protocol's.
    fn tell(&mut self, event: &str, more: Value) {
        let line = json::line(event, more, &self.identity, self.started, (self.clock)());
        self.events.push_back(line);
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut HolderOf, &mut ReaderOf, &mut Context<'_>) -> R) -> R {
        let Self { clock, started, identity, holder, reader, counters, events, .. } = self;
        let now = clock();
        let mut tell = |event: Event<'_>| events.extend(json::event(&event, identity, *started, now));
        f(holder, reader, &mut Context { now, counters, events: &mut tell })
    }
}

impl Engine<crate::loopback::Loopback> {
    /// Whether something has arrived that a turn would take in.
    pub fn has_mail(&self) -> bool {
        self.transport.has_mail()
    }
}

pub(crate) fn transport_error<E: lease_proto::transport::Error>(error: E) -> EngineError {
    EngineError::Transport { kind: error.kind(), text: error.to_string() }
}

/// The request id in transfer parameters that can be used.
///
/// # Errors
/// What is wrong with them.
pub fn params_request(params: &Value) -> Result<String, String> {
    let request = json::read_params(params)?.request;
    if request.is_empty() {
        return Err("remote_request_id is empty".into());
    }
    RequestId::try_from(request.as_str()).map_err(|error| error.to_string())?;
    with_params(params, |_| request)
}

/// By how much the holder of these parameters extends a lease.
pub fn params_extension(params: &Value) -> Option<Duration> {
    with_params(params, |parameters| parameters.extension).ok()
}

fn with_params<R>(params: &Value, f: impl FnOnce(&Parameters<'_>) -> R) -> Result<R, String> {
    let read = json::read_params(params)?;
    let mut buffer = vec![0; read.key.len().div_ceil(4) * 3];
    Parameters::from_text(&read.key, &mut buffer).map(|parameters| f(&parameters)).map_err(|error| error.to_string())
}

/// Bytes as lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

/// The inverse of [`hex`].
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.bytes().map(|byte| (byte as char).to_digit(16)).collect::<Option<Vec<u32>>>()?;
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    Some(pairs.iter().map(|[high, low]| (high * 16 + low) as u8).collect())
}
