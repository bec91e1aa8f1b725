//! The engine of all connections: progress, sleep, and the messages of peers.

use std::{
    mem,
    os::fd::BorrowedFd,
    ptr,
    rc::Rc,
    slice,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use gpu_mem::Entered;
use ucx_sys::sys as ucx;

use super::{
    Context, Status, Zeroed as _,
    callbacks::{CALLBACKS, Callback},
    mailbox::{Event, Limits, Mailbox, Served},
    operation::{self, Call, Kind},
};
use crate::{UcxError, config::variables};

/// A worker and what its callbacks write to. Stays on its thread.
pub(crate) struct Worker {
    raw: ucx::ucp_worker_h,
    /// Not where it is the engine's.
    owned: bool,
    mailbox: Rc<Mailbox>,
    context: Arc<Context>,
}

impl Worker {
    pub(crate) fn new(context: &Arc<Context>, limits: Limits, served: Served) -> Result<Rc<Self>, UcxError> {
        let mut params = ucx::ucp_worker_params_t::zeroed();
        params.field_mask = u64::from(
            ucx::ucp_worker_params_field_UCP_WORKER_PARAM_FIELD_THREAD_MODE
                | ucx::ucp_worker_params_field_UCP_WORKER_PARAM_FIELD_EVENTS,
        );
        params.thread_mode = ucx::ucs_thread_mode_t_UCS_THREAD_MODE_SINGLE;
        // Not for sends: a queue of shared memory that is full would keep the worker from sleeping, and nothing tells when it is
        // not full any more.
        params.events = ucx::ucp_wakeup_event_types_UCP_WAKEUP_RX;
        let mut raw = ptr::null_mut();
        // SAFETY: the context lives, and UCX copies the parameters.
        let status = unsafe { ucx::ucp_worker_create(context.raw(), &raw const params, &raw mut raw) };
        Status::check(status).map_err(|status| {
            let (call, variables) = ("ucp_worker_create", variables());
            UcxError::Environment { call, variables, status: status.text() }
        })?;
        Self { raw, owned: true, mailbox: Rc::new(Mailbox::new(limits, 0, served)), context: Arc::clone(context) }.started()
    }

    /// Works on the engine's worker, with active-message ids from `ids` on.
    ///
    /// # Safety
    /// The worker must be of `context`, outlive what is returned, and be used by this thread alone; the ids must be free.
    #[cfg(feature = "borrowed-worker")]
    pub(crate) unsafe fn borrow(
        raw: ucx::ucp_worker_h,
        ids: u16,
        context: &Arc<Context>,
        limits: Limits,
        served: Served,
    ) -> Result<Rc<Self>, UcxError> {
        Self { raw, owned: false, mailbox: Rc::new(Mailbox::new(limits, ids, served)), context: Arc::clone(context) }.started()
    }

    fn started(self) -> Result<Rc<Self>, UcxError> {
        self.mailbox.worker.set(self.raw);
        for (message, callback) in CALLBACKS {
            self.receive(message, Some(callback))?;
        }
        Ok(Rc::new(self))
    }

    /// Lets `callback`, or nothing any more, take the messages of this kind.
    fn receive(&self, message: u16, callback: Option<Callback>) -> Result<(), UcxError> {
        let mut param = ucx::ucp_am_handler_param_t::zeroed();
        param.field_mask = u64::from(
            ucx::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_ID
                | ucx::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_FLAGS
                | ucx::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_CB
                | ucx::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_ARG,
        );
        param.id = u32::from(self.mailbox.ids.saturating_add(message));
        param.flags = ucx::ucp_am_cb_flags_UCP_AM_FLAG_WHOLE_MSG;
        param.cb = callback;
        param.arg = Rc::as_ptr(&self.mailbox).cast_mut().cast();
        // SAFETY: the worker lives, UCX copies the parameters, and the mailbox outlives the worker.
        let status = unsafe { ucx::ucp_worker_set_am_recv_handler(self.raw, &raw const param) };
        checked("ucp_worker_set_am_recv_handler", status)
    }

    /// What a peer's UCX needs to connect here.
    pub(crate) fn address(&self) -> Result<Vec<u8>, UcxError> {
        let mut attr = ucx::ucp_worker_attr_t::zeroed();
        attr.field_mask = u64::from(ucx::ucp_worker_attr_field_UCP_WORKER_ATTR_FIELD_ADDRESS);
        // SAFETY: the worker lives.
        let status = unsafe { ucx::ucp_worker_query(self.raw, &raw mut attr) };
        checked("ucp_worker_query", status)?;
        // SAFETY: UCX filled both in, and the address is ours until released.
        let address = unsafe { slice::from_raw_parts(attr.address.cast::<u8>(), attr.address_length) }.to_vec();
        // SAFETY: from this worker, released once.
        unsafe { ucx::ucp_worker_release_address(self.raw, attr.address) };
        Ok(address)
    }

    /// Does what can be done without waiting; whether that was anything.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        let _entered = self.enter();
        // SAFETY: the worker lives, this is its thread, and no callback calls here.
        unsafe { ucx::ucp_worker_progress(self.raw) != 0 }
    }

    /// The descriptor that becomes readable when an armed worker has work.
    pub(crate) fn event_fd(&self) -> Result<BorrowedFd<'_>, UcxError> {
        let mut fd = -1;
        // SAFETY: the worker lives, and its context has the wake-up feature.
        let status = unsafe { ucx::ucp_worker_get_efd(self.raw, &raw mut fd) };
        checked("ucp_worker_get_efd", status)?;
        // SAFETY: the worker's, open as long as it lives.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Asks for an event on the descriptor; false if there is work already.
    pub(crate) fn arm(&self) -> Result<bool, UcxError> {
        let _entered = self.enter();
        // SAFETY: the worker lives, and its context has the wake-up feature.
        match unsafe { ucx::ucp_worker_arm(self.raw) } {
            ucx::ucs_status_t_UCS_ERR_BUSY => Ok(false),
            status => checked("ucp_worker_arm", status).map(|()| true),
        }
    }

    /// Whether nothing happened that [`Worker::next_event`] would tell.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.mailbox.is_quiet()
    }

    /// What happened since the last call, oldest first.
    pub(crate) fn next_event(&self) -> Option<Event> {
        self.mailbox.next()
    }

    /// A buffer of [`Event::Message`] that is not needed any more.
    pub(crate) fn recycle(&self, buffer: Vec<u8>) {
        self.mailbox.recycle(buffer);
    }

    /// A number that no peer can guess.
    pub(crate) fn secret(&self) -> u64 {
        self.mailbox.next_secret()
    }

    /// The first of its active-message ids.
    pub(crate) fn ids(&self) -> u16 {
        self.mailbox.ids
    }

    /// Nothing that was asked for this read lands any more, except what is landing already; how many answers, and how many bytes,
    /// that was.
    pub(crate) fn give_up(&self, read: u64) -> (usize, usize) {
        self.mailbox.give_up(read)
    }

    /// Operations that UCX holds.
    pub(crate) fn outstanding(&self) -> usize {
        self.mailbox.outstanding.get()
    }

    /// Messages that were dropped because no honest peer sends such.
    pub(crate) fn refused(&self) -> usize {
        self.mailbox.refused.get()
    }

    /// Lets UCX give operations back, for at most `limit`: those of closed connections at once, answers to peers as these let it.
    pub(crate) fn drain(&self, limit: Duration) {
        let started = Instant::now();
        while self.outstanding() > 0 && started.elapsed() < limit {
            if !self.progress() {
                thread::yield_now();
            }
        }
    }

    /// Closes an endpoint that UCX made for answers to a peer, so that it gives them back.
    fn hang_up(&self, reply: ucx::ucp_ep_h) {
        let mailbox = &*self.mailbox;
        // One that failed or is closed takes no flush, and must not be closed again.
        let flushed = operation::post(mailbox, mailbox.operation(Kind::Plain), Call::Send(0), |handed| {
            // SAFETY: of this worker, and UCX keeps it as long as an answer waits.
            unsafe { ucx::ucp_ep_flush_nbx(reply, handed.param) }
        });
        if flushed.is_err() {
            return;
        }
        let flags = ucx::ucp_ep_close_flags_t_UCP_EP_CLOSE_FLAG_FORCE;
        let _ = operation::post(mailbox, mailbox.operation(Kind::Plain), Call::Send(flags), |handed| {
            // SAFETY: as above, open, and none of our endpoints, which are all closed.
            unsafe { ucx::ucp_ep_close_nbx(reply, handed.param) }
        });
    }

    /// Makes CUDA's context this thread's until what is returned is dropped, where memory of a device is mapped.
    #[inline]
    pub(super) fn enter(&self) -> Option<Entered<'_>> {
        self.context.enter()
    }

    pub(super) fn raw(&self) -> ucx::ucp_worker_h {
        self.raw
    }

    pub(super) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }
}

impl Drop for Worker {
    /// All our endpoints are closed, because each holds the worker. What UCX does not give back even so is leaked with all it may
    /// touch rather than freed.
    fn drop(&mut self) {
        let _entered = self.context.enter();
        if self.owned {
            // Readers that stopped, or that nobody polls, have answers outstanding.
            self.mailbox.answering().into_iter().for_each(|reply| self.hang_up(reply));
            // SAFETY: ours, destroyed once, without open endpoints. UCX gives the rest back meanwhile, by calls that find mailbox
            // and context, which are dropped after it.
            unsafe { ucx::ucp_worker_destroy(self.raw) };
        } else {
            // The engine goes on with it, and so do messages of peers: nobody takes them any more.
            for (message, _) in CALLBACKS {
                if let Err(error) = self.receive(message, None) {
                    tracing::warn!(%error, "a message goes on to be taken: leaking its mailbox");
                    mem::forget(Rc::clone(&self.mailbox));
                }
            }
        }
        if self.outstanding() > 0 {
            tracing::warn!(operations = self.outstanding(), "ucx does not give operations back: leaking what they touch");
            mem::forget(Rc::clone(&self.mailbox));
            mem::forget(Arc::clone(&self.context));
        }
    }
}

fn checked(call: &'static str, status: ucx::ucs_status_t) -> Result<(), UcxError> {
    Status::check(status).map_err(|status| UcxError::Backend { call, status: status.text() })
}
