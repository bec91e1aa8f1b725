//! Connections.

use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Control as _, Error as _, ErrorKind, Ticket},
};
use transport_ucx::{UcxConfig, UcxError, UcxThread};

use crate::{
    common::{Got, config, framed, only_the_wanted_fabric, until},
    harness::*,
    on_every_lane,
};

on_every_lane!(
    a_connection_uses_the_wanted_fabric_and_no_other,
    metadata_that_is_not_ours_is_refused_at_once,
    an_attempt_to_a_peer_that_is_gone_fails,
    attempts_are_bounded_and_cancelling_makes_room,
    a_cancelled_attempt_is_not_resolved,
    an_attempt_waits_until_a_closing_connection_has_made_room,
    a_disconnected_peer_is_not_connected_and_its_number_is_never_reused,
    disconnecting_sends_what_was_accepted,
    a_peer_that_connected_back_hears_of_a_disconnect,
);

fn a_connection_uses_the_wanted_fabric_and_no_other(lane: &str) {
    let (from, _to, peer) = pair(lane);
    only_the_wanted_fabric(lane, &from.found().resources, from.peer_resources(peer));
}

fn metadata_that_is_not_ours_is_refused_at_once(lane: &str) {
    let (mut from, to) = (spawn(lane), spawn(lane));
    let ours = to.local_metadata();
    let cuts = (0..ours.len()).map(|length| ours[..length].to_vec());
    let others = [vec![0; 4096], b"nixl-agent-metadata".to_vec(), [ours, b"\0"].concat(), [b"x", ours].concat()];
    for payload in cuts.chain(others) {
        let metadata = framed(&payload);
        assert_eq!(from.connect(Frame::decode(&metadata).unwrap()).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!((poll(&mut from), from.next_timeout()), (None, None));
}

fn an_attempt_to_a_peer_that_is_gone_fails(lane: &str) {
    let mut from = spawn(lane);
    let to = spawn(lane);
    let metadata = framed(to.local_metadata());
    drop(to);
    let ticket = from.connect(Frame::decode(&metadata).unwrap()).unwrap();
    let got = next(&mut from);
    assert!(matches!(got, Got::ConnectFailed(failed, _) if failed == ticket), "{got:?}");
}

#[test]
fn a_peer_without_a_common_fabric_is_refused() {
    let (mut from, to) = (spawn("shm"), spawn("tcp"));
    let ticket = dial(&mut from, &to);
    assert_eq!(next(&mut from), Got::ConnectFailed(ticket, ErrorKind::Rejected));
}

fn attempts_are_bounded_and_cancelling_makes_room(lane: &str) {
    let mut from = UcxThread::spawn(UcxConfig { max_peers: 3, ..config(lane) }).unwrap();
    let mut to = spawn(lane);
    for _ in 0..50 {
        let metadata = framed(to.local_metadata());
        let mut attempt = || from.connect(Frame::decode(&metadata).unwrap());
        // The thread may have fallen behind.
        let tickets = [(); 3].map(|()| until("room", || attempt().ok()));
        assert_eq!(attempt().unwrap_err(), UcxError::TooManyPeers { max: 3 });
        for ticket in tickets {
            from.cancel(ticket);
            from.cancel(ticket);
        }
    }
    connect(&mut from, &mut to);
}

fn a_cancelled_attempt_is_not_resolved(lane: &str) {
    let (mut from, mut to) = (spawn(lane), spawn(lane));
    from.cancel(Ticket(u64::MAX));
    let early = dial(&mut from, &to);
    from.cancel(early);
    // Answered, and waiting to be polled.
    let late = dial(&mut from, &to);
    from.wait(Duration::MAX).unwrap();
    assert_eq!(from.next_timeout(), Some(Duration::ZERO));
    from.cancel(late);
    assert_eq!(poll(&mut from), None);
    let peer = connect(&mut from, &mut to);
    assert!(![early, late].contains(&Ticket(peer.0)));
    assert_eq!(poll(&mut from), None);
}

fn an_attempt_waits_until_a_closing_connection_has_made_room(lane: &str) {
    let mut from = UcxThread::spawn(UcxConfig { max_peers: 1, ..config(lane) }).unwrap();
    let mut to = spawn(lane);
    for n in 0..10 {
        let peer = connect(&mut from, &mut to);
        for _ in 0..20 {
            from.notify(peer, &[n; 5_000]).unwrap();
        }
        from.disconnect(peer);
        // This one waits, too, or is opened already.
        let given_up = dial(&mut from, &to);
        from.cancel(given_up);
    }
    for n in 0..10 {
        for _ in 0..20 {
            assert!(next(&mut to) == Got::Message(vec![n; 5_000]));
        }
    }
}

fn a_disconnected_peer_is_not_connected_and_its_number_is_never_reused(lane: &str) {
    let (mut from, mut to, peer) = pair(lane);
    let mut seen = vec![peer];
    for _ in 0..20 {
        let old = *seen.last().unwrap();
        from.disconnect(old);
        from.disconnect(old);
        let new = connect(&mut from, &mut to);
        assert!(!seen.contains(&new));
        for &stale in &seen {
            assert_eq!(from.notify(stale, b"anybody?").unwrap_err(), UcxError::NotConnected);
            assert_eq!((from.in_flight(stale), from.peer_resources(stale).len()), (0, 0));
        }
        from.notify(new, b"hello").unwrap();
        assert_eq!(next(&mut to), Got::Message(b"hello".to_vec()));
        seen.push(new);
    }
}

fn disconnecting_sends_what_was_accepted(lane: &str) {
    let (mut from, mut to, peer) = pair(lane);
    for n in 0..100u8 {
        from.notify(peer, &[n; 10_000]).unwrap();
    }
    from.disconnect(peer);
    for n in 0..100 {
        assert!(next(&mut to) == Got::Message(vec![n; 10_000]), "message {n} is not the next");
    }
    assert_eq!(poll(&mut from), None);
}

fn a_peer_that_connected_back_hears_of_a_disconnect(lane: &str) {
    let (mut a, mut b, to_b) = pair(lane);
    let to_a = connect(&mut b, &mut a);
    a.disconnect(to_b);
    assert_eq!(next(&mut b), Got::Lost(to_a));
    assert_eq!(b.notify(to_a, b"anybody?").unwrap_err(), UcxError::NotConnected);
    assert_eq!(poll(&mut a), None);
}
