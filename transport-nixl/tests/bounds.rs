//! Bounds on what a caller or a peer can make this transport hold, and that nothing makes its caller wait.
#![cfg(feature = "nixl")]

mod common;

use common::{
    Got, LANDED, MIB, TOKEN, connect, dial, exported, hear, next, patterned, poisoned, poll,
    process::{Process, obey},
    range, read, transport, until, voluntary_switches, with,
};
use lease_proto::{
    frame::Frame,
    transport::{Control as _, Data as _, Error as _, ErrorKind},
};
use transport_nixl::NixlConfig;

on_every_lane!(
    what_is_sent_while_nixl_is_busy_waits_within_bounds_and_arrives,
    only_so_many_reads_of_one_peer_are_open,
    polling_sending_and_connecting_never_wait,
);

on_tcp!(
    only_so_many_connections_are_there,
    only_so_many_regions_of_one_peer_are_known,
    it_wakes_by_its_descriptor_and_by_no_waker
);

/// Not a test of its own.
#[test]
fn a_peer_for_the_others() {
    obey();
}

fn only_so_many_connections_are_there() {
    let mut from = with(NixlConfig { max_peers: 3, ..NixlConfig::default() });
    let mut others = [transport(), transport(), transport()];
    let full = |from: &mut transport_nixl::NixlTransport| {
        let metadata = common::framed(others[0].local_metadata());
        assert_eq!(from.connect(Frame::decode(&metadata).unwrap()).unwrap_err().kind(), ErrorKind::WouldBlock);
    };
    // However far each attempt is: begun, under way, or over.
    for polls in [0, 1, 1000] {
        let mut tickets = Vec::new();
        let mut peers = Vec::new();
        for other in &others {
            tickets.push(dial(&mut from, other.local_metadata()));
            for _ in 0..polls {
                if let Some(Got::Connected(_, peer)) = poll(&mut from) {
                    peers.push(peer);
                }
            }
        }
        full(&mut from);
        while peers.len() < 3 {
            let Got::Connected(_, peer) = next(&mut from) else { panic!("expected a connection") };
            peers.push(peer);
        }
        full(&mut from);
        // One that is given up makes room at once, for the agent that is known as for another.
        from.disconnect(peers[0]);
        assert_eq!(poll(&mut from), None);
        let again = dial(&mut from, others[0].local_metadata());
        full(&mut from);
        from.cancel(again);
        peers.into_iter().for_each(|peer| from.disconnect(peer));
        until("all to be forgotten", || {
            assert_eq!(poll(&mut from), None);
            let ticket = from.connect(Frame::decode(&common::framed(others[1].local_metadata())).unwrap());
            ticket.ok().map(|ticket| from.cancel(ticket))
        });
        for _ in 0..10_000 {
            assert_eq!(poll(&mut from), None);
        }
    }
    let peer = connect(&mut from, others[2].local_metadata());
    from.notify(peer, b"hello").unwrap();
    assert_eq!(hear(&mut from, &mut others[2]), Got::Message(b"hello".to_vec()));
}

fn what_is_sent_while_nixl_is_busy_waits_within_bounds_and_arrives() {
    for (config, fit) in [
        (NixlConfig { max_queued: 3, ..NixlConfig::default() }, 3),
        (NixlConfig { max_queued_bytes: 250, ..NixlConfig::default() }, 2),
        // One may always wait.
        (NixlConfig { max_queued_bytes: 0, ..NixlConfig::default() }, 1),
    ] {
        let (mut from, mut to, other) = (with(config), transport(), transport());
        let peer = connect(&mut from, to.local_metadata());
        let ticket = dial(&mut from, other.local_metadata());
        // From here on the slow thread has the agent, until it is polled again.
        assert_eq!(poll(&mut from), None);
        for n in 0..fit {
            from.notify(peer, &[n; 100]).unwrap();
            assert_eq!(from.in_flight(peer), usize::from(n) + 1);
        }
        assert_eq!(from.notify(peer, &[9; 100]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let Got::Connected(resolved, second) = next(&mut from) else { panic!("expected the connection") };
        assert_eq!(resolved, ticket);
        let mut arrived: Vec<Got> = (0..fit).map(|_| hear(&mut from, &mut to)).collect();
        assert_eq!(from.in_flight(peer), 0);
        arrived.sort_by_key(|got| if let Got::Message(bytes) = got { bytes[0] } else { 99 });
        assert!(arrived == (0..fit).map(|n| Got::Message(vec![n; 100])).collect::<Vec<_>>());
        from.notify(second, b"and the other").unwrap();
        from.notify(peer, b"room again").unwrap();
        assert_eq!(hear(&mut from, &mut to), Got::Message(b"room again".to_vec()));
    }
}

fn only_so_many_reads_of_one_peer_are_open() {
    let (mut reader, mut owner) = (with(NixlConfig { max_reads: 4, ..NixlConfig::default() }), transport());
    let region = owner.register(patterned(MIB)).unwrap();
    let exported = exported(&mut owner, &region);
    let peer = connect(&mut reader, owner.local_metadata());
    let into = reader.register(poisoned(4 * MIB)).unwrap();
    for _ in 0..3 {
        let mut open: Vec<_> = (0..4)
            .map(|n| {
                let at = (n * MIB) as u64;
                reader.read(peer, TOKEN, Frame::decode(&exported).unwrap(), &[range(0, MIB)], &into, at).unwrap()
            })
            .collect();
        let error = reader.read(peer, TOKEN, Frame::decode(&exported).unwrap(), &[range(0, 1)], &into, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        while !open.is_empty() {
            let Got::Read(read, LANDED) = hear(&mut owner, &mut reader) else { panic!("expected a read's end") };
            assert!(open.contains(&read), "a read ends once");
            open.retain(|open| *open != read);
        }
    }
}

fn only_so_many_regions_of_one_peer_are_known() {
    let (mut reader, mut owner) = (with(NixlConfig { max_regions: 2, ..NixlConfig::default() }), transport());
    let regions: Vec<_> = (0..3).map(|_| owner.register(patterned(4096)).unwrap()).collect();
    let exports: Vec<_> = regions.iter().map(|region| exported(&mut owner, region)).collect();
    let mut peer = connect(&mut reader, owner.local_metadata());
    let into = reader.register(poisoned(4096)).unwrap();
    for _ in 0..2 {
        for n in [0, 1, 0, 1] {
            let id = read(&mut reader, peer, &exports[n], 4096, &into);
            assert_eq!(hear(&mut owner, &mut reader), Got::Read(id, LANDED));
        }
        let third = Frame::decode(&exports[2]).unwrap();
        let error = reader.read(peer, TOKEN, third, &[range(0, 1)], &into, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        // Another connection knows none of them.
        reader.disconnect(peer);
        assert_eq!(poll(&mut reader), None);
        peer = connect(&mut reader, owner.local_metadata());
    }
}

fn polling_sending_and_connecting_never_wait() {
    let (mut transport, processes) = (transport(), [Process::start(), Process::start()]);
    let metadata = processes.each_ref().map(|process| process.metadata.clone());
    let first = connect(&mut transport, &metadata[0]);
    transport.notify(first, b"so that it is connected").unwrap();
    for _ in 0..1000 {
        assert_eq!(poll(&mut transport), None);
    }
    let before = voluntary_switches();
    let ticket = dial(&mut transport, &metadata[1]);
    let (mut connected, mut waiting) = (None, 0);
    for n in 0.. {
        if n >= 10_000 && connected.is_some() {
            break;
        }
        match poll(&mut transport) {
            Some(Got::Connected(resolved, peer)) => {
                assert_eq!(resolved, ticket);
                connected = Some(peer);
            }
            got => assert_eq!(got, None),
        }
        if n % 10 == 0 && n < 10_000 {
            let peer = connected.filter(|_| n % 20 == 0).unwrap_or(first);
            waiting += usize::from(transport.notify(peer, &[n as u8; 100]).is_err());
        }
    }
    let waits = voluntary_switches() - before;
    println!("seen: {waits} waits in 10000 polls and more, 1000 notifications ({waiting} held back) and a connection");
    // A lock of NIXL's or of UCX's may be met, as its threads come by.
    assert!(waits < 10, "{waits} waits");
}

fn it_wakes_by_its_descriptor_and_by_no_waker() {
    let (mut from, to) = (transport(), transport());
    assert_eq!(from.register_waker(std::task::Waker::noop()).unwrap_err().kind(), ErrorKind::Unsupported);
    let ticket = dial(&mut from, to.local_metadata());
    assert_eq!(poll(&mut from), None);
    // Nothing but the end of the slow call rings it.
    let bell = from.arm().unwrap().unwrap();
    assert_eq!(rustix::event::poll(&mut [rustix::event::PollFd::new(&bell, rustix::event::PollFlags::IN)], None), Ok(1));
    assert!(matches!(poll(&mut from), Some(Got::Connected(resolved, _)) if resolved == ticket));
}
