//! Primary contexts, and threads that enter them.

use std::{marker::PhantomData, ptr, sync::Arc};

use super::{
    api::{Ordinal, RawContext, call},
    driver::Driver,
};
use crate::{Context, MemoryError};

/// One user's hold on the primary context of a device.
#[derive(Debug)]
pub(crate) struct Primary {
    pub(super) driver: Driver,
    pub(super) device: Ordinal,
    context: RawContext,
}

impl Primary {
    /// Holds the context of a device, and makes it if nobody does.
    pub(super) fn retain(driver: Driver, device: u32) -> Result<Context, MemoryError> {
        let device = driver.device(device)?;
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { call!(driver.api, cuDevicePrimaryCtxRetain(&mut context, device)) }?;
        Ok(Context(Arc::new(Self { driver, device, context })))
    }

    pub(crate) fn push(&self) -> Result<Pushed<'_>, MemoryError> {
        // SAFETY: the context lives as long as `self` holds it.
        unsafe { call!(self.driver.api, cuCtxPushCurrent_v2(self.context)) }?;
        Ok(Pushed { primary: self, thread: PhantomData })
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // A driver that refuses has lost the device, or the process ends: nobody is left to be told.
        // SAFETY: held once, released once, and nobody who uses the context lives longer than it is held.
        let _ = unsafe { call!(self.driver.api, cuDevicePrimaryCtxRelease_v2(self.device)) };
    }
}

// SAFETY: a context belongs to the process and may be made current on, and released from, any thread.
unsafe impl Send for Primary {}
// SAFETY: as above; the driver has its own locks.
unsafe impl Sync for Primary {}

/// What this thread must leave again, on this thread.
#[derive(Debug)]
pub(crate) struct Pushed<'c> {
    primary: &'c Primary,
    thread: PhantomData<*const ()>,
}

impl Drop for Pushed<'_> {
    fn drop(&mut self) {
        let mut left = ptr::null_mut();
        // SAFETY: takes what `push` put on this thread's stack, and writes one handle.
        let _ = unsafe { call!(self.primary.driver.api, cuCtxPopCurrent_v2(&mut left)) };
    }
}
