//! Reads of an owner that lives: what lands, when it is over, what is refused, and who gets the memory back.
#![cfg(feature = "nixl")]

mod common;

use common::{
    Got, LANDED, MIB, POISON, TOKEN, bytes_of, connect, exported, framed_as, given_back, hear, is_poison, next, pattern,
    patterned, poisoned, poll,
    process::{Process, obey},
    range, read, transport, until, with, wrong,
};
use lease_proto::{
    frame::Frame,
    id::Incarnation,
    time::Duration,
    transport::{Control as _, Data as _, Error as _, ErrorKind, PeerId, Range, Reads},
};
use transport_nixl::{NixlConfig, NixlTransport, Region};

on_every_lane!(
    a_read_is_over_after_its_last_byte_and_what_is_sent_then_arrives,
    ranges_of_many_sizes_land_one_after_the_other,
    a_destination_that_is_dropped_takes_the_read_to_its_end_and_is_given_back,
    a_region_that_is_dropped_does_not_stop_others,
    what_cannot_be_read_is_refused_and_nothing_is_written,
    a_region_of_another_life_is_refused,
    a_region_that_nixl_does_not_take_ends_the_read,
    an_owner_with_a_progress_thread_is_read_from_while_it_does_nothing,
);

/// Not a test of its own.
#[test]
fn a_peer_for_the_others() {
    obey();
}

/// A reader and an owner of this process, which owns `length` bytes.
struct World {
    reader: NixlTransport,
    owner: NixlTransport,
    peer: PeerId,
    region: Region,
    exported: Vec<u8>,
    into: Region,
}

impl World {
    fn new(length: usize, config: NixlConfig) -> Self {
        let (mut reader, mut owner) = (with(config), transport());
        let region = owner.register(patterned(length)).unwrap();
        let exported = exported(&mut owner, &region);
        let peer = connect(&mut reader, owner.local_metadata());
        let into = reader.register(poisoned(length)).unwrap();
        Self { reader, owner, peer, region, exported, into }
    }

    /// What comes in to the reader while both move.
    fn next(&mut self) -> Got {
        hear(&mut self.owner, &mut self.reader)
    }

    fn refused(&mut self, region: &[u8], ranges: &[Range], at: u64) -> ErrorKind {
        let region = Frame::decode(region).unwrap();
        self.reader.read(self.peer, TOKEN, region, ranges, &self.into, at).unwrap_err().kind()
    }
}

fn a_read_is_over_after_its_last_byte_and_what_is_sent_then_arrives() {
    let (mut owner, mut reader) = (Process::start(), transport());
    assert_eq!(reader.capabilities().reads, Reads::OneSided);
    let exported = owner.own(24 * MIB);
    let peer = connect(&mut reader, &owner.metadata);
    let into = reader.register(poisoned(24 * MIB)).unwrap();
    for round in 1..=5 {
        into.memory().copy_in(0, &vec![POISON; 24 * MIB]).unwrap();
        let id = read(&mut reader, peer, &exported, 24 * MIB, &into);
        assert_eq!(next(&mut reader), Got::Read(id, LANDED));
        // At that moment, not some time after.
        assert_eq!(wrong(into.memory()), None);
        reader.notify(peer, b"done").unwrap();
        let heard = owner.heard_while(round, || assert_eq!(poll(&mut reader), None));
        assert_eq!(heard.len(), round);
    }
}

fn ranges_of_many_sizes_land_one_after_the_other() {
    // Small pieces, so that ranges are cut and put together.
    let mut world = World::new(4 * MIB, NixlConfig { max_piece: 4096, max_pieces: 3, ..NixlConfig::default() });
    let ranges = [range(1, 1), range(4095, 2), range(3 * MIB, 10_000), range(5, 100_000), range(4 * MIB - 1, 1), range(0, 4096)];
    let region = world.exported.clone();
    let id = world.reader.read(world.peer, TOKEN, Frame::decode(&region).unwrap(), &ranges, &world.into, 3).unwrap();
    assert_eq!(world.next(), Got::Read(id, LANDED));
    let expected: Vec<u8> =
        ranges.iter().flat_map(|range| range.offset..range.offset + range.length).map(|at| pattern(at as usize)).collect();
    assert!(bytes_of(world.into.memory(), 3, expected.len()) == expected);
    // And nothing beside.
    assert_eq!(bytes_of(world.into.memory(), 0, 3), [POISON; 3]);
    assert!(bytes_of(world.into.memory(), 3 + expected.len(), 5000).iter().all(|byte| *byte == POISON));
}

/// The registration is needed until the read's end: without it NIXL would refuse the later pieces, and take the peer for lost.
fn a_destination_that_is_dropped_takes_the_read_to_its_end_and_is_given_back() {
    let mut world = World::new(16 * MIB, NixlConfig::default());
    for polls in [0, 1, 2, 5, 20] {
        let into = world.reader.register(poisoned(16 * MIB)).unwrap();
        let memory = into.memory().clone();
        let id = read(&mut world.reader, world.peer, &world.exported, 16 * MIB, &into);
        // Over shared memory it may be over by then.
        let early = (0..polls).find_map(|_| poll(&mut world.reader));
        drop(into);
        let ended = early.unwrap_or_else(|| world.next());
        assert_eq!(ended, Got::Read(id, LANDED), "dropped after {polls} polls");
        assert_eq!(wrong(&memory), None);
        given_back(memory, || assert_eq!(poll(&mut world.reader), None));
    }
    world.reader.notify(world.peer, b"still connected").unwrap();
    assert_eq!(hear(&mut world.reader, &mut world.owner), Got::Message(b"still connected".to_vec()));
}

fn a_region_that_is_dropped_does_not_stop_others() {
    let mut world = World::new(MIB, NixlConfig::default());
    let memory = {
        let other = world.owner.register(patterned(MIB)).unwrap();
        other.memory().clone()
    };
    given_back(memory, || assert_eq!(poll(&mut world.owner), None));
    let id = read(&mut world.reader, world.peer, &world.exported, MIB, &world.into);
    assert_eq!(world.next(), Got::Read(id, LANDED));
    assert_eq!(wrong(world.into.memory()), None);
    // One of this transport is no other's.
    let World { mut reader, peer, exported, region, .. } = world;
    let error = reader.read(peer, TOKEN, Frame::decode(&exported).unwrap(), &[range(0, 1)], &region, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

fn what_cannot_be_read_is_refused_and_nothing_is_written() {
    let mut world = World::new(MIB, NixlConfig::default());
    let region = world.exported.clone();
    let whole = [range(0, MIB)];
    let wrong: [(&[Range], u64); 7] = [
        (&[], 0),
        (&[range(0, 0)], 0),
        (&[range(0, MIB + 1)], 0),
        (&[range(MIB, 1)], 0),
        (&[range(usize::MAX, 2)], 0),
        (&whole, 1),
        (&[range(0, 1)], u64::MAX),
    ];
    for (ranges, at) in wrong {
        assert_eq!(world.refused(&region, ranges, at), ErrorKind::Invalid, "{ranges:?} at {at}");
    }
    // Of each byte of what describes the region, changed where no frame notices.
    let payload = Frame::decode(&region).unwrap().payload().to_vec();
    for at in 0..6 {
        let mut changed = payload.clone();
        changed[at] ^= 1;
        assert_eq!(world.refused(&framed_as(7, &changed), &whole, 0), ErrorKind::Invalid, "byte {at}");
    }
    for cut in 0..payload.len() {
        assert_eq!(world.refused(&framed_as(7, &payload[..cut]), &whole, 0), ErrorKind::Invalid, "cut at {cut}");
    }
    let metadata = world.owner.local_metadata().to_vec();
    assert_eq!(world.refused(&framed_as(7, &metadata), &whole, 0), ErrorKind::Invalid);
    for _ in 0..1000 {
        assert_eq!((poll(&mut world.reader), poll(&mut world.owner)), (None, None));
    }
    assert!(is_poison(world.into.memory()));
    let World { mut reader, mut owner, region, .. } = world;
    assert_eq!(reader.register_fenced(poisoned(4096)).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(reader.fence(&region).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(owner.export(&region, Incarnation(7), &mut [0; 100]).unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(reader.export(&region, Incarnation(7), &mut [0; 4096]).unwrap_err().kind(), ErrorKind::Invalid);
}

fn an_owner_with_a_progress_thread_is_read_from_while_it_does_nothing() {
    let mut owner = with(NixlConfig { progress: Some(Duration::from_millis(1)), ..NixlConfig::default() });
    let mut reader = transport();
    let region = owner.register(patterned(8 * MIB)).unwrap();
    let exported = exported(&mut owner, &region);
    let peer = connect(&mut reader, owner.local_metadata());
    let into = reader.register(poisoned(8 * MIB)).unwrap();
    let id = read(&mut reader, peer, &exported, 8 * MIB, &into);
    assert_eq!(next(&mut reader), Got::Read(id, LANDED));
    assert_eq!(wrong(into.memory()), None);
}

/// Where no frame guards it, as from a peer that lies.
fn a_region_that_nixl_does_not_take_ends_the_read() {
    for (tag, peer_stays) in [("MemSection", true), ("nixlSecElms", false)] {
        let mut world = World::new(MIB, NixlConfig::default());
        let mut payload = Frame::decode(&world.exported).unwrap().payload().to_vec();
        let at = payload.windows(tag.len()).position(|window| window == tag.as_bytes()).unwrap();
        payload[at] ^= 1;
        let id = read(&mut world.reader, world.peer, &framed_as(7, &payload), MIB, &world.into);
        assert_eq!(world.next(), Got::Read(id, Err(ErrorKind::Rejected)));
        assert!(is_poison(world.into.memory()));
        // NIXL drops the connection with the second, keeps half of it, and takes no other to this agent any more.
        let sent = world.reader.notify(world.peer, b"still there?");
        if peer_stays {
            sent.unwrap();
            let id = read(&mut world.reader, world.peer, &world.exported, MIB, &world.into);
            until("the whole region to be read", || {
                poll(&mut world.owner);
                poll(&mut world.reader).map(|got| assert_eq!(got, Got::Read(id, LANDED)))
            });
        } else {
            assert_eq!(sent.unwrap_err().kind(), ErrorKind::PeerLost);
            assert_eq!(poll(&mut world.reader), Some(Got::Lost(world.peer)));
        }
        let mut other = transport();
        let peer = connect(&mut world.reader, other.local_metadata());
        world.reader.notify(peer, b"hello").unwrap();
        assert_eq!(hear(&mut world.reader, &mut other), Got::Message(b"hello".to_vec()));
    }
}

fn a_region_of_another_life_is_refused() {
    let mut world = World::new(MIB, NixlConfig::default());
    let payload = Frame::decode(&world.exported).unwrap().payload().to_vec();
    assert_eq!(world.refused(&framed_as(8, &payload), &[range(0, 1)], 0), ErrorKind::Invalid);
    // And one of another agent.
    let mut other = transport();
    let region = other.register(patterned(MIB)).unwrap();
    let theirs = exported(&mut other, &region);
    assert_eq!(world.refused(&theirs, &[range(0, 1)], 0), ErrorKind::Invalid);
    assert!(is_poison(world.into.memory()));
}
