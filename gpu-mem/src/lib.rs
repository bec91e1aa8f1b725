//! Memory that peers may read, with an owner that outlives every operation on it.
//!
//! A [`HostSlab`] is page-aligned, zeroed memory with ONE owner, who sees it as a slice of bytes. Turned into a [`Memory`] it can
//! be registered with a transport: the owner is shared, whoever needs the memory holds a clone, and nobody sees a slice any
//! more, since a peer may read or a transport may write at any moment: it is copied in and out. Once all clones but one are gone, and
//! with them every registration and operation, [`Memory::try_into_slab`] gives the bytes back.
//!
//! ```
//! use gpu_mem::{HostSlab, Memory};
//! let mut slab = HostSlab::new(8192)?;
//! slab[4096..4099].copy_from_slice(b"kv!");
//!
//! let memory = Memory::from(slab);
//! let block = memory.range(4096, 4096)?; // checked, and keeps the memory alive
//! assert_eq!(block.descriptor().address(), memory.descriptor().address() + 4096);
//!
//! drop(block);
//! let slab = memory.try_into_slab().expect("nobody else holds it");
//! assert_eq!(&slab[4096..4099], b"kv!");
//! # Ok::<(), gpu_mem::MemoryError>(())
//! ```
//!
//! A [`BlockPool`] hands out KV blocks of such memory and keeps those that leases are granted on; its [`Layout`]s, as those of a peer's
//! metadata, tell where each block lies. [`HostSlab::with_huge_pages`] is for large ones.
//!
//! With the feature `cuda` there is memory of CUDA devices too, host memory that CUDA has pinned, and an engine's own tensors
//! ([`Memory::adopt`]). It needs no CUDA to build; where there is no driver or no device, [`Unavailable`] says so and what to do. Whoever
//! touches a device's memory enters its [`Context`] first; the copies here do. Do not allocate, copy, adopt or drop the last clone while an
//! engine captures a CUDA graph: the driver may end the capture, and what was to be freed stays. All of this was run against a double of the driver only, and is not certified on a device yet.

mod context;
mod device;
mod kind;
mod layout;
mod memory;
mod pool;
mod sys;
mod unavailable;

pub use context::{Context, Entered};
pub use device::{Device, DriverVersion, devices};
pub use kind::{Allocation, Kind};
pub use layout::{Layout, LayoutError, Runs, Span};
pub use memory::{Descriptor, Memory, MemoryRange, Watch};
pub use pool::{BlockPool, BlockRegion, Blocks, Counts, NotLent, PoolError};
pub use sys::slab::{HostSlab, Pages};
pub use unavailable::Unavailable;

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
    /// The system, or the device, has no room for it.
    #[error(
        "out of memory for {bytes} bytes: ask for less, free other memory, or raise this process's limit (ulimit -v, cgroup)"
    )]
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
    /// A name that is no kind of memory.
    #[error("no such kind of memory: expected host, pinned, cuda or cuda:N")]
    UnknownKind,
    /// This machine, or this build, has no memory of that kind.
    #[error("no {kind} memory: {cause}")]
    Unavailable {
        /// What was asked for.
        kind: Kind,
        /// Why not, and what to do.
        cause: Unavailable,
    },
    /// CUDA's driver refused a call.
    #[error("{call} failed with CUDA error {}", error_code(*code))]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// Its `CUresult`.
        code: u32,
    },
    /// CUDA gave other memory than was asked for: something stands between this process and its driver.
    #[error(
        "asked CUDA for {asked} memory and was given {given} memory ({allocation}): is a library preloaded that shares out devices?"
    )]
    OtherMemory {
        /// What was asked for.
        asked: Kind,
        /// What the driver says it is.
        given: Kind,
        /// How it says it was allocated.
        allocation: Allocation,
    },
    /// Memory to adopt whose kind only a CUDA driver could tell that cannot be asked.
    #[error("cannot tell what kind of memory this is: {cause}")]
    UnknownMemory {
        /// Why it cannot be asked.
        cause: Unavailable,
    },
    /// Memory to adopt that fabrics may not reach, or not fast, and that was not accepted as it is.
    #[error("memory of this allocation is not taken: {allocation}: {}", allocation.advice().unwrap_or_default())]
    Unfit {
        /// How it was allocated.
        allocation: Allocation,
    },
    /// Memory to adopt that does not lie in one allocation.
    #[error("the {len} bytes at {address:#x} are not inside one allocation")]
    NotOneAllocation {
        /// The first byte.
        address: u64,
        /// Bytes from there.
        len: usize,
    },
    /// Memory whose start or length is not a multiple of what it has to be.
    #[error("the {len} bytes at {address:#x} do not start and end at a multiple of {align} bytes")]
    Misaligned {
        /// The first byte.
        address: u64,
        /// Bytes from there.
        len: usize,
        /// What both must be a multiple of.
        align: usize,
    },
    /// There is no dma-buf of this memory.
    #[error(
        "no dma-buf of {kind} memory: it takes a CUDA device's memory, Linux 5.12 and the open kernel modules of NVIDIA's driver"
    )]
    NoDmaBuf {
        /// What the memory is.
        kind: Kind,
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

/// A code with its name, where the driver knows one.
fn error_code(code: u32) -> String {
    sys::cuda::error_name(code).map_or_else(|| code.to_string(), |name| format!("{code} ({name})"))
}
