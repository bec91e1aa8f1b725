//! What the tests share: transports, frames, and patience.
#![allow(dead_code)] // Each test binary uses its part.

use std::{
    fmt,
    io::{BufRead as _, BufReader, Lines, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc::{TryRecvError, channel},
    time::Instant,
};

use gpu_mem::{HostSlab, Memory};
use lease_proto::{
    frame::{Frame, HEADER},
    id::{Incarnation, Token},
    time::Duration,
    transport::{Control as _, Data as _, ErrorKind, Incoming, Landed, PeerId, Range, ReadId, Ticket},
};
use rustix::process::{Pid, Signal, WaitOptions};
use transport_ucx::{Region, UcxConfig, UcxTransport};

/// Runs each scenario over tcp and over shared memory.
#[macro_export]
macro_rules! on_every_lane {
    ($($scenario:ident),* $(,)?) => {
        mod tcp { $(#[test] fn $scenario() { super::$scenario("tcp"); })* }
        mod shm { $(#[test] fn $scenario() { super::$scenario("shm"); })* }
    };
}

/// Only against hangs; no verdict depends on it.
pub(crate) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

pub(crate) fn config(lane: &str) -> UcxConfig {
    UcxConfig { tls: Some(lane.to_owned()), ..UcxConfig::default() }
}

pub(crate) fn transport(lane: &str) -> UcxTransport {
    UcxTransport::new(config(lane)).unwrap()
}

pub(crate) fn framed(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; payload.len() + HEADER];
    Frame::encode(Incarnation(7), payload, &mut bytes).unwrap();
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

pub(crate) fn poll(transport: &mut UcxTransport) -> Option<Got> {
    Some(match transport.poll().unwrap()? {
        Incoming::Notification { from, bytes } => {
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

/// Runs `step` until it gives something.
pub(crate) fn until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(result) = step() {
            return result;
        }
        assert!(started.elapsed() < PATIENCE, "waited in vain: {what}");
    }
}

/// The next thing that comes in to `transport`, sleeping meanwhile.
pub(crate) fn next(transport: &mut UcxTransport) -> Got {
    until("something to come in", || {
        let got = poll(transport);
        if got.is_none() {
            transport.wait(Duration::from_secs(1)).unwrap();
        }
        got
    })
}

/// Starts to connect `from` to `to`.
pub(crate) fn dial(from: &mut UcxTransport, to: &UcxTransport) -> Ticket {
    let metadata = framed(to.local_metadata());
    from.connect(Frame::decode(&metadata).unwrap()).unwrap()
}

/// Connects `from` to `to`, both of this thread.
pub(crate) fn connect(from: &mut UcxTransport, to: &mut UcxTransport) -> PeerId {
    let ticket = dial(from, to);
    until("the connection", || {
        assert_eq!(poll(to), None);
        match poll(from)? {
            Got::Connected(resolved, peer) if resolved == ticket => Some(peer),
            other => panic!("expected the connection, got {other:?}"),
        }
    })
}

/// Two transports of this thread, the first connected to the second.
pub(crate) fn pair(lane: &str) -> (UcxTransport, UcxTransport, PeerId) {
    let (mut from, mut to) = (transport(lane), transport(lane));
    let peer = connect(&mut from, &mut to);
    (from, to, peer)
}

pub(crate) const TOKEN: Token = Token { number: 1, nonce: 2 };

/// The byte that lies at `at` of a region for tests. Never [`POISON`], and no two pages are alike.
pub(crate) fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 16) as u8 % 251
}

/// What memory holds once its blocks were used again.
pub(crate) const POISON: u8 = 0xff;

/// Memory of `length` bytes, filled by [`pattern`].
pub(crate) fn patterned(length: usize) -> Memory {
    let mut slab = HostSlab::new(length).unwrap();
    slab.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
    Memory::from(slab)
}

/// Memory of `length` bytes that are all zero.
pub(crate) fn zeroed(length: usize) -> Memory {
    Memory::from(HostSlab::new(length).unwrap())
}

pub(crate) fn bytes_of(memory: &Memory, at: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.copy_out(at, &mut bytes).unwrap();
    bytes
}

/// The bytes of a patterned region that `ranges` name, one after the other.
pub(crate) fn expected(ranges: &[Range]) -> Vec<u8> {
    ranges.iter().flat_map(|range| range.offset..range.offset + range.length).map(|at| pattern(at as usize)).collect()
}

pub(crate) fn range(offset: u64, length: u64) -> Range {
    Range { offset, length }
}

/// What a peer needs to read this region, with the incarnation of [`framed`].
pub(crate) fn exported(owner: &mut UcxTransport, region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let length = owner.export(region, Incarnation(7), &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

/// The memory once nothing holds it any more; `step` lets those who do let go.
pub(crate) fn given_back(memory: Memory, mut step: impl FnMut()) -> HostSlab {
    let mut memory = Some(memory);
    until("the memory to be given back", || {
        step();
        memory.take()?.try_into_slab().map_err(|kept| memory = Some(kept)).ok()
    })
}

/// Tells a peer process, which runs only the test `a_peer_for_the_others`, its lane.
pub(crate) const LANE: &str = "KVLEASE_UCX_TEST_PEER";

/// A peer process; killed at the end.
pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    pub(crate) metadata: Vec<u8>,
}

impl Process {
    pub(crate) fn start(lane: &str) -> Self {
        Self::start_as("a_peer_for_the_others", lane)
    }

    /// A peer that runs this test of this binary.
    pub(crate) fn start_as(test: &str, lane: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(LANE, lane)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut process = Self { child, stdin, lines: BufReader::new(stdout).lines(), metadata: Vec::new() };
        process.metadata = unhex(&process.hear("metadata"));
        process
    }

    /// Gives a peer that runs [`obey`] an order.
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.stdin, "{order}").unwrap();
    }

    /// What the peer's next line of this kind says.
    pub(crate) fn hear(&mut self, kind: &str) -> String {
        let said = |line: String| line.strip_prefix(kind).map(|said| said.trim().to_owned());
        self.lines.by_ref().map(Result::unwrap).find_map(said).expect("the peer lives")
    }

    /// Polls once.
    pub(crate) fn step(&mut self) {
        self.tell("step");
        self.hear("stepped");
    }

    /// Owns a patterned region from now on, and describes it.
    pub(crate) fn own(&mut self, length: usize) -> Vec<u8> {
        self.tell(&format!("own {length}"));
        unhex(&self.hear("region"))
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns once it has stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        rustix::process::waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The life of a peer process that does what the test says, until there is nobody to say anything any more.
pub(crate) fn obey(lane: &str) {
    // So that far ends of connections go soon.
    let mut transport = UcxTransport::new(UcxConfig { keepalive: Duration::from_millis(100), ..config(lane) }).unwrap();
    println!("\nmetadata {}", hex(transport.local_metadata()));
    let (say, orders) = channel();
    std::thread::spawn(move || std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
    let (mut regions, mut running) = (Vec::new(), false);
    loop {
        let order = match orders.try_recv() {
            Ok(order) => order,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) if running => {
                if poll(&mut transport).is_none() {
                    transport.wait(Duration::from_millis(1)).unwrap();
                }
                continue;
            }
            Err(TryRecvError::Empty) => match orders.recv() {
                Ok(order) => order,
                Err(_) => return,
            },
        };
        match order.split(' ').collect::<Vec<_>>()[..] {
            ["run"] => running = true,
            ["step"] => {
                poll(&mut transport);
                println!("stepped");
            }
            ["own", length] => {
                let region = transport.register(patterned(length.parse().unwrap())).unwrap();
                transport.permits().permit(TOKEN);
                println!("region {}", hex(&exported(&mut transport, &region)));
                regions.push(region);
            }
            ["read", metadata, region, length] => {
                let metadata = framed(&unhex(metadata));
                transport.connect(Frame::decode(&metadata).unwrap()).unwrap();
                let Got::Connected(_, peer) = next(&mut transport) else { panic!("expected a connection") };
                let (region, ranges) = (unhex(region), [range(0, length.parse().unwrap())]);
                let into = transport.register(zeroed(length.parse().unwrap())).unwrap();
                // Again and again, for as long as it lives.
                for n in 0.. {
                    transport.read(peer, TOKEN, Frame::decode(&region).unwrap(), &ranges, &into, 0).unwrap();
                    let Got::Read(_, Ok(Landed::Served)) = next(&mut transport) else { return };
                    if n == 0 {
                        println!("reading");
                    }
                    if orders.try_recv() == Err(TryRecvError::Disconnected) {
                        return;
                    }
                }
            }
            ref other => panic!("expected an order, got {other:?}"),
        }
    }
}

/// That a lane's fabric is used, and no other.
#[track_caller]
pub(crate) fn only_the_wanted_fabric(lane: &str, found: &[String], used: &[String]) {
    let wanted: &[&str] = if lane == "tcp" { &["tcp/"] } else { &["posix/", "sysv/", "cma/"] };
    assert!(!found.is_empty() && !used.is_empty());
    let is_wanted = |resource: &String| wanted.iter().any(|wanted| resource.starts_with(wanted));
    assert!(found.iter().chain(used).all(is_wanted), "{found:?} {used:?}");
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Numbers from a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    pub(crate) fn below(&mut self, sides: usize) -> usize {
        self.roll(sides as u64) as usize
    }
}
