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

    /// Copies `bytes` to where they shall lie, from `offset` on. Who reads at the same moment sees some old bytes and some new.
    ///
    /// # Errors
    /// `OutOfRange` if not all of it is inside; then nothing is copied.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        inside(offset, bytes.len(), self.len())?;
        self.0.store(offset, bytes);
        Ok(())
    }

    /// Copies what lies from `offset` on to `out`. Who writes at the same moment makes it some old bytes and some new.
    ///
    /// # Errors
    /// `OutOfRange` if not all of it is inside; then nothing is copied.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), MemoryError> {
        inside(offset, out.len(), self.len())?;
        self.0.load(offset, out);
        Ok(())
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

    /// As [`Memory::copy_in`]; `offset` counts from the start of this part.
    ///
    /// # Errors
    /// `OutOfRange` if not all of it is inside this part.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        inside(offset, bytes.len(), self.len)?;
        self.memory.copy_in(self.offset + offset, bytes)
    }

    /// As [`Memory::copy_out`]; `offset` counts from the start of this part.
    ///
    /// # Errors
    /// `OutOfRange` if not all of it is inside this part.
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
