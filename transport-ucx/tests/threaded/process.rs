//! Peers in processes of their own, which die or stop.

use std::task::Waker;

use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Control as _, Error as _, ErrorKind, PeerId},
};
use rustix::process::Signal;
use transport_ucx::{UcxConfig, UcxError, UcxThread};

use crate::{
    common::{Got, config, framed, until},
    harness::*,
    on_every_lane,
};

on_every_lane!(
    a_killed_peer_is_reported_once_and_then_not_connected,
    a_peer_killed_with_notifications_in_flight_has_none_any_more,
    a_stopped_peer_holds_nobody_up_and_resumes,
    no_call_sleeps_while_the_peer_is_stopped,
    a_handle_that_is_dropped_does_not_wait_for_a_stopped_peer,
);

fn a_killed_peer_is_reported_once_and_then_not_connected(lane: &str) {
    let mut handle = spawn(lane);
    let (mut process, peer) = peer_process(lane, &mut handle);
    echo(&mut handle, peer, b"alive");
    process.kill();
    // Known before it is polled.
    until("the loss", || (handle.notify(peer, b"anybody?") == Err(UcxError::NotConnected)).then_some(()));
    assert_eq!((handle.in_flight(peer), next(&mut handle)), (0, Got::Lost(peer)));
    assert_eq!(handle.notify(peer, b"anybody?"), Err(UcxError::NotConnected));
    assert_eq!(poll(&mut handle), None);
}

fn a_peer_killed_with_notifications_in_flight_has_none_any_more(lane: &str) {
    let mut handle = spawn(lane);
    let (mut process, peer) = peer_process(lane, &mut handle);
    process.stop();
    fill(&mut handle, peer);
    process.kill();
    while next(&mut handle) != Got::Lost(peer) {}
    assert_eq!(handle.in_flight(peer), 0);
}

fn a_stopped_peer_holds_nobody_up_and_resumes(lane: &str) {
    let mut handle = spawn(lane);
    let (process, stopped) = peer_process(lane, &mut handle);
    let (_other, running) = peer_process(lane, &mut handle);
    process.stop();
    let sent = fill(&mut handle, stopped);
    echo(&mut handle, running, b"not held up");
    process.signal(Signal::CONT);
    for n in 0..sent {
        assert!(next(&mut handle) == Got::Message(vec![n as u8; 10_000]), "answer {n} is not the next");
    }
}

/// A call that waits for the peer, or for UCX, would give the processor up, in every one of many turns.
fn no_call_sleeps_while_the_peer_is_stopped(lane: &str) {
    let mut handle = spawn(lane);
    let (process, peer) = peer_process(lane, &mut handle);
    process.stop();
    fill(&mut handle, peer);
    // Attempts that nobody answers.
    let metadata = framed(&process.metadata);
    let mut turn = || {
        for _ in 0..100 {
            let _ = offer(&mut handle, peer, &[0; 10_000]);
            handle.flush(Duration::from_secs(1)).unwrap();
            handle.register_waker(Waker::noop()).unwrap();
            assert!(handle.in_flight(peer) > 0);
            let ticket = handle.connect(Frame::decode(&metadata).unwrap());
            assert_eq!(poll(&mut handle), None);
            match ticket {
                Ok(ticket) => handle.cancel(ticket),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    };
    // A switch may also come of a lock that the other thread holds while it is off the processor: not in every turn.
    let quiet = (0..20).filter(|_| {
        let before = voluntary_switches();
        turn();
        voluntary_switches() == before
    });
    assert!(quiet.count() > 10);
}

fn a_handle_that_is_dropped_does_not_wait_for_a_stopped_peer(lane: &str) {
    let brief = UcxConfig { close_timeout: Duration::from_millis(10), ..config(lane) };
    let mut handle = UcxThread::spawn(brief).unwrap();
    let (process, peer) = peer_process(lane, &mut handle);
    let (other, second) = peer_process(lane, &mut handle);
    process.stop();
    other.stop();
    fill(&mut handle, peer);
    fill(&mut handle, second);
    handle.disconnect(peer);
    drop(handle); // hangs if it waits
}

/// How often this thread gave the processor up by itself.
fn voluntary_switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

fn echo(handle: &mut UcxThread, peer: PeerId, bytes: &[u8]) {
    handle.notify(peer, bytes).unwrap();
    assert!(next(handle) == Got::Message(bytes.to_vec()));
}
