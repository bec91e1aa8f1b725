//! Where a peer's blocks lie in its memory.

use super::{AgentMetadata, CodecError};

/// One block of one region in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Its first byte's address there.
    pub address: u64,
    /// Its bytes.
    pub len: u64,
}

/// A block that the peer does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No such region.
    #[error("region {got} of {regions}: count regions from 0")]
    Region {
        /// What was asked for.
        got: usize,
        /// How many there are.
        regions: usize,
    },
    /// No such block.
    #[error("block {got} of {blocks} in region {region}: the block ids are not this peer's, or stale")]
    Block {
        /// What was asked for.
        got: u64,
        /// How many blocks the region has.
        blocks: u64,
        /// The region.
        region: usize,
    },
    /// A block that would lie beyond the address space; [`AgentMetadata::check`] finds that first.
    #[error("block {block} of region {region} lies beyond the address space: check the metadata")]
    Overflow {
        /// The block.
        block: u64,
        /// The region.
        region: usize,
    },
}

impl AgentMetadata {
    /// How many regions the peer registered.
    pub fn regions(&self) -> usize {
        self.kv_caches_base_addr.len()
    }

    /// How many blocks a region has; `None` if there is no such region.
    pub fn blocks(&self, region: usize) -> Option<u64> {
        match &self.region_num_blocks {
            Some(by_region) => by_region.get(region).copied(),
            None => (region < self.regions()).then_some(self.num_blocks),
        }
    }

    /// Block `id` of `region`: at `base + id * stride`, `block_len` bytes.
    ///
    /// Ids count kernel blocks: those of vLLM's scheduler times
    /// [`physical_blocks_per_logical_kv_block`](AgentMetadata::physical_blocks_per_logical_kv_block).
    ///
    /// # Errors
    /// Any block that the peer did not announce.
    pub fn block(&self, region: usize, id: u64) -> Result<Block, LayoutError> {
        let no_region = LayoutError::Region { got: region, regions: self.regions() };
        let (base, len, stride) = self.geometry(region).ok_or(no_region)?;
        let blocks = self.blocks(region).ok_or(no_region)?;
        if id >= blocks {
            return Err(LayoutError::Block { got: id, blocks, region });
        }
        let address = id.checked_mul(stride).and_then(|offset| base.checked_add(offset));
        match address.filter(|address| address.checked_add(len).is_some()) {
            Some(address) => Ok(Block { address, len }),
            None => Err(LayoutError::Overflow { block: id, region }),
        }
    }

    /// Base, block length and stride.
    fn geometry(&self, region: usize) -> Option<(u64, u64, u64)> {
        Some((*self.kv_caches_base_addr.get(region)?, *self.block_lens.get(region)?, *self.block_strides.get(region)?))
    }

    pub(super) fn check_region(&self, region: usize) -> Result<(), CodecError> {
        let bad = |problem| Err(CodecError::Region { region, problem });
        match self.geometry(region) {
            Some((_, 0, _)) => return bad("its blocks have no bytes"),
            Some((_, len, stride)) if stride < len => return bad("its stride is shorter than its block, so blocks overlap"),
            _ => {}
        }
        match self.blocks(region).map(|blocks| self.block(region, blocks.saturating_sub(1))) {
            Some(Ok(_)) => Ok(()),
            _ => bad("its last block lies beyond the address space"),
        }
    }
}
