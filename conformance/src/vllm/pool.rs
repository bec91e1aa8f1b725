//! The block memory of one rank of a prefill instance, as vLLM has it: a region a layer, with K and V packed, and the same block ids in
//! all of them and on every rank.

use gpu_mem::{BlockPool, Blocks, HostSlab, Layout, Memory};
use lease_proto::transport::Data as _;
use serde_json::{Value, json};
use transport_nixl::{NixlTransport, Region, side_channel::AgentMetadata};

use super::params::BLOCK_SIZE;
use crate::engine::{
    EngineError,
    pattern::{POISON, Pattern},
    transport_error,
};

/// Bytes of a block of a layer over all ranks.
pub(super) const WHOLE_BLOCK: u32 = 65_536;
/// Bytes behind each block of the second layer, no round number so that a stride is not taken for one.
const GAP: u64 = 832;
/// Blocks of a request, and blocks that are there at least.
const BLOCKS_EACH: usize = 3;
const BLOCKS: u64 = 64;

/// How many blocks are there for so many requests, with the null block.
pub(super) fn blocks_for(requests: usize) -> u64 {
    (requests as u64).saturating_mul(BLOCKS_EACH as u64).saturating_add(1).max(BLOCKS)
}

/// The row of bytes that a request has on one rank in one region.
pub(super) fn row(request: &str, rank: u16, region: usize) -> Pattern {
    Pattern::of(&format!("{request}/{rank}/{region}"))
}

/// Where each block of a region lies, as an event tells it.
pub(super) fn block_map(region: usize, device: u64, layout: Layout) -> Value {
    let blocks = (0..layout.num_blocks()).filter_map(|id| layout.block(id).ok());
    json!({"region": region, "device": device, "blocks": blocks.map(|span| [span.start, span.len]).collect::<Vec<_>>()})
}

/// What four layers lie in: one has a memory to itself, one has gaps in it, and two take turns in one.
struct Shape {
    memories: Vec<Memory>,
    /// The memory of each region, and its blocks there.
    regions: Vec<(Memory, Layout)>,
}

impl Shape {
    fn new(blocks: u64, block: u64) -> Result<Self, EngineError> {
        let dense = Layout::new(blocks, block)?;
        let gaps = dense.with_stride(block.saturating_add(GAP))?;
        let first = dense.with_stride(block.saturating_mul(2))?;
        let second = first.at(block)?;
        let memory = |layout: Layout| {
            let bytes = usize::try_from(layout.base().saturating_add(layout.size())).unwrap_or(usize::MAX);
            HostSlab::with_huge_pages(bytes).map(Memory::from)
        };
        let [own, gapped, shared] = [memory(dense)?, memory(gaps)?, memory(second)?];
        let regions = vec![(own.clone(), dense), (gapped.clone(), gaps), (shared.clone(), first), (shared.clone(), second)];
        Ok(Self { memories: vec![own, gapped, shared], regions })
    }
}

/// Registered for as long as the rank lives.
pub(super) struct Pool {
    blocks: BlockPool<u64>,
    /// vLLM's readers take block 0 for no block.
    _null: Blocks,
    _registered: Vec<Region>,
    rank: u16,
}

impl Pool {
    /// Memory for so many blocks of one rank of `tp`, registered.
    ///
    /// # Errors
    /// No memory, or what the transport says.
    pub(super) fn register(transport: &mut NixlTransport, rank: u16, tp: u32, blocks: u64) -> Result<Self, EngineError> {
        let block = WHOLE_BLOCK.checked_div(tp).unwrap_or(WHOLE_BLOCK);
        let Shape { memories, regions } = Shape::new(blocks, block.into())?;
        let registered = memories.into_iter().map(|memory| transport.register(memory).map_err(transport_error));
        let registered = registered.collect::<Result<_, _>>()?;
        let (blocks, null) = from_the_last_on_down(BlockPool::new(regions)?)?;
        Ok(Self { blocks, _null: null, _registered: registered, rank })
    }

    /// Blocks with a request's bytes in them.
    ///
    /// # Errors
    /// Not enough blocks.
    pub(super) fn fill(&self, request: &str) -> Result<Blocks, EngineError> {
        let blocks = self.blocks.allocate(BLOCKS_EACH)?;
        self.write(&blocks, |region, at| (row(request, self.rank, region), at))?;
        Ok(blocks)
    }

    /// Keeps blocks for the lease of this number, and tells their ids.
    ///
    /// # Errors
    /// A number that has blocks already.
    pub(super) fn lend(&self, lease: u64, blocks: Blocks) -> Result<Vec<u64>, EngineError> {
        let ids = blocks.ids().to_vec();
        self.blocks.lend(lease, blocks)?;
        Ok(ids)
    }

    /// The lease is over: its blocks are free once they are overwritten, so that a read that comes too late shows.
    ///
    /// # Errors
    /// None but blocks that are not there.
    pub(super) fn end(&self, lease: u64) -> Result<(), EngineError> {
        let Some(blocks) = self.blocks.end(&lease) else { return Ok(()) };
        self.write(&blocks, |_, _| (POISON, 0))
    }

    /// Writes to every block of every region, of a row and from a place in it that the region and the block's own place say.
    fn write(&self, blocks: &Blocks, what: impl Fn(usize, usize) -> (Pattern, usize)) -> Result<(), EngineError> {
        for (number, region) in self.blocks.regions().iter().enumerate() {
            let mut at = 0;
            for id in blocks.ids() {
                let block = region.block(*id)?;
                let (row, from) = what(number, at);
                row.write(from, block.memory(), block.offset(), block.len())?;
                at = at.saturating_add(block.len());
            }
        }
        Ok(())
    }

    /// Where every block of every region lies in this process.
    pub(super) fn block_maps(&self) -> impl Iterator<Item = Value> {
        let regions = self.blocks.regions().iter().enumerate();
        regions.map(|(number, region)| block_map(number, region.memory().descriptor().device_id(), region.addresses()))
    }

    /// What the side channel tells of this rank. `agent` is NIXL's own part of it.
    pub(super) fn metadata(&self, engine: &str, agent: Vec<u8>) -> AgentMetadata {
        let regions: Vec<Layout> = self.blocks.regions().iter().map(|region| region.addresses()).collect();
        let each = |number: fn(&Layout) -> u64| regions.iter().map(number).collect();
        AgentMetadata {
            engine_id: engine.to_owned(),
            agent_metadata: agent,
            kv_caches_base_addr: each(Layout::base),
            num_blocks: self.blocks.counts().total() as u64,
            block_lens: each(Layout::block_len),
            block_strides: each(Layout::block_stride),
            kv_cache_layout: "LBHNC".into(),
            block_size: BLOCK_SIZE,
            attn_backend_name: "FLASH_ATTN".into(),
            // Without, a reader on a GPU takes it for its own kind of memory.
            region_mem_types: Some(vec!["DRAM".into(); regions.len()]),
            ..AgentMetadata::default()
        }
    }
}

/// A pool that gives its last blocks first, as vLLM's allocator does, and its first block, apart.
fn from_the_last_on_down(pool: BlockPool<u64>) -> Result<(BlockPool<u64>, Blocks), EngineError> {
    let null = pool.allocate(1)?;
    let rest = (0..pool.counts().free).map(|_| pool.allocate(1)).collect::<Result<Vec<Blocks>, _>>()?;
    // What was given back last is given first, and a list is dropped from its first on.
    drop(rest);
    Ok((pool, null))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(blocks: u64) -> Pool {
        let (blocks, null) = from_the_last_on_down(BlockPool::new(Shape::new(blocks, 64).unwrap().regions).unwrap()).unwrap();
        Pool { blocks, _null: null, _registered: vec![], rank: 3 }
    }

    #[test]
    fn each_request_has_blocks_of_its_own_from_the_last_on_down() {
        assert_eq!(blocks_for(2), 64);
        let pool = pool(blocks_for(1000));
        let mut all: Vec<u64> = Vec::new();
        for lease in 0..1000 {
            all.extend(pool.lend(lease, pool.fill("r").unwrap()).unwrap());
        }
        assert_eq!(all, (1..=3000).rev().collect::<Vec<u64>>());
        assert!(pool.fill("r").is_err(), "block 0 is nobody's");
    }

    #[test]
    fn blocks_hold_their_request_in_every_region_and_poison_once_it_is_over() {
        let pool = pool(64);
        let ids = pool.lend(7, pool.fill("a").unwrap()).unwrap();
        let other = pool.lend(8, pool.fill("b").unwrap()).unwrap();
        let holds = |ids: &[u64], row: &dyn Fn(usize) -> Pattern, moves: bool| {
            for (number, region) in pool.blocks.regions().iter().enumerate() {
                for (at, id) in ids.iter().enumerate() {
                    let (mut expected, mut got) = ([0; 64], [0; 64]);
                    row(number).bytes(if moves { at * 64 } else { 0 }, &mut expected);
                    region.block(*id).unwrap().copy_out(0, &mut got).unwrap();
                    assert_eq!(got, expected, "block {id} of region {number}");
                }
            }
        };
        holds(&ids, &|region| row("a", 3, region), true);
        pool.end(7).unwrap();
        holds(&ids, &|_| POISON, false);
        holds(&other, &|region| row("b", 3, region), true);
        assert_eq!(pool.blocks.counts().lent, 3);
        pool.end(7).unwrap();
        assert_eq!(pool.fill("c").unwrap().ids(), ids);
    }

    #[test]
    fn what_the_side_channel_tells_is_where_the_blocks_lie() {
        let pool = pool(64);
        let metadata = pool.metadata("p", vec![]);
        metadata.check().unwrap();
        assert_eq!(metadata.block_strides, [64, 64 + GAP, 128, 128]);
        for (number, map) in pool.block_maps().enumerate() {
            let block = pool.blocks.regions()[number].block(63).unwrap();
            let there = [block.descriptor().address(), 64];
            assert_eq!(map["blocks"][63], json!(there));
            let told = metadata.block(number, 63).unwrap();
            assert_eq!([told.start, told.len], there);
        }
    }
}
