//! On the engine's own worker.

mod common;

use std::{
    cell::Cell,
    ffi::c_void,
    mem::zeroed,
    ptr::{null, null_mut},
};

use common::{Got, config, framed, poll, transport, until};
use gpu_mem::{HostSlab, Memory};
use lease_proto::{
    frame::Frame,
    id::{Incarnation, Token},
    transport::{Control as _, Data as _, DeadPeer, Error as _, ErrorKind, Landed, PeerId, Range},
};
use transport_ucx::{EngineWorker, UcxConfig, UcxTransport, ucx_sys::sys as ucx};

on_every_lane!(
    leases_and_reads_go_over_a_borrowed_worker_in_both_directions,
    the_engines_own_messages_pass_beside,
    the_worker_and_its_ids_are_the_engines_again_afterwards,
);

const FIRST_ID: u16 = 100;

fn borrow(engine: &EngineWorker) -> UcxTransport {
    // SAFETY: of one context, outliving the transport, on this thread, and the ids are free.
    unsafe { UcxTransport::borrow(engine.context(), engine.worker(), FIRST_ID, UcxConfig::default()) }.unwrap()
}

/// Connects `from` to `to`.
fn join(from: &mut UcxTransport, to: &mut UcxTransport) -> PeerId {
    let metadata = framed(to.local_metadata());
    from.connect(Frame::decode(&metadata).unwrap()).unwrap();
    until("the connection", || {
        poll(to);
        match poll(from)? {
            Got::Connected(_, peer) => Some(peer),
            other => panic!("expected the connection, got {other:?}"),
        }
    })
}

fn read(reader: &mut UcxTransport, owner: &mut UcxTransport, peer: PeerId) {
    let token = Token { number: 5, nonce: 6 };
    let mut slab = HostSlab::new(3 << 20).unwrap();
    slab.fill(0x5a);
    let region = owner.register(Memory::from(slab)).unwrap();
    owner.permits().permit(token);
    let mut exported = vec![0; 1024];
    let n = owner.export(&region, Incarnation(7), &mut exported).unwrap();
    let into = reader.register(Memory::from(HostSlab::new(3 << 20).unwrap())).unwrap();
    let range = Range { offset: 0, length: 3 << 20 };
    reader.read(peer, token, Frame::decode(&exported[..n]).unwrap(), &[range], &into, 0).unwrap();
    let got = until("the read", || {
        poll(owner);
        poll(reader)
    });
    assert!(matches!(got, Got::Read(_, Ok(Landed::Served))), "{got:?}");
    let mut bytes = vec![0; 3 << 20];
    into.memory().copy_out(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0x5a));
}

fn leases_and_reads_go_over_a_borrowed_worker_in_both_directions(lane: &str) {
    let engine = EngineWorker::new(lane).unwrap();
    let (mut borrowed, mut ours) = (borrow(&engine), transport(lane));
    // How fast a dead peer is noticed is the engine's choice, which is not known here.
    assert_eq!(borrowed.capabilities().dead_peer, DeadPeer::Never);
    let (to_borrowed, to_ours) = (join(&mut ours, &mut borrowed), join(&mut borrowed, &mut ours));
    ours.notify(to_borrowed, b"renew").unwrap();
    assert_eq!(until("the beat", || poll(&mut borrowed)), Got::Message(b"renew".to_vec()));
    borrowed.notify(to_ours, b"renewed").unwrap();
    assert_eq!(until("the answer", || poll(&mut ours)), Got::Message(b"renewed".to_vec()));
    read(&mut ours, &mut borrowed, to_borrowed);
    read(&mut borrowed, &mut ours, to_ours);
}

fn the_engines_own_messages_pass_beside(lane: &str) {
    let engine = EngineWorker::new(lane).unwrap();
    let heard = Cell::new(0usize);
    listen(&engine, 7, Some(count), &heard);
    let mut borrowed = borrow(&engine);
    // Another engine, with other ids.
    let other = EngineWorker::new(lane).unwrap();
    // SAFETY: as in `borrow`.
    let mut peer = unsafe { UcxTransport::borrow(other.context(), other.worker(), 0, config(lane)) }.unwrap();
    let to = join(&mut peer, &mut borrowed);
    let endpoint = connect_raw(&other, &engine);
    for n in 0..100usize {
        send_raw(endpoint, 7);
        peer.notify(to, &n.to_le_bytes()).unwrap();
        let got = until("the notification", || {
            poll(&mut peer);
            poll(&mut borrowed)
        });
        assert_eq!(got, Got::Message(n.to_le_bytes().to_vec()));
    }
    until("the engine's own", || {
        other.progress();
        engine.progress();
        (heard.get() == 100).then_some(())
    });
    assert_eq!(borrowed.refused(), 0);
    drop((peer, borrowed));
    // SAFETY: open until here; forcing does not wait.
    let closed = unsafe { ucx::ucp_ep_close_nb(endpoint, ucx::ucp_ep_close_mode_UCP_EP_CLOSE_MODE_FORCE) };
    if transport_ucx::ucx_sys::decode_status_ptr(closed).is_ok_and(|request| request.is_some()) {
        // SAFETY: the request of the close above; UCX finishes it by itself.
        unsafe { ucx::ucp_request_free(closed) };
    }
}

fn the_worker_and_its_ids_are_the_engines_again_afterwards(lane: &str) {
    let engine = EngineWorker::new(lane).unwrap();
    for _ in 0..3 {
        let (mut borrowed, mut ours) = (borrow(&engine), transport(lane));
        let to = join(&mut ours, &mut borrowed);
        for _ in 0..50 {
            ours.notify(to, &[1; 10_000]).unwrap();
        }
        drop(borrowed);
        // What is still on its way meets nobody, and harms nothing.
        for _ in 0..100 {
            engine.progress();
            poll(&mut ours);
        }
    }
    let heard = Cell::new(0usize);
    listen(&engine, FIRST_ID, Some(count), &heard);
    let other = EngineWorker::new(lane).unwrap();
    let endpoint = connect_raw(&other, &engine);
    send_raw(endpoint, FIRST_ID);
    until("the engine's own", || {
        other.progress();
        engine.progress();
        (heard.get() == 1).then_some(())
    });
    // SAFETY: ids that leave no room are refused before anything is touched.
    let refused = unsafe { UcxTransport::borrow(engine.context(), engine.worker(), u16::MAX, UcxConfig::default()) };
    assert_eq!(refused.err().unwrap().kind(), ErrorKind::Invalid);
}

type Callback = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    usize,
    *mut c_void,
    usize,
    *const ucx::ucp_am_recv_param_t,
) -> ucx::ucs_status_t;

unsafe extern "C" fn count(
    arg: *mut c_void,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: usize,
    _: *const ucx::ucp_am_recv_param_t,
) -> ucx::ucs_status_t {
    // SAFETY: the cell that was registered, which outlives the worker's use of it.
    let heard = unsafe { &*arg.cast_const().cast::<Cell<usize>>() };
    heard.set(heard.get() + 1);
    ucx::ucs_status_t_UCS_OK
}

fn listen(engine: &EngineWorker, id: u16, callback: Option<Callback>, heard: &Cell<usize>) {
    // SAFETY: all zero is valid: the field mask says what counts.
    let mut param: ucx::ucp_am_handler_param_t = unsafe { zeroed() };
    param.field_mask = u64::from(
        ucx::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_ID
            | ucx::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_CB
            | ucx::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_ARG,
    );
    param.id = u32::from(id);
    param.cb = callback;
    param.arg = std::ptr::from_ref(heard).cast_mut().cast();
    // SAFETY: the worker lives, and so does the cell while messages may come.
    let status = unsafe { ucx::ucp_worker_set_am_recv_handler(engine.worker(), &raw const param) };
    assert_eq!(status, ucx::ucs_status_t_UCS_OK);
}

fn connect_raw(from: &EngineWorker, to: &EngineWorker) -> ucx::ucp_ep_h {
    let (mut address, mut length) = (null_mut(), 0);
    // SAFETY: the worker lives.
    let status = unsafe { ucx::ucp_worker_get_address(to.worker(), &raw mut address, &raw mut length) };
    assert_eq!(status, ucx::ucs_status_t_UCS_OK);
    // SAFETY: all zero is valid: the field mask says what counts.
    let mut params: ucx::ucp_ep_params_t = unsafe { zeroed() };
    params.field_mask = u64::from(ucx::ucp_ep_params_field_UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
    params.address = address;
    let mut endpoint = null_mut();
    // SAFETY: the address is whole.
    let status = unsafe { ucx::ucp_ep_create(from.worker(), &raw const params, &raw mut endpoint) };
    assert_eq!(status, ucx::ucs_status_t_UCS_OK);
    // SAFETY: from this worker, released once.
    unsafe { ucx::ucp_worker_release_address(to.worker(), address) };
    endpoint
}

fn send_raw(endpoint: ucx::ucp_ep_h, id: u16) {
    // SAFETY: all zero is valid: the field mask says what counts.
    let param: ucx::ucp_request_param_t = unsafe { zeroed() };
    // SAFETY: the endpoint is open; nothing is sent but the id.
    let request = unsafe { ucx::ucp_am_send_nbx(endpoint, u32::from(id), null(), 0, null(), 0, &raw const param) };
    if transport_ucx::ucx_sys::decode_status_ptr(request).unwrap().is_some() {
        // SAFETY: the request of the send above; UCX finishes it by itself.
        unsafe { ucx::ucp_request_free(request) };
    }
}
