//! Random lives against a model.

use std::collections::HashMap;

use lease_proto::{
    id::Token,
    transport::{Control as _, Data as _, ErrorKind, Landed, ReadId},
};
use transport_ucx::{UcxConfig, UcxTransport};

use crate::{
    common::{Dice, Got, POISON, TOKEN, config, connect, expected, exported, pattern, patterned, poll, range, until},
    on_every_lane,
    world::{KIB, MIB, SERVED, World},
};

on_every_lane!(whatever_happens_each_read_ends_once_and_well_only_with_its_bytes,);

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
