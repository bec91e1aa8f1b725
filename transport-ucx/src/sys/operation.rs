//! Non-blocking operations: what UCX holds between a call and its completion.

use std::{ffi::c_void, mem, rc::Rc, sync::Arc};

use ucx_sys::sys as ucx;

use super::{
    Mapped, RemoteKey, Status, Zeroed as _,
    endpoint::Link,
    mailbox::{Event, Mailbox, SPARE_BYTES, add, subtract},
};
use crate::messages::Landing;

/// What an operation is for.
#[derive(Default)]
pub(super) enum Kind {
    /// Nothing that anybody waits for.
    #[default]
    Plain,
    /// A notification, which counts as in flight.
    Notify(Rc<Link>),
    /// The answer to a ping, which counts as such, on this endpoint.
    Pong(ucx::ucp_ep_h),
    /// An ask, whose answer lands there.
    Ask(Landing),
    /// The answer to an ask, likewise.
    Serve(ucx::ucp_ep_h),
    /// The refusal of an ask, likewise.
    Refuse(ucx::ucp_ep_h),
    /// A flush of the endpoint with this key.
    Flush(u64),
    /// Bytes of this read on their way into memory.
    Land {
        /// The read.
        read: u64,
        /// How many.
        bytes: usize,
    },
}

/// Where the bytes of an operation are.
#[derive(Default)]
pub(super) enum Place {
    /// In its own buffer.
    #[default]
    Own,
    /// In mapped memory, from this address on, which is inside.
    One(*mut u8, usize),
    /// In mapped memory, in the pieces of its list, which are inside.
    Many,
}

/// One operation with all that UCX touches for it. Its address is UCX's `user_data`; its mailbox outlives it, because the worker
/// that runs it owns both.
#[derive(Default)]
pub(super) struct Operation {
    mailbox: *const Mailbox,
    kind: Kind,
    place: Place,
    /// Bytes of an active message's header, and how many.
    header: [u8; 16],
    header_length: usize,
    buffer: Vec<u8>,
    pieces: Vec<ucx::ucp_dt_iov_t>,
    /// The memory that it touches, kept alive and mapped.
    mapped: Option<Arc<Mapped>>,
    /// The key that it reads with.
    key: Option<Rc<RemoteKey>>,
}

impl Operation {
    pub(super) fn begin(&mut self, mailbox: &Mailbox, kind: Kind) {
        self.mailbox = mailbox;
        self.kind = kind;
        self.place = Place::Own;
        self.header_length = 0;
        self.buffer.clear();
        self.pieces.clear();
    }

    /// The bytes that it sends, to be filled in.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Puts up to sixteen bytes before its payload.
    pub(super) fn set_header(&mut self, header: &[u8]) {
        for (place, byte) in self.header.iter_mut().zip(header) {
            *place = *byte;
        }
        self.header_length = header.len().min(self.header.len());
    }

    /// Lets it touch mapped memory in one piece. `None` if that is not inside.
    pub(super) fn touch(&mut self, mapped: &Arc<Mapped>, offset: usize, length: usize) -> Option<()> {
        self.place = Place::One(mapped.at(offset, length)?, length);
        self.mapped = Some(Arc::clone(mapped));
        Some(())
    }

    /// Lets it touch mapped memory in several pieces, each an offset and a length. `None` if one is not inside.
    pub(super) fn touch_many(&mut self, mapped: &Arc<Mapped>, pieces: impl Iterator<Item = (usize, usize)>) -> Option<()> {
        for (offset, length) in pieces {
            self.pieces.push(ucx::ucp_dt_iov_t { buffer: mapped.at(offset, length)?.cast(), length });
        }
        self.place = Place::Many;
        self.mapped = Some(Arc::clone(mapped));
        Some(())
    }

    /// Keeps the key that it reads with.
    pub(super) fn needs(&mut self, key: &Rc<RemoteKey>) {
        self.key = Some(Rc::clone(key));
    }

    fn started(&self, mailbox: &Mailbox) {
        add(&mailbox.outstanding, 1);
        match &self.kind {
            Kind::Notify(link) => {
                add(&link.ops, 1);
                add(&link.bytes, self.buffer.len());
            }
            Kind::Pong(_) => add(&mailbox.pongs, 1),
            Kind::Serve(_) => add(mailbox.served_by(self.mapped.is_some()), 1),
            Kind::Refuse(_) => add(&mailbox.refusing, 1),
            Kind::Plain | Kind::Ask(_) | Kind::Flush(_) | Kind::Land { .. } => {}
        }
    }

    /// The endpoint that UCX made for an answer to a peer, if it is one.
    fn reply(&self) -> Option<ucx::ucp_ep_h> {
        match self.kind {
            Kind::Pong(reply) | Kind::Serve(reply) | Kind::Refuse(reply) => Some(reply),
            _ => None,
        }
    }

    fn finished(mut self: Box<Self>, mailbox: &Mailbox, result: Result<(), Status>) {
        match mem::take(&mut self.kind) {
            Kind::Notify(link) => {
                subtract(&link.ops, 1);
                subtract(&link.bytes, self.buffer.len());
            }
            Kind::Pong(_) => subtract(&mailbox.pongs, 1),
            Kind::Serve(_) => subtract(mailbox.served_by(self.mapped.is_some()), 1),
            Kind::Refuse(_) => subtract(&mailbox.refusing, 1),
            Kind::Ask(landing) => {
                if let Err(status) = result {
                    mailbox.fail(landing, status);
                }
            }
            Kind::Flush(key) => mailbox.post(Event::Flushed { key }),
            // What came by rendezvous or was fetched is settled by nobody: whether the lease still held is asked afterwards.
            Kind::Land { read, bytes } => mailbox.post(Event::Landed { read, bytes, result: result.map(|()| false) }),
            Kind::Plain => {}
        }
        // Dropped last: the key of a worker that nobody holds any more takes the mailbox with it.
        let _held = (self.mapped.take(), self.key.take());
        if self.buffer.capacity() > SPARE_BYTES {
            self.buffer = Vec::new();
        }
        mailbox.recycle_operation(self);
        subtract(&mailbox.outstanding, 1);
    }
}

/// What an operation hands to UCX: valid until it is finished.
pub(super) struct Handed {
    pub(super) header: *const c_void,
    pub(super) header_length: usize,
    pub(super) data: *mut c_void,
    /// Bytes, or pieces of a list.
    pub(super) count: usize,
    pub(super) param: *const ucx::ucp_request_param_t,
}

/// As one message that the receiver's UCX assembles.
pub(super) const EAGER: u32 = ucx::ucp_send_am_flags_UCP_AM_SEND_FLAG_EAGER;
/// Announced first, then fetched by the receiver into place.
pub(super) const RENDEZVOUS: u32 = ucx::ucp_send_am_flags_UCP_AM_SEND_FLAG_RNDV;
/// With an endpoint to answer on. UCX holds such a message back until the peer has named one: a round trip that only a
/// connection's first message pays.
pub(super) const REPLY: u32 = ucx::ucp_send_am_flags_UCP_AM_SEND_FLAG_REPLY;

/// Sends an operation's bytes as the active message `id`.
///
/// # Safety
/// `endpoint` must be valid, of the worker that owns `mailbox`, and this its thread.
pub(super) unsafe fn send(
    mailbox: &Mailbox,
    endpoint: ucx::ucp_ep_h,
    id: u16,
    flags: u32,
    operation: Box<Operation>,
) -> Result<(), Status> {
    post(mailbox, operation, Call::Send(flags), |handed| {
        let Handed { header, header_length, data, count, param } = handed;
        // SAFETY: the caller vouches for the endpoint; the operation owns all the rest until `finished`.
        unsafe { ucx::ucp_am_send_nbx(endpoint, u32::from(id), header, header_length, data.cast_const(), count, param) }
    })
}

/// Which callback a call takes.
pub(super) enum Call {
    /// That of an operation with these flags.
    Send(u32),
    /// That of receiving an active message's data.
    Receive,
}

/// Posts `operation` with `hand_over`, whose three exits meet here: done at once, done later by a callback, refused.
pub(super) fn post(
    mailbox: &Mailbox,
    operation: Box<Operation>,
    call: Call,
    hand_over: impl FnOnce(Handed) -> ucx::ucs_status_ptr_t,
) -> Result<(), Status> {
    operation.started(mailbox);
    let mut param = ucx::ucp_request_param_t::zeroed();
    param.op_attr_mask = ucx::ucp_op_attr_t_UCP_OP_ATTR_FIELD_CALLBACK
        | ucx::ucp_op_attr_t_UCP_OP_ATTR_FIELD_USER_DATA
        | ucx::ucp_op_attr_t_UCP_OP_ATTR_FIELD_FLAGS;
    match call {
        Call::Send(flags) => {
            param.flags = flags;
            param.cb.send = Some(on_done);
        }
        Call::Receive => param.cb.recv_am = Some(on_received),
    }
    if let Some(mapped) = &operation.mapped {
        param.op_attr_mask |= ucx::ucp_op_attr_t_UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        param.memory_type = mapped.memory_type();
        if matches!(operation.place, Place::One(..)) {
            param.op_attr_mask |= ucx::ucp_op_attr_t_UCP_OP_ATTR_FIELD_MEMH;
            param.memh = mapped.raw();
        }
    }
    let (reply, before) = (operation.reply(), mailbox.called_back.get());
    let operation = Box::into_raw(operation);
    param.user_data = operation.cast();
    // SAFETY: from `Box::into_raw`, and nobody else has it yet.
    let held = unsafe { &mut *operation };
    let (data, count) = match held.place {
        Place::Own => (held.buffer.as_mut_ptr(), held.buffer.len()),
        Place::One(start, length) => (start, length),
        Place::Many => (held.pieces.as_mut_ptr().cast(), held.pieces.len()),
    };
    if matches!(held.place, Place::Many) {
        param.op_attr_mask |= ucx::ucp_op_attr_t_UCP_OP_ATTR_FIELD_DATATYPE;
        param.datatype = u64::from(ucx::ucp_dt_type_UCP_DATATYPE_IOV);
    }
    let header = held.header.as_ptr().cast();
    let exit = hand_over(Handed { header, header_length: held.header_length, data: data.cast(), count, param: &raw const param });
    let result = match ucx_sys::decode_status_ptr(exit) {
        Ok(Some(_request)) => {
            // A call that fails half-way may have called back already: then it waits no more, or never did.
            if let Some(reply) = reply.filter(|_| mailbox.called_back.get() == before) {
                mailbox.answer_waits(reply);
            }
            return Ok(());
        }
        Ok(None) => Ok(()),
        Err(status) => Err(Status(status)),
    };
    // SAFETY: from `Box::into_raw`. Without a request UCX has forgotten it and will not call back.
    let operation = unsafe { Box::from_raw(operation) };
    operation.finished(mailbox, result);
    result
}

unsafe extern "C" fn on_done(request: *mut c_void, status: ucx::ucs_status_t, user_data: *mut c_void) {
    // SAFETY: what `post` gave away. UCX calls once per request.
    unsafe { done(request, status, user_data) };
}

unsafe extern "C" fn on_received(request: *mut c_void, status: ucx::ucs_status_t, _length: usize, user_data: *mut c_void) {
    // SAFETY: as above.
    unsafe { done(request, status, user_data) };
}

/// # Safety
/// `user_data` must be an operation that [`post`] gave to UCX with `request`, and this the only call for it.
unsafe fn done(request: *mut c_void, status: ucx::ucs_status_t, user_data: *mut c_void) {
    // SAFETY: from `Box::into_raw`, and UCX is done with it.
    let operation = unsafe { Box::from_raw(user_data.cast::<Operation>()) };
    // SAFETY: the worker that calls keeps its mailbox until after its own destruction.
    let mailbox = unsafe { &*operation.mailbox };
    add(&mailbox.called_back, 1);
    if let Some(reply) = operation.reply() {
        mailbox.answer_waits_no_more(reply);
    }
    operation.finished(mailbox, Status::check(status));
    if !request.is_null() {
        // SAFETY: the request that is complete, released once.
        unsafe { ucx::ucp_request_free(request) };
    }
}
