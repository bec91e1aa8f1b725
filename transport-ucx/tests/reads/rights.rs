//! Who may read: tokens, permits and regions, and when they end.

use std::mem;

use lease_proto::{
    frame::Frame,
    id::Token,
    transport::{Data as _, ErrorKind, Landed, Range},
};

use crate::{
    common::{Got, POISON, TOKEN, expected, exported, pattern, range, zeroed},
    on_every_lane,
    world::{KIB, MIB, SERVED, World},
};

on_every_lane!(
    a_token_without_a_permit_reads_nothing,
    a_region_that_is_not_the_owners_is_not_read,
    a_read_that_ends_well_has_no_byte_from_after_the_withdrawal,
    a_read_that_ends_well_has_no_byte_from_after_the_end_of_the_region,
    blocks_that_are_used_again_by_another_thread_are_never_called_served,
);

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
        let region = crate::common::framed(&payload);
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
