//! The shared owner, and ranges that keep it alive.

use std::{
    any::Any,
    marker::PhantomData,
    os::fd::OwnedFd,
    ptr::NonNull,
    sync::{Arc, Weak},
};

use crate::{
    Allocation, Context, HostSlab, Kind, MemoryError,
    sys::{Place, cuda},
};

/// Memory that may be registered: an owner that is cheap to clone. The memory lives until the last clone is gone.
///
/// Whoever uses the addresses of a [`Descriptor`] (a registration, a read in flight) must hold a clone as long as it does.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Owner>);

#[derive(Debug)]
struct Owner {
    /// First, so that it is freed while the context of the place is there.
    keeper: Keeper,
    place: Place,
    kind: Kind,
    allocation: Allocation,
}

/// What frees it when it is dropped.
#[derive(Debug)]
pub(crate) enum Keeper {
    Slab(HostSlab),
    /// CUDA's driver, or whoever it was adopted from.
    Other(#[expect(dead_code, reason = "kept, never looked at")] Box<dyn Any + Send + Sync>),
}

impl From<HostSlab> for Memory {
    fn from(slab: HostSlab) -> Self {
        Self::new(Place::Host(slab.words()), Kind::Host, Allocation::Plain, Keeper::Slab(slab))
    }
}

/// What a transport tells its fabric about memory: where it is and what. Borrowed from the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'m> {
    start: NonNull<u8>,
    len: usize,
    kind: Kind,
    owner: PhantomData<&'m Memory>,
}

impl Descriptor<'_> {
    /// Its first byte, which the host can only use where [`Kind::is_host`]. Valid as long as the owner or a clone of it lives.
    pub fn ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// The same, as a number.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Its length in bytes, never 0.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// What kind of memory it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The number of its device, as NIXL's and vLLM's metadata have it: 0 for host memory.
    pub fn device_id(&self) -> u64 {
        self.kind.device().unwrap_or(0).into()
    }
}

impl Memory {
    /// New memory of a kind, all zero. CUDA is asked for the first time here, for kinds that need it: that takes a while.
    ///
    /// # Errors
    /// `ZeroSize`, `TooLarge`, `OutOfMemory`, `Refused`; `Unavailable` where this machine has no such memory; `Driver` and
    /// `OtherMemory` if CUDA's driver fails, or gives other memory than was asked for.
    pub fn allocate(kind: Kind, len: usize) -> Result<Self, MemoryError> {
        match kind {
            Kind::Host => HostSlab::new(len).map(Self::from),
            Kind::Pinned => cuda::pinned(len),
            Kind::Cuda { device } => cuda::device(device, len),
        }
    }

    pub(crate) fn new(place: Place, kind: Kind, allocation: Allocation, keeper: Keeper) -> Self {
        Self(Arc::new(Owner { keeper, place, kind, allocation }))
    }

    /// What a transport tells its fabric about it.
    pub fn descriptor(&self) -> Descriptor<'_> {
        Descriptor { start: self.0.place.start(), len: self.len(), kind: self.kind(), owner: PhantomData }
    }

    /// Its length in bytes, never 0.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.0.place.len()
    }

    /// What kind of memory it is.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// How it was allocated.
    pub fn allocation(&self) -> Allocation {
        self.0.allocation
    }

    /// What threads that touch it must enter; `None` for memory that needs nothing.
    pub fn context(&self) -> Option<&Context> {
        self.0.place.context()
    }

    /// Whether another process can map it by `cuIpcGetMemHandle`, which is what most fabrics do within a machine.
    pub fn is_ipc_capable(&self) -> bool {
        self.0.place.is_ipc_capable()
    }

    /// A file descriptor by which a network card's driver reaches a device's memory. Keep a clone of the memory until it is closed.
    ///
    /// Memory that was [`allocate`](Memory::allocate)d is exported to the end of its last 2 MiB, which nobody else uses.
    ///
    /// # Errors
    /// `NoDmaBuf` for other memory, and where the driver has none; `Misaligned` for memory that is not whole pages, as adopted memory may
    /// be; `Driver`.
    pub fn dma_buf(&self) -> Result<OwnedFd, MemoryError> {
        self.0.place.dma_buf(self.kind())
    }

    /// The `len` bytes from `offset` on, as an owner too.
    ///
    /// # Errors
    /// `ZeroSize`, or `OutOfRange` if not all of it is inside.
    pub fn range(&self, offset: usize, len: usize) -> Result<MemoryRange, MemoryError> {
        check(offset, len, self.len())?;
        Ok(MemoryRange { memory: self.clone(), offset, len })
    }

    /// Copies `bytes` to where they shall lie, from `offset` on. Who reads at the same moment sees some old bytes and some new.
    ///
    /// # Errors
    /// `OutOfRange` if not all of it is inside; then nothing is copied. `Driver` if CUDA's driver fails, for memory of a device.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        inside(offset, bytes.len(), self.len())?;
        self.0.place.store(offset, bytes)
    }

    /// Copies what lies from `offset` on to `out`. Who writes at the same moment makes it some old bytes and some new.
    ///
    /// # Errors
    /// As [`copy_in`](Memory::copy_in).
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), MemoryError> {
        inside(offset, out.len(), self.len())?;
        self.0.place.load(offset, out)
    }

    /// Watches it, without keeping it.
    pub fn watch(&self) -> Watch {
        Watch(Arc::downgrade(&self.0))
    }

    /// The slab, if this is its last owner: then no registration and no operation is left that could touch it.
    ///
    /// # Errors
    /// Gives the memory back unchanged while somebody else holds a clone or a range, and if it never was a slab.
    pub fn try_into_slab(self) -> Result<HostSlab, Self> {
        if !matches!(self.0.keeper, Keeper::Slab(_)) {
            return Err(self); // before it is taken apart, which whoever watches it would see
        }
        match Arc::try_unwrap(self.0).map_err(Self)? {
            Owner { keeper: Keeper::Slab(slab), .. } => Ok(slab),
            other => Err(Self(Arc::new(other))),
        }
    }
}

/// Knows memory without keeping it: tells whether an owner is left, and so when it has been given back.
#[derive(Clone, Debug)]
pub struct Watch(Weak<Owner>);

impl Watch {
    /// The memory, if somebody still holds it.
    pub fn memory(&self) -> Option<Memory> {
        self.0.upgrade().map(Memory)
    }
}

/// A part of a [`Memory`] that is known to be inside it, and keeps it alive.
#[derive(Clone, Debug)]
pub struct MemoryRange {
    memory: Memory,
    offset: usize,
    len: usize,
}

impl MemoryRange {
    /// The whole that this is a part of.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Its first byte, counted from the start of the memory.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Its length in bytes, never 0.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// What a transport tells its fabric about it.
    pub fn descriptor(&self) -> Descriptor<'_> {
        let whole = self.memory.descriptor();
        // Inside, so it does not wrap.
        let at = whole.start.addr().checked_add(self.offset).unwrap_or(whole.start.addr());
        let start = whole.start.with_addr(at);
        Descriptor { start, len: self.len, ..whole }
    }

    /// As [`Memory::copy_in`]; `offset` counts from the start of this part.
    ///
    /// # Errors
    /// As there; `OutOfRange` if not all of it is inside this part.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        inside(offset, bytes.len(), self.len)?;
        self.memory.copy_in(self.offset + offset, bytes)
    }

    /// As [`Memory::copy_out`]; `offset` counts from the start of this part.
    ///
    /// # Errors
    /// As there; `OutOfRange` if not all of it is inside this part.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), MemoryError> {
        inside(offset, out.len(), self.len)?;
        self.memory.copy_out(self.offset + offset, out)
    }

    /// A part of this part; `offset` counts from the start of this one.
    ///
    /// # Errors
    /// As [`Memory::range`].
    pub fn range(&self, offset: usize, len: usize) -> Result<Self, MemoryError> {
        check(offset, len, self.len)?;
        Ok(Self { memory: self.memory.clone(), offset: self.offset + offset, len })
    }
}

fn check(offset: usize, len: usize, of: usize) -> Result<(), MemoryError> {
    if len == 0 { Err(MemoryError::ZeroSize) } else { inside(offset, len, of) }
}

fn inside(offset: usize, len: usize, of: usize) -> Result<(), MemoryError> {
    let end = offset.checked_add(len).filter(|end| *end <= of);
    end.map(|_| ()).ok_or(MemoryError::OutOfRange { offset, len, of })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(len: usize) -> Memory {
        HostSlab::new(len).unwrap().into()
    }

    #[test]
    fn ranges_are_checked_at_both_ends() {
        let memory = memory(100);
        assert_eq!(memory.kind(), Kind::Host);
        for (offset, len) in [(0, 100), (99, 1), (40, 60)] {
            let range = memory.range(offset, len).unwrap();
            assert_eq!((range.offset(), range.len()), (offset, len));
            assert_eq!(range.descriptor().address(), memory.descriptor().address() + offset as u64);
        }
        for (offset, len) in [(0, 101), (100, 1), (99, 2), (usize::MAX, 1), (1, usize::MAX)] {
            assert_eq!(memory.range(offset, len).unwrap_err(), MemoryError::OutOfRange { offset, len, of: 100 });
        }
        assert_eq!(memory.range(5, 0).unwrap_err(), MemoryError::ZeroSize);
    }

    #[test]
    fn a_part_of_a_part_stays_inside_the_part() {
        let part = memory(100).range(40, 20).unwrap();
        let inner = part.range(5, 15).unwrap();
        assert_eq!((inner.offset(), inner.len(), inner.memory().len()), (45, 15, 100));
        assert_eq!(part.range(5, 16).unwrap_err(), MemoryError::OutOfRange { offset: 5, len: 16, of: 20 });
    }

    #[test]
    fn the_bytes_come_back_only_to_the_last_owner() {
        let memory = memory(100);
        let range = memory.range(0, 1).unwrap();
        let memory = memory.try_into_slab().unwrap_err();
        let clone = memory.clone();
        drop(range);
        let memory = memory.try_into_slab().unwrap_err();
        // Ownership may end on another thread.
        std::thread::spawn(move || drop(clone)).join().unwrap();
        assert_eq!(memory.try_into_slab().unwrap().len(), 100);
    }

    #[test]
    fn a_range_alone_keeps_the_memory_alive() {
        let mut slab = HostSlab::new(10).unwrap();
        slab[3] = 7;
        let range = Memory::from(slab).range(3, 1).unwrap();
        assert_eq!(range.memory().clone().len(), 10);
        let memory = range.memory().clone();
        drop(range);
        assert_eq!(memory.try_into_slab().unwrap()[3], 7);
    }

    #[test]
    fn a_watch_keeps_nothing_and_tells_when_the_last_owner_is_gone() {
        let memory = memory(10);
        let (watch, range) = (memory.watch(), memory.range(3, 1).unwrap());
        drop(memory);
        assert_eq!(watch.memory().unwrap().len(), 10);
        drop(range);
        assert!(watch.memory().is_none());
    }

    #[test]
    fn copies_touch_what_they_say_and_nothing_beside_it() {
        let (pattern, memory) = ((0..100).map(|at| at ^ 0x5a).collect::<Vec<u8>>(), memory(64));
        for offset in 0..20 {
            for len in 0..=64 - offset {
                memory.copy_in(0, &[0xee; 64]).unwrap();
                memory.copy_in(offset, &pattern[..len]).unwrap();
                let (mut all, mut part) = ([0; 64], vec![0; len]);
                memory.copy_out(0, &mut all).unwrap();
                memory.copy_out(offset, &mut part).unwrap();
                assert_eq!(part, pattern[..len]);
                assert_eq!(all[offset..offset + len], pattern[..len]);
                assert!(all[..offset].iter().chain(&all[offset + len..]).all(|byte| *byte == 0xee), "{len} bytes at {offset}");
            }
        }
    }

    #[test]
    fn copies_that_are_not_wholly_inside_are_refused_and_copy_nothing() {
        let memory = memory(100);
        let part = memory.range(10, 20).unwrap();
        for (offset, len) in [(0, 101), (100, 1), (usize::MAX, 1)] {
            let refused = MemoryError::OutOfRange { offset, len, of: 100 };
            assert_eq!(memory.copy_in(offset, &vec![1; len]), Err(refused));
            assert_eq!(memory.copy_out(offset, &mut vec![1; len]), Err(refused));
        }
        for (offset, len) in [(0, 21), (20, 1), (usize::MAX, 1)] {
            let refused = MemoryError::OutOfRange { offset, len, of: 20 };
            assert_eq!(part.copy_in(offset, &vec![1; len]), Err(refused));
            assert_eq!(part.copy_out(offset, &mut vec![1; len]), Err(refused));
        }
        memory.copy_in(100, &[]).unwrap();
        part.copy_in(19, &[7]).unwrap();
        let mut last = [0; 2];
        part.range(18, 2).unwrap().copy_out(0, &mut last).unwrap();
        assert_eq!(last, [0, 7]);
        assert_eq!(memory.try_into_slab().unwrap_err().len(), 100, "the part still holds it");
    }

    #[test]
    fn neighbours_may_write_at_the_same_time_and_lose_nothing() {
        let memory = memory(64);
        std::thread::scope(|scope| {
            // Sixteen bytes each, none of them aligned: all share their first and last word with a neighbour.
            for (part, value) in [(3, 1), (19, 2), (35, 3)] {
                let memory = memory.clone();
                scope.spawn(move || (0..1000).for_each(|_| memory.copy_in(part, &[value; 16]).unwrap()));
            }
        });
        let mut all = [0; 48];
        memory.copy_out(3, &mut all).unwrap();
        assert_eq!(all, [[1; 16], [2; 16], [3; 16]].concat()[..]);
    }
}
