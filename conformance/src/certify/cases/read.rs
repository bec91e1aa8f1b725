//! Reads without the protocol: whole, unchanged, inside their bounds, by who may, and over whatever becomes of the peer.

mod bytes;
mod ends;
mod memory;
mod rights;

use serde_json::Value;

use super::{Bench, Case, Command, NodeId, Trouble, connect::told, ensure, notify::link};
use crate::{certify::lab::Signal, engine::Purpose};

pub(super) fn cases() -> Vec<Case> {
    [bytes::CASES, rights::CASES, ends::CASES, memory::CASES].concat()
}

type Ranges = Vec<(u64, u64)>;

/// The token of all reads that may be made.
const TOKEN: (u64, u64) = (7, 0x5eed);
/// The patterns that are in owners' and in readers' memory, and what owners write later.
const SOURCE: u64 = 1;
const TARGET: u64 = 2;
const LATER: u64 = 3;
/// The largest read, and room for its surroundings.
const LARGEST: u64 = 16 << 20;
const ROOM: u64 = LARGEST + 4096;

/// Two raw nodes, the reader connected to the owner.
struct Sides {
    owner: NodeId,
    reader: NodeId,
    peer: u64,
    /// What the owner's transport states.
    states: Value,
}

fn sides(bench: &mut Bench) -> Result<Sides, Trouble> {
    let (owner, reader) = (bench.raw("p")?, bench.raw("d")?);
    let states = bench.tell(owner, Command::Metadata)?;
    if states["reads"] == "none" {
        return Err(Trouble::Skip("the transport does not read".into()));
    }
    let peer = link(bench, reader, &states["metadata"])?;
    permit(bench, owner, true)?;
    Ok(Sides { owner, reader, peer, states })
}

/// As [`sides`], where the owner serves.
fn served(bench: &mut Bench) -> Result<Sides, Trouble> {
    let at = sides(bench)?;
    if at.states["reads"] != "served" {
        return Err(Trouble::Skip("reads are one-sided: no owner is asked".into()));
    }
    Ok(at)
}

fn permit(bench: &mut Bench, owner: NodeId, allowed: bool) -> Result<(), Trouble> {
    bench.tell(owner, Command::Permit { token: TOKEN, allowed }).map(|_| ())
}

/// Registers so many bytes of a pattern to be read, and returns the region's number.
fn register(bench: &mut Bench, node: NodeId, bytes: u64, pattern: u64) -> Result<u64, Trouble> {
    registered(bench, node, command(bytes, pattern, Purpose::Blocks, false))
}

/// Registers so many bytes of the readers' pattern to be read into.
fn landing(bench: &mut Bench, node: NodeId, bytes: u64) -> Result<u64, Trouble> {
    registered(bench, node, command(bytes, TARGET, Purpose::Landing, false))
}

fn command(bytes: u64, pattern: u64, purpose: Purpose, elsewhere: bool) -> Command {
    Command::Register { bytes: bytes as usize, pattern, purpose, one_lease: false, elsewhere }
}

fn registered(bench: &mut Bench, node: NodeId, command: Command) -> Result<u64, Trouble> {
    let answer = bench.tell(node, command)?;
    answer["region"].as_u64().ok_or_else(|| Trouble::Failed(format!("cannot register: {answer}")))
}

fn fill(bench: &mut Bench, node: NodeId, region: u64, pattern: u64) -> Result<(), Trouble> {
    bench.tell(node, Command::Fill { region, pattern }).map(|_| ())
}

/// The frame of a region, as hex.
fn export(bench: &mut Bench, node: NodeId, region: u64) -> Result<String, Trouble> {
    let answer = bench.tell(node, Command::Export { region })?;
    answer["frame"].as_str().map(str::to_owned).ok_or_else(|| Trouble::Failed(format!("cannot export: {answer}")))
}

/// A region of the owner with its pattern, exported, and one of the reader.
fn regions(bench: &mut Bench, at: &Sides, bytes: u64) -> Result<(u64, String, u64), Trouble> {
    let source = register(bench, at.owner, bytes, SOURCE)?;
    Ok((source, export(bench, at.owner, source)?, landing(bench, at.reader, bytes)?))
}

/// What is to be read.
#[derive(Clone)]
struct Fetch {
    token: (u64, u64),
    from: String,
    ranges: Ranges,
    into: u64,
    to: u64,
    /// What the owner wrote there.
    pattern: u64,
}

impl Fetch {
    fn new(from: &str, ranges: &[(u64, u64)], into: u64, to: u64) -> Self {
        Self { token: TOKEN, from: from.to_owned(), ranges: ranges.to_vec(), into, to, pattern: SOURCE }
    }
}

impl Sides {
    /// Asks to read, and returns the answer.
    fn ask(&self, bench: &mut Bench, fetch: &Fetch) -> Result<Value, Trouble> {
        let Fetch { token, from, ranges, into, to, .. } = fetch.clone();
        bench.tell(self.reader, Command::Fetch { peer: self.peer, token, from, ranges, into, at: to })
    }

    /// Starts to read, and returns the read's number.
    fn start(&self, bench: &mut Bench, fetch: &Fetch) -> Result<u64, Trouble> {
        let answer = self.ask(bench, fetch)?;
        answer["read"].as_u64().ok_or_else(|| Trouble::Failed(format!("cannot read: {answer}")))
    }

    /// How a read ends.
    fn end(&self, bench: &mut Bench, read: u64) -> Result<String, Trouble> {
        let event = bench.wait(self.reader, "landed", |event| event["read"] == read)?;
        Ok(event["result"].as_str().unwrap_or_default().to_owned())
    }

    /// Whether a read may wait for an owner that stands still.
    fn needs_owner(&self) -> bool {
        self.states["reads_need_owner"] == true
    }

    fn is_good(&self, result: &str) -> bool {
        self.states["reads"] == result
    }

    /// Reads, and every byte is what it shall be.
    fn good(&self, bench: &mut Bench, fetch: &Fetch) -> Result<(), Trouble> {
        let read = self.start(bench, fetch)?;
        let result = self.end(bench, read)?;
        ensure(self.is_good(&result), || format!("expected {}, got {result}", self.states["reads"]))?;
        self.landed(bench, fetch)
    }

    /// What was fetched is there, every byte of it.
    fn landed(&self, bench: &mut Bench, fetch: &Fetch) -> Result<(), Trouble> {
        holds(bench, self.reader, fetch.into, fetch.to, fetch.pattern, &fetch.ranges)
    }

    /// Nothing has been written into a region of the reader.
    fn untouched(&self, bench: &mut Bench, region: u64, bytes: u64) -> Result<(), Trouble> {
        holds(bench, self.reader, region, 0, TARGET, &[(0, bytes)])
    }

    /// A read that may end either way ends well with the right bytes, or else not.
    fn either(&self, bench: &mut Bench, read: u64, fetch: &Fetch) -> Result<String, Trouble> {
        let result = self.end(bench, read)?;
        if self.is_good(&result) || result == "fenced" {
            self.landed(bench, fetch)?;
        }
        Ok(result)
    }

    /// A read that was started ends once.
    fn once(&self, bench: &mut Bench, read: u64) -> Result<(), Trouble> {
        let ends = told(bench, self.reader, "landed", "read", read)?;
        ensure(ends == 1, || format!("expected one end of a read, got {ends}"))
    }
}

/// Memory holds these ranges of a pattern, one after the other.
fn holds(bench: &mut Bench, node: NodeId, region: u64, at: u64, pattern: u64, ranges: &[(u64, u64)]) -> Result<(), Trouble> {
    let compare = Command::Compare { region, at: at as usize, pattern, ranges: ranges.to_vec(), elsewhere: false };
    let answer = bench.tell(node, compare)?;
    ensure(answer["matches"] == true, || format!("byte {} is not what it shall be", answer["first"]))
}

/// A region that was ended gives its memory back once nothing touches it any more.
fn given_back(bench: &mut Bench, node: NodeId, region: u64) -> Result<(), Trouble> {
    const MOMENTS: usize = 20;
    bench.tell(node, Command::Deregister { region, elsewhere: false })?;
    for _ in 0..MOMENTS {
        if bench.tell(node, Command::GivenBack { region })?["given_back"] == true {
            return Ok(());
        }
        told(bench, node, "landed", "read", 0)?;
    }
    Err(Trouble::Failed("memory that nothing touches any more was not given back".into()))
}
