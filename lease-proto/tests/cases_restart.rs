//! Peers that die, come back, cannot be reached, or only seem to be gone.

mod common;

use common::{
    Seen, World,
    lone::{Heard, LoneHolder, LoneReader, is_renew},
    secs,
};
use conformance::loopback::Fault;
use lease_proto::{
    config::Config,
    drive::Machine as _,
    event::{Freed, Lost, Verdict},
    id::ReaderRank,
    reader::ReadOutcome,
    transport::{ErrorKind, PeerId, Ticket},
    wire::Wire,
};

const WIRES: [Wire; 2] = [Wire::Native, Wire::Vllm];
const CUT: Fault = Fault {
    drop: false,
    hold: false,
    delay: lease_proto::time::Duration::ZERO,
    duplicate: 0,
    reorder: false,
    limit: None,
    cut: true,
};

fn both_ways(world: &World, fault: Fault) {
    for (from, to) in [("d", "p"), ("p", "d")] {
        world.fabric.fault(world.link(from, to), fault);
    }
}

fn pair(wire: Wire) -> (World, lease_proto::reader::Handle) {
    let mut world = World::new(wire);
    world.start("p", 1_000_000_000_000);
    world.start("d", 12_000_000_000);
    let token = world.grant("p", "a").unwrap();
    let handle = world.track("d", "p", "a", token).unwrap();
    world.run_to("10");
    (world, handle)
}

/// Cases 8, 21, 22: the holder comes back under its name: what the old life held is lost, its reads are not valid, and the new
/// life is greeted afresh.
#[test]
fn a_restarted_holder_loses_what_its_old_life_held() {
    for wire in WIRES {
        let (mut world, handle) = pair(wire);
        world.begin_read("d", handle).unwrap();
        world.start("p", 3);
        let token = world.grant("p", "b").unwrap();
        world.track("d", "p", "b", token).unwrap();
        world.run_to("20");
        assert_eq!(world.lost("d", "a"), Some(Lost::PeerRestarted), "{wire}");
        assert_eq!(world.count("d", |seen| matches!(seen, Seen::PeerRestarted(_))), 1);
        world.read_ended("d", handle, ReadOutcome::Failed).unwrap();
        assert_eq!(world.verdict("d", "a"), Some(Verdict::Failed));
        world.run_to("60");
        assert_eq!(world.freed("p", "b"), None, "{wire}: the new one is kept");
        assert_eq!(world.node("d").reader.open(), 1);
        world.lawful();
    }
}

/// A late read of a dead life: proof (A) needs its own deadline, and nobody is left for (B).
#[test]
fn a_read_of_a_dead_holder_is_judged_by_its_deadline_alone() {
    for (ended, verdict) in [("11", Verdict::ValidByDeadline), ("30", Verdict::Expired)] {
        let (mut world, handle) = pair(Wire::Native);
        world.begin_read("d", handle).unwrap();
        world.start("p", 3);
        let token = world.grant("p", "b").unwrap();
        world.track("d", "p", "b", token).unwrap();
        world.run_to(ended);
        world.read_ended("d", handle, ReadOutcome::OneSided).unwrap();
        world.run_to("40");
        assert_eq!(world.verdict("d", "a"), Some(verdict), "{ended}");
        world.lawful();
    }
}

/// Parameters of a life that cannot be reached are given up, whether or not it was met alive.
#[test]
fn parameters_of_a_dead_holder() {
    let (mut world, _) = pair(Wire::Native);
    let (identity, frame) = world.frame("p");
    world.start("p", 3);
    let token = world.grant("p", "b").unwrap();
    world.track("d", "p", "b", token).unwrap();
    world.run_to("20");
    world.start("e", 0);
    for reader in ["d", "e"] {
        world.track_at(reader, (&identity, &frame), "c", token, ReaderRank::ONLY).unwrap();
    }
    world.run_to("61");
    for reader in ["d", "e"] {
        assert_eq!(world.lost(reader, "c"), Some(Lost::NoAnswer));
        assert!(world.nodes[reader].counters.connect_failed > 3);
    }
    assert_eq!(world.node("e").reader.open(), 0);
    world.lawful();
}

/// A reader that restarted: its old leases end by time, never by its death; the new one reads its own.
#[test]
fn a_restarted_reader_starts_anew() {
    for wire in WIRES {
        let (mut world, _) = pair(wire);
        let expires = world.expires("p", "a");
        world.start("d", 5);
        let token = world.grant("p", "b").unwrap();
        let handle = world.track("d", "p", "b", token).unwrap();
        world.run_to("60");
        let (freed, why) = world.freed("p", "a").unwrap();
        assert_eq!((world.node("p").now(freed), why), (expires, Freed::Expired), "{wire}");
        world.begin_read("d", handle).unwrap();
        world.read_ended("d", handle, ReadOutcome::OneSided).unwrap();
        world.run_to("61");
        assert_eq!(world.freed("p", "b").map(|(_, why)| why), Some(Freed::Completed), "{wire}");
        world.lawful();
    }
}

/// Case 23: sends that fail with the peer alive make a new handshake long before the lease ends.
#[test]
fn failing_sends_make_a_new_handshake_before_the_lease_ends() {
    for (wire, kind) in WIRES
        .into_iter()
        .flat_map(|wire| [ErrorKind::BackendFailed, ErrorKind::NotConnected, ErrorKind::PeerLost].map(|kind| (wire, kind)))
    {
        let mut reader = LoneReader::new(wire);
        reader.track("a", 1);
        let sent = reader.poll("0");
        if wire == Wire::Native {
            reader.grant_all(&sent, "20");
        }
        reader.taking = Err(kind);
        let mut lost = None;
        for tenth in 1..200 {
            reader.poll(&format!("{}.{}", tenth / 10, tenth % 10));
            if lost.is_none() && reader.counters.peer_lost > 0 {
                lost = Some(tenth);
            }
        }
        assert!(lost.is_some_and(|tenth| tenth < 100), "{wire} {kind}: {lost:?}");
        assert!(reader.counters.peer_lost < 100, "{wire} {kind}: a connection that breaks at once is not made without end");
        reader.taking = Ok(());
        let sent: Vec<_> = (200..220).flat_map(|tenth| reader.poll(&format!("{}.{}", tenth / 10, tenth % 10))).collect();
        assert!(sent.iter().any(|(_, heard)| is_renew(heard) || matches!(heard, Heard::Text(_))), "{wire} {kind}: it recovers");
        assert_eq!((reader.lost("a"), reader.counters.verdicts(Verdict::Failed)), (None, 0));
        reader.lawful();
    }
}

/// A full transport is no failure: no handshake, and no beat is spent.
#[test]
fn a_full_transport_is_no_lost_peer() {
    let (mut world, _) = pair(Wire::Native);
    world.fabric.fault(world.link("d", "p"), Fault { limit: Some(0), ..Fault::default() });
    world.run_to("25");
    assert_eq!(world.nodes["d"].counters.peer_lost, 0);
    assert!(world.nodes["d"].counters.unsent >= 4);
    world.fabric.fault(world.link("d", "p"), Fault::default());
    world.run_to("100");
    assert_eq!(world.freed("p", "a"), None);
    world.lawful();
}

/// PeerLost is advice: it ends no lease on either side, and one connects again.
#[test]
fn a_lost_peer_is_met_again_and_keeps_its_lease() {
    let mut reader = LoneReader::new(Wire::Native);
    let handle = reader.track("a", 1);
    let sent = reader.poll("0");
    reader.grant_all(&sent, "20");
    reader.lose_peer(0);
    assert_eq!((reader.lost("a"), reader.counters.peer_lost), (None, 1));
    reader.begin(handle);
    let sent = [reader.poll("1"), reader.poll("2")].concat();
    assert!(sent.iter().any(|(_, heard)| is_renew(heard)), "connected again and beating");
    reader.end(handle, ReadOutcome::OneSided);
    assert_eq!(reader.verdict("a"), Some(Verdict::ValidByDeadline));
    let mut holder = LoneHolder::new(Wire::Native);
    let token = holder.grant("a");
    let session = holder.greet("d", 2, token).unwrap();
    holder.renew(session, ReaderRank::ONLY, token).unwrap();
    assert!(holder.act(|holder, cx| holder.peer_lost(cx, PeerId(1))));
    holder.poll("29");
    assert_eq!((holder.freed("a"), holder.counters.peer_lost), (None, 1));
    assert_eq!(holder.greet("d", 2, token), Some(session), "the same conversation goes on");
    assert_eq!(holder.renew(session, ReaderRank::ONLY, token), Ok(secs("20")));
    holder.lawful();
    reader.lawful();
}

/// Case 66: a link that is off for 19 s costs nothing but the proof; one that is off for longer ends the lease at the holder.
#[test]
fn a_cut_link_is_survived_for_less_than_an_extension() {
    for wire in WIRES {
        for (off, kept) in [("24", true), ("28", wire == Wire::Vllm), ("40", false)] {
            let (mut world, _) = pair(wire);
            world.run_to("10");
            both_ways(&world, CUT);
            world.run_to(off);
            both_ways(&world, Fault::default());
            world.run_to("120");
            if off != "28" {
                assert_eq!(world.freed("p", "a").is_none(), kept, "{wire} {off}");
            }
            world.lawful();
        }
    }
}

/// Case 48: a connection attempt that leads nowhere is given up before an extension is over, and another one made.
#[test]
fn a_black_holed_connection_is_given_up() {
    for wire in WIRES {
        let mut world = World::new(wire);
        world.start("p", 0);
        world.start("d", 0);
        both_ways(&world, CUT);
        let token = world.grant("p", "a").unwrap();
        world.track("d", "p", "a", token).unwrap();
        world.run_to("12");
        assert_eq!(world.nodes["d"].counters.connect_failed, 1, "{wire}");
        both_ways(&world, Fault::default());
        world.run_to("100");
        assert_eq!(world.freed("p", "a"), None, "{wire}: in time for the first lease");
        world.lawful();
    }
}

/// The holder's way back leads nowhere: it gives that up as well, and the next hello starts another attempt.
#[test]
fn a_black_holed_way_back_is_given_up() {
    let mut holder = LoneHolder::new(Wire::Native);
    let token = holder.grant("a");
    let hellos = |holder: &mut LoneHolder| {
        // An attempt that the transport takes up and never resolves.
        holder.act(|at, cx| at.connecting(cx, 0, Ok(Ticket(77))));
    };
    holder.greet("d", 2, token).unwrap();
    holder.act(|at, cx| assert!(at.peer_lost(cx, PeerId(1))));
    hellos(&mut holder);
    holder.go("9");
    assert_eq!(holder.greet("d", 2, token), None, "one attempt at a time");
    holder.go("10");
    assert!(holder.greet("d", 2, token).is_some());
    assert_eq!(holder.act(|at, _| at.poll_cancel()), Some(Ticket(77)));
    assert_eq!((holder.counters.connect_failed, holder.counters.one_way), (1, 1));
    holder.lawful();
}

/// Where P cannot reach D nothing is ever answered: reads end unverified, told once, and everything resolves.
#[test]
fn a_one_way_peer_is_told_once_and_its_reads_are_unverified() {
    let mut reader = LoneReader::new(Wire::Native);
    reader.welcoming = false;
    let handle = reader.track("a", 1);
    for second in 0..10 {
        reader.poll(&second.to_string());
    }
    assert_eq!(reader.counters.one_way, 1);
    reader.begin(handle);
    reader.end(handle, ReadOutcome::OneSided);
    for second in 10..60 {
        reader.poll(&second.to_string());
    }
    assert_eq!((reader.verdict("a"), reader.counters.one_way), (Some(Verdict::Unverified), 1));
    assert_eq!(reader.reader.open(), 0);
    reader.lawful();
}

/// A stale token first in line does not keep the live ones behind it from being greeted with.
#[test]
fn a_dead_token_does_not_keep_a_live_one_waiting() {
    let mut world = World::new(Wire::Native);
    world.start("p", 0);
    world.start("d", 0);
    let dead = world.grant("p", "dead").unwrap();
    world.run_to("30");
    for (request, token) in [("dead", dead), ("live", world.grant("p", "live").unwrap())] {
        world.track("d", "p", request, token).unwrap();
    }
    world.run_to("35");
    assert!(world.saw("d", &Seen::Confirmed("live".into())));
    assert_eq!(world.lost("d", "dead"), Some(Lost::Expired), "and the dead one is told as soon as one is met");
    world.lawful();
}

/// Case 24: a silent peer is forgotten by the clock; its leases are governed by their own time.
#[test]
fn silent_peers_are_forgotten_by_the_clock() {
    let config = Config { engine_ttl: secs("60"), ..Config::default() };
    let mut holder = LoneHolder::with(Wire::Native, config.clone(), 64);
    let token = holder.grant_with("a", None, Some(secs("480"))).unwrap();
    let session = holder.greet("d", 2, token).unwrap();
    holder.poll("59");
    holder.go("59.5");
    holder.renew(session, ReaderRank::ONLY, token).unwrap();
    holder.poll("60");
    assert_eq!(holder.counters.evicted, 0, "it spoke at 59.5 s");
    holder.poll("119.5");
    assert_eq!((holder.counters.evicted, holder.holder.live()), (1, 1));
    assert_eq!(holder.act(|at, _| at.poll_disconnect()), Some(PeerId(1)));
    assert!(holder.greet("d", 2, token).is_some_and(|new| new != session));
    let mut reader = LoneReader::with(Wire::Native, config, 64);
    let handle = reader.track("a", 1);
    reader.poll("0");
    reader.begin(handle);
    reader.end(handle, ReadOutcome::Served);
    reader.poll("40");
    assert_eq!(reader.reader.open(), 0);
    reader.poll("100");
    assert_eq!(reader.counters.evicted, 1);
    assert_eq!(reader.reader.next_timeout(), None, "nothing is left to do");
    holder.lawful();
    reader.lawful();
}
