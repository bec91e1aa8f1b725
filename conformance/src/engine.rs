//! A small engine around a transport: both sides of the protocol, told by [`Command`]s what to do, telling events as JSON. It holds
//! real blocks for the leases that it grants, and really reads and verifies those that it is told to read.
//!
//! The two-terminal roles and the processes of a certification are this engine; so is each side of the in-memory lab.

mod blocks;
mod carrier;
mod command;
mod ear;
mod elsewhere;
mod hex;
mod json;
mod kinds;
mod live;
mod params;
pub(crate) mod pattern;
pub(crate) mod rank;
mod raw;
mod reads;

pub use carrier::{Carrier, Hand, HandIn};
pub use command::{Command, Filling, Lease, Purpose, numbered};
pub use elsewhere::{Elsewhere, Registered, on_thread};
pub(crate) use hex::{hex, unhex};
pub use kinds::Kinds;
pub(crate) use live::closed;
#[cfg(feature = "nixl")]
pub(crate) use live::sleep_on;
pub use live::{Arm, LONGEST_SLEEP, say, serve};
pub use params::{names_side_channel, params_extension, params_request};

use std::collections::HashMap;

use blocks::{Blocks, Place};
use gpu_mem::{Memory, MemoryError};
use lease_proto::{
    config::{Config, ConfigError, Terms, TermsError},
    event::Refused,
    holder::{Abort, Grant},
    id::{IdError, ReaderRank, RequestId, Token},
    params::Parameters,
    permits::Permits,
    reader::Track,
    time::{Duration, Instant},
    transport::{Data, ErrorKind},
    wire::Wire,
};
use pattern::Pattern;
use rank::{Rank, Seat};
use reads::{Over, Reads, Tracked};
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
    /// The kinds of memory that it uses.
    pub memory: Kinds,
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
    #[error("{0}")]
    Memory(#[from] MemoryError),
    #[error("{0}")]
    Layout(#[from] gpu_mem::LayoutError),
    #[error("{0}")]
    Pool(#[from] gpu_mem::PoolError),
    #[error("{0}")]
    NotLent(#[from] gpu_mem::NotLent),
    #[error("{kind}: {text}")]
    Transport { kind: ErrorKind, text: String },
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

/// The engine.
pub struct Engine<T: Data<Memory = Memory>> {
    rank: Rank<T>,
    /// Where the transport itself is all that moves.
    raw: Option<raw::Regions<T>>,
    /// The leases that were granted: by request, and where their blocks lie, by token.
    tokens: HashMap<String, Token>,
    places: HashMap<u64, Place>,
    blocks: Blocks<T::Registration>,
    tracked: HashMap<String, Tracked>,
    reads: Reads<T::Registration>,
}

impl<T: Data<Memory = Memory>> Engine<T> {
    /// An engine over a transport, whose permits it keeps; `clock` is read whenever the protocol wants to know the time.
    ///
    /// # Errors
    /// Terms that do not hold, an id that is too long.
    pub fn new(transport: T, permits: Permits, clock: Box<dyn Fn() -> Instant>, setup: Setup) -> Result<Self, EngineError> {
        let seat = Seat { rank: 0, ranks: 1, started: clock() };
        Ok(Self {
            rank: Rank::new(transport, permits, clock, &setup, seat, setup.capacity)?,
            raw: setup.raw.then(|| raw::Regions::new(setup.memory)),
            tokens: HashMap::new(),
            places: HashMap::new(),
            blocks: Blocks::new(setup.memory.blocks),
            tracked: HashMap::new(),
            reads: Reads::new(setup.memory.landing),
        })
    }

    /// Lets its own agent carry the bytes.
    pub fn carried_by(&mut self, carrier: Carrier<T>) {
        self.rank.carrier = Some(carrier);
    }

    /// Lets memory be registered on other threads, too.
    pub fn registers_elsewhere(&mut self, elsewhere: Elsewhere<T>) {
        if let Some(regions) = &mut self.raw {
            regions.elsewhere = Some(elsewhere);
        }
    }

    /// The transport.
    pub fn transport(&mut self) -> &mut T {
        &mut self.rank.transport
    }

    /// The terms that hold.
    pub fn terms(&self) -> &Terms {
        self.rank.holder.terms()
    }

    /// The time on the engine's clock.
    pub fn now(&self) -> Instant {
        self.rank.now()
    }

    /// Leases that are held, and requests that are tracked.
    pub fn busy(&self) -> (u32, u32) {
        (self.rank.holder.live(), self.rank.reader.open())
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Value> {
        self.rank.ear.told.pop_front()
    }

    /// Whether there is one.
    pub fn has_event(&self) -> bool {
        !self.rank.ear.told.is_empty()
    }

    /// One turn of the loop; returns when the next one is due, from now on.
    ///
    /// # Errors
    /// What the transport as a whole reports.
    pub fn turn(&mut self) -> Result<Option<Duration>, EngineError> {
        if self.raw.is_some() {
            return self.raw_turn();
        }
        let next = self.rank.turn()?;
        Ok(if self.follow_up()? { Some(Duration::ZERO) } else { next })
    }

    /// What follows from events, once the machines are done: freed blocks may be used again, reads are judged and others started.
    /// Whether there is something to send since.
    fn follow_up(&mut self) -> Result<bool, EngineError> {
        for token in std::mem::take(&mut self.rank.ear.freed) {
            if let Some(place) = self.places.remove(&token.number) {
                self.blocks.give_back(&mut self.rank.transport, place)?;
            }
        }
        self.blocks.clean(&mut self.rank.transport)?;
        let mut over = Vec::new();
        for (read, outcome) in std::mem::take(&mut self.rank.ear.landed) {
            over.push(self.reads.landed(read, outcome)?);
        }
        over.extend(self.reads.start(&mut self.rank.transport, &self.tracked)?);
        let judged = !over.is_empty();
        for Over { request, outcome, told } in over {
            self.rank.tell("read_landed", told);
            self.rank.tell("read_ended", json!({"request": request}));
            let handle = self.tracked(&request)?.handle;
            self.rank.with(|_, reader, cx| reader.read_ended(cx, handle, outcome))?;
        }
        Ok(judged)
    }

    /// Does what it is told and answers.
    ///
    /// # Errors
    /// Why it could not.
    pub fn execute(&mut self, command: Command) -> Result<Value, EngineError> {
        let answer = self.carry_out(command);
        self.follow_up()?;
        answer
    }

    fn carry_out(&mut self, command: Command) -> Result<Value, EngineError> {
        match command {
            Command::Grant(lease) => self.grant(&lease),
            Command::Abort { request, failed } => {
                let token = self.token(&request)?;
                let why = if failed { Abort::Failed } else { Abort::Cancelled };
                self.rank.with(|holder, _, cx| holder.abort(cx, token, why)).map_err(EngineError::Refused)?;
                Ok(json!({}))
            }
            Command::Drain { within } => {
                let within =
                    within.parse().map_err(|error: lease_proto::time::TimeError| EngineError::Invalid(error.to_string()))?;
                self.rank.with(|holder, _, cx| holder.drain(cx, within));
                Ok(json!({}))
            }
            Command::Track { params, reader, of } => {
                let rank =
                    ReaderRank::new(reader, of).ok_or_else(|| EngineError::Invalid(format!("no rank {reader} of {of}")))?;
                self.track(&params, rank)
            }
            Command::Read { request } => {
                let handle = self.tracked(&request)?.handle;
                let peer = self.rank.reader.connection(handle, 0).ok_or_else(|| EngineError::Transport {
                    kind: ErrorKind::NotConnected,
                    text: "wait until the holder can be reached".into(),
                })?;
                self.rank.with(|_, reader, cx| reader.begin_read(cx, handle))?;
                self.rank.tell("read_started", json!({"request": request}));
                self.reads.want(request, peer);
                Ok(json!({}))
            }
            Command::Finish { request } => {
                let handle = self.tracked(&request)?.handle;
                self.rank.with(|_, reader, cx| reader.finish(cx, handle))?;
                Ok(json!({}))
            }
            Command::Counters => {
                let mut counts = Map::new();
                self.rank.counters.each(|name, kind, value| {
                    let name = kind.map_or(name.to_owned(), |kind| format!("{name}.{kind}"));
                    counts.insert(name, value.into());
                });
                Ok(Value::Object(counts))
            }
            other => self.raw_command(other),
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
        let place = self.blocks.put(&mut self.rank.transport, Pattern::of(&lease.request), lease.one_lease)?;
        let granted = self.rank.with(|holder, _, cx| {
            let token = holder.announced(&request).unwrap_or_else(|| holder.mint());
            let grant = Grant { request: &request, token, consumers: lease.consumers, ttl };
            holder.grant(cx, grant).map(|_| token)
        });
        let token = match granted {
            Ok(token) => token,
            Err(why) => {
                self.blocks.give_back(&mut self.rank.transport, place)?;
                return Err(EngineError::Refused(why));
            }
        };
        let (regions, blocks) = self.blocks.export(&mut self.rank.transport, &place, self.rank.ear.identity.incarnation)?;
        let (terms, identity) = (self.rank.holder.terms(), &self.rank.ear.identity);
        let params = Parameters {
            token,
            incarnation: identity.incarnation,
            engine: identity.engine.as_bytes(),
            ranks: identity.ranks,
            extension: terms.extension(),
            drift_ppm: terms.drift_ppm(),
            frames: &self.rank.frame,
            regions: &regions,
        };
        let key = params.to_string().map_err(|error| EngineError::Params(error.to_string()))?;
        let params = params::transfer_params(identity, &lease.request, &blocks, &key);
        self.tokens.insert(lease.request.clone(), token);
        self.places.insert(token.number, place);
        Ok(params)
    }

    fn track(&mut self, params: &Value, rank: ReaderRank) -> Result<Value, EngineError> {
        let read = params::read_params(params).map_err(EngineError::Params)?;
        let mut buffer = vec![0; read.key.len().div_ceil(4) * 3];
        let parameters = Parameters::from_text(&read.key, &mut buffer).map_err(|error| EngineError::Params(error.to_string()))?;
        let request = RequestId::try_from(read.request.as_str())?;
        let targets = [(0, parameters.frames.to_vec())];
        let track = Track { request: &request, params: &parameters, reader: rank };
        let handle = self.rank.with(|_, reader, cx| reader.track(cx, track, targets)).map_err(EngineError::Refused)?;
        let (token, region, ranges) = (parameters.token, parameters.regions.to_vec(), blocks::ranges(&read.blocks));
        self.tracked.insert(read.request.clone(), Tracked { handle, token, region, ranges });
        Ok(json!({"request": read.request, "peer": String::from_utf8_lossy(parameters.engine)}))
    }

    fn token(&self, request: &str) -> Result<Token, EngineError> {
        self.tokens.get(request).copied().ok_or_else(|| EngineError::NoSuchRequest(request.to_owned()))
    }

    fn tracked(&self, request: &str) -> Result<&Tracked, EngineError> {
        self.tracked.get(request).ok_or_else(|| EngineError::NoSuchRequest(request.to_owned()))
    }
}

pub(crate) fn transport_error<E: lease_proto::transport::Error>(error: E) -> EngineError {
    EngineError::Transport { kind: error.kind(), text: error.to_string() }
}
