//! Reads between two transports of one thread, served by the owner. Because the owner moves only when it is polled here, each test
//! chooses the moment at which something happens to a read.

mod common;

use std::{any::Any, collections::HashMap, mem};

use common::{
    Dice, Got, POISON, TOKEN, bytes_of, config, connect, expected, exported, given_back, pair, pattern, patterned, poll, range,
    transport, until, zeroed,
};
use gpu_mem::Memory;
use lease_proto::{
    frame::{Frame, HEADER},
    id::{Incarnation, Token},
    transport::{Control as _, Data as _, Error as _, ErrorKind, Landed, PeerId, Range, ReadId, Reads},
};
use transport_ucx::{Region, UcxConfig, UcxError, UcxTransport};

on_every_lane!(
    what_is_read_is_what_was_there,
    ranges_arrive_one_after_the_other_however_they_lie,
    as_many_reads_as_are_allowed_are_open_and_one_more_would_block,
    two_readers_of_one_owner_get_their_own_bytes,
    one_reader_of_two_owners_gets_the_bytes_of_each,
    a_transport_can_read_from_itself,
    what_cannot_be_read_is_refused_and_nothing_moves,
    a_token_without_a_permit_reads_nothing,
    a_region_that_is_not_the_owners_is_not_read,
    a_read_that_ends_well_has_no_byte_from_after_the_withdrawal,
    a_read_that_ends_well_has_no_byte_from_after_the_end_of_the_region,
    blocks_that_are_used_again_by_another_thread_are_never_called_served,
    an_owner_that_serves_one_at_a_time_serves_all,
    readers_that_take_nothing_hold_no_other_up,
    notifications_keep_their_order_among_reads,
    each_read_ends_once_when_the_peer_is_disconnected_and_nothing_lands_later,
    each_read_ends_once_when_the_owner_goes,
    memory_comes_back_in_whatever_order_things_are_dropped,
    whatever_happens_each_read_ends_once_and_well_only_with_its_bytes,
);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SERVED: Result<Landed, ErrorKind> = Ok(Landed::Served);

/// A reader that is connected to an owner with a region that anybody with [`TOKEN`] may read.
struct World {
    reader: UcxTransport,
    owner: UcxTransport,
    peer: PeerId,
    region: Region,
    exported: Vec<u8>,
    into: Region,
}

impl World {
    fn new(lane: &str, length: u64) -> Self {
        Self::of(pair(lane), length)
    }

    fn with(reader: UcxConfig, owner: UcxConfig, length: u64) -> Self {
        let (mut reader, mut owner) = (UcxTransport::new(reader).unwrap(), UcxTransport::new(owner).unwrap());
        let peer = connect(&mut reader, &mut owner);
        Self::of((reader, owner, peer), length)
    }

    fn of((mut reader, mut owner, peer): (UcxTransport, UcxTransport, PeerId), length: u64) -> Self {
        let region = owner.register(patterned(length as usize)).unwrap();
        let exported = exported(&mut owner, &region);
        owner.permits().permit(TOKEN);
        let into = reader.register(zeroed(length as usize)).unwrap();
        Self { reader, owner, peer, region, exported, into }
    }

    fn try_read(&mut self, token: Token, ranges: &[Range], at: u64) -> Result<ReadId, UcxError> {
        let region = Frame::decode(&self.exported).unwrap();
        self.reader.read(self.peer, token, region, ranges, &self.into, at)
    }

    fn read(&mut self, ranges: &[Range], at: u64) -> ReadId {
        self.try_read(TOKEN, ranges, at).unwrap()
    }

    /// Polls both once, the owner first.
    fn step(&mut self) -> Option<Got> {
        assert_eq!(poll(&mut self.owner), None);
        poll(&mut self.reader)
    }

    /// How a read ends, which is what comes in next.
    fn done(&mut self, read: ReadId) -> Result<Landed, ErrorKind> {
        until("the read", || {
            self.step().map(|got| match got {
                Got::Read(done, result) if done == read => result,
                other => panic!("expected the end of {read:?}, got {other:?}"),
            })
        })
    }

    /// How all these reads end, which is all that comes in.
    fn all_done(&mut self, mut open: Vec<ReadId>) -> Vec<Result<Landed, ErrorKind>> {
        let mut results = HashMap::new();
        let reads = open.clone();
        until("the reads", || {
            if let Some(got) = self.step() {
                let Got::Read(read, result) = got else { panic!("expected the end of a read, got {got:?}") };
                let at = open.iter().position(|open| *open == read).expect("a read ends once");
                open.swap_remove(at);
                results.insert(read.0, result);
            }
            open.is_empty().then_some(())
        });
        reads.iter().map(|read| results[&read.0]).collect()
    }

    fn landed(&self, at: u64, length: u64) -> Vec<u8> {
        bytes_of(self.into.memory(), at as usize, length as usize)
    }

    /// Nothing moves any more that could come in.
    fn settle(&mut self) {
        for _ in 0..50 {
            assert_eq!(self.step(), None);
        }
    }
}

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
    let metadata = common::framed(alone.local_metadata());
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

fn a_token_without_a_permit_reads_nothing(lane: &str) {
    let mut world = World::new(lane, 3 * MIB);
    for token in [Token { number: 1, nonce: 3 }, Token { number: 2, nonce: 2 }, Token { number: 0, nonce: 0 }] {
        for length in [1, 16 * KIB + 1, 3 * MIB] {
            let read = world.try_read(token, &[range(0, length)], 0).unwrap();
            assert_eq!(world.done(read), Err(ErrorKind::Rejected));
        }
    }
    assert!(world.landed(0, 3 * MIB).iter().all(|byte| *byte == 0));
}

fn a_region_that_is_not_the_owners_is_not_read(lane: &str) {
    let mut world = World::new(lane, 3 * MIB);
    let payload = Frame::decode(&world.exported).unwrap().payload().to_vec();
    let mut forged = |place: std::ops::Range<usize>, value: u64, ranges: &[Range]| {
        let mut payload = payload.clone();
        payload[place].copy_from_slice(&value.to_le_bytes());
        let region = common::framed(&payload);
        world.exported = region;
        let read = world.read(ranges, 0);
        world.done(read)
    };
    let (id, address, length) = (5..13, 13..21, 21..29);
    assert_eq!(forged(id, 12345, &[range(0, 1)]), Err(ErrorKind::Rejected));
    // Longer than it is: the owner looks for itself, at every range.
    assert_eq!(forged(length.clone(), 1 << 40, &[range(3 * MIB, 1)]), Err(ErrorKind::Invalid));
    assert_eq!(forged(length.clone(), 1 << 40, &[range(0, 5), range(3 * MIB - 1, 2)]), Err(ErrorKind::Invalid));
    assert_eq!(forged(length.clone(), 1 << 40, &[range(2 * MIB, MIB + 1)]), Err(ErrorKind::Invalid));
    assert_eq!(forged(length, u64::MAX >> 1, &[range(u64::MAX >> 2, MIB)]), Err(ErrorKind::Invalid));
    // Where it lies is for fabrics that read by themselves.
    assert_eq!(forged(address, 4096, &[range(0, 3 * MIB)]), SERVED);
    assert!(world.landed(0, 3 * MIB) == expected(&[range(0, 3 * MIB)]));
}

/// Runs a read for `steps` steps, then lets `end` take effect and its blocks be used again; how it ends, and whether it was before.
fn used_again_after(
    world: &mut World,
    ranges: &[Range],
    steps: usize,
    end: impl FnOnce(&mut World),
) -> (Result<Landed, ErrorKind>, bool) {
    let memory = world.region.memory().clone();
    let read = world.read(ranges, 0);
    let mut ended = None;
    for _ in 0..steps {
        ended = ended.or(world.step());
    }
    let before = ended.is_some();
    end(world);
    memory.copy_in(0, &vec![POISON; memory.len()]).unwrap();
    let result = match ended {
        Some(Got::Read(done, result)) if done == read => result,
        Some(other) => panic!("expected the end of {read:?}, got {other:?}"),
        None => world.done(read),
    };
    (result, before)
}

/// Every moment of reads of these sizes at which `end` can come; `end` also brings back a world that can be read.
fn at_every_moment(world: &mut World, mut end: impl FnMut(&mut World), mut again: impl FnMut(&mut World)) {
    let sizes: [&[Range]; 6] = [
        &[range(7, 100)],
        &[range(1, 16 * KIB)],
        &[range(1, 16 * KIB + 1)],
        &[range(0, 5), range(MIB, 30 * KIB), range(3, 7)],
        &[range(5, MIB + 3)],
        &[range(0, 4 * MIB)],
    ];
    for ranges in sizes {
        let (mut steps, mut well, mut refused) = (0, 0, 0);
        loop {
            let (result, before) = used_again_after(world, ranges, steps, &mut end);
            match result {
                SERVED => {
                    let wanted = expected(ranges);
                    assert!(
                        world.landed(0, wanted.len() as u64) == wanted,
                        "a byte from after the end, {steps} steps into {ranges:?}"
                    );
                    well += 1;
                }
                Err(ErrorKind::Rejected) => refused += 1,
                other => panic!("expected a read that is served or refused, got {other:?}"),
            }
            again(world);
            if before {
                break;
            }
            // Not every one of thousands.
            steps += 1 + steps / 20;
        }
        assert!(well >= 1 && refused >= 1, "{ranges:?}: {well} went well, {refused} were refused");
    }
}

fn a_read_that_ends_well_has_no_byte_from_after_the_withdrawal(lane: &str) {
    let mut world = World::new(lane, 4 * MIB);
    let whole: Vec<u8> = (0..4 << 20).map(pattern).collect();
    at_every_moment(
        &mut world,
        |world| world.owner.permits().withdraw(TOKEN),
        |world| {
            world.region.memory().copy_in(0, &whole).unwrap();
            world.owner.permits().permit(TOKEN);
        },
    );
    world.settle();
}

fn a_read_that_ends_well_has_no_byte_from_after_the_end_of_the_region(lane: &str) {
    let mut world = World::new(lane, 4 * MIB);
    let whole: Vec<u8> = (0..4 << 20).map(pattern).collect();
    at_every_moment(
        &mut world,
        |world| {
            let next = world.owner.register(zeroed(4 << 20)).unwrap();
            drop(mem::replace(&mut world.region, next));
        },
        |world| {
            world.region.memory().copy_in(0, &whole).unwrap();
            world.exported = exported(&mut world.owner, &world.region);
        },
    );
    world.settle();
}

/// The holder's own thread withdraws and writes while this one serves.
fn blocks_that_are_used_again_by_another_thread_are_never_called_served(lane: &str) {
    let mut world = World::new(lane, MIB);
    let whole: Vec<u8> = (0..1 << 20).map(pattern).collect();
    let lists: [&[Range]; 3] = [&[range(9, 16 * KIB)], &[range(3, 200 * KIB)], &[range(0, 9 * KIB), range(20 * KIB, 70 * KIB)]];
    let (mut well, mut refused) = (0, 0);
    for round in 0..600u64 {
        let ranges = lists[round as usize % 3];
        let token = Token { number: round, nonce: round };
        let (memory, permits) = (world.region.memory().clone(), world.owner.permits());
        memory.copy_in(0, &whole).unwrap();
        permits.permit(token);
        let read = world.try_read(token, ranges, 0).unwrap();
        let holder = std::thread::spawn(move || {
            // A moment that is another one in every round.
            for n in 0..round * 37 % 4000 {
                std::hint::black_box(n);
                std::hint::spin_loop();
            }
            permits.withdraw(token);
            memory.copy_in(0, &vec![POISON; 1 << 20]).unwrap();
        });
        let result = world.done(read);
        holder.join().unwrap();
        let wanted = expected(ranges);
        match result {
            SERVED => {
                assert!(world.landed(0, wanted.len() as u64) == wanted, "round {round}: a byte from after the withdrawal");
                well += 1;
            }
            Err(ErrorKind::Rejected) => refused += 1,
            other => panic!("expected a read that is served or refused, got {other:?}"),
        }
    }
    assert!(well > 0 && refused > 0, "{well} were served, {refused} refused: the moments are not well chosen");
}

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

/// An open read as the model sees it: where it lands, and what must lie there if it ends well.
struct Open {
    at: u64,
    wanted: Vec<u8>,
    token: Token,
    /// Whether it may be refused, since its lease or its region may have ended meanwhile.
    ended: bool,
    disconnected: bool,
}

fn whatever_happens_each_read_ends_once_and_well_only_with_its_bytes(lane: &str) {
    let mut all = [0; 3];
    for seed in 1..=8 {
        all.iter_mut().zip(random_life(lane, seed)).for_each(|(all, n)| *all += n);
    }
    assert!(all.iter().all(|n| *n > 50), "{all:?} went well, were refused, were cut off");
}

/// How many reads went well, were refused, were cut off.
fn random_life(lane: &str, seed: u64) -> [usize; 3] {
    const SLOT: u64 = 3 << 20;
    let mut dice = Dice::new(seed);
    let mut world = World::with(config(lane), UcxConfig { max_serving: 1 + dice.roll(20) as usize, ..config(lane) }, 4 * SLOT);
    let mut token = TOKEN;
    let mut open: HashMap<u64, Open> = HashMap::new();
    let (mut well, mut refused, mut cut) = (0, 0, 0);
    let whole: Vec<u8> = (0..4 << 20).map(pattern).collect();
    for _ in 0..3000 {
        match dice.roll(40) {
            0..6 => {
                // Each open read has a place of its own.
                let Some(slot) = (0..4).find(|slot| open.values().all(|open| open.at / SLOT != *slot)) else { continue };
                let count = 1 + [0, 3, 200][dice.roll(3) as usize] * dice.roll(2);
                let most = [100, 9 * KIB, 40 * KIB, 2 * MIB][dice.roll(4) as usize] / count;
                let ranges: Vec<_> =
                    (0..count).map(|_| range(dice.roll(4 * MIB - most - 1), 1 + dice.roll(most.max(1)))).collect();
                let at = slot * SLOT + dice.roll(1000);
                let read = world.try_read(token, &ranges, at).unwrap();
                let open_now = Open { at, wanted: expected(&ranges), token, ended: false, disconnected: false };
                assert!(open.insert(read.0, open_now).is_none());
            }
            6 => {
                // The lease ends, its blocks are used again, and another begins.
                world.owner.permits().withdraw(token);
                world.region.memory().copy_in(0, &vec![POISON; 4 << 20]).unwrap();
                open.values_mut().filter(|open| open.token == token).for_each(|open| open.ended = true);
                world.region = world.owner.register(patterned(4 << 20)).unwrap();
                world.exported = exported(&mut world.owner, &world.region);
                token.number += 1;
                world.owner.permits().permit(token);
            }
            7 if dice.roll(12) == 0 => {
                world.reader.disconnect(world.peer);
                open.values_mut().for_each(|open| open.disconnected = true);
                let results = world.all_done(open.keys().map(|read| ReadId(*read)).collect());
                cut += results.len();
                assert!(
                    results.iter().all(|result| matches!(*result, SERVED | Err(ErrorKind::NotConnected | ErrorKind::Rejected)))
                );
                open.clear();
                world.peer = connect(&mut world.reader, &mut world.owner);
            }
            8 => {
                // Blocks that nobody has a lease on may be written at any time: the same bytes, here.
                world.region.memory().copy_in(0, &whole).unwrap();
            }
            9..25 => {
                assert_eq!(poll(&mut world.owner), None);
            }
            _ => {
                let ended = poll_read(&mut world.reader);
                judge(&world, ended, &mut open, &mut well, &mut refused);
            }
        }
    }
    until("every read to end", || {
        assert_eq!(poll(&mut world.owner), None);
        let ended = poll_read(&mut world.reader);
        judge(&world, ended, &mut open, &mut well, &mut refused);
        open.is_empty().then_some(())
    });
    [well, refused, cut]
}

fn poll_read(reader: &mut UcxTransport) -> Option<(ReadId, Result<Landed, ErrorKind>)> {
    poll(reader).map(|got| match got {
        Got::Read(read, result) => (read, result),
        other => panic!("expected the end of a read, got {other:?}"),
    })
}

fn judge(
    world: &World,
    ended: Option<(ReadId, Result<Landed, ErrorKind>)>,
    open: &mut HashMap<u64, Open>,
    well: &mut usize,
    refused: &mut usize,
) {
    let Some((read, result)) = ended else { return };
    let read = open.remove(&read.0).expect("a read ends once");
    match result {
        SERVED => {
            assert!(world.landed(read.at, read.wanted.len() as u64) == read.wanted, "wrong bytes");
            *well += 1;
        }
        Err(ErrorKind::Rejected) if read.ended => *refused += 1,
        other => panic!("expected a read that goes well or whose lease has ended, got {other:?}"),
    }
}
