//! Bytes on a device, without their owner.

use std::{
    os::fd::{FromRawFd, OwnedFd, RawFd},
    ptr::{self, NonNull},
};

use cudarc::driver::sys::{CUdevice_attribute_enum, CUmemRangeHandleType_enum};
use rustix::{
    io::{FdFlags, fcntl_setfd},
    param::page_size,
};

use super::{
    api::{Address, call},
    context::Primary,
};
use crate::{Context, Kind, MemoryError};

pub(super) const DMA_BUF_SUPPORTED: u32 = CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED as u32;
const DMA_BUF_FD: u32 = CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as u32;

/// Where they are, and the context to reach them in.
#[derive(Debug)]
pub(crate) struct Bytes {
    context: Context,
    start: NonNull<u8>,
    len: usize,
    reserved: usize,
    ipc_capable: bool,
}

impl Bytes {
    /// `len` bytes, of which the owner has `reserved`, at least as many, for itself.
    ///
    /// # Safety
    /// As long as this is used they are there, on the device of the context.
    pub(super) unsafe fn new(context: Context, start: NonNull<u8>, len: usize, reserved: usize, ipc_capable: bool) -> Self {
        Self { context, start, len, reserved, ipc_capable }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn is_ipc_capable(&self) -> bool {
        self.ipc_capable
    }

    /// Copies out what is there from `offset` on, which the caller has checked.
    pub(crate) fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), MemoryError> {
        if out.is_empty() {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let from = self.at(offset);
        // SAFETY: both sides are that long, as the caller has checked.
        unsafe { call!(self.primary().driver.api, cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), from, out.len())) }
    }

    /// Copies in from `offset` on, which the caller has checked.
    pub(crate) fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let (api, to) = (self.primary().driver.api, self.at(offset));
        // SAFETY: both sides are that long, as the caller has checked.
        unsafe { call!(api, cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len())) }?;
        // The copy may return before the last bytes are there, where memory could not be made synchronous.
        // SAFETY: null is the stream that copies run in.
        unsafe { call!(api, cuStreamSynchronize(ptr::null_mut())) }
    }

    /// A file descriptor of all that is reserved: whole pages, where the memory is ours.
    pub(crate) fn dma_buf(&self, kind: Kind) -> Result<OwnedFd, MemoryError> {
        let (primary, address, len) = (self.primary(), self.at(0), self.reserved);
        let align = page_size();
        if !(self.start.addr().get().is_multiple_of(align) && len.is_multiple_of(align)) {
            return Err(MemoryError::Misaligned { address, len, align });
        }
        if primary.driver.attribute(DMA_BUF_SUPPORTED, primary.device)? == 0 {
            return Err(MemoryError::NoDmaBuf { kind });
        }
        let _entered = self.context.enter()?;
        let mut fd: RawFd = -1;
        // SAFETY: the range is mapped, and what it writes for this type of handle is one descriptor.
        unsafe { call!(primary.driver.api, cuMemGetHandleForAddressRange((&raw mut fd).cast(), address, len, DMA_BUF_FD, 0)) }?;
        if fd < 0 {
            return Err(MemoryError::NoDmaBuf { kind });
        }
        // SAFETY: the driver has just opened it, for us alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // A child that inherits it would hold the device's memory. If that fails the descriptor is as good.
        let _ = fcntl_setfd(&fd, FdFlags::CLOEXEC);
        Ok(fd)
    }

    fn primary(&self) -> &Primary {
        &self.context.0
    }

    fn at(&self, offset: usize) -> Address {
        self.start.as_ptr().wrapping_add(offset) as Address // inside, so it does not wrap
    }
}

// SAFETY: an address, used through calls that enter the context on whatever thread they are made.
unsafe impl Send for Bytes {}
// SAFETY: as above; the driver orders them.
unsafe impl Sync for Bytes {}
