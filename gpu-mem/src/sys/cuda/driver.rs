//! The driver, started once.

use std::{ffi::c_int, sync::OnceLock};

use cudarc::driver::sys::cudaError_enum::{CUDA_ERROR_NO_DEVICE, CUDA_ERROR_STUB_LIBRARY};

use super::api::{self, Api, Ordinal, call};
use crate::{Kind, MemoryError, Unavailable};

const NO_DEVICE: u32 = CUDA_ERROR_NO_DEVICE as u32;
const STUB_LIBRARY: u32 = CUDA_ERROR_STUB_LIBRARY as u32;

/// A driver that has started, with at least one device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Driver {
    pub(super) api: &'static Api,
    pub(super) devices: u32,
}

impl Driver {
    /// The driver of this process. Starts it, the first time; a failure is remembered.
    pub(super) fn get() -> Result<Self, Unavailable> {
        static DRIVER: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
        *DRIVER.get_or_init(Self::start)
    }

    /// As [`get`](Driver::get), for who wants memory of a kind.
    pub(super) fn of(kind: Kind) -> Result<Self, MemoryError> {
        Self::get().map_err(|cause| MemoryError::Unavailable { kind, cause })
    }

    fn start() -> Result<Self, Unavailable> {
        let api = api::api()?;
        // SAFETY: may be called at any time, also by several libraries of a process.
        let started = unsafe { call!(api, cuInit(0)) };
        started.map_err(cause)?;
        let mut devices: c_int = 0;
        // SAFETY: writes one number.
        let counted = unsafe { call!(api, cuDeviceGetCount(&mut devices)) };
        counted.map_err(cause)?;
        let devices = u32::try_from(devices).ok().filter(|devices| *devices > 0).ok_or(Unavailable::NoDevice)?;
        Ok(Self { api, devices })
    }

    /// The driver's handle of a device.
    pub(super) fn device(&self, device: u32) -> Result<Ordinal, MemoryError> {
        let kind = Kind::Cuda { device };
        let none = MemoryError::Unavailable { kind, cause: Unavailable::NoSuchDevice { device, devices: self.devices } };
        let ordinal = c_int::try_from(device).ok().filter(|_| device < self.devices).ok_or(none)?;
        let mut handle = 0;
        // SAFETY: writes one handle.
        unsafe { call!(self.api, cuDeviceGet(&mut handle, ordinal)) }?;
        Ok(handle)
    }

    pub(super) fn attribute(&self, attribute: u32, device: Ordinal) -> Result<c_int, MemoryError> {
        let mut value = 0;
        // SAFETY: writes one number.
        unsafe { call!(self.api, cuDeviceGetAttribute(&mut value, attribute, device)) }?;
        Ok(value)
    }
}

/// Why a driver that is there does not start.
fn cause(error: MemoryError) -> Unavailable {
    match error {
        MemoryError::Driver { code: NO_DEVICE, .. } => Unavailable::NoDevice,
        MemoryError::Driver { code: STUB_LIBRARY, .. } => Unavailable::StubLibrary,
        MemoryError::Driver { call, code } => Unavailable::Init { call, code },
        _ => Unavailable::NoDriver, // no call ends like that
    }
}
