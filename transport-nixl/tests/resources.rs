//! What connections, notifications, reads and registrations cost: counted for a whole process.
#![cfg(feature = "nixl")]

mod common;

use common::{
    Got, LANDED, MIB, connect, dial, exported, hear, pair, patterned, poisoned, poll,
    process::{Process, obey},
    read, transport, until, with, wrong,
};
use lease_proto::{
    time::Duration,
    transport::{Control as _, Data as _},
};
use transport_nixl::{NixlConfig, NixlTransport};

on_every_lane!(
    connections_that_come_and_go_leave_nothing_behind,
    agents_that_are_forgotten_leave_no_more_than_nixl_keeps,
    reads_and_registrations_leave_nothing_behind,
    notifications_leave_nothing_behind,
    transports_leave_no_descriptor_behind,
);

on_tcp!(killed_peers_leave_nothing_behind);

/// Not a test of its own.
#[test]
fn a_peer_for_the_others() {
    obey();
}

/// Resident memory may differ by this much: what the allocators of C and of UCX keep.
const SLACK: usize = 3 << 20;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

/// Runs `round` for some rounds to warm up, then for many, of which nothing may be left, or no more than `each`: descriptors and
/// bytes per round.
#[track_caller]
fn without_growth(what: &str, (few, many): (usize, usize), each: (usize, usize), mut round: impl FnMut(usize)) {
    (0..few).for_each(&mut round);
    let before = (descriptors(), resident());
    (0..many).for_each(&mut round);
    let after = (descriptors(), resident());
    let kib = (before.1 >> 10, after.1 >> 10);
    println!("seen: {many} {what}: descriptors {} to {}, resident {} to {} KiB", before.0, after.0, kib.0, kib.1);
    assert!(after.0 <= before.0 + 8 + each.0 * many, "{} descriptors, {} before", after.0, before.0);
    assert!(after.1 <= before.1 + SLACK + each.1 * many, "{} bytes resident, {} before", after.1, before.1);
}

const NOTHING: (usize, usize) = (0, 0);
/// What NIXL 1.5 keeps of a connection to an agent that lives, once it has forgotten that, on both sides together: over tcp sockets,
/// over shared memory buffers. It does so for whoever uses it.
const KEPT: (usize, usize) = (4, 128 << 10);

fn connections_that_come_and_go_leave_nothing_behind() {
    come_and_go("connections", transport(), NOTHING);
}

fn agents_that_are_forgotten_leave_no_more_than_nixl_keeps() {
    come_and_go("agents", with(NixlConfig { keep_known: Duration::ZERO, ..NixlConfig::default() }), KEPT);
}

fn come_and_go(what: &str, mut from: NixlTransport, each: (usize, usize)) {
    let mut to = transport();
    without_growth(what, (100, 300), each, |_| {
        let given_up = dial(&mut from, to.local_metadata());
        from.cancel(given_up);
        let peer = connect(&mut from, to.local_metadata());
        from.notify(peer, b"last words").unwrap();
        assert_eq!(hear(&mut from, &mut to), Got::Message(b"last words".to_vec()));
        from.disconnect(peer);
        assert_eq!((poll(&mut from), poll(&mut to)), (None, None));
    });
}

fn killed_peers_leave_nothing_behind() {
    let mut from = transport();
    without_growth("killed peers", (2, 6), NOTHING, |_| {
        let mut process = Process::start();
        let peer = connect(&mut from, &process.metadata);
        from.notify(peer, b"hello").unwrap();
        process.kill();
        until("the loss", || {
            let _ = from.notify(peer, b"anybody?");
            poll(&mut from).map(|got| assert_eq!(got, Got::Lost(peer)))
        });
        assert_eq!(poll(&mut from), None);
    });
}

fn reads_and_registrations_leave_nothing_behind() {
    let (mut reader, mut owner, peer) = pair();
    let region = owner.register(patterned(3 * MIB)).unwrap();
    let exported = exported(&mut owner, &region);
    without_growth("reads", (100, 500), NOTHING, |n| {
        let length = [100, 16 << 10, 60_000, 3 * MIB][n % 4];
        let into = reader.register(poisoned(length)).unwrap();
        let id = read(&mut reader, peer, &exported, length, &into);
        assert_eq!(hear(&mut owner, &mut reader), Got::Read(id, LANDED));
        assert_eq!(wrong(into.memory()), None);
    });
}

fn notifications_leave_nothing_behind() {
    let (mut from, mut to, peer) = pair();
    without_growth("notifications", (500, 2000), NOTHING, |n| {
        let bytes = vec![n as u8; [0, 16, 256, 60_000][n % 4]];
        from.notify(peer, &bytes).unwrap();
        assert!(hear(&mut from, &mut to) == Got::Message(bytes));
    });
}

fn transports_leave_no_descriptor_behind() {
    let _stays = transport();
    without_growth("transports", (3, 10), NOTHING, |_| {
        let (mut from, mut to, peer): (NixlTransport, NixlTransport, _) = pair();
        from.notify(peer, b"hello").unwrap();
        assert_eq!(hear(&mut from, &mut to), Got::Message(b"hello".to_vec()));
    });
}
