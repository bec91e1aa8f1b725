//! Memory on the in-memory fabric: one-sided reads that meet what is there by then.

use conformance::loopback::{Fabric, Loopback, Region, Slab};
use lease_proto::{
    frame::Frame,
    id::{Incarnation, Token},
    transport::{Control, Data, Error as _, ErrorKind, Incoming, PeerId, Range, ReadId, Reads},
};

const TOKEN: Token = Token { number: 1, nonce: 2 };

struct Sides {
    fabric: Fabric,
    p: Loopback,
    d: Loopback,
    peer: PeerId,
    source: Slab,
    region: Option<Region>,
    exported: Vec<u8>,
    target: Slab,
    into: Region,
}

/// P exports the bytes 0 to 99, D has a hundred bytes of 255 to read into.
fn sides() -> Sides {
    let fabric = Fabric::new(1);
    let (mut p, mut d) = (fabric.endpoint(), fabric.endpoint());
    let mut framed = [0; 64];
    let length = Frame::encode(Incarnation(1), p.local_metadata(), &mut framed).unwrap();
    d.connect(Frame::decode(&framed[..length]).unwrap()).unwrap();
    let Some(Incoming::Connected { peer, .. }) = d.poll().unwrap() else { panic!("not connected") };
    let (source, target) = (Slab::new((0..100).collect()), Slab::new(vec![255; 100]));
    let (region, into) = (p.register(source.clone()).unwrap(), d.register(target.clone()).unwrap());
    let mut exported = vec![0; 64];
    let length = p.export(&region, Incarnation(1), &mut exported).unwrap();
    exported.truncate(length);
    Sides { fabric, p, d, peer, source, region: Some(region), exported, target, into }
}

impl Sides {
    fn read(&mut self, ranges: &[(u64, u64)], at: u64) -> Result<ReadId, ErrorKind> {
        let ranges: Vec<Range> = ranges.iter().map(|&(offset, length)| Range { offset, length }).collect();
        let region = Frame::decode(&self.exported).unwrap();
        self.d.read(self.peer, TOKEN, region, &ranges, &self.into, at).map_err(|error| error.kind())
    }

    fn done(&mut self, expected: ReadId) -> Result<(), ErrorKind> {
        match self.d.poll().unwrap() {
            Some(Incoming::ReadDone { read, result }) if read == expected => result,
            other => panic!("not done: {other:?}"),
        }
    }
}

#[test]
fn ranges_are_read_one_after_the_other_to_where_they_shall_lie() {
    let mut at = sides();
    assert_eq!(at.p.capabilities().reads, Reads::OneSided);
    let read = at.read(&[(10, 3), (0, 2), (98, 2)], 50).unwrap();
    at.done(read).unwrap();
    assert_eq!(at.d.poll().unwrap(), None, "once");
    let target = at.target.bytes();
    assert_eq!(target[50..57], [10, 11, 12, 0, 1, 98, 99]);
    assert!(target[..50].iter().chain(&target[57..]).all(|byte| *byte == 255));
    assert!(at.p.poll().unwrap().is_none(), "the owner does not help");
}

#[test]
fn ranges_outside_are_invalid_and_nothing_moves() {
    let huge = u64::MAX;
    for (ranges, to) in [
        (vec![(0, 101)], 0),
        (vec![(100, 1)], 0),
        (vec![(0, 10), (99, 2)], 0),
        (vec![(huge, 1)], 0),
        (vec![(1, huge)], 0),
        (vec![(huge, huge)], 0),
        (vec![(0, 2)], 99),
        (vec![(0, 1)], huge),
        (vec![(0, 60), (0, 60)], 0),
    ] {
        let mut at = sides();
        assert_eq!(at.read(&ranges, to), Err(ErrorKind::Invalid), "{ranges:?} to {to}");
        assert_eq!(at.d.poll().unwrap(), None);
        assert!(at.target.bytes().iter().all(|byte| *byte == 255), "{ranges:?} to {to}");
    }
    let mut at = sides();
    let read = at.read(&[(0, 100)], 0).unwrap();
    at.done(read).unwrap();
    let read = at.read(&[(100, 0)], 100).unwrap();
    at.done(read).unwrap();
    assert_eq!(at.target.bytes(), at.source.bytes());
}

#[test]
fn a_late_read_meets_what_was_written_there_since() {
    let mut at = sides();
    at.source.fill(42);
    let read = at.read(&[(0, 4)], 0).unwrap();
    at.done(read).unwrap();
    assert_eq!(at.target.bytes()[..4], [42; 4], "the fabric knows nothing of leases");
}

#[test]
fn a_deregistered_region_is_refused() {
    let mut at = sides();
    at.region = None;
    let read = at.read(&[(0, 4)], 0).unwrap();
    assert_eq!(at.done(read), Err(ErrorKind::Rejected));
    assert!(at.target.bytes().iter().all(|byte| *byte == 255));
}

#[test]
fn a_region_of_somebody_else_and_one_that_is_none_are_refused() {
    let mut at = sides();
    let mut other = at.fabric.endpoint();
    let region = other.register(Slab::new(vec![1; 100])).unwrap();
    let mut exported = [0; 64];
    let length = other.export(&region, Incarnation(1), &mut exported).unwrap();
    at.exported = exported[..length].to_vec();
    let read = at.read(&[(0, 4)], 0).unwrap();
    assert_eq!(at.done(read), Err(ErrorKind::Rejected), "the peer does not own it");
    let length = Frame::encode(Incarnation(1), b"seven b", &mut exported).unwrap();
    at.exported = exported[..length].to_vec();
    assert_eq!(at.read(&[(0, 4)], 0), Err(ErrorKind::Invalid));
}

#[test]
fn reads_need_a_connection_to_a_living_owner() {
    let mut at = sides();
    at.fabric.kill(at.p.id());
    assert_eq!(at.read(&[(0, 4)], 0), Err(ErrorKind::NotConnected));
    let mut at = sides();
    at.d.disconnect(at.peer);
    assert_eq!(at.read(&[(0, 4)], 0), Err(ErrorKind::NotConnected));
}

#[test]
fn too_small_a_buffer_for_an_export_is_an_error() {
    let mut at = sides();
    let region = at.region.take().unwrap();
    let error = at.p.export(&region, Incarnation(1), &mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
}
