//! A worker as an engine has one.

use ucx_sys::sys as ucx;

use super::{Context, Status, Zeroed as _};
use crate::{UcxConfig, UcxError, config::set_by_operator};

/// A context and a worker that are nobody's but the caller's, set up so that [`UcxTransport::borrow`](crate::UcxTransport::borrow)
/// can work on them. For engines that have none yet, for examples and for tests; an engine's own do as well.
///
/// It must outlive what borrows it.
pub struct EngineWorker {
    raw: ucx::ucp_worker_h,
    context: Context,
}

impl EngineWorker {
    /// A worker that uses these transports, named as in [`UcxConfig::tls`].
    ///
    /// # Errors
    /// As [`UcxTransport::new`](crate::UcxTransport::new).
    pub fn new(tls: &str) -> Result<Self, UcxError> {
        let config = UcxConfig { tls: Some(tls.to_owned()), ..UcxConfig::default() };
        config.validate()?;
        let context = Context::new(&config.settings(set_by_operator), tls)?;
        let params = ucx::ucp_worker_params_t::zeroed(); // nothing counts without a field mask: for one thread
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context lives, and UCX copies the parameters.
        let status = unsafe { ucx::ucp_worker_create(context.raw(), &raw const params, &raw mut raw) };
        Status::check(status).map_err(|status| UcxError::Backend { call: "ucp_worker_create", status: status.text() })?;
        Ok(Self { raw, context })
    }

    /// The context.
    pub fn context(&self) -> ucx::ucp_context_h {
        self.context.raw()
    }

    /// The worker, for this thread.
    pub fn worker(&self) -> ucx::ucp_worker_h {
        self.raw
    }

    /// Does what can be done without waiting, as an engine does in its loop; whether that was anything.
    pub fn progress(&self) -> bool {
        // SAFETY: the worker lives, and this is its thread, which it never leaves.
        unsafe { ucx::ucp_worker_progress(self.raw) != 0 }
    }
}

impl Drop for EngineWorker {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once; who borrowed it is gone, as `borrow` demands. The context is dropped after it.
        unsafe { ucx::ucp_worker_destroy(self.raw) };
    }
}
