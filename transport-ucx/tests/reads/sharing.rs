//! Readers beside each other, and beside notifications.

use lease_proto::{
    frame::Frame,
    transport::{Control as _, Data as _},
};
use transport_ucx::{Region, UcxConfig, UcxTransport};

use crate::{
    common::{Got, TOKEN, bytes_of, config, connect, expected, poll, range, transport, until, zeroed},
    on_every_lane,
    world::{KIB, MIB, SERVED, World},
};

on_every_lane!(
    an_owner_that_serves_one_at_a_time_serves_all,
    readers_that_take_nothing_hold_no_other_up,
    notifications_keep_their_order_among_reads,
);

fn an_owner_that_serves_one_at_a_time_serves_all(lane: &str) {
    let mut world = World::with(config(lane), UcxConfig { max_serving: 1, ..config(lane) }, 16 * MIB);
    let mut other = transport(lane);
    let peer = connect(&mut other, &mut world.owner);
    let into = other.register(zeroed(9 << 20)).unwrap();
    let theirs = other.read(peer, TOKEN, Frame::decode(&world.exported).unwrap(), &[range(1, 9 * MIB)], &into, 0).unwrap();
    let mut reads = vec![world.read(&[range(3, 8 * MIB)], 0)];
    reads.extend((0..200).map(|n| world.read(&[range(n, 20 * KIB)], 8 * MIB + n * 20 * KIB)));
    let mut theirs_ended = None;
    until("the other reader, and then these", || {
        theirs_ended = theirs_ended.take().or(poll(&mut other));
        if let Some(Got::Read(read, result)) = world.step() {
            assert_eq!(result, SERVED);
            reads.retain(|open| *open != read);
        }
        (reads.is_empty() && theirs_ended.is_some()).then_some(())
    });
    assert_eq!(theirs_ended, Some(Got::Read(theirs, SERVED)));
    assert!(bytes_of(into.memory(), 0, 9 << 20) == expected(&[range(1, 9 * MIB)]));
    assert!(world.landed(0, 8 * MIB) == expected(&[range(3, 8 * MIB)]));
    for n in 0..200 {
        assert!(world.landed(8 * MIB + n * 20 * KIB, 20 * KIB) == expected(&[range(n, 20 * KIB)]));
    }
}

/// A stopped reader cannot be told from a slow one, and there may be more of them than others.
fn readers_that_take_nothing_hold_no_other_up(lane: &str) {
    const SLOW: usize = 12;
    let mut world = World::new(lane, 16 * MIB);
    let mut slow: Vec<UcxTransport> = (0..SLOW).map(|_| transport(lane)).collect();
    let destinations: Vec<Region> = slow
        .iter_mut()
        .map(|slow| {
            let peer = connect(slow, &mut world.owner);
            let into = slow.register(zeroed(16 << 20)).unwrap();
            let frame = Frame::decode(&world.exported).unwrap();
            for n in 0..256 {
                // Too long to be copied.
                slow.read(peer, TOKEN, frame, &[range(n * 30_000, 65_537)], &into, n * 1000).unwrap();
            }
            into
        })
        .collect();
    for length in [1000, 4 * MIB] {
        let read = world.read(&[range(7, length)], 0);
        assert_eq!(world.done(read), SERVED, "{length} bytes");
    }
    drop((slow, destinations));
}

fn notifications_keep_their_order_among_reads(lane: &str) {
    let mut world = World::new(lane, 8 * MIB);
    let back = connect(&mut world.owner, &mut world.reader);
    let message = |n: u32| [&n.to_le_bytes()[..], &vec![n as u8; n as usize % 5 * 4000]].concat();
    let (mut sent, mut there, mut here, mut reads, mut open) = ([0, 0], 0, 0, 0, Vec::new());
    until("all notifications and reads", || {
        if sent[0] < 500 && world.reader.notify(world.peer, &message(sent[0])).is_ok() {
            sent[0] += 1;
        }
        if sent[1] < 500 && world.owner.notify(back, &message(sent[1])).is_ok() {
            sent[1] += 1;
        }
        let length = [1000, 100 * KIB, 2 * MIB][reads as usize % 3];
        if reads < 60 && open.len() < 3 {
            open.push((world.read(&[range(reads, length)], reads % 3 * 2 * MIB), reads, length));
            reads += 1;
        }
        match poll(&mut world.owner) {
            Some(Got::Message(bytes)) => {
                assert!(bytes == message(there), "notification {there} is not the next at the owner");
                there += 1;
            }
            got => assert_eq!(got, None),
        }
        match poll(&mut world.reader) {
            Some(Got::Message(bytes)) => {
                assert!(bytes == message(here), "notification {here} is not the next at the reader");
                here += 1;
            }
            Some(Got::Read(read, result)) => {
                let at = open.iter().position(|(open, ..)| *open == read).unwrap();
                let (_, n, length) = open.remove(at);
                assert_eq!(result, SERVED);
                // The place is used by one open read at a time.
                if !open.iter().any(|(_, m, _)| m % 3 == n % 3) {
                    assert!(world.landed(n % 3 * 2 * MIB, length) == expected(&[range(n, length)]));
                }
            }
            got => assert_eq!(got, None),
        }
        (there == 500 && here == 500 && reads == 60 && open.is_empty()).then_some(())
    });
}
