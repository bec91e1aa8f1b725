//! What the driver knows about an address.

use std::{ffi::c_void, ptr::NonNull};

use cudarc::driver::sys::{CUmemorytype_enum, CUpointer_attribute_enum as Attribute, cudaError_enum};

use super::{
    api::{Address, Api, Handle, call},
    bytes::Bytes,
    context::Primary,
    driver::Driver,
};
use crate::{Allocation, Kind, MemoryError, Unavailable, sys::adopt::Found};

const INVALID_VALUE: u32 = cudaError_enum::CUDA_ERROR_INVALID_VALUE as u32;
const INVALID_CONTEXT: u32 = cudaError_enum::CUDA_ERROR_INVALID_CONTEXT as u32;
const NOT_SUPPORTED: u32 = cudaError_enum::CUDA_ERROR_NOT_SUPPORTED as u32;

const HOST: u32 = CUmemorytype_enum::CU_MEMORYTYPE_HOST as u32;
const DEVICE: u32 = CUmemorytype_enum::CU_MEMORYTYPE_DEVICE as u32;

const ASKED: [u32; 7] = [
    Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as u32,
    Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED as u32,
    Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as u32,
    Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as u32,
    Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as u32,
    Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE as u32,
    Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as u32,
];

/// What the driver says.
#[derive(Debug)]
pub(super) struct Attributes {
    memory_type: u32,
    managed: bool,
    device: u32,
    pub(super) ipc_capable: bool,
    start: Address,
    size: u64,
    pool: bool,
}

impl Attributes {
    /// Of the allocation that holds this byte; `None` if it is not CUDA's.
    pub(super) fn of(api: &Api, address: Address) -> Result<Option<Self>, MemoryError> {
        let (mut asked, mut told) = (ASKED, [0u64; ASKED.len()]);
        let mut to = told.each_mut().map(|value| (&raw mut *value).cast::<c_void>());
        // SAFETY: writes to each place what that attribute is, of which none is wider than 8 bytes.
        let known =
            unsafe { call!(api, cuPointerGetAttributes(asked.len() as u32, asked.as_mut_ptr(), to.as_mut_ptr(), address)) };
        known?; // of what is not CUDA's the driver tells zeros
        let [memory_type, managed, device, ipc_capable, start, size, pool] = told;
        // Numbers of 4 bytes are written to the first 4, whatever the byte order.
        let [memory_type, device] = [memory_type, device].map(|value| {
            let [a, b, c, d, ..] = value.to_ne_bytes();
            u32::from_ne_bytes([a, b, c, d])
        });
        let [managed, ipc_capable, pool] = [managed, ipc_capable, pool].map(|value| value != 0);
        Ok((memory_type != 0).then_some(Self { memory_type, managed, device, ipc_capable, start, size, pool }))
    }

    pub(super) fn kind(&self) -> Kind {
        if self.memory_type == DEVICE { Kind::Cuda { device: self.device } } else { Kind::Pinned }
    }

    /// Asks in the context of the device, which is entered.
    pub(super) fn allocation(&self, api: &Api, address: Address) -> Result<Allocation, MemoryError> {
        Ok(match self.memory_type {
            // Arrays have no addresses; what else there may be is neither here nor there.
            HOST | DEVICE if self.managed => Allocation::Managed,
            HOST | DEVICE if self.pool => Allocation::StreamOrdered,
            // Some systems have no such IPC at all, so the other question decides.
            DEVICE if !self.ipc_capable && is_mapped(api, address)? => Allocation::Vmm,
            HOST | DEVICE => Allocation::Plain,
            _ => Allocation::Managed,
        })
    }

    /// Whether the allocation holds all these bytes. For some host memory the driver knows no bounds.
    pub(super) fn holds(&self, address: Address, len: u64) -> bool {
        let offset = address.checked_sub(self.start);
        let held = offset.and_then(|offset| self.size.checked_sub(offset)).is_some_and(|left| len <= left);
        held || (self.size == 0 && self.memory_type == HOST)
    }
}

/// Whether the address was mapped by the driver's management of virtual memory: only then it has such a handle.
fn is_mapped(api: &Api, address: Address) -> Result<bool, MemoryError> {
    let mut handle: Handle = 0;
    // SAFETY: takes any address, and writes one handle.
    if unsafe { call!(api, cuMemRetainAllocationHandle(&mut handle, address as *mut c_void)) }.is_err() {
        return Ok(false);
    }
    // SAFETY: retained just now.
    unsafe { call!(api, cuMemRelease(handle)) }?;
    Ok(true)
}

/// Makes CUDA finish what it writes to this allocation before a call that promises so returns: a network card that reads it afterwards
/// is outside of every stream's order.
pub(super) fn make_synchronous(api: &Api, address: Address) -> Result<(), MemoryError> {
    let on: u32 = 1;
    // SAFETY: reads one number.
    unsafe {
        call!(api, cuPointerSetAttribute((&raw const on).cast(), Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as u32, address))
    }
}

/// As [`Attributes::of`], on a thread in any state: a driver may want a context first.
fn known(driver: Driver, address: Address) -> Result<Option<Attributes>, MemoryError> {
    match Attributes::of(driver.api, address) {
        Err(MemoryError::Driver { code: INVALID_CONTEXT, .. }) => {
            let context = Primary::retain(driver, 0)?;
            let _entered = context.enter()?;
            Attributes::of(driver.api, address)
        }
        answer => answer,
    }
}

/// What these bytes are, and where, if they may be adopted.
///
/// # Safety
/// They are there as long as what is returned is used.
pub(in crate::sys) unsafe fn find(start: NonNull<u8>, len: usize, accept: &[Allocation]) -> Result<Found, MemoryError> {
    let driver = match Driver::get() {
        Ok(driver) => driver,
        // Then nothing in this process is CUDA's.
        Err(Unavailable::NoDriver | Unavailable::NoDevice) => {
            return Ok(Found::Host(Kind::Host, Allocation::Plain));
        }
        // Others may get on with this driver.
        Err(cause) => return Err(MemoryError::UnknownMemory { cause }),
    };
    let (api, address, bytes) = (driver.api, start.as_ptr() as Address, len as u64);
    let first = match (known(driver, address)?, known(driver, address + (bytes - 1))?) {
        (None, None) => return Ok(Found::Host(Kind::Host, Allocation::Plain)),
        (Some(first), Some(_)) if first.holds(address, bytes) => first,
        _ => return Err(MemoryError::NotOneAllocation { address, len }),
    };
    let accepted = |allocation| match allocation {
        Allocation::Plain => Ok(()),
        Allocation::Vmm | Allocation::StreamOrdered if accept.contains(&allocation) => Ok(()),
        _ => Err(MemoryError::Unfit { allocation }),
    };
    let kind = first.kind();
    let Kind::Cuda { device } = kind else {
        let allocation = first.allocation(api, address)?;
        return accepted(allocation).map(|()| Found::Host(kind, allocation));
    };
    let context = Primary::retain(driver, device)?;
    let entered = context.enter()?;
    let allocation = first.allocation(api, address)?;
    accepted(allocation)?;
    match make_synchronous(api, address) {
        // Then whoever writes to it has to wait for its streams before it lets others read.
        Ok(()) | Err(MemoryError::Driver { code: INVALID_VALUE | NOT_SUPPORTED, .. }) => {}
        Err(error) => return Err(error),
    }
    drop(entered);
    // SAFETY: promised by the caller; the driver says where they are.
    let bytes = unsafe { Bytes::new(context, start, len, len, first.ipc_capable) };
    Ok(Found::Device { bytes, kind, allocation })
}
