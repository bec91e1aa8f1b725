//! What UCX calls when a peer's message comes in. No code of a user runs here, and none that panics.

use std::{ffi::c_void, ptr, slice};

use ucx_sys::sys as ucx;

use super::{
    Status,
    landing::Expected,
    mailbox::{Event, Mailbox},
    operation::{self, Call, Kind},
    serve,
};
use crate::messages::{Ask, Data, LONGEST, Ping, Pong, Refusal, id};

/// A message as its callback sees it.
struct Received<'a> {
    mailbox: &'a Mailbox,
    header: &'a [u8],
    data: Payload<'a>,
    /// The endpoint to answer on, null without one. Valid during the call.
    reply: ucx::ucp_ep_h,
}

/// What a message carries.
#[derive(Clone, Copy)]
enum Payload<'a> {
    /// This.
    Here(&'a [u8]),
    /// So many bytes that are to be fetched by this descriptor.
    ToFetch(*mut c_void, usize),
}

impl<'a> Received<'a> {
    /// # Safety
    /// The arguments of an active-message callback that was registered with a [`Mailbox`] as `arg`, during the call.
    unsafe fn new(
        arg: *mut c_void,
        header: *const c_void,
        header_length: usize,
        data: *mut c_void,
        length: usize,
        param: *const ucx::ucp_am_recv_param_t,
    ) -> Self {
        // SAFETY: the worker that calls keeps its mailbox until after its own destruction.
        let mailbox = unsafe { &*arg.cast_const().cast::<Mailbox>() };
        // SAFETY: UCX passes valid parameters for the time of the call.
        let ucx::ucp_am_recv_param_t { recv_attr, reply_ep } = unsafe { *param };
        let has = |flag: u32| recv_attr & u64::from(flag) != 0;
        let header: &[u8] = if header_length == 0 || header.is_null() {
            &[]
        } else {
            // SAFETY: UCX passes the whole header for the time of the call.
            unsafe { slice::from_raw_parts(header.cast(), header_length) }
        };
        let data = if has(ucx::ucp_am_recv_attr_t_UCP_AM_RECV_ATTR_FLAG_RNDV) {
            Payload::ToFetch(data, length)
        } else if length == 0 || data.is_null() {
            Payload::Here(&[])
        } else {
            // SAFETY: without the rendezvous flag, `data` is the whole message for the time of the call.
            Payload::Here(unsafe { slice::from_raw_parts(data.cast_const().cast(), length) })
        };
        let reply = if has(ucx::ucp_am_recv_attr_t_UCP_AM_RECV_ATTR_FIELD_REPLY_EP) { reply_ep } else { ptr::null_mut() };
        Self { mailbox, header, data, reply }
    }

    /// A short message's bytes; `None` for what no honest peer sends: too long, or to be fetched.
    fn bytes(&self, longest: usize) -> Option<&'a [u8]> {
        match self.data {
            Payload::Here(bytes) if bytes.len() <= longest => Some(bytes),
            _ => None,
        }
    }
}

/// A function for UCX to call, which counts what is refused.
macro_rules! callbacks {
    ($($callback:ident = $handle:ident),* $(,)?) => {$(
        unsafe extern "C" fn $callback(
            arg: *mut c_void,
            header: *const c_void,
            header_length: usize,
            data: *mut c_void,
            length: usize,
            param: *const ucx::ucp_am_recv_param_t,
        ) -> ucx::ucs_status_t {
            // SAFETY: UCX's arguments, passed on; registered by a worker with its mailbox.
            let received = unsafe { Received::new(arg, header, header_length, data, length, param) };
            if $handle(&received).is_none() {
                received.mailbox.refuse();
            }
            ucx::ucs_status_t_UCS_OK
        }
    )*};
}

callbacks!(notified = on_notify, pinged = on_ping, ponged = on_pong, asked = on_ask, delivered = on_data, refused = on_refusal,);

pub(super) type Callback = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    usize,
    *mut c_void,
    usize,
    *const ucx::ucp_am_recv_param_t,
) -> ucx::ucs_status_t;

/// Which function takes which message.
pub(super) const CALLBACKS: [(u16, Callback); id::COUNT as usize] = [
    (id::NOTIFY, notified),
    (id::PING, pinged),
    (id::PONG, ponged),
    (id::ASK, asked),
    (id::DATA, delivered),
    (id::REFUSAL, refused),
];

fn on_notify(received: &Received<'_>) -> Option<()> {
    received.mailbox.message(received.bytes(received.mailbox.limits.message)?);
    Some(())
}

fn on_ping(received: &Received<'_>) -> Option<()> {
    let mailbox = received.mailbox;
    let Ping { key, nonce, ids } = Ping::from_bytes(received.bytes(Ping::LENGTH)?)?;
    if received.reply.is_null() || mailbox.pongs.get() >= mailbox.limits.pongs {
        return None;
    }
    let pong = mailbox.operation_with(Kind::Pong(received.reply), &Pong { key, nonce }.to_bytes());
    // A peer that cannot be answered learns it from its own connection.
    // SAFETY: UCX vouches for the endpoint during the call.
    let _ = unsafe { operation::send(mailbox, received.reply, ids.checked_add(id::PONG)?, operation::EAGER, pong) };
    Some(())
}

fn on_pong(received: &Received<'_>) -> Option<()> {
    let Pong { key, nonce } = Pong::from_bytes(received.bytes(Pong::LENGTH)?)?;
    received.mailbox.post(Event::Pong { key, nonce });
    Some(())
}

fn on_ask(received: &Received<'_>) -> Option<()> {
    let ask = Ask::from_bytes(received.bytes(LONGEST)?)?;
    if received.reply.is_null() {
        return None;
    }
    // SAFETY: UCX vouches for the endpoint during the call.
    unsafe { serve::answer(received.mailbox, received.reply, &ask) }
}

fn on_data(received: &Received<'_>) -> Option<()> {
    let mailbox = received.mailbox;
    let Data { landing, settled } = Data::from_bytes(received.header)?;
    let Expected { read, mapped, offset, length } = mailbox.take_landing(landing)?;
    // What is not as it was asked for is over, and not well.
    let cut_short = Event::Landed { read, bytes: length, result: Err(Status::CUT_SHORT) };
    match (received.data, mapped.at(offset, length)) {
        // A reader into memory that the host does not reach asks for no copy.
        (Payload::Here(data), Some(place)) if data.len() == length && (mapped.is_host() || length == 0) => {
            // SAFETY: inside mapped host memory, which is the read's until it is done and is seen by no reference.
            unsafe { ptr::copy_nonoverlapping(data.as_ptr(), place, length) };
            mailbox.post(Event::Landed { read, bytes: length, result: Ok(settled) });
        }
        (Payload::ToFetch(descriptor, announced), Some(_)) if announced == length => {
            let mut land = mailbox.operation(Kind::Land { read, bytes: length });
            land.touch(&mapped, offset, length);
            // A fetch that is refused is over as well, and says so by the same event.
            let _ = operation::post(mailbox, land, Call::Receive, |handed| {
                // SAFETY: the descriptor is of this call and unused; the operation owns the rest until it is finished.
                unsafe { ucx::ucp_am_recv_data_nbx(mailbox.worker.get(), descriptor, handed.data, handed.count, handed.param) }
            });
        }
        _ => {
            mailbox.post(cut_short);
            return None;
        }
    }
    Some(())
}

fn on_refusal(received: &Received<'_>) -> Option<()> {
    let Refusal { landing, reason } = Refusal::from_bytes(received.bytes(Refusal::LENGTH)?)?;
    let Expected { read, offset, length, .. } = received.mailbox.take_landing(landing)?;
    received.mailbox.post(Event::Refused { read, offset, bytes: length, reason });
    Some(())
}
