//! What connections, reads and registrations cost. One test, because it counts what the whole process has open and holds.

mod common;

use common::{
    Got, LANE, Process, TOKEN, config, connect, dial, exported, framed, next, obey, patterned, poll, range, transport, until,
    zeroed,
};
use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Control as _, Data as _, ErrorKind, Landed},
};
use transport_ucx::{LOOK, UcxConfig, UcxTransport};

/// Not a test of its own.
#[test]
fn a_peer_for_the_others() {
    if let Ok(lane) = std::env::var(LANE) {
        obey(&lane);
    }
}

/// Resident memory may differ by this much: less than a tenth of a kilobyte for each of thousands. It is what C's allocator keeps
/// and pages that are touched for the first time; a connection has about 40 KiB, an operation half of one.
const SLACK: usize = 400 << 10;

#[test]
fn what_comes_and_goes_leaves_nothing_behind() {
    if std::env::var(LANE).is_ok() {
        return;
    }
    let none = descriptors();
    for lane in ["tcp", "shm"] {
        for part in [connections, reads, reads_that_are_cut_off, registrations, killed_peers, transports] {
            part(lane);
            assert_eq!(descriptors(), none, "{lane}");
        }
    }
}

/// A reader and an owner. What UCX made for a connection's far end goes when its keepalive finds nobody there: soon, here.
struct Pair {
    reader: UcxTransport,
    owner: UcxTransport,
}

impl Pair {
    fn new(lane: &str) -> Self {
        let config = UcxConfig { keepalive: Duration::from_millis(20), ..config(lane) };
        Self { reader: UcxTransport::new(config.clone()).unwrap(), owner: UcxTransport::new(config).unwrap() }
    }

    fn step(&mut self) {
        for transport in [&mut self.reader, &mut self.owner] {
            assert_eq!(poll(transport), None);
            transport.wait(Duration::from_millis(1)).unwrap();
        }
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

/// Runs `round` for some rounds to warm up, then for many; after each of both, `settle` lets go what is over. The memory that the
/// many add must go back to within [`SLACK`].
fn without_growth<S>(
    what: &str,
    (few, many): (usize, usize),
    state: &mut S,
    mut round: impl FnMut(&mut S, usize),
    mut settle: impl FnMut(&mut S),
) {
    (0..few).for_each(|n| round(state, n));
    (0..100).for_each(|_| settle(state));
    let before = resident();
    (0..many).for_each(|n| round(state, n));
    until(what, || {
        settle(state);
        (resident() < before + SLACK).then_some(())
    });
}

fn connections(lane: &str) {
    let mut pair = Pair::new(lane);
    // Besides both workers: what UCX opens once, with the first connection.
    let allowed = descriptors() + 4;
    let fifty = |pair: &mut Pair, _| {
        for _ in 0..50 {
            let Pair { reader, owner } = pair;
            let cancelled = dial(reader, owner);
            reader.cancel(cancelled);
            let peer = connect(reader, owner);
            reader.notify(peer, b"last words").unwrap();
            reader.disconnect(peer);
            until("the notification and the end of the connection", || {
                assert_eq!(poll(reader), None);
                poll(owner).map(|got| assert_eq!(got, Got::Message(b"last words".to_vec())))
            });
        }
        until("both sides to let go", || {
            pair.step();
            (pair.reader.next_timeout() == Some(LOOK) && descriptors() <= allowed).then_some(())
        });
    };
    without_growth("5000 connections to be forgotten", (10, 50), &mut pair, fifty, Pair::step);
}

fn reads(lane: &str) {
    let mut pair = Pair::new(lane);
    let Pair { reader, owner } = &mut pair;
    let peer = connect(reader, owner);
    let region = owner.register(patterned(4 << 20)).unwrap();
    let exported = exported(owner, &region);
    owner.permits().permit(TOKEN);
    let into = reader.register(zeroed(4 << 20)).unwrap();
    let one = |Pair { reader, owner }: &mut Pair, n: usize| {
        let lengths = [100, 16 << 10, 60_000, 3 << 20];
        let mut token = TOKEN;
        // One of eight is refused.
        token.number += u64::from(n % 8 == 7);
        let ranges = [range(0, lengths[n % 4]), range(1 << 20, 5)];
        let read = reader.read(peer, token, Frame::decode(&exported).unwrap(), &ranges, &into, 0).unwrap();
        let got = until("the read", || {
            assert_eq!(poll(owner), None);
            poll(reader)
        });
        assert_eq!(got, Got::Read(read, if n % 8 == 7 { Err(ErrorKind::Rejected) } else { Ok(Landed::Served) }));
    };
    without_growth("5000 reads to be forgotten", (300, 5000), &mut pair, one, Pair::step);
}

fn reads_that_are_cut_off(lane: &str) {
    let mut pair = Pair::new(lane);
    let region = pair.owner.register(patterned(4 << 20)).unwrap();
    let exported = exported(&mut pair.owner, &region);
    pair.owner.permits().permit(TOKEN);
    let into = pair.reader.register(zeroed(4 << 20)).unwrap();
    let one = |Pair { reader, owner }: &mut Pair, n: usize| {
        let peer = connect(reader, owner);
        let read = reader.read(peer, TOKEN, Frame::decode(&exported).unwrap(), &[range(0, 3 << 20)], &into, 0).unwrap();
        for _ in 0..n % 7 {
            assert_eq!(poll(owner), None);
            assert_eq!(poll(reader), None);
        }
        reader.disconnect(peer);
        let got = until("the read", || {
            assert_eq!(poll(owner), None);
            poll(reader)
        });
        assert_eq!(got, Got::Read(read, Err(ErrorKind::NotConnected)));
    };
    // As many to warm up: far ends pile up until the keepalive comes by, and the allocator keeps a part of that.
    without_growth("reads that were cut off to be forgotten", (400, 400), &mut pair, one, Pair::step);
    // The owner's memory is held by no answer any more, however its reader left.
    let memory = region.memory().clone();
    drop(region);
    common::given_back(memory, || pair.step());
}

fn registrations(lane: &str) {
    let one = |owner: &mut UcxTransport, n| {
        let memory = zeroed(4096 * (1 + n % 40));
        let region = owner.register(memory.clone()).unwrap();
        exported(owner, &region);
        drop(region);
        assert!(memory.try_into_slab().is_ok());
    };
    without_growth("10000 registrations to be forgotten", (500, 10_000), &mut transport(lane), one, |_| ());
}

fn killed_peers(lane: &str) {
    let mut reader = transport(lane);
    let into = reader.register(zeroed(1 << 20)).unwrap();
    let one = |reader: &mut UcxTransport, _| {
        let mut owner = Process::start(lane);
        let exported = owner.own(1 << 20);
        owner.tell("run");
        let metadata = framed(&owner.metadata);
        reader.connect(Frame::decode(&metadata).unwrap()).unwrap();
        let Got::Connected(_, peer) = next(reader) else { panic!("expected the connection") };
        let whole = |reader: &mut UcxTransport| {
            reader.read(peer, TOKEN, Frame::decode(&exported).unwrap(), &[range(0, 1 << 20)], &into, 0).unwrap()
        };
        for _ in 0..100 {
            let read = whole(reader);
            assert_eq!(next(reader), Got::Read(read, Ok(Landed::Served)));
        }
        owner.stop();
        let read = whole(reader);
        owner.kill();
        let mut got = [next(reader), next(reader)];
        got.sort_by_key(|got| matches!(got, Got::Read(..)));
        assert_eq!(got, [Got::Lost(peer), Got::Read(read, Err(ErrorKind::PeerLost))]);
    };
    without_growth("killed peers to be forgotten", (3, 10), &mut reader, one, |reader| assert_eq!(poll(reader), None));
}

/// Whole transports, each with a read in the middle that the other does not take.
fn transports(lane: &str) {
    let one = |(): &mut (), n| {
        let (mut reader, mut owner) = (transport(lane), transport(lane));
        let peer = connect(&mut reader, &mut owner);
        let region = owner.register(patterned(2 << 20)).unwrap();
        let exported = exported(&mut owner, &region);
        owner.permits().permit(TOKEN);
        let into = reader.register(zeroed(2 << 20)).unwrap();
        reader.read(peer, TOKEN, Frame::decode(&exported).unwrap(), &[range(0, 2 << 20)], &into, 0).unwrap();
        for _ in 0..n {
            poll(&mut owner);
            poll(&mut reader);
        }
        drop((owner, reader));
    };
    without_growth("transports to be forgotten", (3, 10), &mut (), one, |()| ());
}
