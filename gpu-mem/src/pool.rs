//! KV blocks: who holds which of them, and where they lie in every region.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{Layout, LayoutError, Memory, MemoryError, MemoryRange};

/// Blocks of memory, the same ids in all of its regions, one region a layer as engines have it. A block is free, or in the hands of
/// whoever [allocated](BlockPool::allocate) it, or [lent](BlockPool::lend) under a key, such as a lease's token, and never two of these.
///
/// What lies in a block stays there until its next owner writes to it. Threads may share a pool, and blocks may be dropped on any of
/// them. Nothing here looks at more than the blocks that it is about. Give a memory to one pool: that another has it too is not noticed.
///
/// `gpu-mem/examples/leases.rs` is a pool beside a lease-proto holder.
///
/// ```
/// use gpu_mem::{BlockPool, HostSlab, Layout, Memory};
/// // Two layers with a memory each, and two that take turns in one.
/// let blocks = Layout::new(100, 4096)?;
/// let turns = blocks.with_stride(2 * 4096)?;
/// let (own, shared) = (HostSlab::new(100 * 4096)?, Memory::from(HostSlab::new(200 * 4096)?));
/// let pool = BlockPool::new([(own.into(), blocks), (shared.clone(), turns), (shared, turns.at(4096)?)])?;
///
/// let prompt = pool.allocate(3)?; // all or none
/// for id in prompt.ids() {
///     pool.regions()[2].block(*id)?.copy_in(0, b"keys and values")?;
/// }
/// let token = 7; // of the lease that is granted on them
/// pool.lend(token, prompt)?;
/// assert_eq!(pool.counts().lent, 3);
///
/// let prompt = pool.end(&token).expect("lent above"); // the lease is over: overwrite what must not be read,
/// drop(prompt); // and they are free
/// assert_eq!(pool.counts().free, 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BlockPool<K> {
    shared: Arc<Shared>,
    lent: Mutex<HashMap<K, Blocks>>,
}

/// What blocks outlive the pool with: they keep the memory of every region.
struct Shared {
    regions: Vec<BlockRegion>,
    state: Mutex<State>,
}

struct State {
    /// The next to be given is the last. Has room for all there are.
    free: Vec<u64>,
    counts: Counts,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many blocks are where, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// For whoever asks next.
    pub free: usize,
    /// In somebody's hands.
    pub allocated: usize,
    /// Under a key.
    pub lent: usize,
}

impl Counts {
    /// All there are, which never changes.
    pub fn total(&self) -> usize {
        self.free.saturating_add(self.allocated).saturating_add(self.lent)
    }
}

/// The blocks of one region.
#[derive(Clone, Debug)]
pub struct BlockRegion {
    memory: Memory,
    layout: Layout,
    addresses: Layout,
}

impl BlockRegion {
    fn new(memory: Memory, layout: Layout) -> Result<Self, LayoutError> {
        layout.fits(memory.len() as u64)?;
        let base = memory.descriptor().address().saturating_add(layout.base()); // inside the memory
        let addresses = layout.at(base)?;
        Ok(Self { memory, layout, addresses })
    }

    /// The memory that it lies in, which other regions may share.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where its blocks lie in the memory, as offsets.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The same as addresses of this process, as vLLM's metadata has them.
    pub fn addresses(&self) -> Layout {
        self.addresses
    }

    /// A block's bytes.
    ///
    /// # Errors
    /// `Block` if there is none of this id.
    pub fn block(&self, id: u64) -> Result<MemoryRange, PoolError> {
        let span = self.layout.block(id)?;
        // The memory holds all blocks, so both fit.
        let [start, len] = [span.start, span.len].map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(self.memory.range(start, len)?)
    }
}

/// Blocks in one's hands. They are free again when this is dropped; until then the memory of their pool lives.
#[must_use = "the blocks are free again when this is dropped"]
pub struct Blocks {
    ids: Vec<u64>,
    shared: Arc<Shared>,
}

impl Blocks {
    /// Their ids, in the order in which they hold what they hold.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// Adds blocks behind them, as a prompt grows.
    ///
    /// # Errors
    /// `Foreign`, with the other blocks, if they are another pool's.
    pub fn append(&mut self, mut other: Self) -> Result<(), NotLent> {
        if !Arc::ptr_eq(&self.shared, &other.shared) {
            return Err(NotLent::Foreign(other));
        }
        self.ids.append(&mut other.ids);
        Ok(()) // the other has none left to free
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.counts.allocated = state.counts.allocated.saturating_sub(self.ids.len());
        state.counts.free = state.counts.free.saturating_add(self.ids.len());
        // The first is given first again.
        state.free.extend(self.ids.iter().rev());
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Blocks").field(&self.ids).finish()
    }
}

/// Why there is no such pool, or no such blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A pool of nothing.
    #[error("no region, expected at least one")]
    NoRegions,
    /// A region whose memory does not hold its blocks.
    #[error("region {region}: {cause}")]
    Region {
        /// Which, from 0.
        region: usize,
        /// What is wrong.
        cause: LayoutError,
    },
    /// Every id is a block in every region.
    #[error("region {region} has {got} blocks, expected {expected} as in region 0")]
    Counts {
        /// Which, from 0.
        region: usize,
        /// Its blocks.
        got: u64,
        /// The first region's.
        expected: u64,
    },
    /// Two regions share bytes.
    #[error("the blocks of regions {first} and {second} overlap: expected other memory, or the gaps of one stride")]
    Overlap {
        /// One.
        first: usize,
        /// The other.
        second: usize,
    },
    /// The system has no room for what the pool needs to know.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// Not as many are free, and none is given.
    #[error("{asked} blocks asked for, {free} free: wait for leases to end")]
    Exhausted {
        /// How many were asked for.
        asked: usize,
        /// How many there were.
        free: usize,
    },
    /// No such block.
    #[error("{0}")]
    Block(#[from] LayoutError),
}

/// Blocks that cannot be lent or added, given back.
#[derive(Debug, thiserror::Error)]
pub enum NotLent {
    /// Something is lent under this key already, and stays.
    #[error("blocks are lent under this key already: end that first")]
    Duplicate(Blocks),
    /// They are another pool's.
    #[error("the blocks are another pool's")]
    Foreign(Blocks),
}

impl NotLent {
    /// The blocks.
    pub fn into_blocks(self) -> Blocks {
        match self {
            Self::Duplicate(blocks) | Self::Foreign(blocks) => blocks,
        }
    }
}

impl<K: Eq + Hash> BlockPool<K> {
    /// A pool of all blocks of these regions, each a memory and the offsets of its blocks in it. Several regions may share a memory.
    /// All blocks are free, and the first to be given are 0, 1, 2 and so on.
    ///
    /// # Errors
    /// `NoRegions`, `Region`, `Counts`, `Overlap`; `Memory` if there is no room for a number per block.
    pub fn new(regions: impl IntoIterator<Item = (Memory, Layout)>) -> Result<Self, PoolError> {
        let region =
            |(region, (memory, layout))| BlockRegion::new(memory, layout).map_err(|cause| PoolError::Region { region, cause });
        let regions = regions.into_iter().enumerate().map(region).collect::<Result<Vec<BlockRegion>, PoolError>>()?;
        let total = regions.first().ok_or(PoolError::NoRegions)?.layout.num_blocks();
        check_apart(&regions)?;
        if let Some((region, other)) = regions.iter().enumerate().find(|(_, region)| region.layout.num_blocks() != total) {
            return Err(PoolError::Counts { region, got: other.layout.num_blocks(), expected: total });
        }
        let count = usize::try_from(total).unwrap_or(usize::MAX);
        let mut free = Vec::new();
        let bytes = count.saturating_mul(size_of::<u64>());
        free.try_reserve_exact(count).map_err(|_| MemoryError::OutOfMemory { bytes })?;
        free.extend((0..total).rev());
        let state = State { free, counts: Counts { free: count, allocated: 0, lent: 0 } };
        Ok(Self { shared: Arc::new(Shared { regions, state: Mutex::new(state) }), lent: Mutex::new(HashMap::new()) })
    }

    /// Its regions, in the order in which they were given, at least one.
    pub fn regions(&self) -> &[BlockRegion] {
        &self.shared.regions
    }

    /// How many blocks are where.
    pub fn counts(&self) -> Counts {
        self.shared.state().counts
    }

    /// So many blocks, those that were free the shortest time first, whether or not they lie beside each other.
    ///
    /// # Errors
    /// `Exhausted`, if not as many are free; then none is taken.
    pub fn allocate(&self, count: usize) -> Result<Blocks, PoolError> {
        let mut state = self.shared.state();
        let free = state.free.len();
        let left = free.checked_sub(count).ok_or(PoolError::Exhausted { asked: count, free })?;
        let ids = state.free.drain(left..).rev().collect();
        state.counts.free = left;
        state.counts.allocated = state.counts.allocated.saturating_add(count);
        drop(state);
        Ok(Blocks { ids, shared: Arc::clone(&self.shared) })
    }

    /// Leaves blocks with the pool until [`end`](BlockPool::end): nobody else gets them. The key tells them apart for as long.
    ///
    /// # Errors
    /// `Duplicate`, `Foreign`: with the blocks.
    pub fn lend(&self, key: K, blocks: Blocks) -> Result<(), NotLent> {
        if !Arc::ptr_eq(&self.shared, &blocks.shared) {
            return Err(NotLent::Foreign(blocks));
        }
        match self.lent().entry(key) {
            Entry::Occupied(_) => Err(NotLent::Duplicate(blocks)),
            Entry::Vacant(place) => {
                let count = blocks.ids.len();
                place.insert(blocks);
                let mut state = self.shared.state();
                state.counts.allocated = state.counts.allocated.saturating_sub(count);
                state.counts.lent = state.counts.lent.saturating_add(count);
                Ok(())
            }
        }
    }

    /// The blocks that were lent under this key; `None` if none are.
    pub fn end(&self, key: &K) -> Option<Blocks> {
        let mut lent = self.lent();
        let blocks = lent.remove(key)?;
        let mut state = self.shared.state();
        state.counts.lent = state.counts.lent.saturating_sub(blocks.ids.len());
        state.counts.allocated = state.counts.allocated.saturating_add(blocks.ids.len());
        drop(state);
        Some(blocks)
    }

    fn lent(&self) -> MutexGuard<'_, HashMap<K, Blocks>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// No byte is in two regions: else a block of one id would be in the hands of another's owner.
fn check_apart(regions: &[BlockRegion]) -> Result<(), PoolError> {
    let mut sorted: Vec<(usize, Layout)> = regions.iter().map(BlockRegion::addresses).enumerate().collect();
    sorted.sort_by_key(|(_, layout)| layout.base());
    let mut rest = sorted.as_slice();
    while let Some(((first, layout), behind)) = rest.split_first() {
        let end = layout.base().saturating_add(layout.size());
        let mut near = behind.iter().take_while(|(_, other)| other.base() < end);
        if let Some((second, _)) = near.find(|(_, other)| layout.overlaps(other)) {
            return Err(PoolError::Overlap { first: *first.min(second), second: *first.max(second) });
        }
        rest = behind;
    }
    Ok(())
}

impl<K> fmt::Debug for BlockPool<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.shared.state().counts;
        write!(f, "BlockPool({} blocks in {} regions, {} free)", counts.total(), self.shared.regions.len(), counts.free)
    }
}
