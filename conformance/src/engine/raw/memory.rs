//! Memory without the protocol: regions by number, with bytes that can be compared.

use std::collections::BTreeMap;

use gpu_mem::{HostSlab, Memory};
use lease_proto::{
    frame::{Frame, HEADER},
    id::Token,
    transport::{Data, PeerId, Range},
};
use serde_json::{Value, json};

use super::{
    super::{Command, Engine, EngineError, hex, pattern::Pattern, transport_error, unhex},
    refused,
};

/// Exports are larger than this only on a fabric of another kind.
const LARGEST_EXPORT: usize = 16 << 10;

/// Memory by its numbers, and its registrations while they stand.
pub(in super::super) struct Regions<R> {
    last: u64,
    all: BTreeMap<u64, (Option<R>, Option<Memory>)>,
}

impl<R> Default for Regions<R> {
    fn default() -> Self {
        Self { last: 0, all: BTreeMap::new() }
    }
}

impl<R> Regions<R> {
    fn memory(&self, region: u64) -> Result<&Memory, EngineError> {
        self.all.get(&region).and_then(|(_, memory)| memory.as_ref()).ok_or_else(|| unknown(region))
    }

    fn registration(&self, region: u64) -> Result<&R, EngineError> {
        self.all.get(&region).and_then(|(registration, _)| registration.as_ref()).ok_or_else(|| unknown(region))
    }

    /// Whether nobody else holds the memory any more; then it is gone.
    fn given_back(&mut self, region: u64) -> Result<bool, EngineError> {
        let (_, memory) = self.all.get_mut(&region).ok_or_else(|| unknown(region))?;
        *memory = memory.take().and_then(|memory| memory.try_into_slab().err());
        Ok(memory.is_none())
    }
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
            Command::Register { bytes, pattern, one_lease } => {
                let memory = Memory::from(HostSlab::new(bytes)?);
                Pattern(pattern).write(0, &memory, 0, bytes)?;
                let registered =
                    if one_lease { transport.register_fenced(memory.clone()) } else { transport.register(memory.clone()) };
                let registration = match registered {
                    Ok(registration) => registration,
                    Err(error) => return Ok(refused(&error)),
                };
                regions.last += 1;
                regions.all.insert(regions.last, (Some(registration), Some(memory)));
                Ok(json!({"result": "ok", "region": regions.last}))
            }
            Command::Fill { region, pattern } => {
                let memory = regions.memory(region)?;
                Pattern(pattern).write(0, memory, 0, memory.len())?;
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
            Command::Deregister { region } => {
                let (registration, _) = regions.all.get_mut(&region).ok_or_else(|| unknown(region))?;
                drop(registration.take());
                Ok(json!({}))
            }
            Command::GivenBack { region } => Ok(json!({"given_back": regions.given_back(region)?})),
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
            Command::Compare { region, at, pattern, ranges } => {
                let differs = Pattern(pattern).differs(&parts(&ranges), regions.memory(region)?, at)?;
                Ok(json!({"matches": differs.is_none(), "first": differs}))
            }
            other => Err(EngineError::Invalid(format!("expected a command of this node, got {other:?}"))),
        }
    }
}
