//! Connections between transports of one thread.

mod common;

use common::{Got, config, connect, dial, framed, only_the_wanted_fabric, pair, poll, transport, until};
use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Control as _, Error as _, ErrorKind, PeerId, Ticket},
};
use transport_ucx::{LOOK, UcxConfig, UcxError, UcxTransport};

on_every_lane!(
    a_connection_uses_the_wanted_fabric_and_no_other,
    metadata_that_is_not_ours_is_refused,
    an_attempt_is_resolved_once_the_peer_polls,
    an_attempt_to_a_peer_that_is_gone_fails,
    attempts_are_bounded_and_cancelling_makes_room,
    a_cancelled_attempt_is_not_resolved,
    a_disconnected_peer_is_not_connected_and_its_number_is_never_reused,
    disconnecting_sends_what_was_accepted,
    a_connection_ends_by_flushes_alone,
    a_peer_that_connected_back_hears_of_a_disconnect,
    two_connections_to_one_peer_are_two,
    a_peer_that_restarts_is_reached_under_its_new_address,
    transports_can_be_dropped_in_any_order,
);

fn a_connection_uses_the_wanted_fabric_and_no_other(lane: &str) {
    let (from, _to, peer) = pair(lane);
    only_the_wanted_fabric(lane, &from.found().resources, &from.peer_resources(peer));
}

fn metadata_that_is_not_ours_is_refused(lane: &str) {
    let (mut from, to) = (transport(lane), transport(lane));
    let ours = to.local_metadata();
    let cuts = (0..ours.len()).map(|length| ours[..length].to_vec());
    let others = [vec![0; 4096], b"nixl-agent-metadata".to_vec(), [ours, b"\0"].concat(), [b"x", ours].concat()];
    for payload in cuts.chain(others) {
        let metadata = framed(&payload);
        let error = from.connect(Frame::decode(&metadata).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert_eq!((poll(&mut from), from.next_timeout()), (None, Some(LOOK)));
}

fn an_attempt_is_resolved_once_the_peer_polls(lane: &str) {
    let (mut from, mut to) = (transport(lane), transport(lane));
    let ticket = dial(&mut from, &to);
    for _ in 0..1000 {
        assert_eq!(poll(&mut from), None, "nobody has answered");
    }
    assert_eq!(from.notify(PeerId(ticket.0), b"early").unwrap_err(), UcxError::NotConnected);
    let got = until("the connection", || {
        poll(&mut to);
        poll(&mut from)
    });
    assert!(matches!(got, Got::Connected(resolved, _) if resolved == ticket));
}

fn an_attempt_to_a_peer_that_is_gone_fails(lane: &str) {
    let mut from = transport(lane);
    let to = transport(lane);
    let metadata = framed(to.local_metadata());
    drop(to);
    let ticket = from.connect(Frame::decode(&metadata).unwrap()).unwrap();
    let got = until("the failure", || poll(&mut from));
    assert!(matches!(got, Got::ConnectFailed(failed, _) if failed == ticket), "{got:?}");
    assert_eq!(from.next_timeout(), Some(LOOK));
}

#[test]
fn ucx_chooses_where_the_caller_does_not() {
    let any = || UcxTransport::new(UcxConfig::default()).unwrap();
    let (mut from, mut to) = (any(), any());
    let peer = connect(&mut from, &mut to);
    from.notify(peer, &[7; 60_000]).unwrap();
    from.notify(peer, &[8]).unwrap();
    for expected in [vec![7; 60_000], vec![8]] {
        let got = until("the notification", || {
            assert_eq!(poll(&mut from), None);
            poll(&mut to)
        });
        assert!(got == Got::Message(expected));
    }
}

#[test]
fn a_peer_without_a_common_fabric_is_refused() {
    let (mut from, to) = (transport("shm"), transport("tcp"));
    let ticket = dial(&mut from, &to);
    assert_eq!(poll(&mut from), Some(Got::ConnectFailed(ticket, ErrorKind::Rejected)));
}

#[test]
fn a_fabric_that_this_machine_lacks_is_unavailable() {
    let error = transport_ucx::available("no-such-fabric").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(UcxTransport::new(config("no-such-fabric")).err(), Some(error));
    assert_eq!(transport_ucx::available("tcp"), Ok(()));
}

#[test]
fn attempts_that_failed_count_until_they_are_polled() {
    let mut from = UcxTransport::new(UcxConfig { max_peers: 2, ..config("shm") }).unwrap();
    let to = transport("tcp");
    let metadata = framed(to.local_metadata());
    let attempt = |from: &mut UcxTransport| from.connect(Frame::decode(&metadata).unwrap());
    attempt(&mut from).unwrap();
    attempt(&mut from).unwrap();
    assert_eq!(attempt(&mut from).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(matches!(poll(&mut from), Some(Got::ConnectFailed(..))));
    attempt(&mut from).unwrap();
}

#[test]
fn it_wakes_by_its_descriptor_and_by_no_waker() {
    let (mut from, mut to, peer) = pair("shm");
    assert_eq!(to.register_waker(std::task::Waker::noop()).unwrap_err().kind(), ErrorKind::Unsupported);
    until("nothing to be left", || {
        assert_eq!(poll(&mut to), None);
        to.arm().unwrap().is_some().then_some(())
    });
    from.notify(peer, b"wake up").unwrap();
    let fd = to.arm().unwrap();
    // Either it sees at once that there is something, or the descriptor tells.
    if let Some(fd) = fd {
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, None), Ok(1));
    }
    assert_eq!(until("the notification", || poll(&mut to)), Got::Message(b"wake up".to_vec()));
}

/// Two UCX libraries in one process take each other's calls.
#[test]
fn no_shared_ucx_is_loaded_beside_the_one_that_was_built_in() {
    let _transport = transport("tcp");
    let mapped = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert_eq!(mapped.contains("libucp"), option_env!("UCX_DIR").is_some());
}

fn attempts_are_bounded_and_cancelling_makes_room(lane: &str) {
    let mut from = UcxTransport::new(UcxConfig { max_peers: 3, ..config(lane) }).unwrap();
    let mut to = transport(lane);
    let metadata = framed(to.local_metadata());
    let mut attempt = || from.connect(Frame::decode(&metadata).unwrap());
    let tickets = [attempt().unwrap(), attempt().unwrap(), attempt().unwrap()];
    assert_eq!(attempt().unwrap_err(), UcxError::TooManyPeers { max: 3 });
    for ticket in tickets {
        from.cancel(ticket);
    }
    connect(&mut from, &mut to);
}

fn a_cancelled_attempt_is_not_resolved(lane: &str) {
    let (mut from, mut to) = (transport(lane), transport(lane));
    from.cancel(Ticket(u64::MAX));
    let early = dial(&mut from, &to);
    from.cancel(early);
    // Of two that are answered together, the second is cancelled between its answer and the poll that would tell.
    let cancelled = until("two answers at once", || {
        let tickets = [dial(&mut from, &to), dial(&mut from, &to)];
        let Got::Connected(first, peer) = until("an answer", || {
            poll(&mut to);
            poll(&mut from)
        }) else {
            panic!("expected a connection")
        };
        let second = tickets.into_iter().find(|&ticket| ticket != first).unwrap();
        let answered = from.next_timeout() == Some(Duration::ZERO);
        from.cancel(second);
        from.disconnect(peer);
        answered.then_some(second)
    });
    assert!(connect(&mut from, &mut to).0 != cancelled.0);
    assert_eq!(poll(&mut from), None);
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
            assert_eq!((from.in_flight(stale), from.peer_resources(stale)), (0, vec![]));
        }
        from.notify(new, b"hello").unwrap();
        assert_eq!(until("the notification", || poll(&mut to)), Got::Message(b"hello".to_vec()));
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
        let got = until("the rest", || {
            assert_eq!(poll(&mut from), None);
            poll(&mut to)
        });
        assert!(got == Got::Message(vec![n; 10_000]), "message {n} is not the next");
    }
}

/// As where nothing may be taken in, because nobody polls.
fn a_connection_ends_by_flushes_alone(lane: &str) {
    let (mut from, mut to, peer) = pair(lane);
    from.disconnect(peer);
    until("the end", || {
        assert_eq!(poll(&mut to), None);
        from.flush(Duration::ZERO).unwrap();
        (from.next_timeout() == Some(LOOK)).then_some(())
    });
}

fn a_peer_that_connected_back_hears_of_a_disconnect(lane: &str) {
    let (mut a, mut b, to_b) = pair(lane);
    let to_a = connect(&mut b, &mut a);
    a.disconnect(to_b);
    let got = until("the loss", || {
        assert_eq!(poll(&mut a), None);
        poll(&mut b)
    });
    assert_eq!(got, Got::Lost(to_a));
}

fn two_connections_to_one_peer_are_two(lane: &str) {
    let (mut from, mut to, first) = pair(lane);
    let second = connect(&mut from, &mut to);
    from.disconnect(first);
    from.notify(second, b"still here").unwrap();
    let got = until("the notification", || {
        assert_eq!(poll(&mut from), None);
        poll(&mut to)
    });
    assert_eq!(got, Got::Message(b"still here".to_vec()));
}

fn a_peer_that_restarts_is_reached_under_its_new_address(lane: &str) {
    let (mut from, to, old) = pair(lane);
    drop(to);
    let mut to = transport(lane);
    // The old peer's loss may be reported meanwhile; the process it lived in is alive.
    let ticket = dial(&mut from, &to);
    let new = until("the connection", || {
        poll(&mut to);
        match poll(&mut from)? {
            Got::Connected(resolved, peer) if resolved == ticket => Some(peer),
            got => {
                assert_eq!(got, Got::Lost(old));
                None
            }
        }
    });
    from.disconnect(old);
    assert_eq!(from.notify(old, b"old").unwrap_err(), UcxError::NotConnected);
    from.notify(new, b"new").unwrap();
    let got = until("the notification", || {
        assert_eq!(poll(&mut from), None);
        poll(&mut to)
    });
    assert_eq!(got, Got::Message(b"new".to_vec()));
}

fn transports_can_be_dropped_in_any_order(lane: &str) {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (mut a, mut b, mut c) = (transport(lane), transport(lane), transport(lane));
        let to_b = connect(&mut a, &mut b);
        let to_c = connect(&mut b, &mut c);
        let to_a = connect(&mut c, &mut a);
        // In the middle of everything: sent, unread, being connected and being closed.
        for _ in 0..50 {
            a.notify(to_b, &[1; 20_000]).unwrap();
            b.notify(to_c, &[2; 20_000]).unwrap();
            c.notify(to_a, &[3; 20_000]).unwrap();
        }
        dial(&mut a, &c);
        b.disconnect(to_c);
        let mut all = [Some(a), Some(b), Some(c)];
        for at in order {
            all[at] = None;
            for transport in all.iter_mut().flatten() {
                poll(transport);
            }
        }
    }
}
