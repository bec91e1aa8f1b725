//! UCX behind safe types: the only module with `unsafe` in it.
//!
//! What keeps it sound:
//! - Ownership is the order of destruction: an [`Endpoint`] holds its [`Worker`], worker and mapped memory hold their [`Context`].
//! - An operation owns its buffer from the call until UCX is done with it, and holds the memory that it touches (`operation`).
//! - This process touches bytes only in memory of the host; all other memory is UCX's to read and write.
//! - Callbacks only move bytes into the worker's `Mailbox`. They run inside calls into UCX on the worker's thread, so the mailbox
//!   needs no lock, and it lends nothing out across a call, so they find it free. They hold no code that panics, and a panic in
//!   an `extern "C"` function aborts.
//! - Nothing of a worker is `Send`: it stays on the thread that made it. Context and mapped memory are, since UCX locks them.

#[cfg(feature = "borrowed-worker")]
mod borrow;
mod callbacks;
mod context;
mod endpoint;
#[cfg(feature = "borrowed-worker")]
mod engine;
mod landing;
mod mailbox;
mod memory;
mod operation;
mod remote_key;
mod serve;
mod worker;

use std::mem;

use lease_proto::transport::ErrorKind;
use ucx_sys::sys as ucx;

pub(crate) use context::Context;
pub(crate) use endpoint::{Asking, Endpoint, reads_by_itself};
#[cfg(feature = "borrowed-worker")]
pub use engine::EngineWorker;
pub(crate) use mailbox::{Event, Limits, Served};
pub(crate) use memory::Mapped;
pub(crate) use remote_key::RemoteKey;
pub(crate) use worker::Worker;

/// Major and minor version of the API that this build calls.
pub(crate) const API: (u8, u8) = (ucx::UCP_API_MAJOR as u8, ucx::UCP_API_MINOR as u8);

/// A failure as UCX numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(ucx::ucs_status_t);

impl Status {
    /// Of a message that is not as it was asked for.
    const CUT_SHORT: Self = Self(ucx::ucs_status_t_UCS_ERR_MESSAGE_TRUNCATED);

    fn check(status: ucx::ucs_status_t) -> Result<(), Self> {
        if status == ucx::ucs_status_t_UCS_OK { Ok(()) } else { Err(Self(status)) }
    }

    /// UCX's own words.
    pub(crate) fn text(self) -> &'static str {
        ucx_sys::status_string(self.0)
    }

    /// What a connection's failure means.
    pub(crate) fn kind(self) -> ErrorKind {
        match self.0 {
            ucx::ucs_status_t_UCS_ERR_NO_MEMORY
            | ucx::ucs_status_t_UCS_ERR_NO_RESOURCE
            | ucx::ucs_status_t_UCS_ERR_MESSAGE_TRUNCATED => ErrorKind::BackendFailed,
            ucx::ucs_status_t_UCS_ERR_UNREACHABLE | ucx::ucs_status_t_UCS_ERR_REJECTED => ErrorKind::Rejected,
            ucx::ucs_status_t_UCS_ERR_INVALID_ADDR | ucx::ucs_status_t_UCS_ERR_INVALID_PARAM => ErrorKind::Invalid,
            _ => ErrorKind::PeerLost,
        }
    }
}

/// C structs of parameters, whose field mask says what counts.
///
/// # Safety
/// All bytes zero must be a valid value.
unsafe trait Zeroed: Sized {
    fn zeroed() -> Self {
        // SAFETY: the trait's promise.
        unsafe { mem::zeroed() }
    }
}

macro_rules! zeroed {
    ($($name:ident),*) => {$(
        // SAFETY: integers, raw pointers, optional functions and arrays of these: null, `None` and zero.
        unsafe impl Zeroed for ucx::$name {}
    )*};
}

zeroed!(
    ucp_params_t,
    ucp_context_attr_t,
    ucp_mem_map_params_t,
    ucp_mem_attr_t,
    ucp_worker_params_t,
    ucp_worker_attr_t,
    ucp_am_handler_param_t,
    ucp_ep_params_t,
    ucp_ep_attr_t,
    ucp_request_param_t
);
