//! Memory on the fabric, and who may still read it.

use std::collections::HashMap;

use gpu_mem::Memory;
use lease_proto::{
    frame::Frame,
    id::{Incarnation, Token},
    transport::{Capabilities, Data, ErrorKind, PeerId, Range, ReadId},
};

use super::{EndpointId, Fabric, Loopback, LoopbackError, error, reads::Wanted};

/// Marks an exported region as this transport's.
const TAG: &[u8; 8] = b"loopback";

/// What can be read on the fabric, by key.
#[derive(Debug, Default)]
pub(super) struct Memories(HashMap<u64, Registered>);

/// Registered memory.
#[derive(Clone, Debug)]
pub(super) struct Registered {
    pub(super) owner: EndpointId,
    pub(super) memory: Memory,
    /// For one lease alone, to be fenced at its end.
    pub(super) one_lease: bool,
    fenced: bool,
}

impl Memories {
    pub(super) fn forget(&mut self, owner: EndpointId) {
        self.0.retain(|_, registered| registered.owner != owner);
    }

    /// The memory behind a key, while its owner lets it be read.
    pub(super) fn readable(&self, key: u64, owner: EndpointId) -> Option<&Registered> {
        self.0.get(&key).filter(|registered| registered.owner == owner && !registered.fenced)
    }
}

/// A registration; it ends when it is dropped.
#[derive(Debug)]
pub struct Region {
    fabric: Fabric,
    key: u64,
    memory: Memory,
    one_lease: bool,
}

impl Drop for Region {
    fn drop(&mut self) {
        self.fabric.state().memories.0.remove(&self.key);
    }
}

impl Loopback {
    fn enter(&mut self, memory: Memory, one_lease: bool) -> Region {
        let mut state = self.fabric.state();
        let key = state.number();
        state.memories.0.insert(key, Registered { owner: self.id, memory: memory.clone(), one_lease, fenced: false });
        Region { fabric: self.fabric.clone(), key, memory, one_lease }
    }
}

impl Data for Loopback {
    type Memory = Memory;
    type Registration = Region;

    fn register(&mut self, memory: Memory) -> Result<Region, LoopbackError> {
        Ok(self.enter(memory, false))
    }

    fn register_fenced(&mut self, memory: Memory) -> Result<Region, LoopbackError> {
        match self.capabilities {
            Capabilities { fence: true, .. } => Ok(self.enter(memory, true)),
            _ => Err(error(ErrorKind::Unsupported)),
        }
    }

    fn fence(&mut self, region: &Region) -> Result<(), LoopbackError> {
        let mut state = self.fabric.state();
        let registered = state.memories.0.get_mut(&region.key).filter(|registered| registered.one_lease);
        registered.ok_or(error(ErrorKind::Invalid))?.fenced = true;
        Ok(())
    }

    fn export(&mut self, region: &Region, incarnation: Incarnation, out: &mut [u8]) -> Result<usize, LoopbackError> {
        let payload = [*TAG, region.key.to_le_bytes(), (region.memory.len() as u64).to_le_bytes()].concat();
        Frame::encode(incarnation, &payload, out).map_err(|_| error(ErrorKind::TooLarge))
    }

    fn read(
        &mut self,
        peer: PeerId,
        token: Token,
        region: Frame<'_>,
        ranges: &[Range],
        into: &Region,
        at: u64,
    ) -> Result<ReadId, LoopbackError> {
        let invalid = || error(ErrorKind::Invalid);
        let (key, size) = region_of(region.payload()).ok_or_else(invalid)?;
        let room = (into.memory.len() as u64).checked_sub(at).ok_or_else(invalid)?;
        let fits = total(ranges, size).is_some_and(|total| total <= room);
        if !fits || into.one_lease {
            return Err(invalid());
        }
        let into = (into.memory.clone(), at as usize); // it is inside, so it fits
        self.fabric.state().read(self.id, peer, Wanted { token, key, ranges: ranges.to_vec(), into }).map_err(error)
    }
}

/// The key and the size in an exported region.
fn region_of(payload: &[u8]) -> Option<(u64, u64)> {
    let (key, size) = payload.strip_prefix(TAG)?.split_first_chunk()?;
    Some((u64::from_le_bytes(*key), u64::from_le_bytes(size.try_into().ok()?)))
}

/// Bytes in all of ranges that are at least one, none of them empty, all of them inside.
fn total(ranges: &[Range], size: u64) -> Option<u64> {
    let inside = |range: &Range| range.length > 0 && range.offset.checked_add(range.length).is_some_and(|end| end <= size);
    if ranges.is_empty() || !ranges.iter().all(inside) {
        return None;
    }
    ranges.iter().try_fold(0u64, |total, range| total.checked_add(range.length))
}
