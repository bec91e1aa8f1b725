//! The blocks that an engine holds for its readers: a pool of registered memory that grows with its leases. What is freed is
//! overwritten at once, so that a read that came too late shows.

use std::collections::BTreeMap;

use gpu_mem::{Kind, Memory};
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
/// Leases whose blocks lie in one registered slab.
const LEASES: u32 = 64;
/// Exports are larger than this only on a fabric of another kind.
const LARGEST_EXPORT: usize = 16 << 10;

/// Bytes of a lease.
pub(super) const LEASE_BYTES: usize = BLOCKS as usize * BLOCK;

/// Where one lease's blocks lie.
#[derive(Debug)]
pub(super) struct Place {
    slab: u32,
    ids: Vec<u32>,
}

/// Registered memory, by the numbers of its slabs.
pub(super) struct Blocks<R> {
    kind: Kind,
    slabs: BTreeMap<u32, Slab<R>>,
    next: u32,
    /// Places that are free as soon as the transport lets them be fenced.
    unfenced: Vec<Place>,
}

struct Slab<R> {
    registration: R,
    memory: Memory,
    free: Vec<u32>,
    /// It is for one lease alone.
    one_lease: bool,
}

/// The parts of a region that these blocks are.
pub(super) fn ranges(ids: &[u32]) -> Vec<Range> {
    ids.iter().map(|id| Range { offset: u64::from(*id) * BLOCK as u64, length: BLOCK as u64 }).collect()
}

impl<R> Blocks<R> {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, slabs: BTreeMap::new(), next: 0, unfenced: Vec::new() }
    }

    /// Puts a request's bytes into blocks, of the pool or of the lease's own.
    pub(super) fn put<T>(&mut self, transport: &mut T, bytes: Pattern, one_lease: bool) -> Result<Place, EngineError>
    where
        T: Data<Memory = Memory, Registration = R>,
    {
        let has_room = |slab: &Slab<R>| !slab.one_lease && slab.free.len() >= BLOCKS as usize;
        let with_room = self.slabs.iter().find(|(_, slab)| !one_lease && has_room(slab)).map(|(number, _)| *number);
        let number = match with_room {
            Some(number) => number,
            None => self.grow(transport, one_lease)?,
        };
        let slab = self.slabs.get_mut(&number).ok_or_else(|| EngineError::Invalid(format!("expected a slab {number}")))?;
        let ids = slab.free.split_off(slab.free.len().saturating_sub(BLOCKS as usize));
        for (block, id) in ids.iter().enumerate() {
            bytes.write(block * BLOCK, &slab.memory, *id as usize * BLOCK, BLOCK)?;
        }
        Ok(Place { slab: number, ids })
    }

    /// A new slab, and its number.
    fn grow<T>(&mut self, transport: &mut T, one_lease: bool) -> Result<u32, EngineError>
    where
        T: Data<Memory = Memory, Registration = R>,
    {
        let blocks = if one_lease { BLOCKS } else { BLOCKS * LEASES };
        let memory = Memory::allocate(self.kind, blocks as usize * BLOCK)?;
        let registered = if one_lease { transport.register_fenced(memory.clone()) } else { transport.register(memory.clone()) };
        // In no order, so that a lease's blocks lie apart: 7 and the number of blocks have no common divisor.
        let free = (0..blocks).map(|at| at * 7 % blocks).collect();
        let slab = Slab { registration: registered.map_err(transport_error)?, memory, free, one_lease };
        self.next += 1;
        self.slabs.insert(self.next, slab);
        Ok(self.next)
    }

    /// What a reader needs to read a place: the frame of its region, and its blocks.
    pub(super) fn export<'p, T>(
        &self,
        transport: &mut T,
        place: &'p Place,
        incarnation: Incarnation,
    ) -> Result<(Vec<u8>, &'p [u32]), EngineError>
    where
        T: Data<Memory = Memory, Registration = R>,
    {
        let slab = self.slabs.get(&place.slab).ok_or_else(|| EngineError::Invalid("expected a place of this pool".into()))?;
        let mut frame = vec![0; LARGEST_EXPORT + HEADER];
        let length = transport.export(&slab.registration, incarnation, &mut frame).map_err(transport_error)?;
        frame.truncate(length);
        Ok((frame, &place.ids))
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
            let Some(slab) = self.slabs.get_mut(&place.slab) else { continue };
            if slab.one_lease {
                match transport.fence(&slab.registration) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.unfenced.push(place);
                        continue;
                    }
                    fenced => fenced.map_err(transport_error)?,
                }
            }
            for id in &place.ids {
                POISON.write(0, &slab.memory, *id as usize * BLOCK, BLOCK)?;
            }
            if slab.one_lease {
                self.slabs.remove(&place.slab);
            } else {
                slab.free.extend(place.ids);
            }
        }
        Ok(())
    }
}
