//! Notifications between two transports of one thread.

mod common;

use common::{Got, config, connect, pair, poll, transport, until};
use lease_proto::{
    time::Duration,
    transport::{Control as _, Error as _, ErrorKind, PeerId},
};
use transport_ucx::{UcxConfig, UcxError, UcxTransport};

on_every_lane!(
    every_byte_value_arrives_unchanged,
    an_empty_notification_arrives,
    the_largest_arrives_and_one_byte_more_is_refused,
    thousands_arrive_in_order_none_lost_none_doubled,
    a_receiver_that_never_polls_holds_the_sender_back,
    a_full_inbox_holds_the_sender_back_and_drops_nothing,
    a_longer_notification_than_the_receiver_allows_is_dropped_and_counted,
    both_directions_at_once,
);

fn every_byte_value_arrives_unchanged(lane: &str) {
    let (mut from, mut to, peer) = pair(lane);
    let all: Vec<u8> = (0..=255).collect();
    for bytes in all.iter().map(std::slice::from_ref).chain([&all[..]]) {
        from.notify(peer, bytes).unwrap();
        assert_eq!(arrival(&mut from, &mut to), bytes);
    }
}

fn an_empty_notification_arrives(lane: &str) {
    let (mut from, mut to, peer) = pair(lane);
    from.notify(peer, &[]).unwrap();
    assert_eq!(arrival(&mut from, &mut to), []);
}

fn the_largest_arrives_and_one_byte_more_is_refused(lane: &str) {
    for max in [64 << 10, 1 << 20] {
        let config = UcxConfig { max_notification: max, ..config(lane) };
        let (mut from, mut to) = (UcxTransport::new(config.clone()).unwrap(), UcxTransport::new(config).unwrap());
        let peer = connect(&mut from, &mut to);
        assert_eq!(from.capabilities().max_notification, max);
        let largest: Vec<u8> = (0..max).map(|at| (at % 251) as u8).collect();
        from.notify(peer, &largest).unwrap();
        assert!(arrival(&mut from, &mut to) == largest);
        let error = from.notify(peer, &vec![0; max + 1]).unwrap_err();
        assert_eq!((error.kind(), error), (ErrorKind::TooLarge, UcxError::TooLarge { got: max + 1, max }));
        assert_eq!((to.refused(), poll(&mut to)), (0, None));
    }
}

fn thousands_arrive_in_order_none_lost_none_doubled(lane: &str) {
    let (mut from, mut to, peer) = pair(lane);
    let mut sent = 0;
    for expected in 0..2000 {
        let got = until("the next of thousands", || {
            while sent < 2000 && send(&mut from, peer, &numbered(sent)) {
                sent += 1;
            }
            assert_eq!(poll(&mut from), None);
            poll(&mut to)
        });
        assert!(got == Got::Message(numbered(expected)), "message {expected} is not the next");
    }
    assert_eq!(settled(&mut from, &mut to, peer), []);
}

fn a_receiver_that_never_polls_holds_the_sender_back(lane: &str) {
    let (mut from, mut to, peer) = pair(lane);
    let bound = config(lane).max_in_flight_ops;
    let mut sent = 0;
    // The fabric takes some, the bound the rest; without a bound this would not end.
    let error = until("the bound", || {
        from.flush(Duration::from_millis(1)).unwrap();
        assert!(from.in_flight(peer) <= bound);
        from.notify(peer, &numbered(sent)).map(|()| sent += 1).err()
    });
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!((sent as usize) < 100 * bound, "{sent} notifications were taken");
    for expected in 0..sent {
        assert!(arrival(&mut from, &mut to) == numbered(expected), "message {expected} is not the next");
    }
    assert_eq!(settled(&mut from, &mut to, peer), []);
    assert_eq!(from.in_flight(peer), 0);
}

fn a_full_inbox_holds_the_sender_back_and_drops_nothing(lane: &str) {
    let mut from = transport(lane);
    let mut to = UcxTransport::new(UcxConfig { max_inbox_messages: 1, ..config(lane) }).unwrap();
    let peer = connect(&mut from, &mut to);
    let back = connect(&mut to, &mut from);
    let mut sent = 0;
    let error = until("the bound", || {
        // Has something to send, so that its flush takes from the fabric what is there, but never polls.
        while to.notify(back, &[0; 1000]).is_ok() {}
        to.flush(Duration::from_millis(1)).unwrap();
        from.flush(Duration::from_millis(1)).unwrap();
        from.notify(peer, &numbered(sent)).map(|()| sent += 1).err()
    });
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    for expected in 0..sent {
        let got = until("the next notification", || {
            poll(&mut from);
            poll(&mut to)
        });
        assert!(got == Got::Message(numbered(expected)), "message {expected} is not the next");
    }
}

fn a_longer_notification_than_the_receiver_allows_is_dropped_and_counted(lane: &str) {
    let mut from = transport(lane);
    let mut to = UcxTransport::new(UcxConfig { max_notification: 100, ..config(lane) }).unwrap();
    let peer = connect(&mut from, &mut to);
    for length in [100, 101, 60_000, 99] {
        from.notify(peer, &vec![1; length]).unwrap();
    }
    assert_eq!(arrival(&mut from, &mut to).len(), 100);
    assert_eq!(arrival(&mut from, &mut to).len(), 99);
    assert_eq!(to.refused(), 2);
}

fn both_directions_at_once(lane: &str) {
    let (mut a, mut b, to_b) = pair(lane);
    let to_a = connect(&mut b, &mut a);
    let (mut at_a, mut at_b) = (0, 0);
    for n in 0..200 {
        a.notify(to_b, &numbered(n)).unwrap();
        b.notify(to_a, &numbered(n)).unwrap();
        until("both", || {
            for (transport, arrived) in [(&mut a, &mut at_a), (&mut b, &mut at_b)] {
                if let Some(got) = poll(transport) {
                    assert!(got == Got::Message(numbered(*arrived)));
                    *arrived += 1;
                }
            }
            (at_a > n && at_b > n).then_some(())
        });
    }
}

/// A message whose length and bytes follow from its number; some take several packets.
fn numbered(n: u32) -> Vec<u8> {
    let length = 4 + [0, 10, 300, 9_000, 20_000, 60_000][n as usize % 6];
    let mut bytes = vec![n as u8; length];
    bytes[..4].copy_from_slice(&n.to_le_bytes());
    bytes
}

fn send(from: &mut UcxTransport, peer: PeerId, bytes: &[u8]) -> bool {
    match from.notify(peer, bytes) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            false
        }
    }
}

fn arrival(from: &mut UcxTransport, to: &mut UcxTransport) -> Vec<u8> {
    let got = until("a notification", || {
        assert_eq!(poll(from), None);
        poll(to)
    });
    match got {
        Got::Message(bytes) => bytes,
        other => panic!("expected a notification, got {other:?}"),
    }
}

/// What else comes in before a last message.
fn settled(from: &mut UcxTransport, to: &mut UcxTransport, peer: PeerId) -> Vec<Got> {
    from.notify(peer, b"last").unwrap();
    let mut others = Vec::new();
    until("the last message", || {
        poll(from);
        let got = poll(to)?;
        let last = got == Got::Message(b"last".to_vec());
        if !last {
            others.push(got);
        }
        last.then_some(())
    });
    others
}
