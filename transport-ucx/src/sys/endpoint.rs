//! One connection to a peer.

use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_void},
    ptr,
    rc::Rc,
    sync::Arc,
};

use lease_proto::id::Token;
use ucx_sys::sys as ucx;

use super::{
    Mapped, RemoteKey, Status, Worker, Zeroed as _,
    mailbox::{Event, Mailbox},
    operation::{self, Call, EAGER, Kind, Operation, REPLY},
};
use crate::{
    messages::{Ask, Part, Ping, id},
    metadata::Address,
};

/// A connection. Dropping it closes it by force, without waiting.
pub(crate) struct Endpoint {
    raw: ucx::ucp_ep_h,
    /// The first of the peer's active-message ids.
    ids: u16,
    /// Known once it is connected.
    fabric: Cell<Option<Fabric>>,
    link: Rc<Link>,
    worker: Rc<Worker>,
}

/// What a connection goes by, as far as it matters for reads.
#[derive(Clone, Copy)]
pub(crate) struct Fabric {
    /// It reads without the owner. What UCX emulates by messages does not count.
    pub(crate) one_sided: bool,
    /// It is the memory of one machine.
    pub(crate) shared_memory: bool,
}

const ONE_SIDED: [&str; 2] = ["rc_", "dc_"];
const SHARED_MEMORY: [&str; 5] = ["posix/", "sysv/", "cma/", "knem/", "xpmem/"];

fn is_of(resource: &str, transports: &[&str]) -> bool {
    transports.iter().any(|transport| resource.starts_with(transport))
}

/// Whether UCX reads remote memory by a resource, `transport/device`, without the owner's process.
pub(crate) fn reads_by_itself(resource: &str) -> bool {
    is_of(resource, &ONE_SIDED)
}

/// What is asked of an owner: a part of a read.
pub(crate) struct Asking<'a> {
    pub(crate) read: u64,
    pub(crate) token: Token,
    pub(crate) region: u64,
    /// Whether it shall be copied, and settled by that.
    pub(crate) settle: bool,
    pub(crate) into: &'a Arc<Mapped>,
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
        Ok(Self { raw, ids: address.ids(), fabric: Cell::new(None), link, worker: Rc::clone(worker) })
    }

    /// Sends a notification.
    pub(crate) fn notify(&self, bytes: &[u8]) -> Result<(), Status> {
        let operation = self.worker.mailbox().operation_with(Kind::Notify(Rc::clone(&self.link)), bytes);
        self.send(id::NOTIFY, EAGER, operation)
    }

    /// Asks the peer for an [`Event::Pong`] with this endpoint's key and `nonce`.
    pub(crate) fn ping(&self, nonce: u64) -> Result<(), Status> {
        let mailbox = self.worker.mailbox();
        let ping = Ping { key: self.link.key, nonce, ids: mailbox.ids };
        self.send(id::PING, EAGER | REPLY, mailbox.operation_with(Kind::Plain, &ping.to_bytes()))
    }

    /// Asks the peer for these parts of its region, `length` bytes in all, to land in `into` from `offset` on; without any, whether
    /// the token still holds. Ends with an [`Event::Landed`] or [`Event::Refused`], also where it cannot begin.
    pub(crate) fn ask(&self, asking: &Asking<'_>, offset: usize, length: usize, parts: impl Iterator<Item = Part>) {
        let mailbox = self.worker.mailbox();
        let landing = mailbox.expect(asking.read, Arc::clone(asking.into), offset, length);
        let mut operation = mailbox.operation(Kind::Ask(landing));
        Ask::write(operation.buffer(), landing, (mailbox.ids, asking.settle), asking.token, asking.region, parts);
        let _ = self.send(id::ASK, EAGER | REPLY, operation);
    }

    /// Reads `length` bytes at `address` of the peer's memory without its help, into `into` from `offset` on. Ends with an
    /// [`Event::Landed`], also where it cannot begin.
    pub(crate) fn get(&self, read: u64, key: &Rc<RemoteKey>, address: u64, into: &Arc<Mapped>, offset: usize, length: usize) {
        let _entered = self.worker.enter();
        let mailbox = self.worker.mailbox();
        let mut operation = mailbox.operation(Kind::Land { read, bytes: length });
        operation.needs(key);
        if operation.touch(into, offset, length).is_none() {
            return mailbox.post(Event::Landed { read, bytes: length, result: Err(Status::CUT_SHORT) });
        }
        let _ = operation::post(mailbox, operation, Call::Send(0), |handed| {
            // SAFETY: the endpoint is open, the operation holds the key, which is of this endpoint, the range was checked
            // against the region that the peer described, and the operation holds the destination as well.
            unsafe { ucx::ucp_get_nbx(self.raw, handed.data, handed.count, address, key.raw(), handed.param) }
        });
    }

    /// Asks for an [`Event::Flushed`] once all that was sent is done.
    pub(crate) fn flush(&self) {
        let mailbox = self.worker.mailbox();
        let operation = mailbox.operation(Kind::Flush(self.link.key));
        // A flush that is refused is over as well, and says so by the same event.
        let _ = operation::post(mailbox, operation, Call::Send(0), |handed| {
            // SAFETY: the endpoint is open.
            unsafe { ucx::ucp_ep_flush_nbx(self.raw, handed.param) }
        });
    }

    /// Notifications in flight, and their bytes.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        (self.link.ops.get(), self.link.bytes.get())
    }

    /// What it uses, once it is connected.
    pub(crate) fn fabric(&self) -> Fabric {
        self.fabric.get().unwrap_or_else(|| {
            let resources = self.resources();
            let uses = |transports: &[&str]| resources.iter().any(|resource| is_of(resource, transports));
            let fabric = Fabric { one_sided: uses(&ONE_SIDED), shared_memory: uses(&SHARED_MEMORY) };
            self.fabric.set(Some(fabric));
            fabric
        })
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

    pub(super) fn raw(&self) -> ucx::ucp_ep_h {
        self.raw
    }

    pub(super) fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    fn send(&self, message: u16, flags: u32, operation: Box<Operation>) -> Result<(), Status> {
        let message = self.ids.saturating_add(message);
        // SAFETY: the endpoint is open, and of this worker, which never leaves its thread.
        unsafe { operation::send(self.worker.mailbox(), self.raw, message, flags, operation) }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let mailbox = self.worker.mailbox();
        let flags = ucx::ucp_ep_close_flags_t_UCP_EP_CLOSE_FLAG_FORCE;
        let closed = operation::post(mailbox, mailbox.operation(Kind::Plain), Call::Send(flags), |handed| {
            // SAFETY: open until here, and closed once.
            unsafe { ucx::ucp_ep_close_nbx(self.raw, handed.param) }
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
