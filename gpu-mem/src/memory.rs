//! The shared owner, and ranges that keep it alive.

use std::{ptr::NonNull, sync::Arc};

use crate::{HostSlab, MemoryError};

/// What memory is, for a transport that treats kinds differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Ordinary memory of the host.
    Host,
}

/// Memory that may be registered: an owner that is cheap to clone. The memory lives until the last clone is gone.
///
/// Whoever uses [`Memory::ptr`] (a registration, a read in flight) must hold a clone as long as it does.
#[derive(Clone, Debug)]
pub struct Memory(Arc<HostSlab>);

impl From<HostSlab> for Memory {
    fn from(slab: HostSlab) -> Self {
        Self(Arc::new(slab))
    }
}

impl Memory {
    /// Its first byte. Valid as long as this owner or a clone of it lives.
    pub fn ptr(&self) -> NonNull<u8> {
        self.0.ptr()
    }

    /// Its length in bytes, never 0.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.0.size()
    }

    /// What kind of memory it is.
    pub fn kind(&self) -> Kind {
        Kind::Host
    }

    /// The `len` bytes from `offset` on, as an owner too.
    ///
    /// # Errors
    /// `ZeroSize`, or `OutOfRange` if not all of it is inside.
    pub fn range(&self, offset: usize, len: usize) -> Result<MemoryRange, MemoryError> {
        check(offset, len, self.len())?;
        Ok(MemoryRange { memory: self.clone(), offset, len })
    }

    /// The slab, if this is its last owner: then no registration and no operation is left that could touch it.
    ///
    /// # Errors
    /// Gives the memory back unchanged while somebody else holds a clone or a range.
    pub fn try_into_slab(self) -> Result<HostSlab, Self> {
        Arc::try_unwrap(self.0).map_err(Self)
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

    /// Its first byte. Valid as long as this range, a clone of it or of its memory lives.
    pub fn ptr(&self) -> NonNull<u8> {
        self.memory.0.ptr_at(self.offset)
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
    match offset.checked_add(len) {
        _ if len == 0 => Err(MemoryError::ZeroSize),
        Some(end) if end <= of => Ok(()),
        _ => Err(MemoryError::OutOfRange { offset, len, of }),
    }
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
            assert_eq!(range.ptr().as_ptr() as usize, memory.ptr().as_ptr() as usize + offset);
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
}
