//! Memory and reads.

use std::sync::Arc;

use gpu_mem::Memory;
use lease_proto::{
    frame::Frame,
    id::{Incarnation, Token},
    pieces::{Pieces, PiecesError},
    transport::{Data, PeerId, Range, ReadId},
};

use crate::{
    NixlError, NixlTransport, Region, cuda,
    desk::{Job, What},
    metadata::RemoteRegion,
    peers::{Region as Knowledge, State},
    reads::Read,
};

/// Memory of `gpu-mem`, the host's or a CUDA device's. Registering it pins its pages where a fabric reads by itself; it waits for a
/// connection that is being made, so register pools at the start.
impl Data for NixlTransport {
    type Memory = Memory;
    type Registration = Region;

    fn register(&mut self, memory: Memory) -> Result<Region, NixlError> {
        let backend = self.config.backend.clone();
        let registered = self.with_agent(|agent| cuda::register(agent, &backend, &memory))?;
        Ok(self.regions.add(registered))
    }

    fn register_fenced(&mut self, _memory: Memory) -> Result<Region, NixlError> {
        Err(NixlError::NoFence)
    }

    fn fence(&mut self, _registration: &Region) -> Result<(), NixlError> {
        Err(NixlError::NoFence)
    }

    fn export(&mut self, region: &Region, incarnation: Incarnation, out: &mut [u8]) -> Result<usize, NixlError> {
        let registered = self.regions.get(region).ok_or(NixlError::OtherTransport)?;
        let memory = &registered.memory;
        let exported = RemoteRegion {
            agent: &self.name,
            address: memory.descriptor().address(),
            length: memory.len() as u64,
            device: registered.place.device,
            segment: registered.place.segment,
            metadata: &registered.metadata,
        };
        exported.frame(incarnation, out)
    }

    fn read(
        &mut self,
        peer: PeerId,
        _token: Token,
        region: Frame<'_>,
        ranges: &[Range],
        into: &Region,
        at: u64,
    ) -> Result<ReadId, NixlError> {
        let incarnation = region.incarnation();
        let region = RemoteRegion::decode(region)?;
        let into = Arc::clone(self.regions.get(into).ok_or(NixlError::OtherTransport)?);
        let at = usize::try_from(at).ok().filter(|at| *at <= into.memory.len()).ok_or(PiecesError::Room)?;
        let pieces = Pieces::check(ranges, region.length, into.memory.len().saturating_sub(at) as u64)?;
        let agent = Arc::clone(&self.peers.peers.get(&peer.0).ok_or(NixlError::NotConnected)?.agent);
        let remote = self.peers.remotes.get_mut(&agent).ok_or(NixlError::NotConnected)?;
        if *agent != *region.agent || remote.incarnation != incarnation {
            return Err(NixlError::OtherAgent);
        }
        let open = self.reads.of(peer.0);
        if open >= self.config.max_reads {
            return Err(NixlError::Reads { open });
        }
        let mut needs = None;
        if !region.metadata.is_empty() && remote.regions.get(region.metadata) != Some(&Knowledge::Known) {
            let metadata: Arc<[u8]> = Arc::from(region.metadata);
            if !remote.regions.contains_key(&metadata) {
                let max = self.config.max_regions;
                if remote.regions.len() >= max {
                    return Err(NixlError::TooManyRegions { max });
                }
                remote.regions.insert(Arc::clone(&metadata), Knowledge::Learning);
                remote.to_learn += 1;
                self.to_learn.push_back(Job {
                    incarnation,
                    agent: Arc::clone(&agent),
                    metadata: Arc::clone(&metadata),
                    what: What::Region,
                });
            }
            needs = Some(metadata);
        }
        debug_assert_eq!(remote.state, State::Known);
        let id = self.peers.number();
        let read = Read::new(peer.0, agent, (needs, region.address, region.place()), pieces, (into, at));
        self.reads.begin(id, read);
        Ok(ReadId(id))
    }
}
