//! Host memory from the system.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
    slice,
};

use rustix::{
    io::Errno,
    mm::{self, Advice, MapFlags, ProtFlags},
    param::page_size,
};

use super::words::Words;
use crate::MemoryError;

/// Page-aligned, zeroed host memory with one owner. Goes back to the system when it is dropped.
///
/// It starts on a page of its own and fills its last page up, so that registering it never pins somebody else's data.
pub struct HostSlab {
    start: NonNull<u8>,
    len: usize,
    mapped: usize,
    pages: Pages,
}

/// What pages a [`HostSlab`] is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pages {
    /// The system's ordinary ones, 4 KiB on most machines.
    Ordinary,
    /// Ordinary ones that the system was asked to make 2 MiB where it can, as they are first touched or later.
    Transparent,
    /// Of 2 MiB, from those that the operator has set aside (`vm.nr_hugepages`).
    Huge,
}

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

impl HostSlab {
    /// Asks the system for `len` bytes.
    ///
    /// # Errors
    /// `ZeroSize`, `TooLarge`, `OutOfMemory`, or `Refused` with the system's error number.
    pub fn new(len: usize) -> Result<Self, MemoryError> {
        let mapped = whole_pages(len, page_size())?;
        Ok(Self { start: map(len, mapped, MapFlags::empty())?, len, mapped, pages: Pages::Ordinary })
    }

    /// The same on pages of 2 MiB, of which the tables of processors and fabrics need fewer: set aside ones if as many are free, else
    /// transparent ones if the system has them, else ordinary ones, which fewer than 2 MiB always get. [`HostSlab::pages`] tells which. Set
    /// aside ones need Linux 5.14, which can touch them before anybody relies on them.
    ///
    /// # Errors
    /// As [`HostSlab::new`], and never for want of huge pages.
    pub fn with_huge_pages(len: usize) -> Result<Self, MemoryError> {
        match whole_pages(len, HUGE) {
            Ok(mapped) if len >= HUGE => {
                Self::huge(len, mapped).or_else(|_| Self::transparent(len, mapped)).or_else(|_| Self::new(len))
            }
            _ => Self::new(len),
        }
    }

    /// Touched at once: a container's limit on huge pages (hugetlb cgroup) lets them be mapped and ends the process that touches them.
    fn huge(len: usize, mapped: usize) -> Result<Self, MemoryError> {
        let slab = Self { start: map(len, mapped, MapFlags::HUGETLB | MapFlags::HUGE_2MB)?, len, mapped, pages: Pages::Huge };
        // SAFETY: all of it is mapped, for writing, and this changes no byte.
        let touched = unsafe { mm::madvise(slab.start.as_ptr().cast(), mapped, Advice::LinuxPopulateWrite) };
        touched.map(|()| slab).map_err(|_| MemoryError::OutOfMemory { bytes: len })
    }

    /// `mapped` bytes, whole huge pages, that begin where a huge page can.
    fn transparent(len: usize, mapped: usize) -> Result<Self, MemoryError> {
        let reserved = whole_pages(mapped.saturating_add(HUGE - page_size().min(HUGE)), page_size())?;
        let whole = map(len, reserved, MapFlags::empty())?;
        let (before, after) = around(whole.addr().get(), reserved, mapped);
        // SAFETY: `before` bytes and the slab lie inside what was mapped.
        let start = unsafe { whole.add(before) };
        // SAFETY: so does their end, or it is the mapping's.
        let end = unsafe { start.add(mapped) };
        for (rest, bytes) in [(whole, before), (end, after)] {
            if bytes > 0 {
                // SAFETY: pages at either end of a mapping of our own, which nobody has seen.
                let unmapped = unsafe { mm::munmap(rest.as_ptr().cast(), bytes) };
                debug_assert!(unmapped.is_ok(), "pages of our own can be unmapped");
            }
        }
        let slab = Self { start, len, mapped, pages: Pages::Transparent };
        // SAFETY: all of it is mapped, and this changes no byte.
        let advised = unsafe { mm::madvise(start.as_ptr().cast(), mapped, Advice::LinuxHugepage) };
        Ok(if advised.is_ok() && may_be_transparent() { slab } else { Self { pages: Pages::Ordinary, ..slab } })
    }

    /// The pages that it is made of.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Its bytes to share, once it is inside a `Memory`, which dereferences it no more.
    pub(crate) fn words(&self) -> Words {
        // SAFETY: a slab is whole pages that are mapped as long as it lives, and whoever shares it keeps it.
        unsafe { Words::new(self.start, self.len) }
    }
}

/// A new mapping of `mapped` bytes, whole pages of its kind, for `len` bytes.
fn map(len: usize, mapped: usize, flags: MapFlags) -> Result<NonNull<u8>, MemoryError> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new private anonymous mapping at an address that the system chooses touches no other memory.
    let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), mapped, access, MapFlags::PRIVATE | flags) };
    let refused = |errno: Errno| match errno {
        Errno::NOMEM => MemoryError::OutOfMemory { bytes: len },
        other => MemoryError::Refused { bytes: len, errno: other.raw_os_error() },
    };
    start.and_then(|start| NonNull::new(start.cast()).ok_or(Errno::NOMEM)).map_err(refused)
}

/// How many bytes of a mapping lie before its first `mapped` bytes that begin where a huge page can, and how many behind them.
fn around(start: usize, reserved: usize, mapped: usize) -> (usize, usize) {
    let before = start.wrapping_neg() % HUGE;
    (before, reserved.saturating_sub(before).saturating_sub(mapped))
}

/// Whether the system makes huge pages at all: it takes the advice even where it does not.
fn may_be_transparent() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.is_ok_and(|setting| !setting.contains("[never]"))
}

/// The bytes of the pages that `len` bytes take.
pub(super) fn whole_pages(len: usize, page: usize) -> Result<usize, MemoryError> {
    let max = isize::MAX as usize - (page - 1);
    match len {
        0 => Err(MemoryError::ZeroSize),
        _ if len > max => Err(MemoryError::TooLarge { bytes: len, max }),
        _ => Ok(len.next_multiple_of(page)),
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
        write!(f, "HostSlab({} bytes at {:p}, {:?} pages)", self.len, self.start, self.pages)
    }
}

// SAFETY: the mapping belongs to the process, not to a thread; it may be used and unmapped anywhere.
unsafe impl Send for HostSlab {}
// SAFETY: a shared slab gives out shared slices, an address, and words for atomic copies, which may be made on any thread.
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
    fn huge_pages_are_had_where_they_are_and_are_never_missed() {
        for len in [1, page_size(), HUGE - 1, HUGE, HUGE + 1, 2 * HUGE - 1, 2 * HUGE, 5 * HUGE + 7] {
            let mut slab = HostSlab::with_huge_pages(len).unwrap();
            assert_eq!(slab.len(), len);
            match slab.pages() {
                Pages::Ordinary => assert_eq!(slab.as_ptr() as usize % page_size(), 0),
                Pages::Transparent | Pages::Huge => {
                    assert!(len >= HUGE, "{len} bytes would waste most of a huge page");
                    assert_eq!((slab.as_ptr() as usize % HUGE, slab.mapped), (0, len.next_multiple_of(HUGE)));
                }
            }
            assert!(slab.iter().all(|&byte| byte == 0));
            slab.fill(0xa5);
            assert!(slab.iter().all(|&byte| byte == 0xa5));
            let memory = crate::Memory::from(slab);
            memory.copy_in(len - 1, &[7]).unwrap();
            assert_eq!(memory.try_into_slab().unwrap()[len - 1], 7);
        }
    }

    #[test]
    fn transparent_ones_are_trimmed_to_whole_huge_pages() {
        // Set aside ones may be had on this machine: ask for these alone.
        for huge in 1..20 {
            let slab = HostSlab::transparent(huge * HUGE - 1, huge * HUGE).unwrap();
            assert_eq!((slab.as_ptr() as usize % HUGE, slab.mapped), (0, huge * HUGE));
            assert!(slab.iter().all(|&byte| byte == 0));
        }
        let page = 4096;
        for start in (0..2 * HUGE).step_by(64 * page).chain([HUGE - page, HUGE, HUGE + page]) {
            let (mapped, reserved) = (3 * HUGE, 4 * HUGE - page);
            let (before, after) = around(start, reserved, mapped);
            assert_eq!(((start + before) % HUGE, before + mapped + after), (0, reserved));
            assert!(before < HUGE);
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let max = isize::MAX as usize - (page_size() - 1);
        assert_eq!(HostSlab::new(0).unwrap_err(), MemoryError::ZeroSize);
        assert_eq!(HostSlab::with_huge_pages(0).unwrap_err(), MemoryError::ZeroSize);
        for bytes in [max + 1, usize::MAX] {
            assert_eq!(HostSlab::new(bytes).unwrap_err(), MemoryError::TooLarge { bytes, max });
            assert_eq!(HostSlab::with_huge_pages(bytes).unwrap_err(), MemoryError::TooLarge { bytes, max });
        }
        assert_eq!(HostSlab::new(max).unwrap_err(), MemoryError::OutOfMemory { bytes: max });
        assert_eq!(HostSlab::with_huge_pages(max).unwrap_err(), MemoryError::OutOfMemory { bytes: max });
    }
}
