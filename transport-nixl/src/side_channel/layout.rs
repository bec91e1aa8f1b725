//! Where a peer's blocks lie in its memory.

use gpu_mem::{Layout, Span};

use super::AgentMetadata;

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
    /// A block that is not in its region, or a region that cannot be, which [`AgentMetadata::check`] finds first.
    #[error("region {region}: {cause}")]
    Blocks {
        /// The region.
        region: usize,
        /// What is wrong.
        cause: gpu_mem::LayoutError,
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

    /// The blocks of a region, at their addresses in the peer's memory.
    ///
    /// # Errors
    /// A region that the peer did not announce, or that [`AgentMetadata::check`] would refuse.
    pub fn layout(&self, region: usize) -> Result<Layout, LayoutError> {
        let numbers = self.geometry(region).zip(self.blocks(region));
        let ((base, len, stride), blocks) = numbers.ok_or(LayoutError::Region { got: region, regions: self.regions() })?;
        let layout = Layout::new(blocks, len).and_then(|layout| layout.with_stride(stride)?.at(base));
        layout.map_err(|cause| LayoutError::Blocks { region, cause })
    }

    /// Block `id` of `region`: at `base + id * stride`, `block_len` bytes. Of many blocks, ask their [`layout`](AgentMetadata::layout).
    ///
    /// Ids count kernel blocks: those of vLLM's scheduler times
    /// [`physical_blocks_per_logical_kv_block`](AgentMetadata::physical_blocks_per_logical_kv_block).
    ///
    /// # Errors
    /// Any block that the peer did not announce.
    pub fn block(&self, region: usize, id: u64) -> Result<Span, LayoutError> {
        self.layout(region)?.block(id).map_err(|cause| LayoutError::Blocks { region, cause })
    }

    /// Base, block length and stride.
    fn geometry(&self, region: usize) -> Option<(u64, u64, u64)> {
        Some((*self.kv_caches_base_addr.get(region)?, *self.block_lens.get(region)?, *self.block_strides.get(region)?))
    }
}
