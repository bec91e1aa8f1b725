//! The blocks that an engine holds for its readers: registered pools, one more whenever its leases need it. What is freed is overwritten
//! at once, so that a read that came too late shows.

use std::collections::BTreeMap;

use gpu_mem::{BlockPool, Kind, Layout, Memory};
use lease_proto::{
    frame::HEADER,
    id::Incarnation,
    transport::{Data, Error as _, ErrorKind, Range},
};

use super::{
    EngineError,
    pattern::{POISON, Pattern},
    transport_error,
};

/// Bytes of a block, and blocks of a lease.
const BLOCK: usize = 16 << 10;
const BLOCKS: u32 = 13;
/// Leases whose blocks lie in one registered pool.
const LEASES: u32 = 64;
/// Exports are larger than this only on a fabric of another kind.
const LARGEST_EXPORT: usize = 16 << 10;

/// Bytes of a lease.
pub(super) const LEASE_BYTES: usize = BLOCKS as usize * BLOCK;

/// Where one lease's blocks lie.
#[derive(Debug)]
pub(super) struct Place {
    pool: u32,
    blocks: gpu_mem::Blocks,
}

/// Registered pools, by their numbers.
pub(super) struct Blocks<R> {
    kind: Kind,
    pools: BTreeMap<u32, Registered<R>>,
    next: u32,
    /// Places that are free as soon as the transport lets them be fenced.
    unfenced: Vec<Place>,
}

struct Registered<R> {
    registration: R,
    pool: BlockPool<()>,
    /// It is for one lease alone.
    one_lease: bool,
}

impl<R> Registered<R> {
    /// Writes a row of bytes into these blocks, or the same ones into each.
    fn write(&self, blocks: &gpu_mem::Blocks, bytes: Pattern, is_row: bool) -> Result<(), EngineError> {
        let Some(region) = self.pool.regions().first() else { return Ok(()) };
        for (block, id) in blocks.ids().iter().enumerate() {
            let at = usize::try_from(region.layout().block(*id)?.start).unwrap_or(usize::MAX);
            bytes.write(if is_row { block * BLOCK } else { 0 }, region.memory(), at, BLOCK)?;
        }
        Ok(())
    }
}

/// The parts of a region that these blocks are.
pub(super) fn ranges(ids: &[u32]) -> Vec<Range> {
    ids.iter().map(|id| Range { offset: u64::from(*id) * BLOCK as u64, length: BLOCK as u64 }).collect()
}

impl<R> Blocks<R> {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, pools: BTreeMap::new(), next: 0, unfenced: Vec::new() }
    }

    /// Puts a request's bytes into blocks, of the pool or of the lease's own.
    pub(super) fn put<T>(&mut self, transport: &mut T, bytes: Pattern, one_lease: bool) -> Result<Place, EngineError>
    where
        T: Data<Memory = Memory, Registration = R>,
    {
        let has_room = |one: &Registered<R>| !one.one_lease && one.pool.counts().free >= BLOCKS as usize;
        let with_room = self.pools.iter().find(|(_, one)| !one_lease && has_room(one)).map(|(number, _)| *number);
        let number = match with_room {
            Some(number) => number,
            None => self.grow(transport, one_lease)?,
        };
        let one = self.pools.get(&number).ok_or_else(|| EngineError::Invalid(format!("expected a pool {number}")))?;
        let blocks = one.pool.allocate(BLOCKS as usize)?;
        one.write(&blocks, bytes, true)?;
        Ok(Place { pool: number, blocks })
    }

    /// A new pool, and its number.
    fn grow<T>(&mut self, transport: &mut T, one_lease: bool) -> Result<u32, EngineError>
    where
        T: Data<Memory = Memory, Registration = R>,
    {
        let blocks = if one_lease { BLOCKS } else { BLOCKS * LEASES };
        let memory = Memory::allocate(self.kind, blocks as usize * BLOCK)?;
        let registered = if one_lease { transport.register_fenced(memory.clone()) } else { transport.register(memory.clone()) };
        let registration = registered.map_err(transport_error)?;
        let pool = BlockPool::new([(memory, Layout::new(blocks.into(), BLOCK as u64)?)])?;
        shuffle(&pool)?;
        self.next += 1;
        self.pools.insert(self.next, Registered { registration, pool, one_lease });
        Ok(self.next)
    }

    /// What a reader needs to read a place: the frame of its region, and its blocks.
    pub(super) fn export<T>(
        &self,
        transport: &mut T,
        place: &Place,
        incarnation: Incarnation,
    ) -> Result<(Vec<u8>, Vec<u32>), EngineError>
    where
        T: Data<Memory = Memory, Registration = R>,
    {
        let one = self.pools.get(&place.pool).ok_or_else(|| EngineError::Invalid("expected a place of these pools".into()))?;
        let mut frame = vec![0; LARGEST_EXPORT + HEADER];
        let length = transport.export(&one.registration, incarnation, &mut frame).map_err(transport_error)?;
        frame.truncate(length);
        Ok((frame, place.blocks.ids().iter().map(|id| u32::try_from(*id).unwrap_or(u32::MAX)).collect()))
    }

    /// The lease is over and its permit withdrawn: its blocks may be used again, once late reads are fenced off.
    pub(super) fn give_back<T>(&mut self, transport: &mut T, place: Place) -> Result<(), EngineError>
    where
        T: Data<Memory = Memory, Registration = R>,
    {
        self.unfenced.push(place);
        self.clean(transport)
    }

    /// Overwrites and gives free what is over.
    pub(super) fn clean<T>(&mut self, transport: &mut T) -> Result<(), EngineError>
    where
        T: Data<Memory = Memory, Registration = R>,
    {
        for place in std::mem::take(&mut self.unfenced) {
            let Some(one) = self.pools.get(&place.pool) else { continue };
            if one.one_lease {
                match transport.fence(&one.registration) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.unfenced.push(place);
                        continue;
                    }
                    fenced => fenced.map_err(transport_error)?,
                }
            }
            one.write(&place.blocks, POISON, false)?;
            if one.one_lease {
                self.pools.remove(&place.pool);
            }
        }
        Ok(())
    }
}

/// Brings its free blocks into no order, so that a lease's lie apart: 7 and the number of blocks have no common divisor.
fn shuffle(pool: &BlockPool<()>) -> Result<(), EngineError> {
    let count = pool.counts().free;
    let mut single = (0..count).map(|_| pool.allocate(1).map(Some)).collect::<Result<Vec<_>, _>>()?;
    for at in 0..count {
        drop(single.get_mut(at * 7 % count).and_then(Option::take)); // what is freed last is given first
    }
    Ok(())
}
