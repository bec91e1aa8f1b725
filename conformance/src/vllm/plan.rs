//! What one rank of a decode instance reads of one rank of a prefill instance, by the layout that its metadata tells.
//!
//! With more ranks here than there, ranks share a rank's blocks, each its slice of each: heads are the outer part of a block. With
//! fewer, a rank reads whole blocks of several ranks.

use lease_proto::transport::Range;
use transport_nixl::side_channel::{AgentMetadata, LayoutError};

/// Most bytes of a request that one rank reads.
pub(super) const MOST_BYTES: u64 = 256 << 20;
/// Most parts of it, each a block of a region: planning them takes the loop's own time.
pub(super) const MOST_PARTS: usize = 1 << 18;
/// Layouts whose blocks are contiguous and hold one head after the other.
const BY_HEAD: [&str; 2] = ["LBHNC", "BLHNC"];

/// Which part of each block is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) index: u64,
    /// How many there are.
    pub(super) of: u64,
    /// The engines have as many ranks each, so that no block is cut or put together.
    pub(super) same_tp: bool,
}

/// The blocks of one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) region: usize,
    /// In that region, neighbours joined.
    pub(super) from: Vec<Range>,
    /// In the row of bytes that the request has in it.
    pub(super) row: Vec<Range>,
    pub(super) bytes: u64,
}

/// Metadata that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Misfit {
    #[error("the peer registered no region")]
    NoRegions,
    #[error("the peer's memory is {0:?}, expected DRAM or VRAM")]
    Memory(String),
    #[error("the peer's blocks have {0:?}, expected one tensor parallel rank's own: no dcp, pcp, or kernel blocks within blocks")]
    Parallel(&'static str),
    #[error(
        "the peer's layout is {0:?}: with another number of ranks here, expected LBHNC or BLHNC, where a block holds one head after the other"
    )]
    Layout(String),
    #[error("{0}")]
    Block(#[from] LayoutError),
    #[error("the request has more than {MOST_BYTES} bytes for one rank")]
    TooLarge,
    #[error("the request has more than {MOST_PARTS} blocks in all regions for one rank")]
    TooManyParts,
}

/// The parts of all regions, in their order.
pub(super) fn plan(metadata: &AgentMetadata, blocks: &[u64], slice: Slice) -> Result<Vec<Part>, Misfit> {
    fits(metadata, slice)?;
    if metadata.regions().saturating_mul(blocks.len()) > MOST_PARTS {
        return Err(Misfit::TooManyParts);
    }
    let mut bytes = 0u64;
    (0..metadata.regions())
        .map(|region| {
            let part = part(metadata, region, blocks, slice)?;
            bytes = bytes.saturating_add(part.bytes);
            if bytes > MOST_BYTES { Err(Misfit::TooLarge) } else { Ok(part) }
        })
        .collect()
}

fn fits(metadata: &AgentMetadata, slice: Slice) -> Result<(), Misfit> {
    if metadata.regions() == 0 {
        return Err(Misfit::NoRegions);
    }
    let types = metadata.region_mem_types.iter().flatten();
    if let Some(other) = types.into_iter().find(|name| !["DRAM", "VRAM"].contains(&name.as_str())) {
        return Err(Misfit::Memory(other.chars().take(40).collect()));
    }
    for (size, name) in [
        (metadata.dcp_size, "a decode context parallel size"),
        (metadata.pcp_size, "a prefill context parallel size"),
        (metadata.physical_blocks_per_logical_kv_block, "kernel blocks"),
    ] {
        if size != 1 {
            return Err(Misfit::Parallel(name));
        }
    }
    if !slice.same_tp && !BY_HEAD.contains(&metadata.kv_cache_layout.as_str()) {
        return Err(Misfit::Layout(metadata.kv_cache_layout.chars().take(40).collect()));
    }
    Ok(())
}

fn part(metadata: &AgentMetadata, region: usize, blocks: &[u64], slice: Slice) -> Result<Part, Misfit> {
    let misfit = |cause| Misfit::Block(LayoutError::Blocks { region, cause });
    let of_all = metadata.layout(region)?;
    // The frame of a region begins with its block 0.
    let mine = of_all.at(0).and_then(|layout| layout.part(slice.index, slice.of.max(1))).map_err(misfit)?;
    let bytes =
        (blocks.len() as u64).checked_mul(mine.block_len()).filter(|bytes| *bytes <= MOST_BYTES).ok_or(Misfit::TooLarge)?;
    let from = mine.runs(blocks.iter().copied()).map(|run| run.map(|run| Range { offset: run.start, length: run.len }));
    // Not by the layout, so that a part that is another one shows in its bytes.
    let skip = slice.index.saturating_mul(mine.block_len());
    let offset = |at: u64| at.saturating_mul(of_all.block_len()).saturating_add(skip);
    let row = (0..blocks.len() as u64).map(|at| Range { offset: offset(at), length: mine.block_len() });
    Ok(Part { region, from: from.collect::<Result<_, _>>().map_err(misfit)?, row: row.collect(), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> AgentMetadata {
        AgentMetadata {
            kv_caches_base_addr: vec![0x1000, 0x100_0000],
            num_blocks: 8,
            block_lens: vec![64, 32],
            block_strides: vec![100, 32],
            kv_cache_layout: "LBHNC".into(),
            ..AgentMetadata::default()
        }
    }

    const WHOLE: Slice = Slice { index: 0, of: 1, same_tp: true };

    fn ranges(pairs: &[(u64, u64)]) -> Vec<Range> {
        pairs.iter().map(|&(offset, length)| Range { offset, length }).collect()
    }

    #[test]
    fn whole_blocks_lie_at_their_strides() {
        let parts = plan(&metadata(), &[7, 0], WHOLE).unwrap();
        assert_eq!(parts.len(), 2);
        assert_eq!((parts[0].region, &parts[0].from), (0, &ranges(&[(700, 64), (0, 64)])));
        assert_eq!((&parts[0].row, parts[0].bytes), (&ranges(&[(0, 64), (64, 64)]), 128));
        assert_eq!((&parts[1].from, &parts[1].row), (&ranges(&[(224, 32), (0, 32)]), &ranges(&[(0, 32), (32, 32)])));
    }

    #[test]
    fn neighbours_in_a_dense_region_are_one_range() {
        let parts = plan(&metadata(), &[2, 3, 4, 1], WHOLE).unwrap();
        assert_eq!(parts[0].from, ranges(&[(200, 64), (300, 64), (400, 64), (100, 64)]));
        assert_eq!(parts[1].from, ranges(&[(64, 96), (32, 32)]));
        assert_eq!(parts[1].row, ranges(&[(0, 32), (32, 32), (64, 32), (96, 32)]));
    }

    #[test]
    fn ranks_that_share_a_block_read_it_all_and_nothing_twice() {
        let mut seen = vec![0; 2 * 64];
        for index in 0..4 {
            let parts = plan(&metadata(), &[7, 3], Slice { index, of: 4, same_tp: false }).unwrap();
            assert_eq!(parts[0].from, ranges(&[(700 + index * 16, 16), (300 + index * 16, 16)]));
            for range in &parts[0].row {
                seen[range.offset as usize..][..range.length as usize].iter_mut().for_each(|byte| *byte += 1);
            }
        }
        assert!(seen.iter().all(|times| *times == 1));
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let good = metadata();
        let four = Slice { index: 0, of: 4, same_tp: false };
        let none = AgentMetadata { kv_caches_base_addr: vec![], block_lens: vec![], block_strides: vec![], ..good.clone() };
        assert_eq!(plan(&none, &[0], WHOLE), Err(Misfit::NoRegions));
        let misfit = |region, cause| Err(Misfit::Block(LayoutError::Blocks { region, cause }));
        assert_eq!(plan(&good, &[8], WHOLE), misfit(0, gpu_mem::LayoutError::Block { got: 8, num_blocks: 8 }));
        let mixed = |other: &str| AgentMetadata { region_mem_types: Some(vec!["DRAM".into(), other.into()]), ..good.clone() };
        assert!(plan(&mixed("VRAM"), &[0], WHOLE).is_ok(), "a device's memory is read into the host's");
        assert_eq!(plan(&mixed("FILE"), &[0], WHOLE), Err(Misfit::Memory("FILE".into())));
        let odd = AgentMetadata { block_lens: vec![64, 30], ..good.clone() };
        assert_eq!(plan(&odd, &[0], four), misfit(1, gpu_mem::LayoutError::Part { index: 0, of: 4, block_len: 30 }));
        let by_token = AgentMetadata { kv_cache_layout: "LBNHC".into(), ..good.clone() };
        assert_eq!(plan(&by_token, &[0], four), Err(Misfit::Layout("LBNHC".into())));
        assert!(plan(&by_token, &[0], WHOLE).is_ok(), "nothing is cut");
        for spoiled in [
            AgentMetadata { dcp_size: 2, ..good.clone() },
            AgentMetadata { pcp_size: 2, ..good.clone() },
            AgentMetadata { physical_blocks_per_logical_kv_block: 4, ..good.clone() },
        ] {
            assert!(matches!(plan(&spoiled, &[0], WHOLE), Err(Misfit::Parallel(_))));
        }
        let huge = AgentMetadata { block_lens: vec![1 << 31, 32], block_strides: vec![1 << 31, 32], ..good };
        assert_eq!(plan(&huge, &[0], WHOLE), Err(Misfit::TooLarge));
        let tiny = AgentMetadata { block_lens: vec![1, 1], num_blocks: 1 << 20, ..metadata() };
        let blocks = vec![0; MOST_PARTS / 2];
        assert!(plan(&tiny, &blocks, WHOLE).is_ok());
        assert_eq!(plan(&tiny, &[&blocks[..], &[0]].concat(), WHOLE), Err(Misfit::TooManyParts));
    }
}
