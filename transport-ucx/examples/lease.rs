//! Depth 3: one lease from its grant to its end, over transports of ours. Both sides are in this process; each would be an engine.
//!
//! `cargo run --release -p transport-ucx --example lease`

use std::{cell::Cell, fs::File, io::Read as _};

use gpu_mem::{HostSlab, Memory};
use lease_proto::{
    clock::SystemClock,
    config::{Config, Terms},
    counters::Counters,
    drive::{Drive, Engine, Machine},
    event::{Context, Event},
    frame::{Frame, HEADER},
    holder::{Grant, Holder},
    id::{ClockId, EngineId, Identity, Incarnation, ReaderRank, RequestId},
    params::Parameters,
    reader::{Declined, ReadOutcome, Reader, Track},
    table::boxed,
    time::Duration,
    transport::{Control as _, Data as _, Error as _, ErrorKind, Range},
    wire::Wire,
};
use transport_ucx::{UcxConfig, UcxTransport};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Bytes of a block, those of the whole cache, and the request's blocks, which the engines tell each other.
const BLOCK: usize = 256 << 10;
const CACHE: usize = 16 * BLOCK;
const BLOCKS: [usize; 3] = [1, 2, 12];

fn main() -> Result<()> {
    // Where terms cannot hold a lease, the error says which number to change. vLLM's lease is 30 s.
    let terms = Config::with_lease(Duration::from_secs(3)).validate(Wire::Native)?;
    let request = RequestId::try_from("cmpl-1")?;

    // The PREFILL side registers its cache once, for all leases. Slots: leases at once, peers, ended leases.
    let mut p = Side::new("prefill", &terms)?;
    let mut holder = Holder::new(p.identity.clone(), terms.clone(), random()?, boxed(64), boxed(8), boxed(64));
    let cache = p.transport.register(Memory::from(HostSlab::new(CACHE)?))?;
    let mut regions = vec![0; 4096];
    let length = p.transport.export(&cache, p.identity.incarnation, &mut regions)?;
    let (permits, leased) = (p.transport.permits(), Cell::new(false)); // an engine keeps the blocks of each token
    let mut hear_p = |event: Event<'_>| {
        permits.hear(&event); // FIRST, each event: then no late read of blocks that are used again is called served
        if let Event::Freed { why, .. } = event {
            println!("prefill: the lease is over: {}", why.name());
            leased.set(false);
        }
    };

    // It computes the blocks, and only then grants: from the grant on, whoever has the key may read.
    for block in BLOCKS {
        cache.memory().copy_in(block * BLOCK, &computed(block))?;
    }
    let token = holder.mint();
    let grant = Grant { request: &request, token, consumers: None, ttl: None };
    leased.set(true);
    holder.grant(&mut p.context(&mut hear_p), grant).map_err(|why| why.name())?;
    let Identity { incarnation, ref engine, ranks, .. } = p.identity;
    let (engine, extension, drift_ppm) = (engine.as_bytes(), terms.extension(), terms.drift_ppm());
    let (frames, regions) = (&p.frame[..], &regions[..length]);
    let key = Parameters { token, incarnation, engine, ranks, extension, drift_ppm, frames, regions };
    let key = key.to_string()?; // a router carries it as `kvlease`, beside the request's id

    // The DECODE side tracks the request as soon as it is queued. Slots: requests at once, the ranks that they read from, peers.
    let mut d = Side::new("decode", &terms)?;
    let (identity, frame) = (d.identity.clone(), d.frame.clone());
    let mut reader = Reader::new(identity, terms.clone(), random()?, frame, boxed(64), boxed(64), boxed(8));
    let into = d.transport.register(Memory::from(HostSlab::new(BLOCKS.len() * BLOCK)?))?;
    let (confirmed, lost, landed, verdict) = (Cell::new(false), Cell::new(None), Cell::new(None), Cell::new(None));
    let mut hear_d = |event: Event<'_>| match event {
        Event::Confirmed { .. } => confirmed.set(true),
        Event::Unproven { .. } => confirmed.set(false),
        Event::Lost { why, .. } => lost.set(Some(why)),
        Event::ReadLanded { read, outcome } => landed.set(Some((read, outcome))),
        Event::ReadDone { verdict: told, .. } => verdict.set(Some(told)),
        _ => {}
    };
    let mut buffer = vec![0; key.len()];
    let params = Parameters::from_text(&key, &mut buffer)?;
    let region = params.regions().next().ok_or("the key names no region")?;
    let track = Track { request: &request, params: &params, reader: ReaderRank::ONLY };
    let targets = [(0, params.frames.to_vec())]; // rank 0, the only one, and how to connect to it
    let handle = reader.track(&mut d.context(&mut hear_d), track, targets).map_err(|why| why.name())?;

    // By the terms a request that nobody answers is lost, a read judged and a lease over after so long. Only a read whose owner
    // hangs may stay open, since nobody can take its destination back.
    let most = terms.lost_after().saturating_add(terms.verdict_timeout()).saturating_add(terms.lease());
    let end = SystemClock.now().saturating_add(most);
    let ranges = BLOCKS.map(|block| Range { offset: (block * BLOCK) as u64, length: BLOCK as u64 });
    let (mut begun, mut reading) = (false, None);
    while leased.get() || verdict.get().is_none() {
        if SystemClock.now() >= end {
            return Err(format!("expected the end of the lease within {most} s").into());
        }
        // Two forward loops, which poll. A loop with nothing else to do sleeps between turns in `UcxTransport::wait`, until
        // `Turn::next` at the latest, and not at all where the turn says `more`.
        p.turn(&mut holder, &mut hear_p)?;
        d.turn(&mut reader, &mut hear_d)?;

        // What follows from events follows after the turn: they must not call the machine again.
        if let Some(why) = lost.get().filter(|_| !begun) {
            return Err(format!("the lease is lost: {}", why.name()).into()); // an engine computes the blocks itself
        }
        if confirmed.get() && !begun {
            match reader.begin_read(&mut d.context(&mut hear_d), handle) {
                Ok(()) => begun = true,
                Err(Declined::Unproven) => {} // lapsed just now: it may be confirmed again
                Err(why) => return Err(why.into()),
            }
        }
        // No connection: the holder is being connected to again, try later.
        if let (true, None, None, Some(peer)) = (begun, reading, verdict.get(), reader.connection(handle, 0)) {
            match d.transport.read(peer, token, region, &ranges, &into, 0) {
                Ok(read) => reading = Some(read),
                // As many reads are open as may be (`UcxConfig::max_reads`). Try again after a turn, as here: the lease is renewed
                // meanwhile. Or give it up by `read_ended` with `Failed`, as below. Who does neither keeps the lease for ever.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => reader.read_ended(&mut d.context(&mut hear_d), handle, ReadOutcome::Failed)?,
            }
        }
        // The read is over: now it is judged, the verdict comes as an event, and the next turn tells the holder.
        if let Some((_, outcome)) = landed.take().filter(|(read, _)| reading == Some(*read)) {
            reader.read_ended(&mut d.context(&mut hear_d), handle, outcome)?;
        }
    }

    // The verdict comes before the bytes: unless it is valid they may be anybody's.
    let verdict = verdict.get().ok_or("the read was never judged")?;
    println!("decode: the read is {}", verdict.name());
    if !verdict.is_valid() {
        return Err("the bytes must not be used: compute them".into());
    }
    let mut bytes = vec![0; BLOCK];
    for (at, block) in BLOCKS.into_iter().enumerate() {
        into.memory().copy_out(at * BLOCK, &mut bytes)?;
        if bytes != computed(block) {
            return Err(format!("the bytes of block {block} differ").into());
        }
    }
    println!("decode: the bytes match");

    // Since `Freed` the blocks are anybody's.
    cache.memory().copy_in(BLOCKS[0] * BLOCK, &computed(0))?;
    println!("prefill: the blocks are used again");
    Ok(())
}

/// What an engine has, whichever side it is.
struct Side {
    transport: UcxTransport,
    identity: Identity,
    /// How peers connect here: the transport's metadata, framed.
    frame: Vec<u8>,
    drive: Drive,
    counters: Counters,
    buffer: Vec<u8>,
}

impl Side {
    fn new(name: &str, terms: &Terms) -> Result<Self> {
        let transport = UcxTransport::new(UcxConfig { tls: Some("tcp".to_owned()), ..UcxConfig::default() })?;
        let (metadata, largest) = (transport.local_metadata(), transport.capabilities().max_notification);
        let life = u64::from_le_bytes(random()?); // another one at each start
        let (engine, incarnation, clock) = (EngineId::try_from(name)?, Incarnation(life), ClockId(life));
        let identity = Identity { engine, incarnation, rank: 0, ranks: 1, clock, max_message: u32::try_from(largest)? };
        let mut frame = vec![0; metadata.len() + HEADER];
        Frame::encode(incarnation, metadata, &mut frame)?;
        let (drive, counters) = (Drive::new(terms, identity.max_message), Counters::default());
        Ok(Self { transport, identity, frame, drive, counters, buffer: vec![0; largest] })
    }

    /// One turn. An engine that is both sides gives both machines to ONE drive.
    fn turn(&mut self, machine: &mut dyn Machine, events: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        let Self { transport, drive, counters, buffer, .. } = self;
        let engine = Engine { clock: &mut || SystemClock.now(), counters, events, buffer };
        drive.turn(transport, &mut [machine], engine, Duration::from_millis(1))?;
        Ok(())
    }

    /// For calls between turns. The clock is read just before each.
    fn context<'c>(&'c mut self, events: &'c mut dyn FnMut(Event<'_>)) -> Context<'c> {
        Context { now: SystemClock.now(), counters: &mut self.counters, events }
    }
}

/// What the model computes for a block.
fn computed(block: usize) -> Vec<u8> {
    (0..BLOCK).map(|at| (at / 8 + block * 89) as u8).collect()
}

/// Lives and seeds come from the system's random source.
fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
