//! The engine of all connections: progress, sleep, and the messages of peers.

use std::{
    mem,
    os::fd::BorrowedFd,
    ptr,
    rc::Rc,
    slice, thread,
    time::{Duration, Instant},
};

use ucx_sys::sys as ucx;

use super::{
    Context, Status, Zeroed as _,
    mailbox::{self, Event, Limits, Mailbox},
};
use crate::UcxError;

/// How long UCX may take to give closed connections' operations back.
const DRAIN: Duration = Duration::from_millis(500);

/// A worker and what its callbacks write to. Stays on its thread.
pub(crate) struct Worker {
    raw: ucx::ucp_worker_h,
    mailbox: Rc<Mailbox>,
    context: Rc<Context>,
}

impl Worker {
    pub(crate) fn new(context: Context, limits: Limits) -> Result<Rc<Self>, UcxError> {
        let context = Rc::new(context);
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
        checked("ucp_worker_create", status)?;
        let worker = Rc::new(Self { raw, mailbox: Rc::new(Mailbox::new(limits)), context });
        worker.receive(mailbox::NOTIFY, mailbox::on_notify)?;
        worker.receive(mailbox::PING, mailbox::on_ping)?;
        worker.receive(mailbox::PONG, mailbox::on_pong)?;
        Ok(worker)
    }

    fn receive(&self, id: u32, callback: Callback) -> Result<(), UcxError> {
        let mut param = ucx::ucp_am_handler_param_t::zeroed();
        param.field_mask = u64::from(
            ucx::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_ID
                | ucx::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_FLAGS
                | ucx::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_CB
                | ucx::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_ARG,
        );
        param.id = id;
        param.flags = ucx::ucp_am_cb_flags_UCP_AM_FLAG_WHOLE_MSG;
        param.cb = Some(callback);
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
    pub(crate) fn progress(&self) -> bool {
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
        // SAFETY: the worker lives, and its context has the wake-up feature.
        match unsafe { ucx::ucp_worker_arm(self.raw) } {
            ucx::ucs_status_t_UCS_ERR_BUSY => Ok(false),
            status => checked("ucp_worker_arm", status).map(|()| true),
        }
    }

    /// What happened since the last call, oldest first.
    pub(crate) fn next_event(&self) -> Option<Event> {
        self.mailbox.next()
    }

    /// A buffer of [`Event::Message`] that is not needed any more.
    pub(crate) fn recycle(&self, buffer: Vec<u8>) {
        self.mailbox.recycle(buffer);
    }

    /// Operations that UCX holds.
    pub(crate) fn outstanding(&self) -> usize {
        self.mailbox.outstanding.get()
    }

    /// Messages that were dropped because no honest peer sends such.
    pub(crate) fn refused(&self) -> usize {
        self.mailbox.refused.get()
    }

    pub(super) fn raw(&self) -> ucx::ucp_worker_h {
        self.raw
    }

    pub(super) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }
}

impl Drop for Worker {
    /// All endpoints are closed, because each holds the worker. What UCX will not give back within [`DRAIN`] is leaked with all it
    /// may touch rather than freed.
    fn drop(&mut self) {
        let started = Instant::now();
        while self.outstanding() > 0 && started.elapsed() < DRAIN {
            if !self.progress() {
                thread::yield_now();
            }
        }
        if self.outstanding() > 0 {
            tracing::warn!(operations = self.outstanding(), "ucx does not give operations back: leaking its worker");
            mem::forget(Rc::clone(&self.mailbox));
            mem::forget(Rc::clone(&self.context));
            return;
        }
        // SAFETY: ours, destroyed once, without endpoints and operations; mailbox and context are dropped after it.
        unsafe { ucx::ucp_worker_destroy(self.raw) };
    }
}

type Callback = unsafe extern "C" fn(
    *mut std::ffi::c_void,
    *const std::ffi::c_void,
    usize,
    *mut std::ffi::c_void,
    usize,
    *const ucx::ucp_am_recv_param_t,
) -> ucx::ucs_status_t;

fn checked(call: &'static str, status: ucx::ucs_status_t) -> Result<(), UcxError> {
    Status::check(status).map_err(|status| UcxError::Backend { call, status: status.text() })
}
