//! Depth 2: on the engine's own worker.

use std::sync::Arc;

use ucx_sys::sys as ucx;

use super::{Context, Worker};
use crate::{UcxConfig, UcxError, UcxTransport, messages::id};

impl UcxTransport {
    /// Works on the engine's worker beside the engine, with six active-message ids from `first_id` on.
    ///
    /// The settings of [`UcxConfig`] that are for UCX itself (`tls`, `keepalive`) are the engine's: it has made the context. Poll
    /// this transport as if it had a worker of its own; it makes progress with that worker, and so may the engine. Dropping it
    /// gives the ids back and leaves worker and context as they are.
    ///
    /// # Safety
    /// - `worker` is a worker of `context`, used on this thread alone, and both live longer than this transport and all its
    ///   [`Region`](crate::Region)s and [`Registrar`](crate::Registrar)s.
    /// - The context was initialised with `mt_workers_shared` and the features AM, RMA and WAKEUP, with
    ///   `UCX_PROTO_EMULATION_ENABLE=n` and, where peers come by shared memory, `UCX_MM_ERROR_HANDLING=y`.
    /// - Nobody else takes messages with the ids `first_id` to `first_id + 5`, and no callback of the engine's calls in here.
    ///
    /// # Errors
    /// `Invalid` for a configuration or an id that cannot work, `BackendFailed` otherwise.
    pub unsafe fn borrow(
        context: ucx::ucp_context_h,
        worker: ucx::ucp_worker_h,
        first_id: u16,
        config: UcxConfig,
    ) -> Result<Self, UcxError> {
        config.validate()?;
        if first_id.checked_add(id::COUNT).is_none() {
            return Err(UcxError::Config { field: "first_id", got: first_id.to_string(), expected: "room for six ids" });
        }
        // SAFETY: the caller's promise.
        let context = Arc::new(unsafe { Context::borrow(context) });
        Self::start(config, context, |context, limits, served| {
            // SAFETY: the caller's promise.
            unsafe { Worker::borrow(worker, first_id, context, limits, served) }
        })
    }
}
