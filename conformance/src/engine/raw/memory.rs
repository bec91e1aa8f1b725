//! Memory without the protocol: regions by number, with bytes that can be compared.

use std::{collections::BTreeMap, fs};

use gpu_mem::{Kind, Memory, MemoryError, Watch};
use lease_proto::{
    frame::{Frame, HEADER},
    id::Token,
    transport::{Data, PeerId, Range},
};
use rustix::param::page_size;
use serde_json::{Value, json};

use super::{
    super::{Command, Elsewhere, Engine, EngineError, Kinds, Purpose, hex, on_thread, pattern::Pattern, transport_error, unhex},
    refused,
};

/// Exports are larger than this only on a fabric of another kind.
const LARGEST_EXPORT: usize = 16 << 10;

/// Memory by its numbers, and its registrations while they stand.
pub(in super::super) struct Regions<T: Data> {
    last: u64,
    kinds: Kinds,
    all: BTreeMap<u64, Region<T::Registration>>,
    /// Where the transport lets any thread register.
    pub(in super::super) elsewhere: Option<Elsewhere<T>>,
}

struct Region<R> {
    registration: Option<R>,
    /// What is kept besides the registration.
    kept: Option<Memory>,
    watch: Watch,
}

impl<T: Data> Regions<T> {
    pub(in super::super) fn new(kinds: Kinds) -> Self {
        Self { last: 0, kinds, all: BTreeMap::new(), elsewhere: None }
    }

    fn region(&mut self, region: u64) -> Result<&mut Region<T::Registration>, EngineError> {
        self.all.get_mut(&region).ok_or_else(|| unknown(region))
    }

    /// The memory of a region, whoever keeps it.
    fn memory(&self, region: u64) -> Result<Memory, EngineError> {
        self.all.get(&region).and_then(|region| region.watch.memory()).ok_or_else(|| unknown(region))
    }

    fn registration(&self, region: u64) -> Result<&T::Registration, EngineError> {
        self.all.get(&region).and_then(|region| region.registration.as_ref()).ok_or_else(|| unknown(region))
    }

    fn insert(&mut self, registration: T::Registration, memory: Memory) -> u64 {
        self.last += 1;
        let watch = memory.watch();
        self.all.insert(self.last, Region { registration: Some(registration), kept: Some(memory), watch });
        self.last
    }
}

/// Memory that holds a pattern.
fn filled(kind: Kind, bytes: usize, pattern: u64) -> Result<Memory, MemoryError> {
    let memory = Memory::allocate(kind, bytes)?;
    Pattern(pattern).write(0, &memory, 0, bytes)?;
    Ok(memory)
}

/// How an allocation, and a part of it, are had or refused, by name.
fn allocate(kind: &str, bytes: usize, (offset, length): (usize, usize)) -> Result<(), MemoryError> {
    Memory::allocate(kind.parse()?, bytes)?.range(offset, length).map(|_| ())
}

fn name(error: &MemoryError) -> &'static str {
    match error {
        MemoryError::ZeroSize => "zero size",
        MemoryError::TooLarge { .. } => "too large",
        MemoryError::OutOfMemory { .. } => "out of memory",
        MemoryError::OutOfRange { .. } => "out of range",
        MemoryError::Unavailable { .. } => "unavailable",
        MemoryError::UnknownKind => "unknown kind",
        _ => "refused",
    }
}

/// What this process has: files that are open and mappings, and bytes that are mapped, since neighbours count as one mapping.
fn in_use() -> (usize, usize) {
    let files = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let mappings = fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count());
    let pages = fs::read_to_string("/proc/self/statm").ok().and_then(|sizes| sizes.split(' ').next()?.parse::<usize>().ok());
    (files + mappings, pages.unwrap_or(0).saturating_mul(page_size()))
}

/// Here, or on a fresh thread.
fn on<R: Send>(elsewhere: bool, f: impl FnOnce() -> R + Send) -> R {
    if elsewhere { on_thread(f) } else { f() }
}

fn unknown(region: u64) -> EngineError {
    EngineError::Invalid(format!("expected a region that is there, got {region}"))
}

fn token((number, nonce): (u64, u64)) -> Token {
    Token { number, nonce }
}

fn parts(ranges: &[(u64, u64)]) -> Vec<Range> {
    ranges.iter().map(|&(offset, length)| Range { offset, length }).collect()
}

impl<T: Data<Memory = Memory>> Engine<T> {
    pub(super) fn raw_memory(&mut self, command: Command) -> Result<Value, EngineError> {
        let (transport, permits, incarnation) =
            (&mut self.rank.transport, &self.rank.ear.permits, self.rank.ear.identity.incarnation);
        let regions = self.raw.as_mut().ok_or_else(|| EngineError::Invalid("expected a node that was started as raw".into()))?;
        match command {
            Command::Register { bytes, pattern, purpose, one_lease, elsewhere } => {
                let kind = match purpose {
                    Purpose::Blocks => regions.kinds.blocks,
                    Purpose::Landing => regions.kinds.landing,
                };
                let memory = on(elsewhere, || filled(kind, bytes, pattern))?;
                let registered = match regions.elsewhere.filter(|_| elsewhere) {
                    Some(there) => (there.register)(transport, memory.clone()),
                    None if one_lease => transport.register_fenced(memory.clone()),
                    None => transport.register(memory.clone()),
                };
                let (kind, registration) = match registered {
                    Ok(registration) => (memory.kind().to_string(), registration),
                    Err(error) => return Ok(refused(&error)),
                };
                Ok(json!({"result": "ok", "region": regions.insert(registration, memory), "kind": kind}))
            }
            Command::Fill { region, pattern } => {
                let memory = regions.memory(region)?;
                Pattern(pattern).write(0, &memory, 0, memory.len())?;
                Ok(json!({}))
            }
            Command::Export { region } => {
                let mut frame = vec![0; LARGEST_EXPORT + HEADER];
                let length = transport.export(regions.registration(region)?, incarnation, &mut frame).map_err(transport_error)?;
                Ok(json!({"frame": hex(frame.get(..length).unwrap_or_default())}))
            }
            Command::Permit { token: (number, nonce), allowed } => {
                match allowed {
                    true => permits.permit(token((number, nonce))),
                    false => permits.withdraw(token((number, nonce))),
                }
                Ok(json!({}))
            }
            Command::Fence { region } => match transport.fence(regions.registration(region)?) {
                Ok(()) => Ok(json!({"result": "ok"})),
                Err(error) => Ok(refused(&error)),
            },
            Command::Deregister { region, elsewhere } => {
                let there = regions.elsewhere.filter(|_| elsewhere);
                let ended = regions.region(region)?.registration.take();
                match there {
                    Some(there) => ended.map_or((), there.end),
                    None => drop(ended),
                }
                Ok(json!({}))
            }
            Command::GivenBack { region } => {
                let region = regions.region(region)?;
                region.kept = None;
                Ok(json!({"given_back": region.watch.memory().is_none()}))
            }
            Command::Fetch { peer, token: (number, nonce), from, ranges, into, at } => {
                let bytes = unhex(&from).ok_or_else(|| EngineError::Invalid("expected hex".into()))?;
                let frame = match Frame::decode(&bytes) {
                    Ok(frame) => frame,
                    Err(error) => return Ok(json!({"result": "invalid", "detail": error.to_string()})),
                };
                let into = regions.registration(into)?;
                match transport.read(PeerId(peer), token((number, nonce)), frame, &parts(&ranges), into, at) {
                    Ok(read) => Ok(json!({"result": "ok", "read": read.0})),
                    Err(error) => Ok(refused(&error)),
                }
            }
            Command::Compare { region, at, pattern, ranges, elsewhere } => {
                let memory = regions.memory(region)?;
                let differs = on(elsewhere, || Pattern(pattern).differs(&parts(&ranges), &memory, at))?;
                Ok(json!({"matches": differs.is_none(), "first": differs}))
            }
            Command::Allocate { kind, bytes, part, times } => {
                let before = in_use();
                let mut last = Ok(());
                for _ in 0..times {
                    last = allocate(&kind, bytes, part);
                }
                let mut answer = match last {
                    Ok(()) => json!({"result": "ok"}),
                    Err(error) => json!({"result": name(&error), "detail": error.to_string()}),
                };
                let after = in_use();
                answer["left"] = after.0.saturating_sub(before.0).into();
                answer["left_bytes"] = after.1.saturating_sub(before.1).into();
                Ok(answer)
            }
            other => Err(EngineError::Invalid(format!("expected a command of this node, got {other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_open_shows() {
        const COUNT: usize = 200;
        let before = in_use().0;
        let files: Vec<fs::File> = (0..COUNT).map(|_| fs::File::open("/proc/self/maps").unwrap()).collect();
        assert!(in_use().0 >= before + COUNT / 2, "other tests close some");
        drop(files);
    }

    #[test]
    fn memory_that_is_kept_shows() {
        const BYTES: usize = 16 << 20;
        let before = in_use().1;
        let kept: Vec<Memory> = (0..100).map(|_| Memory::allocate(Kind::Host, BYTES).unwrap()).collect();
        assert!(in_use().1 >= before + 50 * BYTES, "other tests give some back");
        drop(kept);
    }
}
