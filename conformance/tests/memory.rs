//! Memory on the in-memory fabric: reads that meet what is there by then, whoever serves them, and ways to keep late ones out.

use conformance::loopback::{Fabric, Fault, Link, Loopback, Region};
use gpu_mem::{HostSlab, Memory};
use lease_proto::{
    frame::Frame,
    id::{Incarnation, Token},
    time::{Duration, Instant},
    transport::{Control, Data, Error as _, ErrorKind, Incoming, Landed, PeerId, Range, ReadId, Reads},
};

const TOKEN: Token = Token { number: 1, nonce: 2 };

type Done = Result<Landed, ErrorKind>;

fn memory(bytes: impl IntoIterator<Item = u8>) -> Memory {
    let bytes: Vec<u8> = bytes.into_iter().collect();
    let mut slab = HostSlab::new(bytes.len()).unwrap();
    slab.copy_from_slice(&bytes);
    slab.into()
}

fn bytes(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.copy_out(0, &mut bytes).unwrap();
    bytes
}

struct Sides {
    fabric: Fabric,
    p: Loopback,
    d: Loopback,
    peer: PeerId,
    source: Memory,
    region: Option<Region>,
    exported: Vec<u8>,
    target: Memory,
    into: Region,
}

/// P exports the bytes 0 to 99, D has a hundred bytes of 255 to read into.
fn sides() -> Sides {
    sides_with(Fabric::endpoint, Loopback::register)
}

/// The same where P serves reads itself, and `TOKEN` is permitted.
fn served() -> Sides {
    let at = sides_with(Fabric::endpoint_served, Loopback::register);
    at.p.permits().permit(TOKEN);
    at
}

/// The same out of a region that is P's for one lease.
fn one_lease() -> Sides {
    sides_with(Fabric::endpoint, Loopback::register_fenced)
}

fn sides_with<E: std::fmt::Debug>(
    endpoint: fn(&Fabric) -> Loopback,
    register: fn(&mut Loopback, Memory) -> Result<Region, E>,
) -> Sides {
    let fabric = Fabric::new(1);
    let (mut p, mut d) = (endpoint(&fabric), endpoint(&fabric));
    let mut framed = [0; 64];
    let length = Frame::encode(Incarnation(1), p.local_metadata(), &mut framed).unwrap();
    d.connect(Frame::decode(&framed[..length]).unwrap()).unwrap();
    let Some(Incoming::Connected { peer, .. }) = d.poll().unwrap() else { panic!("not connected") };
    let (source, target) = (memory(0..100), memory([255; 100]));
    let (region, into) = (register(&mut p, source.clone()).unwrap(), d.register(target.clone()).unwrap());
    let exported = export(&mut p, &region);
    Sides { fabric, p, d, peer, source, region: Some(region), exported, target, into }
}

fn export(owner: &mut Loopback, region: &Region) -> Vec<u8> {
    let mut exported = vec![0; 64];
    let length = owner.export(region, Incarnation(1), &mut exported).unwrap();
    exported.truncate(length);
    exported
}

impl Sides {
    fn read(&mut self, ranges: &[(u64, u64)], at: u64) -> Result<ReadId, ErrorKind> {
        let ranges: Vec<Range> = ranges.iter().map(|&(offset, length)| Range { offset, length }).collect();
        let region = Frame::decode(&self.exported).unwrap();
        self.d.read(self.peer, TOKEN, region, &ranges, &self.into, at).map_err(|error| error.kind())
    }

    /// The reader's news about this read, and nothing else.
    fn news(&mut self, expected: ReadId) -> Option<Done> {
        match self.d.poll().unwrap() {
            Some(Incoming::ReadDone { read, result }) if read == expected => Some(result),
            None => None,
            other => panic!("not done: {other:?}"),
        }
    }

    /// How the read ends, with the owner's help.
    fn done(&mut self, read: ReadId) -> Done {
        assert_eq!(self.p.poll().unwrap(), None, "the owner hears nothing of it");
        self.news(read).expect("it is over")
    }

    /// Whatever the reader hears once its owner has had a turn.
    fn anything(&mut self) -> Option<Incoming<'_>> {
        self.p.poll().unwrap();
        self.d.poll().unwrap()
    }

    fn cut(&self, cut: bool) {
        for link in [Link { from: self.d.id(), to: self.p.id() }, Link { from: self.p.id(), to: self.d.id() }] {
            self.fabric.fault(link, Fault { cut, ..Fault::default() });
        }
    }

    fn untouched(&self) -> bool {
        bytes(&self.target).iter().all(|byte| *byte == 255)
    }
}

#[test]
fn ranges_are_read_one_after_the_other_to_where_they_shall_lie() {
    for (mut at, landed) in [(sides(), Landed::OneSided), (served(), Landed::Served), (one_lease(), Landed::Fenced)] {
        let read = at.read(&[(10, 3), (0, 2), (98, 2), (10, 3)], 50).unwrap();
        assert_eq!(at.done(read), Ok(landed));
        assert_eq!(at.d.poll().unwrap(), None, "once");
        let target = bytes(&at.target);
        assert_eq!(target[50..60], [10, 11, 12, 0, 1, 98, 99, 10, 11, 12]);
        assert!(target[..50].iter().chain(&target[60..]).all(|byte| *byte == 255));
    }
}

#[test]
fn a_one_sided_read_needs_no_help_and_a_served_one_does() {
    let mut at = sides();
    assert_eq!((at.p.capabilities().reads, at.p.capabilities().fence), (Reads::OneSided, true));
    let read = at.read(&[(0, 4)], 0).unwrap();
    assert_eq!(at.news(read), Some(Ok(Landed::OneSided)), "the owner was not polled");
    let mut at = served();
    assert_eq!((at.p.capabilities().reads, at.p.capabilities().fence), (Reads::OwnerServed, false));
    let read = at.read(&[(0, 4)], 0).unwrap();
    assert!(!at.d.has_mail() && at.p.has_mail());
    assert_eq!(at.news(read), None);
    assert!(at.untouched());
    assert_eq!(at.done(read), Ok(Landed::Served));
}

#[test]
fn ranges_outside_are_invalid_and_nothing_moves() {
    let huge = u64::MAX;
    for (ranges, to) in [
        (vec![], 0),
        (vec![(0, 0)], 0),
        (vec![(0, 1), (100, 0)], 0),
        (vec![(0, 101)], 0),
        (vec![(100, 1)], 0),
        (vec![(0, 10), (99, 2)], 0),
        (vec![(huge, 1)], 0),
        (vec![(1, huge)], 0),
        (vec![(huge, huge)], 0),
        (vec![(0, 2)], 99),
        (vec![(0, 1)], 100),
        (vec![(0, 1)], huge),
        (vec![(0, 60), (0, 60)], 0),
    ] {
        for mut at in [sides(), served()] {
            assert_eq!(at.read(&ranges, to), Err(ErrorKind::Invalid), "{ranges:?} to {to}");
            assert_eq!((at.p.poll().unwrap(), at.d.poll().unwrap()), (None, None));
            assert!(at.untouched(), "{ranges:?} to {to}");
        }
    }
    let mut at = sides();
    let read = at.read(&[(0, 100)], 0).unwrap();
    at.done(read).unwrap();
    assert_eq!(bytes(&at.target), bytes(&at.source));
}

#[test]
fn a_late_read_meets_what_was_written_there_since() {
    let mut at = sides();
    let read = at.read(&[(0, 4)], 0).unwrap();
    at.source.copy_in(0, &[42; 100]).unwrap();
    at.done(read).unwrap();
    assert_eq!(bytes(&at.target)[..4], [42; 4], "the fabric knows nothing of leases");
}

#[test]
fn a_deregistered_region_is_refused() {
    for mut at in [sides(), served(), one_lease()] {
        let under_way = at.read(&[(0, 4)], 0).unwrap();
        at.region = None;
        let late = at.read(&[(0, 4)], 0).unwrap();
        assert_eq!(at.done(under_way), Err(ErrorKind::Rejected));
        assert_eq!(at.done(late), Err(ErrorKind::Rejected));
        assert!(at.untouched());
    }
}

#[test]
fn a_fenced_region_is_refused_for_good() {
    let mut at = one_lease();
    let in_time = at.read(&[(0, 4)], 0).unwrap();
    assert_eq!(at.done(in_time), Ok(Landed::Fenced));
    at.target.copy_in(0, &[255; 4]).unwrap();
    let under_way = at.read(&[(0, 4)], 0).unwrap();
    let region = at.region.take().unwrap();
    at.p.fence(&region).unwrap();
    at.p.fence(&region).unwrap();
    let late = at.read(&[(0, 4)], 0).unwrap();
    for read in [under_way, late] {
        assert_eq!(at.done(read), Err(ErrorKind::Rejected));
    }
    assert!(at.untouched());
}

#[test]
fn only_what_is_for_one_lease_can_be_fenced_and_nothing_is_read_into_it() {
    let mut at = sides();
    let region = at.region.take().unwrap();
    assert_eq!(at.p.fence(&region).unwrap_err().kind(), ErrorKind::Invalid);
    at.into = at.d.register_fenced(at.target.clone()).unwrap();
    assert_eq!(at.read(&[(0, 4)], 0), Err(ErrorKind::Invalid));
    let mut at = served();
    assert_eq!(at.p.register_fenced(memory([1])).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn who_serves_asks_for_the_whole_token_when_it_serves() {
    let mut at = served();
    let under_way = at.read(&[(0, 4)], 0).unwrap();
    at.p.permits().withdraw(TOKEN);
    assert_eq!(at.done(under_way), Err(ErrorKind::Rejected));
    at.p.permits().permit(Token { nonce: 3, ..TOKEN });
    let other = at.read(&[(0, 4)], 0).unwrap();
    assert_eq!(at.done(other), Err(ErrorKind::Rejected));
    assert!(at.untouched());
    at.p.permits().permit(TOKEN);
    let good = at.read(&[(0, 4)], 0).unwrap();
    assert_eq!(at.done(good), Ok(Landed::Served));
}

#[test]
fn a_region_of_somebody_else_and_one_that_is_none_are_refused() {
    let mut at = sides();
    let mut other = at.fabric.endpoint();
    let region = other.register(memory([1; 100])).unwrap();
    at.exported = export(&mut other, &region);
    let read = at.read(&[(0, 4)], 0).unwrap();
    assert_eq!(at.done(read), Err(ErrorKind::Rejected), "the peer does not own it");
    let mut framed = [0; 64];
    for junk in
        [b"seven b".as_slice(), b"", b"loopback", b"loopback1234567", b"loopback12345678123456789", b"loopbacj1234567812345678"]
    {
        let length = Frame::encode(Incarnation(1), junk, &mut framed).unwrap();
        at.exported = framed[..length].to_vec();
        assert_eq!(at.read(&[(0, 4)], 0), Err(ErrorKind::Invalid));
    }
}

#[test]
fn a_region_that_claims_to_be_larger_than_it_is_is_refused_by_its_owner() {
    for mut at in [sides(), served()] {
        let mut payload = Frame::decode(&at.exported).unwrap().payload().to_vec();
        payload[16..].copy_from_slice(&200u64.to_le_bytes());
        let mut framed = [0; 64];
        let length = Frame::encode(Incarnation(1), &payload, &mut framed).unwrap();
        at.exported = framed[..length].to_vec();
        let read = at.read(&[(99, 2)], 0).unwrap();
        assert_eq!(at.done(read), Err(ErrorKind::Rejected));
        assert!(at.untouched());
    }
}

#[test]
fn reads_need_a_connection_to_a_living_owner() {
    for mut at in [sides(), served()] {
        at.fabric.kill(at.p.id());
        assert_eq!(at.read(&[(0, 4)], 0), Err(ErrorKind::NotConnected));
    }
    for mut at in [sides(), served()] {
        at.d.disconnect(at.peer);
        assert_eq!(at.read(&[(0, 4)], 0), Err(ErrorKind::NotConnected));
    }
}

#[test]
fn reads_under_way_end_with_their_owner_or_their_connection() {
    for mut at in [sides(), served()] {
        let read = at.read(&[(0, 4)], 0).unwrap();
        at.fabric.kill(at.p.id());
        assert_eq!(at.news(read), Some(Err(ErrorKind::PeerLost)));
        assert_eq!(at.d.poll().unwrap(), Some(Incoming::PeerLost { peer: at.peer }));
    }
    for mut at in [sides(), served()] {
        let read = at.read(&[(0, 4)], 0).unwrap();
        at.d.disconnect(at.peer);
        assert_eq!(at.news(read), Some(Err(ErrorKind::NotConnected)));
        assert_eq!(at.anything(), None);
        assert!(at.untouched());
    }
}

#[test]
fn a_cut_link_holds_reads_up_until_it_is_healed() {
    for mut at in [sides(), served()] {
        at.cut(true);
        let read = at.read(&[(0, 4)], 0).unwrap();
        assert_eq!(at.anything(), None);
        assert!(at.untouched());
        at.cut(false);
        assert!(at.done(read).is_ok());
    }
}

#[test]
fn a_read_takes_as_long_as_messages_there_and_back() {
    for mut at in [sides(), served()] {
        let link = Link { from: at.d.id(), to: at.p.id() };
        at.fabric.fault(link, Fault { delay: Duration::from_secs(2), ..Fault::default() });
        let read = at.read(&[(0, 4)], 0).unwrap();
        assert_eq!(at.anything(), None);
        let due = at.fabric.next_arrival().unwrap();
        assert_eq!(due, Instant::ZERO.saturating_add(Duration::from_secs(2)));
        at.fabric.advance_to(due);
        assert!(at.done(read).is_ok());
    }
}

#[test]
fn too_many_reads_would_block_and_none_is_lost() {
    for mut at in [sides(), served()] {
        let mut reads = Vec::new();
        let refused = loop {
            match at.read(&[(0, 4)], 0) {
                Ok(read) => reads.push(read),
                Err(kind) => break kind,
            }
        };
        assert_eq!((refused, reads.len()), (ErrorKind::WouldBlock, 64));
        reads.into_iter().for_each(|read| assert!(at.done(read).is_ok()));
        assert!(at.read(&[(0, 4)], 0).is_ok());
    }
}

#[test]
fn memory_comes_back_when_nothing_touches_it_any_more() {
    let mut at = served();
    at.cut(true);
    let read = at.read(&[(0, 4)], 0).unwrap();
    let Sides { into, target, d, peer, .. } = &mut at;
    let other = d.register(memory([0])).unwrap();
    drop(std::mem::replace(into, other));
    *target = target.clone().try_into_slab().expect_err("the read still holds it");
    d.disconnect(*peer);
    assert_eq!(at.news(read), Some(Err(ErrorKind::NotConnected)));
    assert_eq!(at.target.try_into_slab().unwrap().len(), 100);
}

#[test]
fn too_small_a_buffer_for_an_export_is_an_error() {
    let mut at = sides();
    let region = at.region.take().unwrap();
    let error = at.p.export(&region, Incarnation(1), &mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
}
