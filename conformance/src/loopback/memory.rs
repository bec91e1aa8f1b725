//! Memory on the fabric: one-sided reads, so that late ones meet what is there by then.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use lease_proto::{
    frame::Frame,
    id::{Incarnation, Token},
    transport::{Data, ErrorKind, PeerId, Range, ReadId},
};

use super::{EndpointId, Loopback, LoopbackError, error};

/// Bytes that peers may read.
#[derive(Clone, Debug)]
pub struct Slab(Arc<Mutex<Vec<u8>>>);

impl Slab {
    /// Takes the bytes over.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(bytes)))
    }

    /// What is there now.
    pub fn bytes(&self) -> Vec<u8> {
        self.with(|bytes| bytes.clone())
    }

    /// Writes all of it anew, as an engine does that reuses blocks.
    pub fn fill(&self, value: u8) {
        self.with(|bytes| bytes.fill(value));
    }

    fn with<T>(&self, f: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[derive(Debug, Default)]
pub(super) struct Memories(HashMap<u64, (EndpointId, Slab)>);

impl Memories {
    pub(super) fn forget(&mut self, owner: EndpointId) {
        self.0.retain(|_, (id, _)| *id != owner);
    }
}

/// A registration; it ends when it is dropped.
#[derive(Debug)]
pub struct Region {
    owner: super::Fabric,
    key: u64,
    slab: Slab,
}

impl Drop for Region {
    fn drop(&mut self) {
        self.owner.state().memories.0.remove(&self.key);
    }
}

impl Data for Loopback {
    type Memory = Slab;
    type Registration = Region;

    fn register(&mut self, memory: Slab) -> Result<Region, LoopbackError> {
        let mut state = self.fabric.state();
        let key = state.number();
        state.memories.0.insert(key, (self.id, memory.clone()));
        Ok(Region { owner: self.fabric.clone(), key, slab: memory })
    }

    fn export(&mut self, region: &Region, incarnation: Incarnation, out: &mut [u8]) -> Result<usize, LoopbackError> {
        Frame::encode(incarnation, &region.key.to_le_bytes(), out).map_err(|_| error(ErrorKind::TooLarge))
    }

    fn read(
        &mut self,
        peer: PeerId,
        _: Token,
        region: Frame<'_>,
        ranges: &[Range],
        into: &Region,
        at: u64,
    ) -> Result<ReadId, LoopbackError> {
        let key = <[u8; 8]>::try_from(region.payload()).map(u64::from_le_bytes).map_err(|_| error(ErrorKind::Invalid))?;
        let mut state = self.fabric.state();
        let owner = state.peer(self.id, peer).ok_or(error(ErrorKind::NotConnected))?;
        let read = ReadId(state.number());
        let source = state.memories.0.get(&key).filter(|(id, _)| *id == owner).map(|(_, slab)| slab.clone());
        let Some(source) = source else {
            state.finish_read(self.id, read, Err(ErrorKind::Rejected)); // deregistered
            return Ok(read);
        };
        let bytes = gather(&source, ranges).ok_or(error(ErrorKind::Invalid))?;
        let fits = into.slab.with(|target| {
            let start = usize::try_from(at).ok()?;
            target.get_mut(start..start.checked_add(bytes.len())?)?.copy_from_slice(&bytes);
            Some(())
        });
        fits.ok_or(error(ErrorKind::Invalid))?;
        state.finish_read(self.id, read, Ok(()));
        Ok(read)
    }
}

fn gather(source: &Slab, ranges: &[Range]) -> Option<Vec<u8>> {
    source.with(|bytes| {
        let mut gathered = Vec::new();
        for range in ranges {
            let start = usize::try_from(range.offset).ok()?;
            let end = start.checked_add(usize::try_from(range.length).ok()?)?;
            gathered.extend_from_slice(bytes.get(start..end)?);
        }
        Some(gathered)
    })
}
