//! One connection to a peer.

use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_void},
    ptr,
    rc::Rc,
};

use ucx_sys::sys as ucx;

use super::{
    Status, Worker, Zeroed as _,
    mailbox::{Event, Mailbox, NOTIFY, PING, ping_to_bytes},
    operation::{self, Kind},
};
use crate::metadata::Address;

/// A connection. Dropping it closes it by force, without waiting.
pub(crate) struct Endpoint {
    raw: ucx::ucp_ep_h,
    link: Rc<Link>,
    worker: Rc<Worker>,
}

/// What an endpoint shares with its operations and its error callback.
pub(super) struct Link {
    key: u64,
    /// Outlives the endpoint, which holds the worker that owns it.
    mailbox: *const Mailbox,
    /// Notifications in flight, and their bytes.
    pub(super) ops: Cell<usize>,
    pub(super) bytes: Cell<usize>,
}

impl Endpoint {
    /// Begins to connect. Failures found later come as [`Event::Failed`] with `key`.
    pub(crate) fn create(worker: &Rc<Worker>, address: Address<'_>, key: u64) -> Result<Self, Status> {
        let link = Rc::new(Link { key, mailbox: worker.mailbox(), ops: Cell::new(0), bytes: Cell::new(0) });
        let mut params = ucx::ucp_ep_params_t::zeroed();
        params.field_mask = u64::from(
            ucx::ucp_ep_params_field_UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
                | ucx::ucp_ep_params_field_UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                | ucx::ucp_ep_params_field_UCP_EP_PARAM_FIELD_ERR_HANDLER,
        );
        params.address = address.bytes().as_ptr().cast();
        params.err_mode = ucx::ucp_err_handling_mode_t_UCP_ERR_HANDLING_MODE_PEER;
        params.err_handler = ucx::ucp_err_handler_t { cb: Some(on_failure), arg: Rc::as_ptr(&link).cast_mut().cast() };
        let mut raw = ptr::null_mut();
        // SAFETY: the address came whole out of a frame of this transport; UCX copies the parameters; the link lives as long as
        // the endpoint, after whose closing UCX does not call the handler.
        let status = unsafe { ucx::ucp_ep_create(worker.raw(), &raw const params, &raw mut raw) };
        Status::check(status)?;
        Ok(Self { raw, link, worker: Rc::clone(worker) })
    }

    /// Sends a notification.
    pub(crate) fn notify(&self, bytes: &[u8]) -> Result<(), Status> {
        self.send(NOTIFY, Kind::Notify(Rc::clone(&self.link)), bytes)
    }

    /// Asks the peer for an [`Event::Pong`] with this endpoint's key and `nonce`.
    pub(crate) fn ping(&self, nonce: u64) -> Result<(), Status> {
        self.send(PING, Kind::Plain, &ping_to_bytes(self.link.key, nonce))
    }

    /// Asks for an [`Event::Flushed`] once all that was sent is done.
    pub(crate) fn flush(&self) {
        let mailbox = self.worker.mailbox();
        let operation = mailbox.operation(Kind::Flush(self.link.key), &[]);
        // A flush that is refused is over as well, and says so by the same event.
        let _ = operation::post(mailbox, operation, 0, |_, param| {
            // SAFETY: the endpoint is open.
            unsafe { ucx::ucp_ep_flush_nbx(self.raw, param) }
        });
    }

    /// Notifications in flight, and their bytes.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        (self.link.ops.get(), self.link.bytes.get())
    }

    /// The transports and devices it uses, each as `transport/device`.
    pub(crate) fn resources(&self) -> Vec<String> {
        const MOST: usize = 16;
        let mut entries = [ucx::ucp_transport_entry_t { transport_name: ptr::null(), device_name: ptr::null() }; MOST];
        let mut attr = ucx::ucp_ep_attr_t::zeroed();
        attr.field_mask = u64::from(ucx::ucp_ep_attr_field_UCP_EP_ATTR_FIELD_TRANSPORTS);
        attr.transports = ucx::ucp_transports_t {
            entries: entries.as_mut_ptr(),
            num_entries: MOST as u32,
            entry_size: size_of::<ucx::ucp_transport_entry_t>(),
        };
        // SAFETY: the endpoint is open, and there is room for as many entries as stated.
        let status = unsafe { ucx::ucp_ep_query(self.raw, &raw mut attr) };
        let found = if Status::check(status).is_ok() { attr.transports.num_entries as usize } else { 0 };
        entries.iter().take(found).map(|entry| format!("{}/{}", text(entry.transport_name), text(entry.device_name))).collect()
    }

    fn send(&self, id: u32, kind: Kind, bytes: &[u8]) -> Result<(), Status> {
        // SAFETY: the endpoint is open, and of this worker, which never leaves its thread.
        unsafe { operation::send(self.worker.mailbox(), self.raw, id, kind, bytes) }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let mailbox = self.worker.mailbox();
        let flags = ucx::ucp_ep_close_flags_t_UCP_EP_CLOSE_FLAG_FORCE;
        let closed = operation::post(mailbox, mailbox.operation(Kind::Plain, &[]), flags, |_, param| {
            // SAFETY: open until here, and closed once.
            unsafe { ucx::ucp_ep_close_nbx(self.raw, param) }
        });
        if let Err(status) = closed {
            tracing::warn!(status = status.text(), "closing an endpoint failed");
        }
    }
}

/// A string of UCX's, which lives as long as the endpoint.
fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: UCX fills in strings that end in a zero.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

unsafe extern "C" fn on_failure(arg: *mut c_void, _endpoint: ucx::ucp_ep_h, status: ucx::ucs_status_t) {
    // SAFETY: the link that `create` registered. The endpoint that holds it is open, else UCX would not call.
    let link = unsafe { &*arg.cast_const().cast::<Link>() };
    // SAFETY: the worker that calls keeps its mailbox until after its own destruction.
    let mailbox = unsafe { &*link.mailbox };
    mailbox.post(Event::Failed { key: link.key, status: Status(status) });
}
