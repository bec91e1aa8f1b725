//! What is read is what was there, and what cannot be read is refused.

use lease_proto::{
    frame::{Frame, HEADER},
    id::{Incarnation, Token},
    transport::{Control as _, Data as _, Error as _, ErrorKind, PeerId, Range, Reads},
};
use transport_ucx::{UcxConfig, UcxError};

use crate::{
    common::{
        Got, POISON, TOKEN, bytes_of, config, connect, expected, exported, patterned, poll, range, transport, until, zeroed,
    },
    on_every_lane,
    world::{KIB, MIB, SERVED, World},
};

on_every_lane!(
    what_is_read_is_what_was_there,
    ranges_arrive_one_after_the_other_however_they_lie,
    as_many_reads_as_are_allowed_are_open_and_one_more_would_block,
    two_readers_of_one_owner_get_their_own_bytes,
    one_reader_of_two_owners_gets_the_bytes_of_each,
    a_transport_can_read_from_itself,
    what_cannot_be_read_is_refused_and_nothing_moves,
);

fn what_is_read_is_what_was_there(lane: &str) {
    let around = |n: u64| [n - 1, n, n + 1];
    let sizes = [1, 2, 7, 4096, 8 * MIB, 16 * MIB].into_iter();
    let sizes = sizes.chain([8 * KIB, 16 * KIB, MIB, 2 * MIB].into_iter().flat_map(around));
    let mut world = World::new(lane, 16 * MIB + 100);
    for length in sizes {
        for (offset, at) in [(0, 0), (3, 64), (77, 1)] {
            let all = world.into.len();
            world.into.memory().copy_in(0, &vec![POISON; all]).unwrap();
            let ranges = [range(offset, length)];
            let read = world.read(&ranges, at);
            assert_eq!(world.done(read), SERVED);
            assert!(world.landed(at, length) == expected(&ranges), "{length} bytes at {offset}");
            let (before, behind) = (world.landed(0, at), world.landed(at + length, all as u64 - at - length));
            assert!(before.iter().chain(&behind).all(|byte| *byte == POISON), "{length} bytes at {offset} wrote beside");
        }
    }
    world.settle();
    assert_eq!((world.reader.refused(), world.owner.refused()), (0, 0));
}

fn ranges_arrive_one_after_the_other_however_they_lie(lane: &str) {
    let mut world = World::new(lane, 4 * MIB);
    let apart = |n: u64| range(n * 4001 % (2 * MIB), 1 + n % 97);
    let lists: [Vec<Range>; 9] = [
        (0..127).map(apart).collect(),
        (0..128).map(apart).collect(),
        (0..129).map(apart).collect(),
        (0..1000).map(apart).collect(),
        (0..700).rev().map(apart).collect(),
        // Adjacent; overlapping; each again.
        (0..500).map(|n| range(n * 33, 33)).collect(),
        (0..500).map(|n| range(n * 10, 300)).collect(),
        (0..300).map(|n| range(5 + n % 3, 9000)).collect(),
        // Many, each longer than what is copied, and of more than one piece.
        vec![range(3 * MIB + 1, MIB - 1), range(1, 17 * KIB), range(MIB, MIB + 9), range(0, 1), range(2 * MIB + 7, 40 * KIB)],
    ];
    for ranges in lists {
        let wanted = expected(&ranges);
        let read = world.read(&ranges, 13);
        assert_eq!(world.done(read), SERVED);
        let got = world.landed(13, wanted.len() as u64);
        assert!(
            got == wanted,
            "{} ranges: first wrong byte {:?}",
            ranges.len(),
            got.iter().zip(&wanted).position(|(a, b)| a != b)
        );
    }
}

fn as_many_reads_as_are_allowed_are_open_and_one_more_would_block(lane: &str) {
    for most in [1, 3, 256] {
        let mut world = World::with(UcxConfig { max_reads: most, ..config(lane) }, config(lane), MIB);
        for length in [1, 3 * KIB] {
            let reads: Vec<_> = (0..most as u64).map(|n| world.read(&[range(n, length)], n * 4 * KIB)).collect();
            let error = world.try_read(TOKEN, &[range(0, 1)], 0).unwrap_err();
            assert_eq!((error.kind(), error), (ErrorKind::WouldBlock, UcxError::Reads { open: most }));
            assert!(world.all_done(reads).into_iter().all(|result| result == SERVED));
            for n in 0..most as u64 {
                assert_eq!(world.landed(n * 4 * KIB, length), expected(&[range(n, length)]));
            }
        }
    }
}

fn two_readers_of_one_owner_get_their_own_bytes(lane: &str) {
    let mut first = World::new(lane, 6 * MIB);
    let mut second = transport(lane);
    let peer = connect(&mut second, &mut first.owner);
    let into = second.register(zeroed(first.into.len())).unwrap();
    for _ in 0..5 {
        let a: Vec<_> = (0..3).map(|n| first.read(&[range(n, 2 * MIB)], n * 2 * MIB)).collect();
        let region = Frame::decode(&first.exported).unwrap();
        let b = [0, 3].map(|n| second.read(peer, TOKEN, region, &[range(100 + n, 3 * MIB)], &into, n * MIB).unwrap());
        let mut ended = Vec::new();
        until("the second reader", || {
            if let Some(got) = poll(&mut second) {
                ended.push(got);
            }
            poll(&mut first.owner);
            (ended.len() == 2).then_some(())
        });
        assert!(b.iter().all(|read| ended.contains(&Got::Read(*read, SERVED))));
        assert!(first.all_done(a).into_iter().all(|result| result == SERVED));
        for n in 0..3 {
            assert!(first.landed(n * 2 * MIB, 2 * MIB) == expected(&[range(n, 2 * MIB)]));
        }
        for n in [0, 3] {
            let got = bytes_of(into.memory(), (n * MIB) as usize, 3 << 20);
            assert!(got == expected(&[range(100 + n, 3 * MIB)]));
        }
    }
}

fn one_reader_of_two_owners_gets_the_bytes_of_each(lane: &str) {
    let mut world = World::new(lane, 6 * MIB);
    let mut other = transport(lane);
    let peer = connect(&mut world.reader, &mut other);
    let memory = zeroed(3 << 20);
    memory.copy_in(0, &vec![0xaa; 3 << 20]).unwrap();
    let region = other.register(memory).unwrap();
    let bytes = exported(&mut other, &region);
    // Other tokens, too, for each knows only its own.
    let token = Token { number: 9, nonce: 9 };
    other.permits().permit(token);
    for length in [5 * KIB, 3 * MIB] {
        let a = world.read(&[range(1, length)], 0);
        let region = Frame::decode(&bytes).unwrap();
        let b = world.reader.read(peer, token, region, &[range(0, length)], &world.into, 3 * MIB).unwrap();
        let wrong = [
            world.reader.read(peer, TOKEN, region, &[range(0, 1)], &world.into, 0).unwrap(),
            world.try_read(token, &[range(0, 1)], 0).unwrap(),
        ];
        let mut open = vec![a, b, wrong[0], wrong[1]];
        until("all four", || {
            poll(&mut other);
            if let Some(Got::Read(read, result)) = world.step() {
                assert_eq!(result, if wrong.contains(&read) { Err(ErrorKind::Rejected) } else { SERVED });
                open.retain(|open| *open != read);
            }
            open.is_empty().then_some(())
        });
        assert!(world.landed(0, length) == expected(&[range(1, length)]));
        assert!(world.landed(3 * MIB, length).iter().all(|byte| *byte == 0xaa));
    }
    drop(region);
}

fn a_transport_can_read_from_itself(lane: &str) {
    let mut alone = transport(lane);
    let metadata = crate::common::framed(alone.local_metadata());
    alone.connect(Frame::decode(&metadata).unwrap()).unwrap();
    let Got::Connected(_, peer) = until("the connection", || poll(&mut alone)) else { panic!("expected a connection") };
    let (from, into) = (alone.register(patterned(3 << 20)).unwrap(), alone.register(zeroed(3 << 20)).unwrap());
    let bytes = exported(&mut alone, &from);
    alone.permits().permit(TOKEN);
    for length in [1, 16 * KIB, 3 * MIB - 1] {
        let read = alone.read(peer, TOKEN, Frame::decode(&bytes).unwrap(), &[range(1, length)], &into, 0).unwrap();
        assert_eq!(until("the read", || poll(&mut alone)), Got::Read(read, SERVED));
        assert!(bytes_of(into.memory(), 0, length as usize) == expected(&[range(1, length)]));
    }
}

fn what_cannot_be_read_is_refused_and_nothing_moves(lane: &str) {
    let mut world = World::new(lane, 100 * KIB);
    assert_eq!(world.reader.capabilities().reads, Reads::OwnerServed);
    let length = 100 * KIB;
    let one = [range(0, 1)];
    let wrong: [(&[Range], u64); 12] = [
        (&[], 0),
        (&[range(0, 0)], 0),
        (&[range(5, 0)], 0),
        (&[range(0, 1), range(1, 0)], 0),
        (&[range(0, length + 1)], 0),
        (&[range(length, 1)], 0),
        (&[range(0, 1), range(length - 1, 2)], 0),
        (&[range(u64::MAX, 1)], 0),
        (&[range(1, u64::MAX)], 0),
        (&[range(0, length), range(0, 1)], 0),
        (&one, length),
        (&one, u64::MAX),
    ];
    for (ranges, at) in wrong {
        let error = world.try_read(TOKEN, ranges, at).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{ranges:?} into {at}: {error}");
    }
    // A region of another life, of another transport, cut, and with more behind it.
    let whole = Frame::decode(&world.exported).unwrap().payload().to_vec();
    let mut framed = vec![0; 4096];
    let payloads = [whole[..28].to_vec(), b"ucx".to_vec(), [b"ucx", &whole[3..]].concat(), vec![]];
    let others = payloads.iter().map(|payload| (7, payload)).chain([(8, &whole)]);
    for (incarnation, payload) in others {
        let n = Frame::encode(Incarnation(incarnation), payload, &mut framed).unwrap();
        let region = Frame::decode(&framed[..n]).unwrap();
        let error = world.reader.read(world.peer, TOKEN, region, &one, &world.into, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let region = Frame::decode(&world.exported).unwrap();
    let stranger = PeerId(world.peer.0 + 1);
    assert_eq!(world.reader.read(stranger, TOKEN, region, &one, &world.into, 0), Err(UcxError::NotConnected));
    // Nobody can register for one lease here, so nothing needs to be kept from being read into.
    assert_eq!(world.reader.register_fenced(zeroed(1)).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(world.reader.fence(&world.into).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(world.owner.export(&world.region, Incarnation(7), &mut [0; HEADER]).unwrap_err().kind(), ErrorKind::TooLarge);
    world.settle();
    assert!(world.landed(0, length).iter().all(|byte| *byte == 0));
    world.reader.disconnect(world.peer);
    assert_eq!(world.try_read(TOKEN, &one, 0), Err(UcxError::NotConnected));
}
