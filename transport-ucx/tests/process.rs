//! Connections between real processes: this binary, run again as the peer.

mod common;

use common::{Got, LANE, Process, config, framed, hex, next, poll, transport, unhex};
use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Control as _, DeadPeer, Error as _, ErrorKind, PeerId},
};
use rustix::process::Signal;
use transport_ucx::{LOOK, UcxConfig, UcxTransport};

on_every_lane!(
    notifications_travel_both_ways_between_processes,
    a_killed_peer_is_reported_once_and_then_not_connected,
    a_peer_killed_with_notifications_in_flight_is_reported,
    an_attempt_to_a_killed_peer_fails,
    a_stopped_peer_holds_nobody_up_and_resumes,
    a_peer_that_restarts_gets_a_new_connection,
    a_peer_that_leaves_is_not_waited_for,
);

/// Not a test of its own: answers every notification with the same, until its input ends.
#[test]
fn a_peer_for_the_others() {
    let Ok(lane) = std::env::var(LANE) else { return };
    let mut transport = transport(&lane);
    println!("\nmetadata {}", hex(transport.local_metadata()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let metadata = framed(&unhex(line.trim()));
    transport.connect(Frame::decode(&metadata).unwrap()).unwrap();
    let mut back = None;
    loop {
        match next(&mut transport) {
            Got::Connected(_, peer) => back = Some(peer),
            Got::Message(bytes) => {
                transport.notify(back.unwrap(), &bytes).unwrap();
            }
            // The other process is gone, and so is what this one is for.
            Got::Lost(_) | Got::ConnectFailed(..) | Got::Read(..) => return,
        }
    }
}

fn notifications_travel_both_ways_between_processes(lane: &str) {
    let mut transport = transport(lane);
    let (_process, peer) = Process::connected(lane, &mut transport);
    for length in [0, 1, 200, 5_000, 64 << 10] {
        echo(&mut transport, peer, &vec![length as u8; length]);
    }
}

fn a_killed_peer_is_reported_once_and_then_not_connected(lane: &str) {
    let mut transport = transport(lane);
    let (mut process, peer) = Process::connected(lane, &mut transport);
    assert_eq!(transport.capabilities().dead_peer, DeadPeer::Within(Duration::from_secs(3)));
    echo(&mut transport, peer, b"alive");
    process.kill();
    assert_eq!(next(&mut transport), Got::Lost(peer));
    assert_eq!(transport.notify(peer, b"anybody?").unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!((poll(&mut transport), transport.next_timeout()), (None, Some(LOOK)));
}

fn a_peer_killed_with_notifications_in_flight_is_reported(lane: &str) {
    let mut transport = transport(lane);
    let (mut process, peer) = Process::connected(lane, &mut transport);
    process.stop();
    while transport.notify(peer, &[1; 60_000]).is_ok() {}
    process.kill();
    while next(&mut transport) != Got::Lost(peer) {}
    assert_eq!(transport.in_flight(peer), 0);
}

fn an_attempt_to_a_killed_peer_fails(lane: &str) {
    let mut transport = transport(lane);
    let mut process = Process::start(lane);
    process.kill();
    let metadata = framed(&process.metadata);
    let ticket = transport.connect(Frame::decode(&metadata).unwrap()).unwrap();
    let got = next(&mut transport);
    assert!(matches!(got, Got::ConnectFailed(failed, _) if failed == ticket), "{got:?}");
}

fn a_stopped_peer_holds_nobody_up_and_resumes(lane: &str) {
    let mut transport = transport(lane);
    let (process, stopped) = Process::connected(lane, &mut transport);
    let (_other, running) = Process::connected(lane, &mut transport);
    process.stop();
    let mut sent = 0;
    let error = loop {
        match transport.notify(stopped, &[sent as u8; 10_000]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    echo(&mut transport, running, b"not held up");
    process.signal(Signal::CONT);
    for n in 0..sent {
        assert!(next(&mut transport) == Got::Message(vec![n as u8; 10_000]), "answer {n} is not the next");
    }
}

fn a_peer_that_restarts_gets_a_new_connection(lane: &str) {
    let mut transport = transport(lane);
    let (mut process, old) = Process::connected(lane, &mut transport);
    process.kill();
    let (_process, new) = Process::connected(lane, &mut transport);
    assert_ne!(old, new);
    transport.disconnect(old);
    echo(&mut transport, new, b"again");
}

fn a_peer_that_leaves_is_not_waited_for(lane: &str) {
    let mut stopped = UcxTransport::new(UcxConfig { close_timeout: Duration::from_millis(10), ..config(lane) }).unwrap();
    let (process, peer) = Process::connected(lane, &mut stopped);
    process.stop();
    while stopped.notify(peer, &[0; 60_000]).is_ok() {}
    // Neither closing this connection nor dropping the transport needs the peer.
    stopped.disconnect(peer);
    while stopped.next_timeout() != Some(LOOK) {
        assert_eq!(poll(&mut stopped), None);
        stopped.wait(Duration::from_secs(1)).unwrap();
    }
    drop(stopped);
}

fn echo(transport: &mut UcxTransport, peer: PeerId, bytes: &[u8]) {
    transport.notify(peer, bytes).unwrap();
    // An earlier peer's loss may come in between.
    let mut got = next(transport);
    while matches!(got, Got::Lost(lost) if lost != peer) {
        got = next(transport);
    }
    assert!(got == Got::Message(bytes.to_vec()));
}

impl Process {
    /// A peer that is connected in both directions.
    fn connected(lane: &str, transport: &mut UcxTransport) -> (Self, PeerId) {
        let mut process = Self::start(lane);
        process.tell(&hex(transport.local_metadata()));
        let metadata = framed(&process.metadata);
        let ticket = transport.connect(Frame::decode(&metadata).unwrap()).unwrap();
        loop {
            match next(transport) {
                Got::Connected(resolved, peer) if resolved == ticket => return (process, peer),
                got => assert!(matches!(got, Got::Lost(_)), "expected the connection, got {got:?}"),
            }
        }
    }
}
