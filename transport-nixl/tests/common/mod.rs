//! What the tests share: lanes, transports, memory, and patience.
//!
//! UCX takes its fabric from the environment, which a process cannot change safely once it runs. So each scenario runs in a process of
//! its own, this binary again, started for one lane; that it ends well is part of every verdict, since NIXL may crash as late as that.
#![allow(dead_code)] // Each test binary uses its part.

pub(crate) mod foreign;
pub(crate) mod process;

use std::{
    fmt,
    process::{Command, Stdio},
    time::Instant,
};

use gpu_mem::{HostSlab, Memory};
use lease_proto::{
    frame::{Frame, HEADER},
    id::{Incarnation, Token},
    transport::{Control as _, Data as _, ErrorKind, Incoming, Landed, PeerId, Range, ReadId, Ticket},
};
use transport_nixl::{NixlConfig, NixlTransport, Region};

/// Runs each scenario over tcp and over shared memory.
#[macro_export]
macro_rules! on_every_lane {
    ($($scenario:ident),* $(,)?) => {
        mod tcp { $(#[test] fn $scenario() { $crate::common::in_lane("tcp", stringify!($scenario), super::$scenario); })* }
        mod shm { $(#[test] fn $scenario() { $crate::common::in_lane("shm", stringify!($scenario), super::$scenario); })* }
    };
}

/// Runs each scenario over tcp alone.
#[macro_export]
macro_rules! on_tcp {
    ($($scenario:ident),* $(,)?) => {
        mod alone { $(#[test] fn $scenario() { $crate::common::in_lane("alone", stringify!($scenario), super::$scenario); })* }
    };
}

/// Tells a process that it is to run a scenario itself, and over what.
const LANE: &str = "KVLEASE_NIXL_TEST_LANE";
/// Tells a process that it is a peer.
pub(crate) const PEER: &str = "KVLEASE_NIXL_TEST_PEER";

/// Only against hangs; no verdict depends on it.
pub(crate) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// A process that runs this test of this binary.
pub(crate) fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

/// Runs a scenario of this lane in a process of its own.
#[track_caller]
pub(crate) fn in_lane(lane: &str, scenario: &str, run: fn()) {
    if std::env::var_os(LANE).is_some() {
        // Nobody is to be left when the test is ended from outside.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
        std::thread::spawn(|| {
            std::thread::sleep(PATIENCE);
            eprintln!("the scenario waits in vain for another process");
            std::process::abort();
        });
        return run();
    }
    let tls = if lane == "shm" { "shm" } else { "tcp" };
    let mut command = again(&format!("{lane}::{scenario}"));
    command.env(LANE, lane).env("UCX_TLS", tls).env("UCX_MM_ERROR_HANDLING", "y").env("UCX_KEEPALIVE_INTERVAL", "1s");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{scenario} over {lane} ended with {}\n{said}\n{complained}", output.status);
    assert!(said.contains("1 passed"), "{scenario} did not run");
    // What it measured.
    said.lines().filter_map(|line| line.split_once("seen: ")).for_each(|(_, seen)| println!("{lane}::{scenario}: {seen}"));
}

/// The fabric that this process uses.
pub(crate) fn is_tcp() -> bool {
    std::env::var("UCX_TLS").unwrap() == "tcp"
}

pub(crate) fn with(config: NixlConfig) -> NixlTransport {
    // In its own words, which say what is missing.
    NixlTransport::new(config).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn transport() -> NixlTransport {
    with(NixlConfig::default())
}

pub(crate) fn framed(payload: &[u8]) -> Vec<u8> {
    framed_as(7, payload)
}

pub(crate) fn framed_as(incarnation: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; payload.len() + HEADER];
    Frame::encode(Incarnation(incarnation), payload, &mut bytes).unwrap();
    bytes
}

/// An [`Incoming`] that owns its bytes.
#[derive(PartialEq, Eq)]
pub(crate) enum Got {
    Message(Vec<u8>),
    Connected(Ticket, PeerId),
    ConnectFailed(Ticket, ErrorKind),
    Lost(PeerId),
    Read(ReadId, Result<Landed, ErrorKind>),
}

impl fmt::Debug for Got {
    /// Of a message only its length, since some are long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(bytes) => write!(f, "a message of {} bytes", bytes.len()),
            Self::Connected(ticket, peer) => write!(f, "{ticket:?} connected as {peer:?}"),
            Self::ConnectFailed(ticket, kind) => write!(f, "{ticket:?} failed: {kind}"),
            Self::Lost(peer) => write!(f, "{peer:?} lost"),
            Self::Read(read, result) => write!(f, "{read:?} ended {result:?}"),
        }
    }
}

pub(crate) fn poll(transport: &mut NixlTransport) -> Option<Got> {
    Some(match transport.poll().unwrap()? {
        Incoming::Notification { from, bytes } => {
            // Nothing vouches for the name in it.
            assert_eq!(from, None);
            Got::Message(bytes.to_vec())
        }
        Incoming::Connected { ticket, peer } => Got::Connected(ticket, peer),
        Incoming::ConnectFailed { ticket, kind } => Got::ConnectFailed(ticket, kind),
        Incoming::PeerLost { peer } => Got::Lost(peer),
        Incoming::ReadDone { read, result } => Got::Read(read, result),
        other => panic!("expected what a transport gives, got {other:?}"),
    })
}

/// Runs `step` until it gives something. NIXL wakes nobody, so there is nothing to sleep on.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(result) = step() {
            return result;
        }
        assert!(started.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// The next thing that comes in to `transport`.
#[track_caller]
pub(crate) fn next(transport: &mut NixlTransport) -> Got {
    until("something to come in", || poll(transport))
}

/// Starts to connect to the transport that this is the metadata of.
pub(crate) fn dial(from: &mut NixlTransport, metadata: &[u8]) -> Ticket {
    from.connect(Frame::decode(&framed(metadata)).unwrap()).unwrap()
}

/// Connects to the transport that this is the metadata of; an earlier peer's loss may be told meanwhile.
#[track_caller]
pub(crate) fn connect(from: &mut NixlTransport, metadata: &[u8]) -> PeerId {
    let ticket = dial(from, metadata);
    loop {
        match next(from) {
            Got::Connected(resolved, peer) if resolved == ticket => return peer,
            Got::Lost(_) => {}
            other => panic!("expected the connection, got {other:?}"),
        }
    }
}

/// Two transports of this thread, the first connected to the second.
pub(crate) fn pair() -> (NixlTransport, NixlTransport, PeerId) {
    let (mut from, to) = (transport(), transport());
    let peer = connect(&mut from, to.local_metadata());
    (from, to, peer)
}

/// What comes in to `to`, while `from` moves, too.
#[track_caller]
pub(crate) fn hear(from: &mut NixlTransport, to: &mut NixlTransport) -> Got {
    until("something to come in", || {
        assert_eq!(poll(from), None);
        poll(to)
    })
}

pub(crate) const TOKEN: Token = Token { number: 1, nonce: 2 };
pub(crate) const MIB: usize = 1 << 20;
pub(crate) const LANDED: Result<Landed, ErrorKind> = Ok(Landed::OneSided);

/// The byte that lies at `at` of a region for tests. Never [`POISON`], and no two pages are alike.
pub(crate) fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 16) as u8 % 251
}

/// What memory holds before anything was read into it, or once its blocks were used again.
pub(crate) const POISON: u8 = 0xff;

/// Memory of `length` bytes, filled by [`pattern`].
pub(crate) fn patterned(length: usize) -> Memory {
    filled(length, pattern)
}

pub(crate) fn poisoned(length: usize) -> Memory {
    filled(length, |_| POISON)
}

fn filled(length: usize, with: impl Fn(usize) -> u8) -> Memory {
    let mut slab = HostSlab::new(length).unwrap();
    slab.iter_mut().enumerate().for_each(|(at, byte)| *byte = with(at));
    Memory::from(slab)
}

pub(crate) fn bytes_of(memory: &Memory, at: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.copy_out(at, &mut bytes).unwrap();
    bytes
}

/// The first byte of `memory` that is not the pattern's, from its start.
pub(crate) fn wrong(memory: &Memory) -> Option<usize> {
    bytes_of(memory, 0, memory.len()).iter().enumerate().position(|(at, byte)| *byte != pattern(at))
}

pub(crate) fn is_poison(memory: &Memory) -> bool {
    bytes_of(memory, 0, memory.len()).iter().all(|byte| *byte == POISON)
}

pub(crate) fn range(offset: usize, length: usize) -> Range {
    Range { offset: offset as u64, length: length as u64 }
}

/// What a peer needs to read this region, with the incarnation of [`framed`].
pub(crate) fn exported(owner: &mut NixlTransport, region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; 16 << 10];
    let length = owner.export(region, Incarnation(7), &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

/// Starts to read all of a region into the start of another.
pub(crate) fn read(reader: &mut NixlTransport, peer: PeerId, region: &[u8], length: usize, into: &Region) -> ReadId {
    reader.read(peer, TOKEN, Frame::decode(region).unwrap(), &[range(0, length)], into, 0).unwrap()
}

/// The memory once nothing holds it any more; `step` lets those who do let go.
#[track_caller]
pub(crate) fn given_back(memory: Memory, mut step: impl FnMut()) -> HostSlab {
    let mut memory = Some(memory);
    until("the memory to be given back", || {
        step();
        memory.take()?.try_into_slab().map_err(|kept| memory = Some(kept)).ok()
    })
}

/// How often this thread gave its processor up to wait for something.
pub(crate) fn voluntary_switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
