//! The key to a peer's memory, for one-sided reads.

use std::{ptr, rc::Rc};

use ucx_sys::sys as ucx;

use super::{Endpoint, Status, Worker};
use crate::regions::RemoteKeyBytes;

/// A key that was unpacked for one endpoint. Every operation that reads with it holds it.
pub(crate) struct RemoteKey {
    raw: ucx::ucp_rkey_h,
    /// UCX destroys a key through its worker. An operation that UCX never gives back leaks the worker by this.
    _worker: Rc<Worker>,
}

impl RemoteKey {
    pub(crate) fn unpack(endpoint: &Endpoint, bytes: RemoteKeyBytes<'_>) -> Result<Self, Status> {
        let bytes = bytes.usable().ok_or(Status(ucx::ucs_status_t_UCS_ERR_INVALID_PARAM))?;
        let mut raw = ptr::null_mut();
        // SAFETY: the endpoint is open, and the bytes came whole out of a frame of this transport.
        let status = unsafe { ucx::ucp_ep_rkey_unpack(endpoint.raw(), bytes.as_ptr().cast(), &raw mut raw) };
        Status::check(status)?;
        Ok(Self { raw, _worker: Rc::clone(endpoint.worker()) })
    }

    pub(super) fn raw(&self) -> ucx::ucp_rkey_h {
        self.raw
    }
}

impl Drop for RemoteKey {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once; its worker lives, and no operation holds it any more.
        unsafe { ucx::ucp_rkey_destroy(self.raw) };
    }
}
