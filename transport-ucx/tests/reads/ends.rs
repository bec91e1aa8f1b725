//! Each read ends once, whatever goes.

use std::any::Any;

use gpu_mem::Memory;
use lease_proto::{
    frame::Frame,
    transport::{Control as _, Data as _, ErrorKind},
};

use crate::{
    common::{Got, POISON, TOKEN, connect, expected, given_back, poll, range, until},
    on_every_lane,
    world::{KIB, MIB, SERVED, World},
};

on_every_lane!(
    each_read_ends_once_when_the_peer_is_disconnected_and_nothing_lands_later,
    each_read_ends_once_when_the_owner_goes,
    memory_comes_back_in_whatever_order_things_are_dropped,
);

fn each_read_ends_once_when_the_peer_is_disconnected_and_nothing_lands_later(lane: &str) {
    let mut world = World::new(lane, 12 * MIB);
    let mut failed = 0;
    for steps in (0..12).chain([15, 20, 30, 50, 100, 200]) {
        let reads: Vec<_> = [4 * MIB, 16 * KIB, 300 * KIB, 100]
            .into_iter()
            .zip([0, 5, 6, 7])
            .map(|(length, at)| world.read(&[range(1, length)], at * MIB))
            .collect();
        let mut early = Vec::new();
        for _ in 0..steps {
            early.extend(world.step());
        }
        world.reader.disconnect(world.peer);
        let open =
            reads.iter().copied().filter(|read| !early.iter().any(|got| matches!(got, Got::Read(done, _) if done == read)));
        let results = world.all_done(open.collect());
        failed += results.len();
        // Those that had ended before it was disconnected may be told afterwards.
        assert!(results.iter().all(|result| matches!(*result, Err(ErrorKind::NotConnected) | SERVED)), "{results:?}");
        // The destination is ours again.
        let all = world.into.len();
        world.into.memory().copy_in(0, &vec![POISON; all]).unwrap();
        world.settle();
        world.peer = connect(&mut world.reader, &mut world.owner);
        assert!(world.landed(0, all as u64).iter().all(|byte| *byte == POISON), "{steps} steps: something landed after the end");
        let read = world.read(&[range(9, 3 * MIB)], 0);
        assert_eq!(world.done(read), SERVED);
        assert!(world.landed(0, 3 * MIB) == expected(&[range(9, 3 * MIB)]));
    }
    assert!(failed > 20, "only {failed} reads were open");
}

fn each_read_ends_once_when_the_owner_goes(lane: &str) {
    for steps in [0, 1, 2, 3, 4, 6, 10, 20, 50] {
        let World { mut reader, mut owner, peer, region, exported, into } = World::new(lane, 12 * MIB);
        let frame = Frame::decode(&exported).unwrap();
        let reads = [(4 * MIB, 0), (16 * KIB, 5), (300 * KIB, 6), (100, 7)];
        let mut open =
            reads.map(|(length, at)| reader.read(peer, TOKEN, frame, &[range(1, length)], &into, at * MIB).unwrap()).to_vec();
        let mut ended = |got: Option<Got>| {
            if let Some(Got::Read(read, result)) = got {
                let at = open.iter().position(|open| *open == read).expect("a read ends once");
                assert!(matches!(result, SERVED | Err(ErrorKind::PeerLost | ErrorKind::NotConnected)), "{result:?}");
                open.remove(at);
            }
            open.is_empty()
        };
        for _ in 0..steps {
            poll(&mut owner);
            ended(poll(&mut reader));
        }
        drop(owner);
        // Over shared memory UCX only looks whether the process lives, and this one does.
        if lane == "shm" {
            reader.disconnect(peer);
        }
        if !ended(None) {
            until("every read to end", || ended(poll(&mut reader)).then_some(()));
        }
        let (memory, destination) = (region.memory().clone(), into.memory().clone());
        drop((region, into));
        given_back(destination, || drop(poll(&mut reader)));
        given_back(memory, || drop(poll(&mut reader)));
    }
}

fn memory_comes_back_in_whatever_order_things_are_dropped(lane: &str) {
    for order in 0..24 {
        let World { mut reader, mut owner, peer, region, exported, into } = World::new(lane, 6 * MIB);
        let frame = Frame::decode(&exported).unwrap();
        for (length, at) in [(4 * MIB, 0), (16 * KIB, 4), (300 * KIB, 5)] {
            reader.read(peer, TOKEN, frame, &[range(1, length)], &into, at * MIB).unwrap();
        }
        // Asked, being served, being fetched.
        let steps = [0, 1, 3, 8][order % 4];
        for _ in 0..steps {
            poll(&mut owner);
            poll(&mut reader);
        }
        let memories: [Memory; 2] = [region.memory().clone(), into.memory().clone()];
        let mut things: Vec<Box<dyn Any>> = vec![Box::new(reader), Box::new(owner), Box::new(region), Box::new(into)];
        let mut left = order / 4 + order % 4 * 6;
        while !things.is_empty() {
            let sides = things.len();
            drop(things.remove(left % sides));
            left /= sides;
        }
        for (memory, whose) in memories.into_iter().zip(["the owner", "the reader"]) {
            assert!(memory.try_into_slab().is_ok(), "{whose}'s memory is not given back: order {order}, {steps} steps");
        }
    }
}
