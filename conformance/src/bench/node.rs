//! One process of our pair: it leads, which is to say it holds the clock, or it follows.
//!
//! Both tell on standard output how they are reached, are told on standard input how the other is, and connect. The leader then
//! tells its figure.

use std::{io, time::Instant};

use clap::{Args, ValueEnum};
use gpu_mem::{HostSlab, Memory};
use lease_proto::{
    frame::{Frame, HEADER},
    id::{Incarnation, Token},
    permits::Permits,
    time::Duration,
    transport::{Control, Data},
};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    idle::idle,
    metric::{Figure, Kind, Lane, Mode, name},
    reads::{Source, export},
    rounds::median,
    traffic::{Traffic, text},
};
use crate::engine::{Elsewhere, hex, say, unhex};

/// How a transport sleeps until something may have come in, or a time is over.
pub type Wait<T> = fn(&mut T, Duration) -> Result<(), <T as Control>::Error>;
/// Lets the library below progress once, past the transport; whether anything moved.
pub type Bare<T> = fn(&T) -> bool;

/// What a transport is asked for beyond its traits. Functions and not a trait, as [`Arm`](crate::engine::Arm) is.
#[derive(Debug)]
pub struct Hooks<T: Data> {
    /// Sleeps until something may have come in.
    pub wait: Wait<T>,
    /// Lets UCX progress, past the transport.
    pub bare: Bare<T>,
    /// Registers on other threads, where the transport lets them.
    pub elsewhere: Option<Elsewhere<T>>,
}

/// What a process is to do.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs)]
pub struct NodeArgs {
    #[arg(long)]
    pub side: Side,
    #[arg(long)]
    pub lane: Lane,
    #[arg(long)]
    pub mode: Mode,
    #[arg(long)]
    pub kind: Kind,
    #[arg(long)]
    pub bytes: usize,
    /// Turns that are timed
    #[arg(long)]
    pub times: u64,
    /// Turns before them
    #[arg(long)]
    pub warmup: u64,
}

/// Which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// Sends first, reads, and holds the clock.
    Lead,
    /// Answers, or owns what is read.
    Follow,
}

/// How a process is reached, and what may be read there.
#[derive(Serialize, Deserialize)]
struct Reach {
    metadata: String,
    region: Option<String>,
}

/// Either process lives once.
const INCARNATION: Incarnation = Incarnation(1);
/// The one lease there is.
const TOKEN: Token = Token { number: 1, nonce: 1 };

/// Does what `args` say with the transport that `open` makes.
///
/// # Errors
/// Why it could not.
pub fn run<T: Data<Memory = Memory>>(
    args: &NodeArgs,
    open: impl FnOnce(Option<&str>) -> Result<(T, Permits), T::Error>,
    hooks: &Hooks<T>,
) -> Result<(), String> {
    // Whoever started it may be killed, and a process that polls would go on for ever.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(text)?;
    let (mut transport, permits) = open(Some(&name(args.lane))).map_err(text)?;
    permits.permit(TOKEN);
    let mut metadata = vec![0; transport.local_metadata().len() + HEADER];
    Frame::encode(INCARNATION, transport.local_metadata(), &mut metadata).map_err(text)?;
    let memory = if args.kind == Kind::Read { Some(Memory::from(HostSlab::new(args.bytes).map_err(text)?)) } else { None };
    let memory = memory.map(|memory| transport.register(memory)).transpose().map_err(text)?;
    let region = memory.as_ref().map(|memory| export(&mut transport, memory, INCARNATION)).transpose()?;
    tell(&Reach { metadata: hex(&metadata), region: region.as_deref().map(hex) })?;

    let other: Reach = hear()?;
    let metadata = bytes(&other.metadata)?;
    // Who only waits while an idle transport is measured leaves the machine to that.
    let sleeps = args.mode == Mode::Event || (args.kind == Kind::Idle && args.side == Side::Follow);
    let mut traffic = Traffic::connect(transport, Frame::decode(&metadata).map_err(text)?, sleeps.then_some(hooks.wait))?;
    match args.side {
        Side::Follow => {
            traffic.send(&[])?;
            traffic.receive()?;
            follow(args, &mut traffic)
        }
        Side::Lead => {
            traffic.receive()?;
            traffic.send(&[])?;
            let region = bytes(other.region.as_deref().unwrap_or_default())?;
            let source = memory.as_ref().map(|into| Source { region: &region, token: TOKEN, bytes: args.bytes, into });
            tell(&lead(args, &mut traffic, hooks.bare, source.as_ref())?)
        }
    }
}

/// Holds the clock.
fn lead<T: Data>(
    args: &NodeArgs,
    traffic: &mut Traffic<T>,
    bare: Bare<T>,
    source: Option<&Source<'_, T>>,
) -> Result<Figure, String> {
    let bytes = vec![0; args.bytes];
    let turns = args.times as f64;
    match (args.kind, source) {
        (Kind::Latency, _) => {
            let (halves, seconds) = timed(args, |times| traffic.ping(&bytes, times))?;
            let mut micros: Vec<f64> = halves.into_iter().map(|nanos| nanos as f64 / 1e3).collect();
            Ok(Figure { value: median(&mut micros), seconds, bare: None })
        }
        (Kind::Rate, _) => {
            let ((), seconds) = timed(args, |times| traffic.stream(&bytes, times))?;
            Ok(Figure { value: turns / seconds, seconds, bare: None })
        }
        (Kind::Read, Some(source)) => {
            let ((), seconds) = timed(args, |times| traffic.read(source, times))?;
            traffic.send(&[])?;
            Ok(Figure { value: args.bytes as f64 * turns / seconds / 1e6, seconds, bare: None })
        }
        (Kind::Read, None) => Err("no memory to read into".into()),
        (Kind::Idle, _) => {
            let ((value, bare), seconds) = timed(args, |times| idle(traffic, bare, times))?;
            traffic.send(&[])?;
            Ok(Figure { value, seconds, bare: Some(bare) })
        }
    }
}

/// Takes the other's part, turn by turn.
fn follow<T: Data>(args: &NodeArgs, traffic: &mut Traffic<T>) -> Result<(), String> {
    let bytes = vec![0; args.bytes];
    match args.kind {
        Kind::Latency => traffic.echo(&bytes, args.warmup + args.times),
        Kind::Rate => traffic.sink(args.warmup).and_then(|()| traffic.sink(args.times)),
        // Until the leader is done; to be polled is all that an owner must do to serve.
        Kind::Read | Kind::Idle => traffic.receive(),
    }
}

/// What the turns gave, and how long those took that count.
fn timed<R>(args: &NodeArgs, mut turns: impl FnMut(u64) -> Result<R, String>) -> Result<(R, f64), String> {
    turns(args.warmup)?;
    let start = Instant::now();
    let result = turns(args.times)?;
    Ok((result, start.elapsed().as_secs_f64()))
}

fn tell(what: &impl Serialize) -> Result<(), String> {
    let value = serde_json::to_value(what).map_err(text)?;
    say(&value).map_err(|error| format!("cannot write to standard output: {error}"))
}

fn hear<R: DeserializeOwned>() -> Result<R, String> {
    let mut line = String::new();
    io::stdin().read_line(&mut line).map_err(text)?;
    serde_json::from_str(&line).map_err(|error| format!("expected the other process's answer on standard input: {error}"))
}

fn bytes(hex: &str) -> Result<Vec<u8>, String> {
    unhex(hex).ok_or_else(|| "the other process told no bytes".to_owned())
}
