//! Peers that stand still, die and come again, in processes of their own.
#![cfg(feature = "nixl")]

mod common;

use common::{
    Got, LANDED, MIB, connect, dial, framed, framed_as, given_back, is_poison, is_tcp, next, poisoned, poll,
    process::{Process, obey},
    read, transport, until, wrong,
};
use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Control as _, Data as _, Error as _, ErrorKind, PeerId, ReadId},
};
use transport_nixl::{NixlTransport, Region};

on_every_lane!(
    what_is_sent_to_a_stopped_peer_is_taken_and_arrives_when_it_goes_on,
    a_killed_peer_is_lost_once_and_its_next_life_is_connected_to,
    a_read_of_a_killed_owner_ends_and_gives_the_memory_back,
    an_attempt_to_a_dead_peer_harms_nobody,
    two_peers_of_one_agent_are_lost_together,
    a_loss_that_waits_is_not_told_of_a_peer_that_is_left,
);

on_tcp!(
    a_connection_that_broke_on_this_side_is_made_again_with_the_same_metadata,
    a_read_of_a_stopped_owner_ends_only_when_it_goes_on,
    a_read_of_a_stopped_owner_outlives_its_transport,
    a_region_that_nixl_does_not_take_waits_until_nothing_is_under_way,
);

/// Not a test of its own.
#[test]
fn a_peer_for_the_others() {
    obey();
}

fn what_is_sent_to_a_stopped_peer_is_taken_and_arrives_when_it_goes_on() {
    let (mut transport, mut process) = (transport(), Process::start());
    let peer = connect(&mut transport, &process.metadata);
    transport.notify(peer, b"0").unwrap();
    // Until it has come, the connection is not yet made.
    assert_eq!(process.heard_while(1, || assert_eq!(poll(&mut transport), None)), [b"0"]);
    process.stop();
    // `Ok` says nothing about arrival, and neither does the number in flight.
    for n in 1..1000 {
        transport.notify(peer, n.to_string().as_bytes()).unwrap();
        assert_eq!((poll(&mut transport), transport.in_flight(peer)), (None, 0));
    }
    process.go_on();
    let mut heard = process.heard_while(1000, || assert_eq!(poll(&mut transport), None));
    heard.sort();
    let mut sent: Vec<_> = (0..1000).map(|n| n.to_string().into_bytes()).collect();
    sent.sort();
    assert!(heard == sent);
    println!("seen: 999 of 999 sent to a stopped process arrived after it went on");
}

/// Sends until NIXL has given the peer up, and returns how many it took before. The loss may be told already.
fn send_until_lost(transport: &mut NixlTransport, peer: PeerId) -> usize {
    let mut taken = 0;
    until("nixl to give the peer up", || match transport.notify(peer, b"anybody?") {
        Ok(()) => {
            taken += 1;
            // At some pace: all of them wait in NIXL.
            std::thread::sleep(std::time::Duration::from_millis(1));
            poll(transport).map(|got| assert_eq!(got, Got::Lost(peer)))
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::PeerLost);
            assert_eq!(poll(transport), Some(Got::Lost(peer)));
            Some(())
        }
    });
    taken
}

fn a_killed_peer_is_lost_once_and_its_next_life_is_connected_to() {
    let mut transport = transport();
    let mut earlier = None;
    for life in 0..3 {
        let mut process = Process::start();
        let peer = connect(&mut transport, &process.metadata);
        assert_ne!(Some(peer), earlier);
        transport.notify(peer, b"hello").unwrap();
        assert_eq!(process.heard_while(1, || assert_eq!(poll(&mut transport), None)), [b"hello"]);
        process.kill();
        let taken = send_until_lost(&mut transport, peer);
        println!("seen: life {life}: {taken} notifications taken after its death, 1 ms apart");
        assert_eq!(transport.notify(peer, b"again").unwrap_err().kind(), ErrorKind::NotConnected);
        for _ in 0..1000 {
            assert_eq!(poll(&mut transport), None);
        }
        earlier = Some(peer);
    }
}

fn two_peers_of_one_agent_are_lost_together() {
    let (mut transport, mut process) = (transport(), Process::start());
    let (one, two) = (connect(&mut transport, &process.metadata), connect(&mut transport, &process.metadata));
    assert_ne!(one, two);
    transport.notify(one, b"1").unwrap();
    transport.notify(two, b"2").unwrap();
    assert_eq!(process.heard_while(2, || assert_eq!(poll(&mut transport), None)).len(), 2);
    // The agent stays known for the other.
    transport.disconnect(one);
    assert_eq!(transport.notify(one, b"1").unwrap_err().kind(), ErrorKind::NotConnected);
    let again = connect(&mut transport, &process.metadata);
    process.kill();
    let mut lost = Vec::new();
    until("both to be lost", || {
        let _ = transport.notify(two, b"anybody?");
        while let Some(got) = poll(&mut transport) {
            let Got::Lost(peer) = got else { panic!("expected a loss, got {got:?}") };
            lost.push(peer);
        }
        (!lost.is_empty()).then_some(())
    });
    assert_eq!(lost, [two, again]);
}

fn a_loss_that_waits_is_not_told_of_a_peer_that_is_left() {
    let (mut transport, mut process) = (transport(), Process::start());
    let peer = connect(&mut transport, &process.metadata);
    transport.notify(peer, b"hello").unwrap();
    assert_eq!(process.heard_while(1, || assert_eq!(poll(&mut transport), None)), [b"hello"]);
    process.kill();
    let error = until("the loss", || {
        transport.flush(Duration::from_millis(1)).unwrap();
        transport.notify(peer, b"anybody?").err()
    });
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    transport.disconnect(peer);
    for _ in 0..1000 {
        assert_eq!(poll(&mut transport), None);
    }
}

fn an_attempt_to_a_dead_peer_harms_nobody() {
    let (mut transport, mut dead, mut alive) = (transport(), Process::start(), Process::start());
    dead.kill();
    let given_up = dial(&mut transport, &dead.metadata);
    transport.cancel(given_up);
    let peer = connect(&mut transport, &alive.metadata);
    transport.notify(peer, b"hello").unwrap();
    assert_eq!(alive.heard_while(1, || assert_eq!(poll(&mut transport), None)), [b"hello"]);
    // NIXL may say connected, or that it failed; what is sent to it tells.
    let doomed = dial(&mut transport, &dead.metadata);
    match next(&mut transport) {
        Got::ConnectFailed(ticket, _) => assert_eq!(ticket, doomed),
        Got::Connected(ticket, peer) => {
            assert_eq!(ticket, doomed);
            send_until_lost(&mut transport, peer);
        }
        other => panic!("expected the attempt's end, got {other:?}"),
    }
    transport.notify(peer, b"still here").unwrap();
    assert_eq!(alive.heard_while(2, || assert_eq!(poll(&mut transport), None))[1], b"still here");
}

/// What cuts the connections of this process, and leaves those of the peer's to see it.
fn cut_every_connection() -> usize {
    let own = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).unwrap();
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let entry = entry.unwrap();
        let is_socket = std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        is_socket.then(|| entry.file_name().to_string_lossy().parse::<i32>().unwrap())
    });
    let sockets = numbers.filter_map(|number| {
        let flags = rustix::process::PidfdGetfdFlags::empty();
        rustix::process::pidfd_getfd(&own, number, flags).ok()
    });
    let streams = sockets.map(std::net::TcpStream::from).filter(|stream| stream.peer_addr().is_ok());
    streams.filter(|stream| stream.shutdown(std::net::Shutdown::Both).is_ok()).count()
}

fn a_connection_that_broke_on_this_side_is_made_again_with_the_same_metadata() {
    let (mut transport, mut process) = (transport(), Process::start());
    for round in 0..3 {
        let peer = connect(&mut transport, &process.metadata);
        transport.notify(peer, b"hello").unwrap();
        let heard = process.heard_while(round + 1, || assert_eq!(poll(&mut transport), None)).len();
        assert_eq!(heard, round + 1);
        assert!(cut_every_connection() > 0);
        // The error stays with NIXL until the agent is forgotten and learnt again.
        send_until_lost(&mut transport, peer);
    }
}

/// An owner of this many bytes in another process, and a reader of it.
struct World {
    owner: Process,
    exported: Vec<u8>,
    reader: NixlTransport,
    peer: PeerId,
    into: Region,
}

const LENGTH: usize = 16 * MIB;

impl World {
    fn new() -> Self {
        let (mut owner, mut reader) = (Process::start(), transport());
        let exported = owner.own(LENGTH);
        let peer = connect(&mut reader, &owner.metadata);
        let into = reader.register(poisoned(LENGTH)).unwrap();
        let mut world = Self { owner, exported, reader, peer, into };
        // What NIXL has to learn of the region, it knows from now on.
        let first = world.read();
        assert_eq!(next(&mut world.reader), Got::Read(first, LANDED));
        assert_eq!(wrong(world.into.memory()), None);
        world.poison();
        world
    }

    fn read(&mut self) -> ReadId {
        read(&mut self.reader, self.peer, &self.exported, LENGTH, &self.into)
    }

    fn poison(&self) {
        self.into.memory().copy_in(0, &vec![0xff; LENGTH]).unwrap();
    }
}

fn a_read_of_a_stopped_owner_ends_only_when_it_goes_on() {
    assert!(is_tcp());
    let mut world = World::new();
    for peer_is_left in [false, true] {
        world.owner.stop();
        let read = world.read();
        for _ in 0..20_000 {
            assert_eq!(poll(&mut world.reader), None);
        }
        if peer_is_left {
            world.reader.disconnect(world.peer);
            // Whoever wants to come back waits for it no more than before.
            for _ in 0..20_000 {
                assert_eq!(poll(&mut world.reader), None);
            }
        }
        world.owner.go_on();
        let expected = if peer_is_left { Err(ErrorKind::NotConnected) } else { LANDED };
        assert_eq!(next(&mut world.reader), Got::Read(read, expected));
        if !peer_is_left {
            assert_eq!(wrong(world.into.memory()), None);
        }
        // Nothing is written once it has ended.
        world.poison();
        for _ in 0..20_000 {
            assert_eq!(poll(&mut world.reader), None);
        }
        assert!(is_poison(world.into.memory()));
    }
    let World { mut reader, into, .. } = world;
    let memory = into.memory().clone();
    drop(into);
    given_back(memory, || assert_eq!(poll(&mut reader), None));
}

/// NIXL drops an agent over it, and would tell nothing any more of a read that goes on.
fn a_region_that_nixl_does_not_take_waits_until_nothing_is_under_way() {
    let mut world = World::new();
    world.owner.stop();
    let whole = world.read();
    for _ in 0..1000 {
        assert_eq!(poll(&mut world.reader), None);
    }
    let mut payload = Frame::decode(&world.exported).unwrap().payload().to_vec();
    let at = payload.windows(11).position(|window| window == b"nixlSecElms").unwrap();
    payload[at] ^= 1;
    let other = world.reader.register(poisoned(MIB)).unwrap();
    let damaged = read(&mut world.reader, world.peer, &framed_as(7, &payload), MIB, &other);
    for _ in 0..20_000 {
        assert_eq!(poll(&mut world.reader), None);
    }
    world.owner.go_on();
    assert_eq!(next(&mut world.reader), Got::Read(whole, LANDED));
    assert_eq!(wrong(world.into.memory()), None);
    assert_eq!(next(&mut world.reader), Got::Read(damaged, Err(ErrorKind::Rejected)));
    assert!(is_poison(other.memory()));
}

fn a_read_of_a_stopped_owner_outlives_its_transport() {
    let mut world = World::new();
    world.owner.stop();
    world.read();
    for _ in 0..100 {
        assert_eq!(poll(&mut world.reader), None);
    }
    let World { reader, into, owner, .. } = world;
    let memory = into.memory().clone();
    drop((reader, into));
    // NIXL may write to it as long as the process lives.
    let memory = memory.try_into_slab().expect_err("the memory is kept");
    owner.go_on();
    // Another agent of the process works, and its end comes as usual.
    let mut other = transport();
    assert_eq!(poll(&mut other), None);
    assert_eq!(memory.len(), LENGTH);
}

fn a_read_of_a_killed_owner_ends_and_gives_the_memory_back() {
    let mut world = World::new();
    world.owner.kill();
    let read = world.read();
    let mut lost = false;
    let result = loop {
        match next(&mut world.reader) {
            Got::Lost(peer) if peer == world.peer && !lost => lost = true,
            Got::Read(ended, result) if ended == read => break result,
            other => panic!("expected the loss, got {other:?}"),
        }
    };
    println!("seen: a read of a killed owner ends with {result:?}");
    assert!(matches!(result, Err(ErrorKind::PeerLost)));
    if !lost {
        assert_eq!(next(&mut world.reader), Got::Lost(world.peer));
    }
    let frame = framed(&[]);
    let region = lease_proto::frame::Frame::decode(&frame).unwrap();
    let error = world.reader.read(world.peer, common::TOKEN, region, &[common::range(0, 1)], &world.into, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let World { mut reader, into, .. } = world;
    let memory = into.memory().clone();
    drop(into);
    given_back(memory, || assert_eq!(poll(&mut reader), None));
}
