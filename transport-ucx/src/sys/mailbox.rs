//! Where callbacks leave what happened, for the worker's owner to collect.

use std::{cell::Cell, collections::VecDeque, ffi::c_void, slice};

use ucx_sys::sys as ucx;

use super::{
    Status,
    operation::{self, Kind, Operation},
};

/// What happened.
pub(crate) enum Event {
    /// A notification came in.
    Message(Vec<u8>),
    /// A peer answered the ping that was sent to it as `key` with `nonce`.
    Pong { key: u64, nonce: u64 },
    /// The endpoint `key` failed and takes no more work.
    Failed { key: u64, status: Status },
    /// All that was sent on the endpoint `key` before its flush is done, well or not.
    Flushed { key: u64 },
}

/// What a peer may cost.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Longest message in bytes.
    pub(crate) message: usize,
    /// Most answers to pings in flight.
    pub(crate) pongs: usize,
}

/// Active-message ids.
pub(super) const NOTIFY: u32 = 0;
pub(super) const PING: u32 = 1;
pub(super) const PONG: u32 = 2;

/// Buffers and operations kept for reuse, so that a steady flow allocates nothing.
const SPARE: usize = 64;
/// Largest buffer kept.
pub(super) const SPARE_BYTES: usize = 64 << 10;

/// Owned by a worker until after its destruction; callbacks get a pointer to it.
pub(super) struct Mailbox {
    limits: Limits,
    events: Cell<VecDeque<Event>>,
    buffers: Cell<Vec<Vec<u8>>>,
    #[allow(clippy::vec_box)] // The box is what UCX holds meanwhile.
    operations: Cell<Vec<Box<Operation>>>,
    /// Operations that UCX holds.
    pub(super) outstanding: Cell<usize>,
    /// Those that answer pings.
    pub(super) pongs: Cell<usize>,
    /// Messages dropped because no honest peer sends such.
    pub(super) refused: Cell<usize>,
}

impl Mailbox {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            events: Cell::default(),
            buffers: Cell::default(),
            operations: Cell::default(),
            outstanding: Cell::new(0),
            pongs: Cell::new(0),
            refused: Cell::new(0),
        }
    }

    pub(super) fn post(&self, event: Event) {
        with(&self.events, |events| events.push_back(event));
    }

    pub(super) fn next(&self) -> Option<Event> {
        with(&self.events, VecDeque::pop_front)
    }

    /// A message's buffer, for the next one.
    pub(super) fn recycle(&self, buffer: Vec<u8>) {
        if buffer.capacity() <= SPARE_BYTES {
            with(&self.buffers, |buffers| keep(buffers, buffer));
        }
    }

    /// An operation of `kind` that owns a copy of `bytes`.
    pub(super) fn operation(&self, kind: Kind, bytes: &[u8]) -> Box<Operation> {
        let mut operation = with(&self.operations, Vec::pop).unwrap_or_default();
        operation.begin(self, kind, bytes);
        operation
    }

    pub(super) fn recycle_operation(&self, operation: Box<Operation>) {
        with(&self.operations, |operations| keep(operations, operation));
    }

    fn message(&self, bytes: &[u8]) {
        let mut buffer = with(&self.buffers, Vec::pop).unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        self.post(Event::Message(buffer));
    }

    fn refuse(&self) {
        add(&self.refused, 1);
    }
}

pub(super) fn add(cell: &Cell<usize>, n: usize) {
    cell.set(cell.get().saturating_add(n));
}

pub(super) fn subtract(cell: &Cell<usize>, n: usize) {
    cell.set(cell.get().saturating_sub(n));
}

/// Lends a cell's content to `f`, which must not call UCX.
fn with<T: Default, R>(cell: &Cell<T>, f: impl FnOnce(&mut T) -> R) -> R {
    let mut content = cell.take();
    let result = f(&mut content);
    cell.set(content);
    result
}

fn keep<T>(spares: &mut Vec<T>, spare: T) {
    if spares.len() < SPARE {
        spares.push(spare);
    }
}

/// A message as its callback sees it.
struct Received<'a> {
    mailbox: &'a Mailbox,
    /// `None` for data that a peer wants us to fetch, which no peer of ours does, and for data over the limit.
    bytes: Option<&'a [u8]>,
    /// The endpoint to answer on, null without one.
    reply: ucx::ucp_ep_h,
}

/// # Safety
/// The arguments of an active-message callback that was registered with a [`Mailbox`] as `arg`, during the call.
unsafe fn received<'a>(
    arg: *mut c_void,
    data: *mut c_void,
    length: usize,
    param: *const ucx::ucp_am_recv_param_t,
) -> Received<'a> {
    // SAFETY: the worker that calls keeps its mailbox until after its own destruction.
    let mailbox = unsafe { &*arg.cast_const().cast::<Mailbox>() };
    // SAFETY: UCX passes valid parameters for the time of the call.
    let ucx::ucp_am_recv_param_t { recv_attr, reply_ep } = unsafe { *param };
    let has = |flag: u32| recv_attr & u64::from(flag) != 0;
    let bytes = if has(ucx::ucp_am_recv_attr_t_UCP_AM_RECV_ATTR_FLAG_RNDV) || length > mailbox.limits.message {
        None
    } else if length == 0 || data.is_null() {
        Some(&[][..])
    } else {
        // SAFETY: without the rendezvous flag, `data` is the whole message for the time of the call.
        Some(unsafe { slice::from_raw_parts(data.cast_const().cast::<u8>(), length) })
    };
    let reply = if has(ucx::ucp_am_recv_attr_t_UCP_AM_RECV_ATTR_FIELD_REPLY_EP) { reply_ep } else { std::ptr::null_mut() };
    Received { mailbox, bytes, reply }
}

pub(super) unsafe extern "C" fn on_notify(
    arg: *mut c_void,
    _header: *const c_void,
    _header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucx::ucp_am_recv_param_t,
) -> ucx::ucs_status_t {
    // SAFETY: UCX's arguments, passed on.
    let received = unsafe { received(arg, data, length, param) };
    match received.bytes {
        Some(bytes) => received.mailbox.message(bytes),
        None => received.mailbox.refuse(),
    }
    ucx::ucs_status_t_UCS_OK
}

pub(super) unsafe extern "C" fn on_ping(
    arg: *mut c_void,
    _header: *const c_void,
    _header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucx::ucp_am_recv_param_t,
) -> ucx::ucs_status_t {
    // SAFETY: UCX's arguments, passed on.
    let Received { mailbox, bytes, reply } = unsafe { received(arg, data, length, param) };
    match bytes {
        Some(bytes) if bytes.len() == PING_LENGTH && !reply.is_null() && mailbox.pongs.get() < mailbox.limits.pongs => {
            // A peer that cannot be answered learns it from its own connection.
            // SAFETY: UCX vouches for the endpoint during the call.
            let _ = unsafe { operation::send(mailbox, reply, PONG, Kind::Pong, bytes) };
        }
        _ => mailbox.refuse(),
    }
    ucx::ucs_status_t_UCS_OK
}

pub(super) unsafe extern "C" fn on_pong(
    arg: *mut c_void,
    _header: *const c_void,
    _header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucx::ucp_am_recv_param_t,
) -> ucx::ucs_status_t {
    // SAFETY: UCX's arguments, passed on.
    let received = unsafe { received(arg, data, length, param) };
    match received.bytes.and_then(ping_from_bytes) {
        Some((key, nonce)) => received.mailbox.post(Event::Pong { key, nonce }),
        None => received.mailbox.refuse(),
    }
    ucx::ucs_status_t_UCS_OK
}

const PING_LENGTH: usize = 16;

/// A ping, which a pong repeats: which connection asks, and a number that only its peer has seen.
pub(super) fn ping_to_bytes(key: u64, nonce: u64) -> [u8; PING_LENGTH] {
    (u128::from(key) | u128::from(nonce) << 64).to_le_bytes()
}

fn ping_from_bytes(bytes: &[u8]) -> Option<(u64, u64)> {
    let both = u128::from_le_bytes(bytes.try_into().ok()?);
    Some((both as u64, (both >> 64) as u64))
}
