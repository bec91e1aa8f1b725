//! Memory that the driver allocates.

use std::{
    ffi::c_void,
    ptr::{self, NonNull},
};

use cudarc::driver::sys::{CU_MEMHOSTALLOC_PORTABLE, cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY};
use rustix::param::page_size;

use super::{
    api::{Address, Api, call},
    bytes::Bytes,
    context::Primary,
    driver::Driver,
    find::{Attributes, make_synchronous},
};
use crate::{
    Allocation, Context, Kind, Memory, MemoryError,
    memory::Keeper,
    sys::{Place, slab::whole_pages, words::Words},
};

const OUT_OF_MEMORY: u32 = CUDA_ERROR_OUT_OF_MEMORY as u32;

/// What device memory is made of: pieces of fewer bytes share one with others, and need not start on a page.
const PIECE: usize = 2 << 20;

/// New memory of a device, all zero.
pub(crate) fn device(device: u32, len: usize) -> Result<Memory, MemoryError> {
    let kind = Kind::Cuda { device };
    let owned = Owned::new(kind, len)?;
    let (api, address) = (owned.api(), owned.address());
    let ipc_capable = {
        let _entered = owned.context.enter()?;
        let ipc_capable = owned.check()?.ipc_capable;
        make_synchronous(api, address)?;
        // SAFETY: ours, and that long.
        unsafe { call!(api, cuMemsetD8_v2(address, 0, owned.reserved)) }?;
        // SAFETY: null is the stream that it runs in.
        unsafe { call!(api, cuStreamSynchronize(ptr::null_mut())) }?;
        ipc_capable
    };
    // SAFETY: on that device, as long as the owner beside it lives.
    let bytes = unsafe { Bytes::new(owned.context.clone(), owned.start, len, owned.reserved, ipc_capable) };
    Ok(Memory::new(Place::Device(bytes), kind, Allocation::Plain, Keeper::Other(Box::new(owned))))
}

/// New memory of the host, page-locked for all devices, all zero.
pub(crate) fn pinned(len: usize) -> Result<Memory, MemoryError> {
    let owned = Owned::new(Kind::Pinned, len)?;
    {
        let _entered = owned.context.enter()?;
        owned.check()?;
    }
    // SAFETY: ours, mapped and that long, and nobody else knows of it yet.
    unsafe { owned.start.write_bytes(0, owned.reserved) };
    // SAFETY: whole pages, as long as the owner beside it lives, and no reference to them is made.
    let words = unsafe { Words::new(owned.start, len) };
    Ok(Memory::new(Place::Host(words), Kind::Pinned, Allocation::Plain, Keeper::Other(Box::new(owned))))
}

/// An allocation of the driver. Goes back to it when it is dropped.
#[derive(Debug)]
pub(crate) struct Owned {
    context: Context,
    kind: Kind,
    start: NonNull<u8>,
    reserved: usize,
}

impl Owned {
    /// Whole pages, or pieces, for `len` bytes, so that neither a registration nor a dma-buf of them takes in somebody else's.
    fn new(kind: Kind, len: usize) -> Result<Self, MemoryError> {
        let reserved = whole_pages(len, if kind.is_host() { page_size() } else { PIECE })?;
        let full = |error| match error {
            MemoryError::Driver { code: OUT_OF_MEMORY, .. } => MemoryError::OutOfMemory { bytes: len },
            other => other,
        };
        let driver = Driver::of(kind)?;
        // Pinned memory is allocated in a context too, and ends with it. The first device's will do.
        let context = Primary::retain(driver, kind.device().unwrap_or(0)).map_err(full)?;
        let start = {
            let _entered = context.enter()?;
            allocate(driver.api, kind, reserved).map_err(full)?
        };
        let start = NonNull::new(start).ok_or(MemoryError::OutOfMemory { bytes: len })?;
        Ok(Self { context, kind, start, reserved })
    }

    /// What the driver says it has given, if that is what was asked for. The context is entered.
    fn check(&self) -> Result<Attributes, MemoryError> {
        let (asked, address) = (self.kind, self.address());
        let other = |given, allocation| MemoryError::OtherMemory { asked, given, allocation };
        let attributes = Attributes::of(self.api(), address)?.ok_or(other(Kind::Host, Allocation::Plain))?;
        let (given, allocation) = (attributes.kind(), attributes.allocation(self.api(), address)?);
        let as_asked = given == asked && allocation == Allocation::Plain && attributes.holds(address, self.reserved as u64);
        if as_asked { Ok(attributes) } else { Err(other(given, allocation)) }
    }

    fn api(&self) -> &'static Api {
        self.context.0.driver.api
    }

    fn address(&self) -> Address {
        self.start.as_ptr() as Address
    }
}

/// In the context that is entered.
fn allocate(api: &Api, kind: Kind, bytes: usize) -> Result<*mut u8, MemoryError> {
    if kind.is_host() {
        let mut start: *mut c_void = ptr::null_mut();
        // SAFETY: writes one pointer.
        unsafe { call!(api, cuMemHostAlloc(&mut start, bytes, CU_MEMHOSTALLOC_PORTABLE)) }?;
        Ok(start.cast())
    } else {
        let mut address: Address = 0;
        // SAFETY: writes one address.
        unsafe { call!(api, cuMemAlloc_v2(&mut address, bytes)) }?;
        Ok(address as *mut u8)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // A driver that refuses has lost the device and its memory, or the process ends; or a graph is being captured, which the crate's
        // docs rule out. Nobody is left to be told.
        let Ok(_entered) = self.context.enter() else { return };
        let _ = if self.kind.is_host() {
            // SAFETY: ours, freed once, and nobody uses it any more.
            unsafe { call!(self.api(), cuMemFreeHost(self.start.as_ptr().cast())) }
        } else {
            // SAFETY: as above.
            unsafe { call!(self.api(), cuMemFree_v2(self.address())) }
        };
    }
}

// SAFETY: an address, used through calls that enter the context on whatever thread they are made.
unsafe impl Send for Owned {}
// SAFETY: shared, it only tells where it is.
unsafe impl Sync for Owned {}
