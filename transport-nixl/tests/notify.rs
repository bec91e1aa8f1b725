//! Notifications: what arrives, from whom, how much of it, and when it leaves.
#![cfg(feature = "nixl")]

mod common;

use std::collections::BTreeSet;

use common::{
    Got, connect, foreign, hear, pair, poll,
    process::{Process, obey},
    transport, until, with,
};
use lease_proto::{
    time::Duration,
    transport::{Control as _, Error as _, ErrorKind},
};
use transport_nixl::{NixlConfig, NixlTransport};

on_every_lane!(
    any_bytes_arrive_unchanged,
    no_order_is_stated_and_none_of_many_comes_twice_or_is_missed,
    the_first_notification_leaves_while_the_sender_only_polls,
    the_first_notification_leaves_while_the_sender_only_flushes,
    a_progress_thread_sends_while_the_sender_does_nothing,
    what_was_accepted_is_sent_by_whoever_leaves_at_once,
    what_waits_for_nixl_is_sent_by_whoever_leaves_at_once,
    what_waits_for_nixl_is_sent_by_whoever_only_flushes,
);

on_tcp!(
    an_agent_that_never_connected_is_heard_and_its_name_counts_for_nothing,
    what_is_longer_than_the_limit_is_refused_or_dropped_and_counted,
    nixl_is_asked_for_no_more_while_the_inbox_is_full,
    a_name_that_is_no_text_harms_nobody,
    a_busy_progress_thread_is_not_offered,
);

/// Not a test of its own.
#[test]
fn a_peer_for_the_others() {
    obey();
}

fn any_bytes_arrive_unchanged() {
    let (mut from, mut to, peer) = pair();
    let max = from.capabilities().max_notification;
    let payloads =
        [vec![], vec![0], vec![0; 100], b"a\0b".to_vec(), vec![0xff, 0xfe, 0xc0], (0..=255).collect(), vec![0x80; max]];
    for payload in payloads {
        from.notify(peer, &payload).unwrap();
        assert!(hear(&mut from, &mut to) == Got::Message(payload));
    }
}

fn no_order_is_stated_and_none_of_many_comes_twice_or_is_missed() {
    const MANY: u32 = 10_000;
    let (mut from, mut process) = (transport(), Process::start());
    assert!(!from.capabilities().ordered);
    let peer = connect(&mut from, &process.metadata);
    let mut unsent = 0..MANY;
    let heard = process.heard_while(MANY as usize, || {
        unsent.by_ref().take(64).for_each(|n| from.notify(peer, &n.to_le_bytes()).unwrap());
        assert_eq!(poll(&mut from), None);
    });
    let numbers: Vec<u32> = heard.iter().map(|bytes| u32::from_le_bytes(bytes[..].try_into().unwrap())).collect();
    let distinct: BTreeSet<u32> = numbers.iter().copied().collect();
    assert_eq!((numbers.len(), distinct), (MANY as usize, (0..MANY).collect()));
    println!("seen: {} inversions in {MANY}", numbers.windows(2).filter(|pair| pair[0] > pair[1]).count());
}

/// Sends one to a peer in another process and lets `step` do what it takes until it has arrived.
fn the_first_leaves_by(mut from: NixlTransport, mut step: impl FnMut(&mut NixlTransport)) {
    let mut process = Process::start();
    let peer = connect(&mut from, &process.metadata);
    from.notify(peer, b"first").unwrap();
    assert_eq!(process.heard_while(1, || step(&mut from)), [b"first"]);
}

fn the_first_notification_leaves_while_the_sender_only_polls() {
    the_first_leaves_by(transport(), |from| assert_eq!(poll(from), None));
}

fn the_first_notification_leaves_while_the_sender_only_flushes() {
    the_first_leaves_by(transport(), |from| from.flush(Duration::from_millis(1)).unwrap());
}

fn a_progress_thread_sends_while_the_sender_does_nothing() {
    the_first_leaves_by(with(NixlConfig { progress: Some(Duration::from_millis(1)), ..NixlConfig::default() }), |_| {});
}

fn a_busy_progress_thread_is_not_offered() {
    let error = NixlTransport::new(NixlConfig { progress: Some(Duration::ZERO), ..NixlConfig::default() }).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("progress"), "{error}");
}

/// Long enough for a machine that has other things to do.
fn patient() -> NixlTransport {
    with(NixlConfig { close_timeout: Duration::from_secs(3), ..NixlConfig::default() })
}

fn what_was_accepted_is_sent_by_whoever_leaves_at_once() {
    let mut process = Process::start();
    for n in 0..3 {
        let mut from = patient();
        let peer = connect(&mut from, &process.metadata);
        let size = if n % 2 == 0 { 16 } else { 60_000 };
        (0..20).for_each(|_| from.notify(peer, &vec![n; size]).unwrap());
        drop(from);
        assert_eq!(process.heard(20 * (usize::from(n) + 1)).len(), 20 * (usize::from(n) + 1));
    }
}

fn what_waits_for_nixl_is_sent_by_whoever_only_flushes() {
    let (mut from, mut to, peer) = pair();
    let other = transport();
    common::dial(&mut from, other.local_metadata());
    assert_eq!(poll(&mut from), None);
    from.notify(peer, b"waits").unwrap();
    assert_eq!(from.in_flight(peer), 1);
    let got = until("it to arrive", || {
        from.flush(Duration::from_millis(1)).unwrap();
        poll(&mut to)
    });
    assert_eq!((got, from.in_flight(peer)), (Got::Message(b"waits".to_vec()), 0));
}

/// NIXL is busy with another connection meanwhile.
fn what_waits_for_nixl_is_sent_by_whoever_leaves_at_once() {
    let (mut from, mut process, other) = (patient(), Process::start(), transport());
    let peer = connect(&mut from, &process.metadata);
    common::dial(&mut from, other.local_metadata());
    assert_eq!(poll(&mut from), None);
    from.notify(peer, b"last words").unwrap();
    assert_eq!(from.in_flight(peer), 1);
    drop(from);
    assert_eq!(process.heard(1), [b"last words"]);
}

fn an_agent_that_never_connected_is_heard_and_its_name_counts_for_nothing() {
    let (mut from, mut to, peer) = pair();
    // One by a name of its own, and one that calls itself what another is called.
    for name in ["stranger", from.agent_name()] {
        let stranger = foreign::agent(name);
        foreign::send(&stranger, &to, b"let me in");
        let got = until("the stranger", || {
            foreign::heard(&stranger);
            poll(&mut to)
        });
        // `poll` has seen to it that nobody is named.
        assert_eq!(got, Got::Message(b"let me in".to_vec()));
    }
    // It is bytes, and nothing else has come of it.
    from.notify(peer, b"still me").unwrap();
    assert_eq!(hear(&mut from, &mut to), Got::Message(b"still me".to_vec()));
    assert_eq!((poll(&mut to), to.refused()), (None, 0));
}

fn what_is_longer_than_the_limit_is_refused_or_dropped_and_counted() {
    let mut to = with(NixlConfig { max_notification: 100, ..NixlConfig::default() });
    let mut from = transport();
    let peer = connect(&mut from, to.local_metadata());
    let stranger = foreign::agent("stranger");
    for (n, length) in [101, 60_000, 16 << 20].into_iter().enumerate() {
        foreign::send(&stranger, &to, &vec![1; length]);
        until("it to be dropped", || {
            foreign::heard(&stranger);
            assert_eq!(poll(&mut to), None);
            (to.refused() == n as u64 + 1).then_some(())
        });
    }
    from.notify(peer, &[2; 100]).unwrap();
    assert_eq!(hear(&mut from, &mut to), Got::Message(vec![2; 100]));
    let max = from.capabilities().max_notification;
    assert_eq!(from.notify(peer, &vec![3; max + 1]).unwrap_err().kind(), ErrorKind::TooLarge);
}

fn nixl_is_asked_for_no_more_while_the_inbox_is_full() {
    let mut to = with(NixlConfig { max_inbox: 1, ..NixlConfig::default() });
    let mut from = transport();
    let peer = connect(&mut from, to.local_metadata());
    let has_something = |to: &NixlTransport| to.next_timeout() == Some(Duration::ZERO);
    from.notify(peer, b"1").unwrap();
    until("the first", || {
        assert_eq!(poll(&mut from), None);
        to.flush(Duration::ZERO).unwrap();
        has_something(&to).then_some(())
    });
    from.notify(peer, b"2").unwrap();
    for _ in 0..10_000 {
        assert_eq!(poll(&mut from), None);
        to.flush(Duration::ZERO).unwrap();
    }
    // Were the second one there, it would be next.
    assert_eq!(poll(&mut to), Some(Got::Message(b"1".to_vec())));
    assert!(!has_something(&to));
    assert_eq!(hear(&mut from, &mut to), Got::Message(b"2".to_vec()));
}

/// nixl-sys takes no such name, but other programs may.
fn a_name_that_is_no_text_harms_nobody() {
    let (mut from, mut to, peer) = pair();
    for name in [&b"\xff\xfe"[..], b"\xc3", b"a\x80b"] {
        let mut stranger = foreign::raw::Raw::new(name);
        stranger.send(&to, b"who am i?");
        for _ in 0..1000 {
            stranger.step();
            // Heard or not, it is no more than bytes.
            let got = poll(&mut to);
            assert!(matches!(&got, None | Some(Got::Message(_))), "{got:?}");
        }
        from.notify(peer, b"me").unwrap();
        assert_eq!(hear(&mut from, &mut to), Got::Message(b"me".to_vec()));
    }
}
