//! Reads between real processes that are killed, stopped and started again: this binary, run again as the peer.

mod common;

use common::{
    Got, LANE, POISON, Process, TOKEN, bytes_of, config, expected, exported, framed, given_back, hex, next, obey, patterned,
    poll, range, transport, until, zeroed,
};
use lease_proto::{
    frame::{Frame, HEADER},
    id::Incarnation,
    time::Duration,
    transport::{Control as _, Data as _, Error as _, ErrorKind, Landed, PeerId, Range, ReadId},
};
use rustix::process::Signal;
use transport_ucx::{LOOK, Region, UcxConfig, UcxTransport};

on_every_lane!(
    a_read_of_an_owner_that_is_killed_ends_once_at_every_phase,
    many_reads_of_a_stopped_owner_end_once_when_it_is_killed,
    a_stopped_owner_holds_nobody_up_and_serves_when_it_goes_on,
    an_owner_goes_on_when_a_reader_is_killed_in_the_middle,
    a_stopped_reader_holds_no_other_up,
    whoever_leaves_a_stopped_peer_gets_the_memory_back,
    an_owner_that_restarts_is_read_from_its_new_region_alone,
);

/// Not a test of its own.
#[test]
fn a_peer_for_the_others() {
    if let Ok(lane) = std::env::var(LANE) {
        obey(&lane);
    }
}

const MIB: usize = 1 << 20;
const LENGTH: usize = 16 * MIB;
const ALL: [Range; 1] = [range_of(LENGTH)];
const SERVED: Result<Landed, ErrorKind> = Ok(Landed::Served);

const fn range_of(length: usize) -> Range {
    Range { offset: 0, length: length as u64 }
}

/// A reader of an owner in another process that moves only when it is told.
struct World {
    owner: Process,
    exported: Vec<u8>,
    reader: UcxTransport,
    peer: PeerId,
    into: Region,
}

impl World {
    fn new(lane: &str) -> Self {
        let (mut owner, mut reader) = (Process::start(lane), transport(lane));
        let exported = owner.own(LENGTH);
        let metadata = framed(&owner.metadata);
        reader.connect(Frame::decode(&metadata).unwrap()).unwrap();
        let got = until("the connection", || {
            owner.step();
            poll(&mut reader)
        });
        let Got::Connected(_, peer) = got else { panic!("expected the connection, got {got:?}") };
        let memory = zeroed(LENGTH);
        memory.copy_in(0, &vec![POISON; LENGTH]).unwrap();
        let into = reader.register(memory).unwrap();
        Self { owner, exported, reader, peer, into }
    }

    fn read(&mut self, ranges: &[Range], at: usize) -> ReadId {
        let region = Frame::decode(&self.exported).unwrap();
        self.reader.read(self.peer, TOKEN, region, ranges, &self.into, at as u64).unwrap()
    }

    /// Whether the bytes that go there have landed.
    fn landed(&self, at: usize) -> bool {
        bytes_of(self.into.memory(), at, 1) != [POISON]
    }

    fn wrong(&self) -> Option<usize> {
        bytes_of(self.into.memory(), 0, LENGTH).iter().zip(expected(&ALL)).position(|(got, wanted)| *got != wanted)
    }

    /// The ends of these reads, of which the owner's loss may be told before or after.
    fn lost(&mut self, mut open: Vec<ReadId>) {
        let mut told = false;
        while !told || !open.is_empty() {
            match next(&mut self.reader) {
                Got::Lost(peer) if !told => {
                    assert_eq!(peer, self.peer);
                    told = true;
                }
                Got::Read(read, Err(ErrorKind::PeerLost)) => {
                    let at = open.iter().position(|open| *open == read).expect("a read ends once");
                    open.swap_remove(at);
                }
                got => panic!("expected the loss, got {got:?}"),
            }
        }
    }

    /// The destination is ours again: nothing holds it, and nothing came in besides.
    fn end(self) {
        let Self { into, mut reader, .. } = self;
        let memory = into.memory().clone();
        drop(into);
        given_back(memory, || assert_eq!(poll(&mut reader), None));
        until("nothing to be left", || {
            assert_eq!(poll(&mut reader), None);
            (reader.next_timeout() == Some(LOOK)).then_some(())
        });
    }
}

fn a_read_of_an_owner_that_is_killed_ends_once_at_every_phase(lane: &str) {
    type Reached = fn(&World) -> bool;
    let phases: [(&str, Reached); 4] = [
        ("before the first piece", |_| true),
        ("after one", |world| world.landed(MIB - 1)),
        ("in the middle", |world| world.landed(7 * MIB)),
        ("before the check", |world| (1..=16).all(|n| world.landed(n * MIB - 1))),
    ];
    for (phase, reached) in phases {
        let mut world = World::new(lane);
        let read = world.read(&ALL, 0);
        until(phase, || {
            if reached(&world) {
                return Some(());
            }
            world.owner.step();
            assert_eq!(poll(&mut world.reader), None);
            None
        });
        // What has come, the reader has seen, and asks whether the lease still holds.
        for _ in 0..20 {
            assert_eq!(poll(&mut world.reader), None, "{phase}");
        }
        world.owner.kill();
        world.lost(vec![read]);
        let region = Frame::decode(&world.exported).unwrap();
        let error = world.reader.read(world.peer, TOKEN, region, &ALL, &world.into, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotConnected);
        world.end();
    }
}

/// As many as fill what the fabric holds for a peer that takes nothing.
fn many_reads_of_a_stopped_owner_end_once_when_it_is_killed(lane: &str) {
    let mut world = World::new(lane);
    world.owner.tell("run");
    world.owner.stop();
    let lengths = [100, 9000, 20_000, 2 * MIB];
    let reads = (0..256).map(|n| world.read(&[range(n, lengths[n as usize % 4] as u64)], n as usize * 1000)).collect();
    while world.reader.notify(world.peer, &[0; 1000]).is_ok() {}
    assert_eq!(poll(&mut world.reader), None);
    world.owner.kill();
    world.lost(reads);
    assert_eq!(world.reader.in_flight(world.peer), 0);
    world.end();
}

fn a_stopped_owner_holds_nobody_up_and_serves_when_it_goes_on(lane: &str) {
    let mut world = World::new(lane);
    world.owner.tell("run");
    for stop_at in [1, 5 * MIB, 15 * MIB] {
        world.into.memory().copy_in(0, &vec![POISON; LENGTH]).unwrap();
        let read = world.read(&ALL, 0);
        let ended = until("the bytes before it is stopped", || {
            let got = poll(&mut world.reader);
            (got.is_some() || world.landed(stop_at - 1)).then_some(got)
        });
        world.owner.stop();
        let switches = voluntary_switches();
        let mut early = ended;
        for _ in 0..20_000 {
            early = early.or(poll(&mut world.reader));
        }
        // A lock of UCX's that its thread for new connections holds at that moment may be met.
        let waited = voluntary_switches() - switches;
        assert!(waited < 10, "{waited} waits in 20000 polls");
        world.owner.signal(Signal::CONT);
        let ended = early.unwrap_or_else(|| next(&mut world.reader));
        assert_eq!(ended, Got::Read(read, SERVED));
        assert_eq!(world.wrong(), None);
    }
}

/// How often this thread gave its processor up to wait for something.
fn voluntary_switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// An owner in this process, with one reader in another that reads all the time and one here.
struct Served {
    owner: UcxTransport,
    region: Region,
    process: Process,
    reader: UcxTransport,
    peer: PeerId,
    exported: Vec<u8>,
    into: Region,
}

impl Served {
    fn new(lane: &str, max_serving: usize) -> Self {
        let (mut owner, mut reader) = (UcxTransport::new(UcxConfig { max_serving, ..config(lane) }).unwrap(), transport(lane));
        let region = owner.register(patterned(LENGTH)).unwrap();
        owner.permits().permit(TOKEN);
        let exported = exported(&mut owner, &region);
        let peer = common::connect(&mut reader, &mut owner);
        let mut process = Process::start(lane);
        process.tell(&format!("read {} {} {LENGTH}", hex(owner.local_metadata()), hex(&exported)));
        let into = reader.register(zeroed(LENGTH)).unwrap();
        Self { owner, region, process, reader, peer, exported, into }
    }

    /// Stops the other process with an answer to it under way that it does not take.
    fn stop_while_served(&mut self) {
        until("an answer to be under way", || {
            for _ in 0..100 {
                assert_eq!(poll(&mut self.owner), None);
            }
            self.process.stop();
            for _ in 0..1000 {
                assert_eq!(poll(&mut self.owner), None);
            }
            let held = self.owner.next_timeout().is_some_and(|timeout| timeout < Duration::from_millis(5));
            (self.between_messages() && held).then_some(()).or_else(|| {
                self.process.signal(Signal::CONT);
                None
            })
        });
    }

    /// Whether the other process has not stopped in the middle of writing a message: over shared memory nobody is heard until it
    /// goes on. If it has, it does.
    fn between_messages(&mut self) -> bool {
        self.reader.notify(self.peer, b"heard").unwrap();
        let Self { owner, reader, .. } = self;
        let mut hear = || {
            assert_eq!(poll(reader), None);
            poll(owner).map(|got| assert_eq!(got, Got::Message(b"heard".to_vec())))
        };
        let heard = (0..100_000).find_map(|_| hear()).is_some();
        if !heard {
            self.process.signal(Signal::CONT);
            until("what was written", hear);
        }
        heard
    }

    fn read(&mut self) -> ReadId {
        let region = Frame::decode(&self.exported).unwrap();
        self.reader.read(self.peer, TOKEN, region, &ALL, &self.into, 0).unwrap()
    }

    fn done(&mut self, read: ReadId) {
        let got = until("the read", || {
            assert_eq!(poll(&mut self.owner), None);
            poll(&mut self.reader)
        });
        assert_eq!(got, Got::Read(read, SERVED));
        assert!(bytes_of(self.into.memory(), 0, LENGTH) == expected(&ALL));
    }
}

fn an_owner_goes_on_when_a_reader_is_killed_in_the_middle(lane: &str) {
    // It serves one at a time, so that one that is not given back would be the last.
    let mut world = Served::new(lane, 1);
    for _ in 0..3 {
        world.stop_while_served();
        let read = world.read();
        for _ in 0..1000 {
            assert_eq!((poll(&mut world.owner), poll(&mut world.reader)), (None, None));
        }
        world.process.kill();
        world.done(read);
        world.process = Process::start(lane);
        let order = format!("read {} {} {LENGTH}", hex(world.owner.local_metadata()), hex(&world.exported));
        world.process.tell(&order);
    }
    world.process.kill();
    let Served { mut owner, region, .. } = world;
    let memory = region.memory().clone();
    drop(region);
    given_back(memory, || assert_eq!(poll(&mut owner), None));
}

fn a_stopped_reader_holds_no_other_up(lane: &str) {
    let mut world = Served::new(lane, config(lane).max_serving);
    world.stop_while_served();
    for _ in 0..5 {
        let read = world.read();
        world.done(read);
    }
    world.process.signal(Signal::CONT);
    until("the other to read on", || {
        assert_eq!(poll(&mut world.owner), None);
        (world.owner.next_timeout().is_some_and(|timeout| timeout > Duration::from_millis(5))).then_some(())
    });
}

fn whoever_leaves_a_stopped_peer_gets_the_memory_back(lane: &str) {
    let mut world = Served::new(lane, 1024);
    world.stop_while_served();
    let Served { owner, region, process: _process, .. } = world;
    let memory = region.memory().clone();
    drop((owner, region));
    assert!(memory.try_into_slab().is_ok(), "the owner's memory is not given back");

    let mut world = World::new(lane);
    world.owner.tell("run");
    world.read(&ALL, 0);
    until("the first piece", || {
        assert_eq!(poll(&mut world.reader), None);
        world.landed(MIB - 1).then_some(())
    });
    world.owner.stop();
    let World { reader, into, owner: _owner, .. } = world;
    let memory = into.memory().clone();
    drop((reader, into));
    assert!(memory.try_into_slab().is_ok(), "the reader's memory is not given back");
}

fn an_owner_that_restarts_is_read_from_its_new_region_alone(lane: &str) {
    let mut world = World::new(lane);
    world.owner.kill();
    world.lost(vec![]);
    let old = std::mem::take(&mut world.exported);
    world.owner = Process::start(lane);
    world.exported = world.owner.own(LENGTH);
    world.owner.tell("run");
    // Its new life, as it should be told, and one that is taken for the old.
    for (incarnation, expected_of_old) in [(8, ErrorKind::Invalid), (7, ErrorKind::Rejected)] {
        let reframed = |payload: &[u8]| {
            let mut bytes = vec![0; payload.len() + HEADER];
            Frame::encode(Incarnation(incarnation), payload, &mut bytes).unwrap();
            bytes
        };
        let metadata = reframed(&world.owner.metadata);
        world.reader.connect(Frame::decode(&metadata).unwrap()).unwrap();
        let Got::Connected(_, peer) = next(&mut world.reader) else { panic!("expected the connection") };
        let old = world.reader.read(peer, TOKEN, Frame::decode(&old).unwrap(), &ALL, &world.into, 0);
        let refused = match old {
            Err(error) => error.kind(),
            Ok(read) => match next(&mut world.reader) {
                Got::Read(done, Err(kind)) if done == read => kind,
                got => panic!("expected a refusal, got {got:?}"),
            },
        };
        assert_eq!(refused, expected_of_old);
        let new = reframed(Frame::decode(&world.exported).unwrap().payload());
        let read = world.reader.read(peer, TOKEN, Frame::decode(&new).unwrap(), &ALL, &world.into, 0).unwrap();
        assert_eq!(next(&mut world.reader), Got::Read(read, SERVED));
        assert_eq!(world.wrong(), None);
    }
}
