//! Non-blocking operations: what UCX holds between a call and its completion.

use std::{ffi::c_void, ptr, rc::Rc};

use ucx_sys::sys as ucx;

use super::{
    Status, Zeroed as _,
    endpoint::Link,
    mailbox::{Event, Mailbox, PING, SPARE_BYTES, add, subtract},
};

/// What an operation is for.
#[derive(Default)]
pub(super) enum Kind {
    /// Nothing that anybody waits for.
    #[default]
    Plain,
    /// A notification, which counts as in flight.
    Notify(Rc<Link>),
    /// The answer to a ping, which counts as such.
    Pong,
    /// A flush of the endpoint with this key.
    Flush(u64),
}

/// One operation with the buffer that UCX reads from. Its address is UCX's `user_data`; its mailbox outlives it, because the worker
/// that runs it owns both.
pub(super) struct Operation {
    mailbox: *const Mailbox,
    kind: Kind,
    buffer: Vec<u8>,
}

impl Default for Operation {
    fn default() -> Self {
        Self { mailbox: ptr::null(), kind: Kind::Plain, buffer: Vec::new() }
    }
}

impl Operation {
    pub(super) fn begin(&mut self, mailbox: &Mailbox, kind: Kind, bytes: &[u8]) {
        self.mailbox = mailbox;
        self.kind = kind;
        self.buffer.clear();
        self.buffer.extend_from_slice(bytes);
    }

    fn started(&self, mailbox: &Mailbox) {
        add(&mailbox.outstanding, 1);
        match &self.kind {
            Kind::Notify(link) => {
                add(&link.ops, 1);
                add(&link.bytes, self.buffer.len());
            }
            Kind::Pong => add(&mailbox.pongs, 1),
            Kind::Plain | Kind::Flush(_) => {}
        }
    }

    fn finished(mut self: Box<Self>, mailbox: &Mailbox) {
        subtract(&mailbox.outstanding, 1);
        match std::mem::take(&mut self.kind) {
            Kind::Notify(link) => {
                subtract(&link.ops, 1);
                subtract(&link.bytes, self.buffer.len());
            }
            Kind::Pong => subtract(&mailbox.pongs, 1),
            Kind::Flush(key) => mailbox.post(Event::Flushed { key }),
            Kind::Plain => {}
        }
        if self.buffer.capacity() > SPARE_BYTES {
            self.buffer = Vec::new();
        }
        mailbox.recycle_operation(self);
    }
}

/// Sends `bytes` as the active message `id`, eagerly, with an endpoint to answer on.
///
/// # Safety
/// `endpoint` must be valid, of the worker that owns `mailbox`, and this its thread.
pub(super) unsafe fn send(mailbox: &Mailbox, endpoint: ucx::ucp_ep_h, id: u32, kind: Kind, bytes: &[u8]) -> Result<(), Status> {
    // A ping must name an endpoint to answer on. UCX holds it back until the peer has named one: a round trip that only a
    // connection's first message pays.
    let reply = if id == PING { ucx::ucp_send_am_flags_UCP_AM_SEND_FLAG_REPLY } else { 0 };
    post(mailbox, mailbox.operation(kind, bytes), ucx::ucp_send_am_flags_UCP_AM_SEND_FLAG_EAGER | reply, |buffer, param| {
        // SAFETY: the caller vouches for the endpoint; the operation owns the buffer until `finished`.
        unsafe { ucx::ucp_am_send_nbx(endpoint, id, ptr::null(), 0, buffer.as_ptr().cast(), buffer.len(), param) }
    })
}

/// Posts `operation` with `call`, whose three exits meet here: done at once, done later by `on_done`, refused.
pub(super) fn post(
    mailbox: &Mailbox,
    operation: Box<Operation>,
    flags: u32,
    call: impl FnOnce(&[u8], *const ucx::ucp_request_param_t) -> ucx::ucs_status_ptr_t,
) -> Result<(), Status> {
    operation.started(mailbox);
    let operation = Box::into_raw(operation);
    let mut param = ucx::ucp_request_param_t::zeroed();
    param.op_attr_mask = ucx::ucp_op_attr_t_UCP_OP_ATTR_FIELD_CALLBACK
        | ucx::ucp_op_attr_t_UCP_OP_ATTR_FIELD_USER_DATA
        | ucx::ucp_op_attr_t_UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = flags;
    param.cb.send = Some(on_done);
    param.user_data = operation.cast();
    // SAFETY: from `Box::into_raw`, and nobody else has it yet.
    let buffer = unsafe { &(*operation).buffer };
    let exit = call(buffer, &raw const param);
    let result = match ucx_sys::decode_status_ptr(exit) {
        Ok(Some(_request)) => return Ok(()),
        Ok(None) => Ok(()),
        Err(status) => Err(Status(status)),
    };
    // SAFETY: from `Box::into_raw`. Without a request UCX has forgotten it and will not call back.
    let operation = unsafe { Box::from_raw(operation) };
    operation.finished(mailbox);
    result
}

unsafe extern "C" fn on_done(request: *mut c_void, _status: ucx::ucs_status_t, user_data: *mut c_void) {
    // SAFETY: what `post` gave away. UCX calls once per request.
    let operation = unsafe { Box::from_raw(user_data.cast::<Operation>()) };
    // SAFETY: the worker that calls keeps its mailbox until after its own destruction.
    let mailbox = unsafe { &*operation.mailbox };
    operation.finished(mailbox);
    // SAFETY: the request that is complete, released once.
    unsafe { ucx::ucp_request_free(request) };
}
