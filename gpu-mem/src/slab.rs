//! Host memory from the system. The one module with `unsafe`.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
    slice,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use rustix::{
    io::Errno,
    mm::{self, MapFlags, ProtFlags},
    param::page_size,
};

use crate::MemoryError;

/// Page-aligned, zeroed host memory with one owner. Goes back to the system when it is dropped.
///
/// It starts on a page of its own and fills its last page up, so that registering it never pins somebody else's data.
pub struct HostSlab {
    start: NonNull<u8>,
    len: usize,
    mapped: usize,
}

/// Bytes that are copied at once. Slabs are whole pages, so every word that holds one of their bytes is mapped.
const WORD: usize = size_of::<usize>();

impl HostSlab {
    /// Asks the system for `len` bytes.
    ///
    /// # Errors
    /// `ZeroSize`, `TooLarge`, `OutOfMemory`, or `Refused` with the system's error number.
    pub fn new(len: usize) -> Result<Self, MemoryError> {
        let max = isize::MAX as usize - (page_size() - 1);
        if len == 0 {
            return Err(MemoryError::ZeroSize);
        }
        if len > max {
            return Err(MemoryError::TooLarge { bytes: len, max });
        }
        let mapped = len.next_multiple_of(page_size());
        // SAFETY: a new private anonymous mapping at an address that the system chooses touches no other memory.
        let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        let refused = |errno: Errno| match errno {
            Errno::NOMEM => MemoryError::OutOfMemory { bytes: len },
            other => MemoryError::Refused { bytes: len, errno: other.raw_os_error() },
        };
        let start = start.and_then(|start| NonNull::new(start.cast()).ok_or(Errno::NOMEM)).map_err(refused)?;
        Ok(Self { start, len, mapped })
    }

    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// The length without going through a slice, which must not exist while the memory is shared.
    pub(crate) fn size(&self) -> usize {
        self.len
    }

    /// The byte at `offset`, or one past the end for an offset that is not inside.
    pub(crate) fn ptr_at(&self, offset: usize) -> NonNull<u8> {
        // SAFETY: at most `len`, so inside the mapping or one past its end, and `len` fits in an isize.
        unsafe { self.start.add(offset.min(self.len)) }
    }

    /// Copies out what is there from `offset` on, which the caller has checked.
    ///
    /// Somebody else may copy in meanwhile: then some words are old and some new, which is what a late read is about and no
    /// undefined behaviour, since every access of [`HostSlab::load`] and [`HostSlab::store`] is one relaxed atomic word. Bytes at
    /// either end are read and written as part of their word too: accesses of two sizes would race again. What a transport's
    /// library or a device writes is outside of this language's rules; their words are read as they come.
    pub(crate) fn load(&self, offset: usize, out: &mut [u8]) {
        let mut rest = out;
        for (word, from) in self.words(offset, rest.len()) {
            let count = rest.len().min(WORD - from);
            let (part, behind) = rest.split_at_mut(count);
            part.copy_from_slice(&word.load(Relaxed).to_ne_bytes()[from..from + count]);
            rest = behind;
        }
    }

    /// Copies in from `offset` on, which the caller has checked. See [`HostSlab::load`].
    pub(crate) fn store(&self, offset: usize, bytes: &[u8]) {
        let mut rest = bytes;
        for (word, from) in self.words(offset, rest.len()) {
            let (part, behind) = rest.split_at(rest.len().min(WORD - from));
            match part.try_into() {
                Ok(whole) => word.store(usize::from_ne_bytes(whole), Relaxed),
                // The bytes beside it may be somebody else's, written at this moment.
                Err(_) => {
                    let mixed = |old: usize| {
                        let mut bytes = old.to_ne_bytes();
                        bytes[from..from + part.len()].copy_from_slice(part);
                        Some(usize::from_ne_bytes(bytes))
                    };
                    let _ = word.fetch_update(Relaxed, Relaxed, mixed); // it always has something to write
                }
            }
            rest = behind;
        }
    }

    /// The words that hold these bytes, each with the place of the first of them in it.
    fn words(&self, offset: usize, len: usize) -> impl Iterator<Item = (&AtomicUsize, usize)> {
        debug_assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "checked by the caller");
        let words = if len == 0 { 0..0 } else { offset / WORD..(offset + len).div_ceil(WORD) };
        words.map(move |word| {
            // SAFETY: inside the mapping, which ends with a page.
            let at = unsafe { self.start.as_ptr().cast::<usize>().add(word) };
            // SAFETY: aligned, as the slab starts on a page; mapped as long as `self` lives; and no slice of these bytes exists,
            // since a shared slab is inside a `Memory`.
            (unsafe { AtomicUsize::from_ptr(at) }, offset.saturating_sub(word * WORD))
        })
    }
}

impl Deref for HostSlab {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised (zeroed) bytes that live as long as `self`. A slab that peers or transports may write to
        // is inside a `Memory`, which never dereferences it.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for HostSlab {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only way to these bytes.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for HostSlab {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours alone, and nothing can reach it once its only owner is gone.
        let unmapped = unsafe { mm::munmap(self.start.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "a whole mapping of our own can be unmapped");
    }
}

impl fmt::Debug for HostSlab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostSlab({} bytes at {:p})", self.len, self.start)
    }
}

// SAFETY: the mapping belongs to the process, not to a thread; it may be used and unmapped anywhere.
unsafe impl Send for HostSlab {}
// SAFETY: a shared slab gives out shared slices, an address, and copies by atomic words, which may be made on any thread.
unsafe impl Sync for HostSlab {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_aligned_zeroed_and_writable_to_its_last_byte() {
        for len in [1, 4095, 4096, 4097, 1 << 20] {
            let mut slab = HostSlab::new(len).unwrap();
            assert_eq!(slab.len(), len);
            assert_eq!(slab.as_ptr() as usize % page_size(), 0);
            assert!(slab.iter().all(|&byte| byte == 0));
            slab.fill(0xa5);
            assert!(slab.iter().all(|&byte| byte == 0xa5));
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let max = isize::MAX as usize - (page_size() - 1);
        assert_eq!(HostSlab::new(0).unwrap_err(), MemoryError::ZeroSize);
        for bytes in [max + 1, usize::MAX] {
            assert_eq!(HostSlab::new(bytes).unwrap_err(), MemoryError::TooLarge { bytes, max });
        }
        assert_eq!(HostSlab::new(max).unwrap_err(), MemoryError::OutOfMemory { bytes: max });
    }
}
