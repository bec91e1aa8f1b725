//! Connections: what metadata does, whole and damaged, and lives of one agent.
#![cfg(feature = "nixl")]

mod common;

use common::{
    Got, connect, dial, foreign, framed, framed_as, hear, next, pair, poll,
    process::{Process, obey},
    transport, until, with,
};
use lease_proto::{
    frame::Frame,
    transport::{Control as _, DeadPeer, Error as _, ErrorKind},
};
use transport_nixl::{NixlConfig, NixlTransport};

on_every_lane!(
    an_agent_that_comes_again_by_its_name_takes_the_place_of_the_old,
    a_peer_that_is_left_is_not_connected_and_can_be_connected_to_again,
    an_attempt_that_is_given_up_is_not_told,
    processes_send_to_each_other,
);

on_tcp!(
    metadata_that_is_damaged_inside_its_frame_is_refused,
    nixls_part_that_is_damaged_fails_and_harms_nobody,
    a_frame_notices_every_changed_bit,
    metadata_for_another_backend_is_refused,
    an_agents_own_metadata_harms_nobody,
    it_states_what_it_can,
);

/// Not a test of its own.
#[test]
fn a_peer_for_the_others() {
    obey();
}

fn it_states_what_it_can() {
    let transport = transport();
    let can = transport.capabilities();
    assert_eq!((can.max_notification, can.dead_peer), (64 << 10, DeadPeer::Never));
    assert!(!can.cuda && !can.fence && !can.ordered && !can.answered && !can.holds_back && !can.late_read_is_safe);
}

fn processes_send_to_each_other() {
    let (mut transport, mut process) = (transport(), Process::start());
    let metadata = transport.local_metadata().to_vec();
    let peer = connect(&mut transport, &process.metadata);
    transport.notify(peer, b"ping").unwrap();
    let got = std::thread::scope(|scope| {
        let heard = scope.spawn(|| {
            let heard = process.heard(1);
            process.send(&metadata, b"pong");
            heard
        });
        let got = next(&mut transport);
        (heard.join().unwrap(), got)
    });
    assert_eq!(got, (vec![b"ping".to_vec()], Got::Message(b"pong".to_vec())));
}

fn an_agent_that_comes_again_by_its_name_takes_the_place_of_the_old() {
    let mut from = transport();
    let first = foreign::agent("twin");
    let metadata = |agent: &nixl_sys::Agent| foreign::transports(&agent.get_local_md().unwrap());
    let hears = |from: &mut NixlTransport, agent: &nixl_sys::Agent| {
        until("the twin to hear", || {
            assert_eq!(poll(from), None);
            foreign::heard(agent).pop()
        })
    };
    let dial_as =
        |from: &mut NixlTransport, life, agent| from.connect(Frame::decode(&framed_as(life, &metadata(agent))).unwrap()).unwrap();
    dial_as(&mut from, 1, &first);
    let Got::Connected(_, old) = next(&mut from) else { panic!("expected the connection") };
    from.notify(old, b"to the first").unwrap();
    assert_eq!(hears(&mut from, &first), b"to the first");

    let second = foreign::agent("twin");
    let ticket = dial_as(&mut from, 2, &second);
    assert_eq!(next(&mut from), Got::Lost(old));
    let Got::Connected(resolved, new) = next(&mut from) else { panic!("expected the connection") };
    assert_eq!(resolved, ticket);
    assert_eq!(from.notify(old, b"?").unwrap_err().kind(), ErrorKind::NotConnected);
    from.notify(new, b"to the second").unwrap();
    assert_eq!(hears(&mut from, &second), b"to the second");
    assert!(foreign::heard(&first).is_empty());
}

fn a_peer_that_is_left_is_not_connected_and_can_be_connected_to_again() {
    let (mut from, mut to, mut peer) = pair();
    for _ in 0..10 {
        from.notify(peer, b"hello").unwrap();
        assert_eq!(hear(&mut from, &mut to), Got::Message(b"hello".to_vec()));
        from.disconnect(peer);
        assert_eq!(from.notify(peer, b"?").unwrap_err().kind(), ErrorKind::NotConnected);
        assert_eq!(poll(&mut from), None);
        let again = connect(&mut from, to.local_metadata());
        assert_ne!(again, peer);
        peer = again;
    }
}

fn an_attempt_that_is_given_up_is_not_told() {
    let (mut from, mut to) = (transport(), transport());
    for polls in 0..4 {
        let given_up = dial(&mut from, to.local_metadata());
        for _ in 0..polls {
            if poll(&mut from).is_some() {
                break;
            }
        }
        from.cancel(given_up);
        from.cancel(given_up);
        for _ in 0..1000 {
            let got = poll(&mut from);
            assert!(got.is_none(), "{got:?}");
        }
    }
    let peer = connect(&mut from, to.local_metadata());
    from.notify(peer, b"hello").unwrap();
    assert_eq!(hear(&mut from, &mut to), Got::Message(b"hello".to_vec()));
}

/// Whether an attempt with this payload in a sound frame comes to nothing.
fn fails(from: &mut NixlTransport, payload: &[u8]) -> bool {
    match from.connect(Frame::decode(&framed(payload)).unwrap()) {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            true
        }
        Ok(attempt) => match next(from) {
            Got::ConnectFailed(ticket, kind) => {
                assert_eq!((ticket, kind), (attempt, ErrorKind::Rejected));
                true
            }
            Got::Connected(ticket, peer) => {
                assert_eq!(ticket, attempt);
                from.disconnect(peer);
                // Forgotten, or the next attempt would find it known.
                assert_eq!(poll(from), None);
                false
            }
            other => panic!("expected the attempt's end, got {other:?}"),
        },
    }
}

fn metadata_that_is_damaged_inside_its_frame_is_refused() {
    let (mut from, mut to) = (transport(), transport());
    let payload = to.local_metadata().to_vec();
    let invalid = |from: &mut NixlTransport, payload: &[u8]| {
        let error = from.connect(Frame::decode(&framed(payload)).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    };
    for cut in 0..payload.len() {
        invalid(&mut from, &payload[..cut]);
    }
    invalid(&mut from, &[&payload[..], b"!"].concat());
    for at in 0..6 {
        let mut changed = payload.clone();
        changed[at] ^= 0x40;
        invalid(&mut from, &changed);
    }
    for junk in [&b""[..], b"junk", &[0; 100], &[0xff; 5000], &payload[24..]] {
        invalid(&mut from, junk);
    }
    let peer = connect(&mut from, to.local_metadata());
    from.notify(peer, b"good").unwrap();
    assert_eq!(hear(&mut from, &mut to), Got::Message(b"good".to_vec()));
}

/// Only outside the address of UCX, which reads it without knowing its length: what guards that is the frame.
fn nixls_part_that_is_damaged_fails_and_harms_nobody() {
    let (mut from, mut to) = (transport(), transport());
    let nixls = foreign::nixls_part(to.local_metadata()).to_vec();
    let works = |from: &mut NixlTransport| !fails(from, &foreign::transports(&nixls));
    assert!(works(&mut from));
    let place = |of: &[u8]| nixls.windows(of.len()).position(|window| window == of).unwrap();
    let (backend, memory) = (place(b"UCX"), place(b"MemSection"));
    for cut in 0..memory {
        assert!(fails(&mut from, &foreign::transports(&nixls[..cut])), "cut at {cut}");
    }
    assert!(works(&mut from));
    let (mut flips, mut refused) = (0, 0);
    for at in 0..backend + 3 {
        for bit in 0..8 {
            let mut flipped = nixls.clone();
            flipped[at] ^= 1 << bit;
            flips += 1;
            refused += usize::from(fails(&mut from, &foreign::transports(&flipped)));
            assert!(works(&mut from), "no longer, after byte {at} bit {bit}");
        }
    }
    println!("seen: {refused} of {flips} flipped bits before the address are refused");
    assert!(refused > 0);
    // What NIXL took of metadata that is damaged behind the address it keeps, and does not forget: that agent is out of reach for this
    // transport from then on, and no other one.
    for cut in memory..nixls.len() {
        assert!(fails(&mut from, &foreign::transports(&nixls[..cut])), "cut at {cut}");
    }
    println!(
        "seen: after {} truncations of the last {}, it can be connected to: {}",
        nixls.len(),
        nixls.len() - memory,
        works(&mut from)
    );
    let mut other = transport();
    let peer = connect(&mut from, other.local_metadata());
    from.notify(peer, b"good").unwrap();
    assert_eq!(hear(&mut from, &mut other), Got::Message(b"good".to_vec()));
    assert_eq!(poll(&mut to), None);
}

fn a_frame_notices_every_changed_bit() {
    let framed = framed(transport().local_metadata());
    for bit in 0..framed.len() * 8 {
        let mut flipped = framed.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Frame::decode(&flipped).is_err(), "bit {bit}");
    }
}

fn metadata_for_another_backend_is_refused() {
    let (mut from, to) = (transport(), transport());
    let mut metadata = to.local_metadata().to_vec();
    let at = metadata.windows(3).position(|window| window == b"UCX").unwrap();
    metadata[at..at + 3].copy_from_slice(b"OBJ");
    let error = from.connect(Frame::decode(&framed(&metadata)).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("OBJ") && error.to_string().contains("UCX"), "{error}");
}

/// Its own, and one that a stranger gave its name.
fn an_agents_own_metadata_harms_nobody() {
    let (mut from, mut to) = (with(NixlConfig::default()), transport());
    let own = from.local_metadata().to_vec();
    println!("seen: its own metadata fails: {}", fails(&mut from, &own));
    let stranger = foreign::agent(from.agent_name());
    let theirs = foreign::transports(&stranger.get_local_md().unwrap());
    println!("seen: a stranger's by its name fails: {}", fails(&mut from, &theirs));
    let peer = connect(&mut from, to.local_metadata());
    from.notify(peer, b"good").unwrap();
    assert_eq!(hear(&mut from, &mut to), Got::Message(b"good".to_vec()));
}
