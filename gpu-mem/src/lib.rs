//! Memory that peers may read, with an owner that outlives every operation on it.
//!
//! A [`HostSlab`] is page-aligned, zeroed memory with ONE owner, who sees it as a slice of bytes. Turned into a [`Memory`] it can
//! be registered with a transport: the owner is shared, whoever needs the memory holds a clone, and nobody sees a slice any
//! more, since a peer may read or a transport may write at any moment: it is copied in and out. Once all clones but one are gone, and with them every
//! registration and operation, [`Memory::try_into_slab`] gives the bytes back.
//!
//! ```
//! use gpu_mem::{HostSlab, Memory};
//! let mut slab = HostSlab::new(8192)?;
//! slab[4096..4099].copy_from_slice(b"kv!");
//!
//! let memory = Memory::from(slab);
//! let block = memory.range(4096, 4096)?; // checked, and keeps the memory alive
//! assert_eq!(block.ptr().as_ptr() as usize, memory.ptr().as_ptr() as usize + 4096);
//!
//! drop(block);
//! let slab = memory.try_into_slab().expect("nobody else holds it");
//! assert_eq!(&slab[4096..4099], b"kv!");
//! # Ok::<(), gpu_mem::MemoryError>(())
//! ```
//!
//! CUDA device memory, pinned host memory, huge pages and pools of KV blocks come with later work and are not here yet.

mod memory;
mod slab;

pub use memory::{Kind, Memory, MemoryRange};
pub use slab::HostSlab;

/// Why memory could not be had, or a range of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Zero bytes were asked for.
    #[error("asked for 0 bytes, expected at least 1")]
    ZeroSize,
    /// More bytes than an address space holds.
    #[error("asked for {bytes} bytes, expected at most {max}")]
    TooLarge {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The system has no room for it.
    #[error("out of memory for {bytes} bytes: ask for less, or raise the limit on this process (ulimit -v, cgroup)")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The system refused for another reason.
    #[error("the system refused {bytes} bytes of memory with error number {errno}")]
    Refused {
        /// Bytes asked for.
        bytes: usize,
        /// Its `errno`.
        errno: i32,
    },
    /// A range that is not wholly inside.
    #[error("range of {len} bytes at {offset} is outside the {of} bytes there are")]
    OutOfRange {
        /// First byte.
        offset: usize,
        /// Bytes from there.
        len: usize,
        /// Bytes there are.
        of: usize,
    },
}
