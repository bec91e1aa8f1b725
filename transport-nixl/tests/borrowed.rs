//! The transport on the engine's own agent.
#![cfg(feature = "borrowed-agent")]

mod common;

use common::{
    Got, LANDED, MIB, connect, foreign, poisoned, poll,
    process::{Process, obey},
    read, transport, until, wrong,
};
use lease_proto::transport::{Control as _, Data as _, Error as _, ErrorKind};
use nixl_sys::Agent;
use transport_nixl::{NixlConfig, NixlTransport};

on_every_lane!(
    it_sends_and_reads_by_the_engines_agent_and_takes_what_that_hands_in,
    peers_that_the_engine_knew_stay_known,
    it_takes_no_more_than_it_has_room_for,
);

on_tcp!(it_never_takes_the_engines_notifications_not_even_as_it_ends);

/// Not a test of its own.
#[test]
fn a_peer_for_the_others() {
    obey();
}

fn engine() -> (Agent, NixlTransport) {
    drop(transport()); // which finds and loads NIXL
    let agent = foreign::agent("the engine's");
    let borrowed = NixlTransport::borrow(&agent, NixlConfig::default()).unwrap();
    (agent, borrowed)
}

fn it_sends_and_reads_by_the_engines_agent_and_takes_what_that_hands_in() {
    let (agent, mut borrowed) = engine();
    let mut process = Process::start();
    let exported = process.own(MIB);
    let peer = connect(&mut borrowed, &process.metadata);
    borrowed.notify(peer, b"from the engine").unwrap();
    let heard = process.heard_while(1, || assert!(foreign::heard(&agent).is_empty()));
    assert_eq!(heard, [b"from the engine"]);
    let into = borrowed.register(poisoned(MIB)).unwrap();
    let id = read(&mut borrowed, peer, &exported, MIB, &into);
    let got = until("the read", || {
        foreign::heard(&agent);
        poll(&mut borrowed)
    });
    assert_eq!((got, wrong(into.memory())), (Got::Read(id, LANDED), None));
    process.send(borrowed.local_metadata(), b"to the engine");
    let bytes = until("the notification", || foreign::heard(&agent).pop());
    assert_eq!(poll(&mut borrowed), None);
    borrowed.hand_in(bytes).unwrap();
    assert_eq!(poll(&mut borrowed), Some(Got::Message(b"to the engine".to_vec())));
}

fn peers_that_the_engine_knew_stay_known() {
    let (agent, mut borrowed) = engine();
    let (known, ours) = (transport(), transport());
    agent.load_remote_md(foreign::nixls_part(known.local_metadata())).unwrap();
    for peer in [&known, &ours] {
        connect(&mut borrowed, peer.local_metadata());
    }
    let knows = |of: &NixlTransport| agent.check_remote_metadata(of.agent_name(), None);
    assert!(knows(&known) && knows(&ours));
    drop(borrowed);
    assert!(knows(&known) && !knows(&ours));
}

fn it_takes_no_more_than_it_has_room_for() {
    let (agent, borrowed) = engine();
    drop(borrowed);
    let mut borrowed = NixlTransport::borrow(&agent, NixlConfig { max_inbox: 1, ..NixlConfig::default() }).unwrap();
    borrowed.hand_in(b"first".to_vec()).unwrap();
    assert_eq!(borrowed.hand_in(b"second".to_vec()), Err(b"second".to_vec()));
    assert_eq!(poll(&mut borrowed), Some(Got::Message(b"first".to_vec())));
    borrowed.hand_in(b"second".to_vec()).unwrap();
    let other = NixlConfig { backend: "nixl:LIBFABRIC".parse().unwrap(), ..NixlConfig::default() };
    let error = NixlTransport::borrow(&agent, other).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("LIBFABRIC"), "{error}");
}

fn it_never_takes_the_engines_notifications_not_even_as_it_ends() {
    let (agent, mut borrowed) = engine();
    let mut process = Process::start();
    let exported = process.own(24 * MIB);
    let peer = connect(&mut borrowed, &process.metadata);
    borrowed.notify(peer, b"hello").unwrap();
    process.heard_while(1, || assert!(foreign::heard(&agent).is_empty()));
    let into = borrowed.register(poisoned(24 * MIB)).unwrap();
    // Once, so that the region is known, and once more from an owner that stands still.
    let id = read(&mut borrowed, peer, &exported, 24 * MIB, &into);
    let got = until("the read", || {
        foreign::heard(&agent);
        poll(&mut borrowed)
    });
    assert_eq!(got, Got::Read(id, LANDED));
    process.stop();
    read(&mut borrowed, peer, &exported, 24 * MIB, &into);
    for _ in 0..1000 {
        assert_eq!(poll(&mut borrowed), None);
    }
    let other = foreign::agent("another engine's");
    foreign::send(&other, &borrowed, b"for the engine alone");
    (0..1000).for_each(|_| drop(foreign::heard(&other)));
    let memory = into.memory().clone();
    drop((borrowed, into));
    let heard = until("what was for the engine", || {
        foreign::heard(&other);
        foreign::heard(&agent).pop()
    });
    assert_eq!(heard, b"for the engine alone");
    assert!(memory.try_into_slab().is_err(), "NIXL may write to it");
}
