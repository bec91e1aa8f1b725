//! Notifications.

use std::{thread, time::Instant};

use lease_proto::transport::Control as _;
use transport_ucx::{UcxConfig, UcxError, UcxThread};

use crate::{
    common::{Got, config, until},
    harness::*,
    on_every_lane,
};

on_every_lane!(
    any_bytes_of_any_length_arrive_unchanged,
    a_longer_notification_than_the_receiver_allows_is_dropped_and_counted,
    thousands_arrive_in_order_none_lost_none_doubled,
    a_receiver_that_never_polls_holds_the_sender_back,
    both_directions_at_once,
);

fn any_bytes_of_any_length_arrive_unchanged(lane: &str) {
    let config = UcxConfig { max_notification: 1 << 20, ..config(lane) };
    let (mut from, mut to) = (UcxThread::spawn(config.clone()).unwrap(), UcxThread::spawn(config).unwrap());
    let peer = connect(&mut from, &mut to);
    for length in [0, 1, 255, 5_000, 64 << 10, 1 << 20] {
        let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        from.notify(peer, &bytes).unwrap();
        assert!(next(&mut to) == Got::Message(bytes));
    }
    let error = from.notify(peer, &vec![0; (1 << 20) + 1]).unwrap_err();
    assert_eq!(error, UcxError::TooLarge { got: (1 << 20) + 1, max: 1 << 20 });
}

fn a_longer_notification_than_the_receiver_allows_is_dropped_and_counted(lane: &str) {
    let mut from = spawn(lane);
    let mut to = UcxThread::spawn(UcxConfig { max_notification: 100, ..config(lane) }).unwrap();
    let peer = connect(&mut from, &mut to);
    for length in [100, 101, 60_000, 99] {
        from.notify(peer, &vec![1; length]).unwrap();
    }
    assert_eq!(next(&mut to), Got::Message(vec![1; 100]));
    assert_eq!(next(&mut to), Got::Message(vec![1; 99]));
    until("both to be counted", || (to.refused() == 2).then_some(()));
}

fn thousands_arrive_in_order_none_lost_none_doubled(lane: &str) {
    let (mut from, mut to, peer) = pair(lane);
    let receiver = thread::spawn(move || {
        for expected in 0..2000 {
            assert!(next(&mut to) == Got::Message(numbered(expected)), "message {expected} is not the next");
        }
        assert_eq!(next(&mut to), Got::Message(b"last".to_vec()));
        to
    });
    for n in 0..2000 {
        until("room", || offer(&mut from, peer, &numbered(n)).ok());
    }
    until("room", || offer(&mut from, peer, b"last").ok());
    let mut to = receiver.join().unwrap();
    assert_eq!((poll(&mut from), poll(&mut to)), (None, None));
    until("all to have left", || (from.in_flight(peer) == 0).then_some(()));
}

/// Nothing is dropped, on whichever side of the queues it waits.
fn a_receiver_that_never_polls_holds_the_sender_back(lane: &str) {
    let narrow = UcxConfig { max_inbox_messages: 3, max_in_flight_ops: 20, ..config(lane) };
    let (mut from, mut to) = (UcxThread::spawn(narrow.clone()).unwrap(), UcxThread::spawn(narrow).unwrap());
    let peer = connect(&mut from, &mut to);
    // The fabric takes some; without a bound this would not end.
    let mut sent = 0;
    let mut since = Instant::now();
    until("the bound", || {
        assert!(from.in_flight(peer) <= 20);
        if offer(&mut from, peer, &numbered(sent)).is_ok() {
            sent += 1;
            since = Instant::now();
        }
        (since.elapsed().as_millis() > 300).then_some(())
    });
    for expected in 0..sent {
        assert!(next(&mut to) == Got::Message(numbered(expected)), "message {expected} is not the next");
    }
    until("all to have left", || (from.in_flight(peer) == 0).then_some(()));
    assert_eq!(poll(&mut to), None);
}

fn both_directions_at_once(lane: &str) {
    let (mut a, mut b, to_b) = pair(lane);
    let to_a = connect(&mut b, &mut a);
    let swap = |mut handle: UcxThread, peer| {
        thread::spawn(move || {
            let mut sent = 0;
            for expected in 0..500 {
                until("the next", || {
                    while sent < 500 && offer(&mut handle, peer, &numbered(sent)).is_ok() {
                        sent += 1;
                    }
                    let got = poll(&mut handle)?;
                    assert!(got == Got::Message(numbered(expected)), "message {expected} is not the next");
                    Some(())
                });
            }
            (handle, sent)
        })
    };
    let threads = [swap(a, to_b), swap(b, to_a)];
    // Both handles live until both are done.
    let _both = threads.map(|thread| thread.join().unwrap());
}

/// A message whose length and bytes follow from its number; some take several packets.
fn numbered(n: u32) -> Vec<u8> {
    let length = 4 + [0, 10, 300, 9_000, 20_000, 60_000][n as usize % 6];
    let mut bytes = vec![n as u8; length];
    bytes[..4].copy_from_slice(&n.to_le_bytes());
    bytes
}
