//! The block memory of one rank of a prefill instance, as vLLM has it: one region a layer, with K and V packed, and the same block
//! ids on every rank.

use gpu_mem::{HostSlab, Memory};
use lease_proto::transport::Data as _;
use transport_nixl::{NixlTransport, Region, side_channel::AgentMetadata};

use super::params::BLOCK_SIZE;
use crate::engine::{
    EngineError,
    pattern::{POISON, Pattern},
    transport_error,
};

/// Layers, each a region.
const REGIONS: usize = 4;
/// Bytes of a block of a layer over all ranks.
pub(super) const WHOLE_BLOCK: u32 = 65_536;
/// Blocks of a request, and blocks that are there at least.
const BLOCKS_EACH: u64 = 3;
const BLOCKS: u64 = 64;

/// How many blocks are there for so many requests.
pub(super) fn blocks_for(requests: usize) -> u64 {
    (requests as u64).saturating_mul(BLOCKS_EACH).max(BLOCKS)
}

/// The blocks of a request by its number, from the last on down, as vLLM's allocator gives them.
pub(super) fn ids(blocks: u64, request: usize) -> Vec<u64> {
    let above = blocks.saturating_sub((request as u64).saturating_mul(BLOCKS_EACH));
    (above.saturating_sub(BLOCKS_EACH)..above).rev().collect()
}

/// The row of bytes that a request has on one rank in one region.
pub(super) fn row(request: &str, rank: u16, region: usize) -> Pattern {
    Pattern::of(&format!("{request}/{rank}/{region}"))
}

/// Registered for as long as the rank lives.
pub(super) struct Pool {
    regions: Vec<Region>,
    rank: u16,
    blocks: u64,
    block: usize,
}

impl Pool {
    /// Memory for so many blocks of one rank of `tp`, registered.
    ///
    /// # Errors
    /// No memory, or what the transport says.
    pub(super) fn register(transport: &mut NixlTransport, rank: u16, tp: u32, blocks: u64) -> Result<Self, EngineError> {
        let block = WHOLE_BLOCK.checked_div(tp).unwrap_or(WHOLE_BLOCK) as usize;
        let bytes = usize::try_from(blocks).unwrap_or(usize::MAX).saturating_mul(block);
        let regions = (0..REGIONS).map(|_| {
            let memory = Memory::from(HostSlab::new(bytes)?);
            transport.register(memory).map_err(transport_error)
        });
        Ok(Self { regions: regions.collect::<Result<_, _>>()?, rank, blocks, block })
    }

    /// Puts a request's bytes into its blocks.
    ///
    /// # Errors
    /// Blocks that are not there.
    pub(super) fn fill(&self, request: &str, ids: &[u64]) -> Result<(), EngineError> {
        for (region, registered) in self.regions.iter().enumerate() {
            let row = row(request, self.rank, region);
            for (at, id) in ids.iter().enumerate() {
                row.write(at.saturating_mul(self.block), registered.memory(), self.offset(*id), self.block)?;
            }
        }
        Ok(())
    }

    /// Overwrites blocks that are free.
    ///
    /// # Errors
    /// Blocks that are not there.
    pub(super) fn poison(&self, ids: &[u64]) -> Result<(), EngineError> {
        for (registered, id) in self.regions.iter().flat_map(|region| ids.iter().map(move |id| (region, *id))) {
            POISON.write(0, registered.memory(), self.offset(id), self.block)?;
        }
        Ok(())
    }

    fn offset(&self, id: u64) -> usize {
        usize::try_from(id).unwrap_or(usize::MAX).saturating_mul(self.block)
    }

    /// What the side channel tells of this rank. `agent` is NIXL's own part of it.
    pub(super) fn metadata(&self, engine: &str, agent: Vec<u8>) -> AgentMetadata {
        AgentMetadata {
            engine_id: engine.to_owned(),
            agent_metadata: agent,
            kv_caches_base_addr: self.regions.iter().map(|region| region.memory().descriptor().address()).collect(),
            num_blocks: self.blocks,
            block_lens: vec![self.block as u64; REGIONS],
            block_strides: vec![self.block as u64; REGIONS],
            kv_cache_layout: "LBHNC".into(),
            block_size: BLOCK_SIZE,
            attn_backend_name: "FLASH_ATTN".into(),
            // Without, a reader on a GPU takes it for its own kind of memory.
            region_mem_types: Some(vec!["DRAM".into(); REGIONS]),
            ..AgentMetadata::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_has_blocks_of_its_own_from_the_last_on_down() {
        assert_eq!(blocks_for(2), 64);
        assert_eq!((ids(64, 0), ids(64, 1)), (vec![63, 62, 61], vec![60, 59, 58]));
        let blocks = blocks_for(1000);
        let mut all: Vec<u64> = (0..1000).flat_map(|request| ids(blocks, request)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..3000).collect::<Vec<u64>>());
    }
}
