//! Memory that an engine has allocated.

use std::{any::Any, ptr::NonNull};

use super::{
    Place, cuda,
    words::{WORD, Words},
};
use crate::{Allocation, Kind, Memory, MemoryError, memory::Keeper};

/// What a piece of memory turns out to be.
pub(super) enum Found {
    /// Memory of the host, of this kind.
    Host(Kind, Allocation),
    /// Memory of a device.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "without CUDA there is none"))]
    Device { bytes: cuda::Bytes, kind: Kind, allocation: Allocation },
}

impl Memory {
    /// An engine's own memory: a tensor of KV blocks, say. `owner` keeps it alive, and is dropped with the last clone, on any thread; or
    /// at once if the memory is not taken.
    ///
    /// What kind of memory it is, CUDA's driver is asked; if there is none it is host memory. Memory that was not allocated in one piece
    /// is not taken unless `accept` names that allocation: fabrics register it slowly, or not at all (case 65). Managed memory never is. Of
    /// mapped pieces the driver knows the range that is reserved, so holes in it are not found.
    ///
    /// Plain memory of a device is set to be synchronous (`SYNC_MEMOPS`), for as long as it is allocated: copies and fills that CUDA calls
    /// synchronous are over when they return, and a network card sees them. Asynchronous ones and kernels are the engine's to wait for.
    ///
    /// # Errors
    /// `ZeroSize`, `TooLarge`; `Unfit` as above; `NotOneAllocation`; `Misaligned` for host memory that is not whole words, since
    /// it is copied by words; `UnknownMemory` if there is a driver that cannot be asked, as in a build without the feature `cuda`; `Driver`.
    ///
    /// # Safety
    /// Until the owner is dropped there are `len` bytes at `start`, mapped for reading and writing. From now on peers may read them
    /// and transports may write them at any moment, so nobody uses a reference to them.
    pub unsafe fn adopt(
        start: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
        accept: &[Allocation],
    ) -> Result<Self, MemoryError> {
        let max = (usize::MAX - start.addr().get()).min(isize::MAX as usize);
        match len {
            0 => return Err(MemoryError::ZeroSize),
            _ if len > max => return Err(MemoryError::TooLarge { bytes: len, max }),
            _ => {}
        }
        // SAFETY: promised by the caller, and the owner is kept beside it.
        let (place, kind, allocation) = match unsafe { cuda::find(start, len, accept) }? {
            Found::Device { bytes, kind, allocation } => (Place::Device(bytes), kind, allocation),
            Found::Host(_, _) if !(start.addr().get().is_multiple_of(WORD) && len.is_multiple_of(WORD)) => {
                return Err(MemoryError::Misaligned { address: start.as_ptr() as u64, len, align: WORD });
            }
            // SAFETY: whole words, and the rest is promised by the caller.
            Found::Host(kind, allocation) => (Place::Host(unsafe { Words::new(start, len) }), kind, allocation),
        };
        Ok(Self::new(place, kind, allocation, Keeper::Other(owner)))
    }
}
