//! The in-memory fabric: every fault does what it says, and nothing that it does not say.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
};

use conformance::loopback::{Fabric, Fault, Link, Loopback, MAX_NOTIFICATION, MOST_BYTES_UNDER_WAY, MOST_UNDER_WAY};
use lease_proto::{
    frame::Frame,
    id::Incarnation,
    time::{Duration, Instant},
    transport::{Control, DeadPeer, ErrorKind, Incoming, PeerId, Ticket},
};

fn metadata(of: &Loopback) -> Vec<u8> {
    let mut framed = vec![0; 64];
    let length = Frame::encode(Incarnation(1), of.local_metadata(), &mut framed).unwrap();
    framed.truncate(length);
    framed
}

fn attempt(from: &mut Loopback, to: &Loopback) -> Ticket {
    from.connect(Frame::decode(&metadata(to)).unwrap()).unwrap()
}

fn link(from: &mut Loopback, to: &Loopback) -> PeerId {
    let expected = attempt(from, to);
    match from.poll().unwrap() {
        Some(Incoming::Connected { ticket, peer }) if ticket == expected => peer,
        other => panic!("not connected: {other:?}"),
    }
}

/// A fabric with `d` connected to `p`, and the link between them.
fn pair(seed: u64) -> (Fabric, Loopback, Loopback, PeerId, Link) {
    let fabric = Fabric::new(seed);
    let (p, mut d) = (fabric.endpoint(), fabric.endpoint());
    let (peer, way) = (link(&mut d, &p), Link { from: d.id(), to: p.id() });
    (fabric, p, d, peer, way)
}

/// All messages that have arrived, by their first byte.
fn arrived(at: &mut Loopback) -> Vec<u8> {
    std::iter::from_fn(|| match at.poll().unwrap() {
        Some(Incoming::Notification { bytes, .. }) => Some(bytes[0]),
        None => None,
        other => panic!("not a message: {other:?}"),
    })
    .collect()
}

fn send(from: &mut Loopback, peer: PeerId, numbers: impl IntoIterator<Item = u8>) {
    numbers.into_iter().for_each(|number| from.notify(peer, &[number]).unwrap());
}

fn kind<T>(result: Result<T, impl lease_proto::transport::Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

fn seconds(seconds: u64) -> Instant {
    Instant::ZERO.saturating_add(Duration::from_secs(seconds))
}

#[test]
fn without_a_fault_everything_arrives_once_whole_and_in_order() {
    let (fabric, mut p, mut d, peer, _) = pair(1);
    send(&mut d, peer, 0..100);
    assert_eq!(arrived(&mut p), (0..100).collect::<Vec<u8>>());
    let largest: Vec<u8> = (0..MAX_NOTIFICATION).map(|byte| byte as u8).collect();
    d.notify(peer, &largest).unwrap();
    d.notify(peer, b"").unwrap();
    assert!(matches!(p.poll().unwrap(), Some(Incoming::Notification { bytes, .. }) if bytes == largest));
    assert!(matches!(p.poll().unwrap(), Some(Incoming::Notification { bytes: b"", .. })));
    assert_eq!(p.poll().unwrap(), None);
    assert_eq!((d.in_flight(peer), fabric.next_arrival(), d.next_timeout()), (0, None, None));
    assert_eq!(d.capabilities().dead_peer, DeadPeer::Within(Duration::ZERO));
}

#[test]
fn one_byte_over_the_limit_is_too_large_and_not_sent() {
    let fabric = Fabric::new(1);
    let (mut p, mut d) = (fabric.endpoint(), fabric.endpoint_with(4));
    let peer = link(&mut d, &p);
    assert_eq!(kind(d.notify(peer, &[9; 5])), Some(ErrorKind::TooLarge));
    d.notify(peer, &[7; 4]).unwrap();
    assert_eq!(arrived(&mut p), [7]);
}

#[test]
fn dropped_messages_are_gone_and_only_on_their_link() {
    let (fabric, mut p, mut d, peer, way) = pair(1);
    let back = link(&mut p, &d);
    fabric.fault(way, Fault { drop: true, ..Fault::default() });
    send(&mut d, peer, 0..3);
    send(&mut p, back, [9]);
    fabric.fault(way, Fault::default());
    send(&mut d, peer, [3]);
    assert_eq!(arrived(&mut p), [3]);
    assert_eq!(arrived(&mut d), [9], "the other direction is another link");
}

#[test]
fn the_next_messages_can_be_dropped_by_count() {
    let (fabric, mut p, mut d, peer, way) = pair(1);
    fabric.drop_next(way, 2);
    send(&mut d, peer, 0..5);
    assert_eq!(arrived(&mut p), [2, 3, 4]);
}

#[test]
fn delayed_messages_arrive_at_their_time() {
    let (fabric, mut p, mut d, peer, way) = pair(1);
    fabric.fault(way, Fault { delay: Duration::from_secs(2), ..Fault::default() });
    send(&mut d, peer, [0]);
    fabric.advance_to(seconds(1));
    send(&mut d, peer, [1]);
    assert_eq!((arrived(&mut p), fabric.next_arrival(), p.has_mail()), (vec![], Some(seconds(2)), false));
    fabric.advance_to(seconds(2));
    assert!(p.has_mail());
    assert_eq!((arrived(&mut p), fabric.next_arrival()), (vec![0], Some(seconds(3))));
    fabric.advance_to(seconds(1)); // never back
    assert_eq!(fabric.now(), seconds(2));
    fabric.advance_to(seconds(9));
    assert_eq!(arrived(&mut p), [1]);
}

#[test]
fn a_shorter_delay_overtakes_a_longer_one() {
    let (fabric, mut p, mut d, peer, way) = pair(1);
    fabric.fault(way, Fault { delay: Duration::from_secs(2), ..Fault::default() });
    send(&mut d, peer, [0]);
    fabric.fault(way, Fault::default());
    send(&mut d, peer, [1]);
    fabric.advance_to(seconds(2));
    assert_eq!(arrived(&mut p), [1, 0]);
}

#[test]
fn duplicated_messages_arrive_so_many_times_more() {
    let (fabric, mut p, mut d, peer, way) = pair(1);
    fabric.fault(way, Fault { duplicate: 2, ..Fault::default() });
    send(&mut d, peer, [5, 6]);
    assert_eq!(arrived(&mut p), [5, 5, 5, 6, 6, 6]);
}

/// Sends numbers over a link that reorders, taking what has arrived after each `every`.
fn reordered(seed: u64, every: usize) -> Vec<u8> {
    let (fabric, mut p, mut d, peer, way) = pair(seed);
    fabric.fault(way, Fault { reorder: true, ..Fault::default() });
    let mut all = Vec::new();
    for number in 0..200 {
        send(&mut d, peer, [number]);
        if usize::from(number) % every == 0 {
            all.extend(arrived(&mut p));
        }
    }
    all.extend(arrived(&mut p));
    all
}

#[test]
fn reordering_swaps_neighbours_and_loses_nothing() {
    for every in [1, 2, 3, 7, 1000] {
        let order = reordered(7, every);
        assert_eq!(order.iter().filter(|number| order.contains(number)).count(), 200);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..200).collect::<Vec<u8>>(), "none lost, none doubled, taking every {every}");
        assert_eq!(order == sorted, every == 1, "what has been taken in cannot be overtaken");
    }
}

#[test]
fn the_same_seed_gives_the_same_order_and_another_seed_another() {
    assert_eq!(reordered(7, 5), reordered(7, 5));
    assert_ne!(reordered(7, 5), reordered(8, 5));
}

#[test]
fn held_messages_arrive_in_a_burst_when_the_fault_is_taken_away() {
    let (fabric, mut p, mut d, peer, way) = pair(1);
    fabric.fault(way, Fault { hold: true, ..Fault::default() });
    send(&mut d, peer, 0..3);
    fabric.advance_to(seconds(100));
    assert_eq!((arrived(&mut p), fabric.next_arrival()), (vec![], None));
    fabric.fault(way, Fault { hold: true, delay: Duration::from_secs(1), ..Fault::default() });
    assert!(arrived(&mut p).is_empty(), "still held by the fault in its place");
    fabric.fault(way, Fault::default());
    assert_eq!(fabric.next_arrival(), Some(seconds(100)));
    assert_eq!(arrived(&mut p), [0, 1, 2]);
}

#[test]
fn a_limit_refuses_what_is_too_much_until_something_has_arrived() {
    for fault in [Fault::default(), Fault { hold: true, ..Fault::default() }] {
        let (fabric, mut p, mut d, peer, way) = pair(1);
        fabric.fault(way, Fault { limit: Some(2), ..fault });
        send(&mut d, peer, 0..2);
        assert_eq!(kind(d.notify(peer, &[2])), Some(ErrorKind::WouldBlock));
        fabric.fault(way, Fault { limit: Some(2), ..Fault::default() });
        assert_eq!(arrived(&mut p), [0, 1], "what was refused is not sent");
        send(&mut d, peer, [3]);
        assert_eq!(arrived(&mut p), [3]);
    }
}

#[test]
fn faults_apply_in_the_order_that_is_written() {
    let (fabric, mut p, mut d, peer, way) = pair(1);
    let all = Fault { drop: true, hold: true, delay: Duration::from_secs(1), duplicate: 1, reorder: true, ..Fault::default() };
    fabric.fault(way, all);
    send(&mut d, peer, [0]);
    fabric.fault(way, Fault { drop: false, ..all });
    send(&mut d, peer, [1]);
    fabric.fault(way, Fault { drop: false, hold: false, ..all });
    assert!(arrived(&mut p).is_empty(), "what was held starts when it is let go");
    fabric.advance_to(seconds(1));
    assert_eq!(arrived(&mut p), [1, 1]);
}

#[test]
fn a_cut_link_loses_messages_and_keeps_attempts_open_until_it_is_healed() {
    for cut_back in [false, true] {
        let (fabric, mut p, mut d, peer, way) = pair(1);
        let cut = if cut_back { Link { from: way.to, to: way.from } } else { way };
        fabric.fault(cut, Fault { cut: true, ..Fault::default() });
        send(&mut d, peer, [0]);
        let open = attempt(&mut d, &p);
        fabric.advance_to(seconds(1000));
        assert_eq!(d.poll().unwrap(), None, "no answer is no failure");
        assert_eq!(arrived(&mut p), if cut_back { vec![0] } else { vec![] });
        fabric.fault(cut, Fault::default());
        let Some(Incoming::Connected { ticket, peer: again }) = d.poll().unwrap() else { panic!("not connected") };
        assert!(ticket == open && again != peer);
        send(&mut d, again, [1]);
        assert_eq!(arrived(&mut p), [1]);
    }
}

#[test]
fn an_attempt_over_a_cut_link_fails_once_it_is_healed_and_nobody_is_there() {
    let (fabric, p, mut d, _, way) = pair(1);
    fabric.fault(way, Fault { cut: true, ..Fault::default() });
    let open = attempt(&mut d, &p);
    drop(p);
    assert!(matches!(d.poll().unwrap(), Some(Incoming::PeerLost { .. })));
    assert_eq!(d.poll().unwrap(), None);
    fabric.fault(way, Fault::default());
    assert_eq!(d.poll().unwrap(), Some(Incoming::ConnectFailed { ticket: open, kind: ErrorKind::NotConnected }));
}

#[test]
fn an_attempt_to_who_stands_still_is_resolved_once_it_goes_on_or_is_gone() {
    let (fabric, p, mut d, peer, _) = pair(1);
    fabric.stop(p.id(), true);
    let open = attempt(&mut d, &p);
    fabric.advance_to(seconds(1000));
    assert_eq!(d.poll().unwrap(), None, "no answer is no failure");
    fabric.stop(p.id(), false);
    assert!(matches!(d.poll().unwrap(), Some(Incoming::Connected { ticket, peer: again }) if ticket == open && again != peer));
    fabric.stop(p.id(), true);
    let open = attempt(&mut d, &p);
    drop(p);
    let failed = std::iter::from_fn(|| {
        d.poll().unwrap().map(|told| matches!(told, Incoming::ConnectFailed { ticket, .. } if ticket == open))
    });
    assert_eq!(failed.collect::<Vec<bool>>(), [false, false, true], "after the two connections that are lost");
}

#[test]
fn a_cancelled_attempt_is_never_resolved_and_its_peer_never_was() {
    let (fabric, p, mut d, peer, way) = pair(1);
    // Cancelled while it is open, after it succeeded unseen, after its peer died too, and after it failed unseen.
    fabric.fault(way, Fault { cut: true, ..Fault::default() });
    let open = attempt(&mut d, &p);
    d.cancel(open);
    fabric.fault(way, Fault::default());
    assert_eq!(d.poll().unwrap(), None);
    let succeeded = attempt(&mut d, &p);
    d.cancel(succeeded);
    d.cancel(succeeded);
    d.cancel(Ticket(u64::MAX));
    let forgotten = attempt(&mut d, &p);
    drop(p);
    d.cancel(forgotten);
    assert_eq!(d.poll().unwrap(), Some(Incoming::PeerLost { peer }), "of the one peer that it knows");
    assert_eq!(d.poll().unwrap(), None);
    let gone = fabric.endpoint();
    let framed = metadata(&gone);
    drop(gone);
    let failed = d.connect(Frame::decode(&framed).unwrap()).unwrap();
    d.cancel(failed);
    assert_eq!(d.poll().unwrap(), None);
}

#[test]
fn the_nth_message_ever_sent_can_be_replayed_also_one_that_was_lost() {
    let (fabric, mut p, mut d, peer, way) = pair(1);
    fabric.drop_next(way, 1);
    send(&mut d, peer, 0..3);
    assert!(fabric.replay(way, 0) && fabric.replay(way, 2) && !fabric.replay(way, 3));
    assert!(!fabric.replay(Link { from: way.to, to: way.from }, 0));
    assert_eq!(arrived(&mut p), [1, 2, 0, 2]);
}

#[test]
fn injected_bytes_come_from_nobody_and_others_from_whom_the_receiver_is_connected_to() {
    let (fabric, mut p, mut d, peer, _) = pair(1);
    let from = |p: &mut Loopback| match p.poll().unwrap() {
        Some(Incoming::Notification { from, .. }) => from,
        other => panic!("not a message: {other:?}"),
    };
    send(&mut d, peer, [0]);
    assert_eq!(from(&mut p), None, "not connected back");
    let back = link(&mut p, &d);
    send(&mut d, peer, [1]);
    assert_eq!(from(&mut p), Some(back));
    let mut other = fabric.endpoint();
    let to_p = link(&mut other, &p);
    send(&mut other, to_p, [2]);
    assert_eq!(from(&mut p), None, "somebody else");
    fabric.inject(p.id(), &[3]);
    assert_eq!(from(&mut p), None);
    p.disconnect(back);
    send(&mut d, peer, [4]);
    assert_eq!(from(&mut p), None);
}

#[test]
fn a_killed_endpoint_is_reported_once_per_connection_and_never_reached_again() {
    let (fabric, mut p, mut d, peer, _) = pair(1);
    let twice = link(&mut d, &p);
    let framed = metadata(&p);
    fabric.kill(p.id());
    assert_eq!(d.poll().unwrap(), Some(Incoming::PeerLost { peer }));
    assert_eq!(d.poll().unwrap(), Some(Incoming::PeerLost { peer: twice }));
    assert_eq!(d.poll().unwrap(), None);
    assert_eq!(kind(d.notify(peer, b"x")), Some(ErrorKind::NotConnected));
    let ticket = d.connect(Frame::decode(&framed).unwrap()).unwrap();
    assert_eq!(d.poll().unwrap(), Some(Incoming::ConnectFailed { ticket, kind: ErrorKind::NotConnected }));
    // The dead one itself moves no more.
    fabric.inject(p.id(), b"x");
    assert_eq!(p.poll().unwrap(), None);
    let successor = fabric.endpoint();
    assert_ne!(link(&mut d, &successor), peer, "handles are never reused");
}

#[test]
fn a_disconnected_peer_is_not_reported_and_its_handle_is_dead() {
    let (_fabric, p, mut d, peer, _) = pair(1);
    d.disconnect(peer);
    assert_eq!(kind(d.notify(peer, b"x")), Some(ErrorKind::NotConnected));
    drop(p);
    assert_eq!(d.poll().unwrap(), None);
}

#[test]
fn metadata_of_something_else_is_invalid() {
    let mut d = Fabric::new(1).endpoint();
    for payload in [b"".as_slice(), b"loopback", b"loopback1234567", b"loopback123456789", b"elsewhere1234567"] {
        let mut framed = [0; 64];
        let length = Frame::encode(Incarnation(1), payload, &mut framed).unwrap();
        assert_eq!(kind(d.connect(Frame::decode(&framed[..length]).unwrap())), Some(ErrorKind::Invalid));
    }
    assert_eq!(d.poll().unwrap(), None);
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_waker_is_woken_once_and_only_when_there_is_something() {
    let (fabric, mut p, mut d, peer, way) = pair(1);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let count = || woken.0.load(Ordering::Relaxed);
    p.register_waker(&waker).unwrap();
    assert_eq!(count(), 0);
    send(&mut d, peer, 0..2);
    assert_eq!(count(), 1, "once");
    p.register_waker(&waker).unwrap();
    assert_eq!(count(), 2, "at once if there is something already");
    assert_eq!(arrived(&mut p), [0, 1]);

    fabric.fault(way, Fault { delay: Duration::from_secs(2), ..Fault::default() });
    p.register_waker(&waker).unwrap();
    send(&mut d, peer, [2]);
    fabric.advance_to(seconds(1));
    assert_eq!(count(), 2, "not before it arrives");
    fabric.advance_to(seconds(2));
    assert_eq!((count(), arrived(&mut p)), (3, vec![2]));

    d.register_waker(&waker).unwrap();
    drop(p);
    assert_eq!(count(), 4, "of a death, too");
}

#[test]
fn who_never_polls_holds_its_senders_back_and_loses_nothing() {
    for (length, most) in [(1, MOST_UNDER_WAY), (MAX_NOTIFICATION, MOST_BYTES_UNDER_WAY / MAX_NOTIFICATION)] {
        let (_fabric, mut p, mut d, peer, _) = pair(1);
        let accepted = (0..).take_while(|_| d.notify(peer, &vec![7; length]).is_ok()).count();
        assert_eq!(accepted, most);
        assert_eq!(kind(d.notify(peer, &vec![7; length])), Some(ErrorKind::WouldBlock));
        assert_eq!(arrived(&mut p).len(), most);
        send(&mut d, peer, [8]);
        assert_eq!(arrived(&mut p), [8]);
    }
}
