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
        let mapped = Arc::new(Mapped::new(Arc::clone(&self.context), memory)?);
        let id = self.regions.insert(Arc::clone(&mapped));
        Ok(Region { id, fenced, mapped, regions: self.regions.clone() })
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
mod tests {
    use gpu_mem::HostSlab;
    use lease_proto::transport::{Error as _, ErrorKind};

    use super::*;
    use crate::UcxConfig;

    fn registrar(fence: bool) -> Registrar {
        let config = UcxConfig { tls: Some("tcp".to_owned()), ..UcxConfig::default() };
        let context = Arc::new(Context::new(&config.settings(|_| false), "tcp").unwrap());
        Registrar { context, regions: Regions::default(), one_sided: true, fence }
    }

    fn memory(length: usize) -> Memory {
        HostSlab::new(length).unwrap().into()
    }

    fn exported(registrar: &Registrar, region: &Region) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let length = registrar.export(region, Incarnation(7), &mut bytes).unwrap();
        bytes.truncate(length);
        bytes
    }

    #[test]
    fn what_is_exported_says_what_the_region_is() {
        let registrar = registrar(true);
        let (one, other) = (registrar.register(memory(5000)).unwrap(), registrar.register_fenced(memory(1)).unwrap());
        for (region, fenced) in [(&one, false), (&other, true)] {
            let bytes = exported(&registrar, region);
            let remote = RemoteRegion::decode(Frame::decode(&bytes).unwrap()).unwrap();
            assert_eq!((remote.incarnation, remote.fenced, remote.length), (Incarnation(7), fenced, region.len() as u64));
            assert_eq!((remote.id, remote.address), (region.id, region.memory().ptr().as_ptr() as u64));
            assert!(remote.remote_key.usable().is_some());
            let error = registrar.export(region, Incarnation(7), &mut vec![0; bytes.len() - 1]).unwrap_err();
            assert_eq!(error, UcxError::Room { got: bytes.len() - 1, needed: bytes.len() });
        }
        assert_ne!(one.id, other.id);
    }

    #[test]
    fn bytes_that_describe_no_region_are_refused() {
        let registrar = registrar(false);
        let region = registrar.register(memory(100)).unwrap();
        let bytes = exported(&registrar, &region);
        let payload = Frame::decode(&bytes).unwrap().payload().to_vec();
        let decode = |payload: &[u8]| {
            let mut framed = vec![0; payload.len() + HEADER];
            Frame::encode(Incarnation(7), payload, &mut framed).unwrap();
            RemoteRegion::decode(Frame::decode(&framed).unwrap()).map(|region| region.remote_key.usable().is_some())
        };
        assert_eq!(decode(&payload), Ok(true));
        for cut in 0..FIXED {
            assert_eq!(decode(&payload[..cut]), Err(UcxError::Region("cut short")));
        }
        // Without a key, or with one that cannot be whole, only the owner can serve.
        assert_eq!((decode(&payload[..FIXED]), decode(&payload[..FIXED + 8])), (Ok(false), Ok(false)));
        for at in 0..5 {
            let mut other = payload.clone();
            other[at] ^= 0x22;
            assert!(matches!(decode(&other), Err(UcxError::Region(_))), "byte {at}");
        }
        let with = |from: usize, value: u64| {
            let mut other = payload.clone();
            other[from..from + 8].copy_from_slice(&value.to_le_bytes());
            decode(&other)
        };
        assert_eq!((with(21, 0), with(21, u64::MAX)), (Err(UcxError::Region("malformed")), Err(UcxError::Region("malformed"))));
        assert_eq!(with(13, u64::MAX), Err(UcxError::Region("malformed")));
    }

    #[test]
    fn a_region_for_one_lease_ends_when_it_is_fenced_and_its_memory_is_free() {
        let registrar = registrar(true);
        let region = registrar.register_fenced(memory(4096)).unwrap();
        let served = registrar.regions.get(region.id).unwrap();
        assert_eq!(registrar.fence(&region).unwrap_err().kind(), ErrorKind::WouldBlock, "something reads from it");
        assert!(!registrar.regions.holds(region.id), "nothing new begins meanwhile");
        drop(served);
        assert_eq!((registrar.fence(&region), registrar.fence(&region)), (Ok(()), Ok(())));
        let memory = region.memory().clone();
        drop(region);
        assert!(memory.try_into_slab().is_ok());
    }

    #[test]
    fn a_fenced_region_is_not_exported_not_even_by_another_thread_meanwhile() {
        let registrar = registrar(true);
        for _ in 0..1000 {
            let region = registrar.register_fenced(memory(4096)).unwrap();
            let export = || registrar.export(&region, Incarnation(7), &mut [0; 4096]);
            std::thread::scope(|scope| {
                scope.spawn(|| while export().is_ok() {});
                scope.spawn(|| registrar.fence(&region).unwrap());
            });
            assert_eq!(export(), Err(UcxError::Fenced));
        }
    }

    #[test]
    fn only_what_is_registered_for_one_lease_can_be_fenced_and_only_where_that_holds() {
        let without = registrar(false);
        assert_eq!(without.register_fenced(memory(1)).unwrap_err().kind(), ErrorKind::Unsupported);
        let region = without.register(memory(1)).unwrap();
        assert_eq!(without.fence(&region).unwrap_err().kind(), ErrorKind::Invalid);
        assert!(without.regions.holds(region.id));
        let id = region.id;
        drop(region);
        assert!(!without.regions.holds(id));
    }

    #[test]
    fn memory_that_ucx_takes_for_another_kind_is_refused() {
        let registrar = registrar(false);
        let error = Mapped::mistaken(registrar.context, memory(4096)).err().unwrap();
        assert_eq!((error.kind(), error), (ErrorKind::Unsupported, UcxError::MemoryType { found: "host", expected: "cuda" }));
    }

    #[test]
    fn a_region_is_of_the_transport_that_registered_it() {
        let (here, there) = (registrar(true), registrar(true));
        let region = there.register_fenced(memory(4096)).unwrap();
        assert_eq!(here.export(&region, Incarnation(7), &mut [0; 4096]), Err(UcxError::OtherTransport));
        assert_eq!(here.fence(&region), Err(UcxError::OtherTransport));
        assert_eq!(there.fence(&region), Ok(()));
    }

    #[test]
    fn regions_end_on_any_thread() {
        let registrar = registrar(false);
        let memory = memory(1 << 20);
        let regions: Vec<Region> = (0..100).map(|_| registrar.register(memory.clone()).unwrap()).collect();
        std::thread::scope(|scope| {
            regions.into_iter().for_each(|region| drop(scope.spawn(move || drop(region))));
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| drop(registrar.register(memory.clone()).unwrap())));
            }
        });
        assert!(registrar.regions.lock().regions.is_empty());
        assert!(memory.try_into_slab().is_ok());
    }
}
