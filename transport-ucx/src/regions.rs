//! What peers may read: registrations, and the bytes that describe one.
//!
//! ```text
//! offset  size  field
//!      0     3  "ucr"
//!      3     1  version, 1
//!      4     1  1 for a region that is registered for one lease alone and fenced at its end, else 0
//!      5     8  the region's number, which nobody can guess
//!     13     8  address of its first byte, for one-sided reads
//!     21     8  length in bytes
//!     29        UCX's remote key; empty where no fabric reads without the owner
//! ```
//!
//! UCX reads a remote key without knowing its length, so it is taken only out of a frame.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{Ordering, fence},
    },
};

use gpu_mem::Memory;
use lease_proto::{
    frame::{Frame, HEADER},
    id::Incarnation,
};

use crate::{
    UcxError,
    sys::{Context, Mapped},
};

const MAGIC: [u8; 3] = *b"ucr";
const VERSION: u8 = 1;
/// Bytes before the remote key.
const FIXED: usize = 29;

/// Memory that is registered with UCX. Dropping it ends that: peers are not served from it any more, and the memory is given back
/// once no operation touches it.
///
/// May be kept and dropped on any thread.
pub struct Region {
    id: u64,
    fenced: bool,
    mapped: Arc<Mapped>,
    regions: Regions,
}

impl Region {
    /// Its length in bytes, never 0.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.mapped.len()
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        self.mapped.memory()
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced
    }

    pub(crate) fn mapped(&self) -> &Arc<Mapped> {
        &self.mapped
    }

    #[cfg(test)]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.regions.forget(self.id);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("len", &self.len()).field("fenced", &self.fenced).finish_non_exhaustive()
    }
}

/// Registers memory from any thread, without the transport.
#[derive(Clone)]
pub struct Registrar {
    pub(crate) context: Arc<Context>,
    pub(crate) regions: Regions,
    /// Whether some fabric here reads without the owner.
    pub(crate) one_sided: bool,
    pub(crate) fence: bool,
}

impl Registrar {
    /// As [`Data::register`](lease_proto::transport::Data::register).
    ///
    /// # Errors
    /// `BackendFailed`, and `Unsupported` where UCX takes the memory for another kind than it is.
    pub fn register(&self, memory: Memory) -> Result<Region, UcxError> {
        self.add(memory, false)
    }

    /// As [`Data::register_fenced`](lease_proto::transport::Data::register_fenced).
    ///
    /// # Errors
    /// As [`Registrar::register`], and `Unsupported` without the capability.
    pub fn register_fenced(&self, memory: Memory) -> Result<Region, UcxError> {
        if self.fence { self.add(memory, true) } else { Err(UcxError::NoFence) }
    }

    /// As [`Data::fence`](lease_proto::transport::Data::fence).
    ///
    /// # Errors
    /// `Invalid` for a region of [`Registrar::register`], `WouldBlock` while an operation uses it.
    pub fn fence(&self, region: &Region) -> Result<(), UcxError> {
        self.owns(region)?;
        if !region.fenced {
            return Err(UcxError::NotFenced);
        }
        region.regions.forget(region.id);
        // Nobody can find it any more, so this only goes down.
        if Arc::strong_count(&region.mapped) > 1 {
            return Err(UcxError::InUse);
        }
        fence(Ordering::Acquire); // what its last operation did came before
        region.mapped.unmap()
    }

    /// As [`Data::export`](lease_proto::transport::Data::export).
    ///
    /// # Errors
    /// `TooLarge` if `out` is too small.
    pub fn export(&self, region: &Region, incarnation: Incarnation, out: &mut [u8]) -> Result<usize, UcxError> {
        self.owns(region)?;
        let remote_key = if self.one_sided { region.mapped.remote_key()? } else { Vec::new() };
        let length = FIXED + remote_key.len();
        let too_large = UcxError::Room { got: out.len(), needed: HEADER + length };
        let (_, payload) = out.split_at_mut_checked(HEADER).ok_or(too_large.clone())?;
        let address = region.mapped.address();
        let fields: [&[u8]; 7] = [
            &MAGIC,
            &[VERSION, u8::from(region.fenced)],
            &region.id.to_le_bytes(),
            &address.to_le_bytes(),
            &(region.len() as u64).to_le_bytes(),
            &remote_key,
            &[],
        ];
        let mut room = payload.get_mut(..length).ok_or(too_large.clone())?;
        for field in fields {
            let (place, rest) = room.split_at_mut_checked(field.len()).ok_or(too_large.clone())?;
            place.copy_from_slice(field);
            room = rest;
        }
        Frame::seal(incarnation, length, out).map_err(|_| too_large)
    }

    /// That a region was registered here.
    pub(crate) fn owns(&self, region: &Region) -> Result<(), UcxError> {
        if region.mapped.is_of(&self.context) { Ok(()) } else { Err(UcxError::OtherTransport) }
    }

    fn add(&self, memory: Memory, fenced: bool) -> Result<Region, UcxError> {
        let mapped = Mapped::new(Arc::clone(&self.context), memory)?;
        warn_unless_plain(mapped.memory());
        Ok(self.admit(mapped, fenced))
    }

    fn admit(&self, mapped: Mapped, fenced: bool) -> Region {
        let mapped = Arc::new(mapped);
        let id = self.regions.insert(Arc::clone(&mapped));
        Region { id, fenced, mapped, regions: self.regions.clone() }
    }

    /// As if the host could not touch the memory.
    #[cfg(test)]
    pub(crate) fn register_out_of_reach(&self, memory: Memory) -> Result<Region, UcxError> {
        Mapped::out_of_reach(Arc::clone(&self.context), memory).map(|mapped| self.admit(mapped, false))
    }
}

/// Memory that fabrics may not reach by themselves is registered all the same, and its owner is told.
fn warn_unless_plain(memory: &Memory) {
    let (kind, allocation, bytes) = (memory.kind(), memory.allocation(), memory.len());
    if let Some(advice) = allocation.advice() {
        tracing::warn!(%kind, %allocation, bytes, "fabrics may be slow on such memory; {advice}");
    }
}

/// The regions that are served, by their numbers.
#[derive(Clone, Default)]
pub(crate) struct Regions(Arc<Shared>);

#[derive(Default)]
struct Shared {
    served: Mutex<Table>,
    secret: RandomState,
}

#[derive(Default)]
struct Table {
    regions: HashMap<u64, Arc<Mapped>>,
    count: u64,
}

impl Regions {
    pub(crate) fn get(&self, id: u64) -> Option<Arc<Mapped>> {
        self.lock().regions.get(&id).cloned()
    }

    pub(crate) fn holds(&self, id: u64) -> bool {
        self.lock().regions.contains_key(&id)
    }

    fn insert(&self, mapped: Arc<Mapped>) -> u64 {
        let mut table = self.lock();
        loop {
            table.count = table.count.wrapping_add(1);
            let id = self.0.secret.hash_one(table.count);
            if let std::collections::hash_map::Entry::Vacant(place) = table.regions.entry(id) {
                place.insert(mapped);
                return id;
            }
        }
    }

    fn forget(&self, id: u64) {
        let forgotten = self.lock().regions.remove(&id);
        drop(forgotten); // the last owner unmaps, and not under the lock
    }

    /// Nothing panics under the lock.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A peer's region, as it describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteRegion<'a> {
    pub(crate) incarnation: Incarnation,
    pub(crate) id: u64,
    pub(crate) fenced: bool,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) remote_key: RemoteKeyBytes<'a>,
}

/// A remote key that arrived whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteKeyBytes<'a>(&'a [u8]);

impl<'a> RemoteKeyBytes<'a> {
    /// Below, not even UCX's own header of a key fits. `None` where the region has no key.
    pub(crate) fn usable(self) -> Option<&'a [u8]> {
        const SHORTEST: usize = 9;
        Some(self.0).filter(|key| key.len() >= SHORTEST)
    }
}

impl<'a> RemoteRegion<'a> {
    pub(crate) fn decode(frame: Frame<'a>) -> Result<Self, UcxError> {
        let wrong = UcxError::Region("cut short");
        let (fixed, remote_key) = frame.payload().split_first_chunk::<FIXED>().ok_or(wrong)?;
        let [m0, m1, m2, version, fenced, numbers @ ..] = *fixed;
        if [m0, m1, m2] != MAGIC {
            return Err(UcxError::Region("another transport's, or no region"));
        }
        if version != VERSION {
            return Err(UcxError::Region("another version of this transport"));
        }
        let (numbers, _) = numbers.as_chunks::<8>();
        let (&[id, address, length], 0..=1) = (numbers, fenced) else { return Err(UcxError::Region("malformed")) };
        let [id, address, length] = [id, address, length].map(u64::from_le_bytes);
        // A region ends where addresses do, at the latest.
        if length == 0 || address.checked_add(length).is_none() {
            return Err(UcxError::Region("malformed"));
        }
        let remote_key = RemoteKeyBytes(remote_key);
        Ok(Self { incarnation: frame.incarnation(), id, fenced: fenced == 1, address, length, remote_key })
    }
}

#[cfg(test)]
mod tests;
