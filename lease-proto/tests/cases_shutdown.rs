//! Aborts, drains and other ends that the engine asks for: promises are kept, and nothing is left behind.

mod common;

use common::{
    Seen, World, at,
    lone::{Heard, LoneHolder, LoneReader},
    secs,
};
use lease_proto::{
    config::{Config, Proof},
    drive::Machine as _,
    event::{Freed, Lost, Refused, Verdict},
    holder::Abort,
    id::{ReaderRank, Seq},
    reader::ReadOutcome,
    wire::{Rejected, Wire, native::Refusal},
};

const ONLY: ReaderRank = ReaderRank::ONLY;
const WIRES: [Wire; 2] = [Wire::Native, Wire::Vllm];

/// A holder with a lease that was renewed at 0 s, until 30 s, and one that nobody has asked for.
fn promised() -> (LoneHolder, [lease_proto::id::Token; 2], lease_proto::id::Session) {
    let mut holder = LoneHolder::new(Wire::Native);
    let tokens = ["promised", "unclaimed"].map(|request| holder.grant(request));
    let session = holder.greet("d", 2, tokens[0]).unwrap();
    holder.renew(session, ONLY, tokens[0]).unwrap();
    (holder, tokens, session)
}

/// Law 1: what was promised to nobody goes at once; a promise is kept to its last nanosecond.
#[test]
fn an_abort_keeps_what_was_promised() {
    for (why, refusal) in [(Abort::Cancelled, Refusal::Revoked), (Abort::Failed, Refusal::Failed)] {
        let (mut holder, tokens, session) = promised();
        holder.go("10");
        for token in tokens {
            holder.abort(token, why).unwrap();
        }
        assert_eq!((holder.freed("promised"), holder.freed("unclaimed")), (None, Some((at("10"), Freed::Aborted))));
        assert!(holder.act(|at, _| at.next_timeout()).is_some_and(|next| next <= at("10")), "the notice is due now");
        assert_eq!(holder.notices(), [Heard::Gone { re: Seq(0), token: tokens[0], why: refusal }]);
        assert_eq!(holder.renew(session, ONLY, tokens[0]), Err(refusal));
        assert_eq!(holder.renew(session, ONLY, tokens[1]), Err(refusal));
        holder.poll("29.999999999");
        assert_eq!(holder.freed("promised"), None);
        holder.poll("30");
        assert_eq!(holder.freed("promised"), Some((at("30"), Freed::Aborted)));
        holder.lawful();
    }
}

/// Law 1's other half: the reader that is done frees an aborted lease before its promise is over. Of blocks that were never
/// produced it is told so, whatever it read (case 17).
#[test]
fn a_completion_ends_an_aborted_lease_early() {
    for (why, answer) in [(Abort::Cancelled, Ok(())), (Abort::Failed, Err(Refusal::Failed))] {
        let (mut holder, [token, _], session) = promised();
        holder.abort(token, why).unwrap();
        assert_eq!(holder.complete(session, ONLY, token), answer);
        assert!(holder.freed("promised").is_some());
        assert_eq!(holder.complete(session, ONLY, token), answer, "asked again");
        holder.lawful();
    }
}

#[test]
fn the_first_cause_wins() {
    let (mut holder, [token, _], session) = promised();
    holder.abort(token, Abort::Failed).unwrap();
    holder.abort(token, Abort::Cancelled).unwrap();
    let third = holder.greet("router", 9, token).unwrap();
    holder.release(third, ONLY, token);
    assert_eq!(holder.renew(session, ONLY, token), Err(Refusal::Failed));
    holder.poll("30");
    assert_eq!(holder.renew(session, ONLY, token), Err(Refusal::Failed), "remembered");
    assert_eq!(holder.abort(token, Abort::Failed), Err(Refused::Unknown), "it is over");
    holder.lawful();
}

/// Cases 7, 17: the reader of a failed or aborted lease knows within one turn.
#[test]
fn readers_are_told_of_an_abort_at_once() {
    for (why, lost) in [(Abort::Cancelled, Lost::Revoked), (Abort::Failed, Lost::Failed)] {
        let mut world = World::new(Wire::Native);
        world.start("p", 5);
        world.start("d", 1_000_000);
        let token = world.grant("p", "a").unwrap();
        world.track("d", "p", "a", token).unwrap();
        world.run_to("3");
        world.abort("p", token, why).unwrap();
        world.run_to("3.001");
        assert_eq!(world.lost("d", "a"), Some(lost));
        assert!(world.freed("p", "a").is_some(), "the reader gave it up, so no promise is open");
        world.run_to("10");
        assert_eq!(world.node("d").reader.open(), 0);
        world.lawful();
    }
}

/// On the text wire nobody is told; an abort after a beat waits for the promise all the same.
#[test]
fn an_abort_on_the_text_wire_keeps_the_promise() {
    let mut holder = LoneHolder::new(Wire::Vllm);
    let [a, b] = ["a", "b"].map(|request| holder.grant(request));
    holder.go("15");
    holder.text(None, "HB:a");
    for token in [a, b] {
        holder.abort(token, Abort::Cancelled).unwrap();
    }
    holder.go("20");
    holder.text(None, "HB:a");
    assert_eq!(holder.refused(Refused::Revoked), 1);
    assert_eq!((holder.freed("a"), holder.freed("b")), (None, Some((at("15"), Freed::Aborted))));
    holder.poll("35");
    assert_eq!(holder.freed("a"), Some((at("35"), Freed::Aborted)));
    holder.lawful();
}

/// Case 35: no new grants; renewals are honoured up to the deadline, capped, then revoked; what was promised to nobody is free
/// by the deadline, what was promised waits for its time; only then is it drained.
#[test]
fn a_drain_honours_renewals_up_to_its_deadline() {
    let (mut holder, tokens, session) = promised();
    holder.go("5");
    let announced = holder.expect("announced");
    holder.drain("15");
    assert_eq!(holder.notices(), [Heard::Gone { re: Seq(0), token: tokens[0], why: Refusal::Draining }]);
    assert_eq!(holder.grant_with("new", None, None), Err(Refused::Draining));
    assert_eq!(holder.grant_token("announced", announced), Err(Refused::Draining));
    assert_eq!(holder.renew(session, ONLY, tokens[0]), Ok(secs("15")));
    holder.go("19.999999999");
    assert_eq!(holder.renew(session, ONLY, tokens[0]), Ok(secs("0.000000001")));
    holder.poll("19.999999999");
    assert_eq!(holder.holder.live(), 2);
    holder.go("20");
    assert_eq!(holder.renew(session, ONLY, tokens[0]), Err(Refusal::Revoked));
    holder.poll("20");
    assert_eq!((holder.freed("unclaimed"), holder.freed("promised")), (Some((at("20"), Freed::Drained)), None));
    holder.poll("29.999999999");
    assert!(!holder.seen.iter().any(|(_, seen)| *seen == Seen::Drained));
    holder.poll("30");
    assert_eq!(holder.freed("promised"), Some((at("30"), Freed::Drained)), "promised at 0 s, before the drain");
    holder.poll("31");
    assert_eq!(holder.seen.iter().filter(|(_, seen)| *seen == Seen::Drained).count(), 1);
    holder.lawful();
}

#[test]
fn a_drain_of_nothing_is_over_at_the_next_poll() {
    let mut holder = LoneHolder::new(Wire::Native);
    holder.poll("1");
    holder.drain("30");
    assert_eq!(holder.act(|at, _| at.next_timeout()), Some(at("1")), "there is something to tell");
    holder.poll("1");
    assert!(holder.seen.iter().any(|(_, seen)| *seen == Seen::Drained));
    assert_eq!(holder.act(|at, _| at.next_timeout()), None);
    holder.drain("10");
    holder.poll("2");
    assert_eq!(holder.seen.iter().filter(|(_, seen)| *seen == Seen::Drained).count(), 1);
}

/// A second drain may only come sooner; a fixed time to live that was promised outlasts it.
#[test]
fn a_drain_never_shortens_a_promise() {
    let mut holder = LoneHolder::new(Wire::Native);
    let [fixed, free] = ["fixed", "free"].map(|request| holder.grant_with(request, None, Some(secs("480"))).unwrap());
    let session = holder.greet("d", 2, fixed).unwrap();
    assert_eq!(holder.renew(session, ONLY, fixed), Ok(secs("480")));
    holder.drain("10");
    holder.drain("100");
    assert_eq!(holder.renew(session, ONLY, fixed), Ok(secs("480")), "no more than was promised");
    assert_eq!(holder.renew(session, ONLY, free), Ok(secs("10")), "capped before it was promised");
    holder.poll("10");
    assert_eq!((holder.freed("free"), holder.freed("fixed")), (Some((at("10"), Freed::Drained)), None));
    holder.poll("480");
    assert!(holder.freed("fixed").is_some());
    holder.lawful();
}

/// Case 35 between two engines, with a read under way: it ends valid, and only then is the holder drained.
#[test]
fn a_read_survives_the_holders_shutdown() {
    for wire in WIRES {
        let mut world = World::new(wire);
        world.start("p", 1_000_000_000_000);
        world.start("d", 7);
        let [a, b] = ["a", "b"].map(|request| {
            let token = world.grant("p", request).unwrap();
            world.track("d", "p", request, token).unwrap()
        });
        world.run_to("60");
        world.begin_read("d", a).unwrap();
        world.drain("p", secs("30"));
        world.run_to("75");
        if wire == Wire::Native {
            assert!(world.saw("d", &Seen::HolderDrains("a".into())));
        }
        assert_eq!((world.freed("p", "a"), world.saw("p", &Seen::Drained)), (None, false));
        world.read_ended("d", a, ReadOutcome::OneSided).unwrap();
        world.run_to("76");
        let verdict = if wire == Wire::Native { Verdict::ValidByDeadline } else { Verdict::Unverified };
        assert_eq!(world.verdict("d", "a"), Some(verdict), "{wire}");
        assert!(matches!(world.freed("p", "a"), Some((_, Freed::Completed))), "{wire}");
        // The other one is never read: it goes by its promise, at the latest one extension after the drain's start.
        world.run_to("120");
        assert!(world.freed("p", "b").is_some_and(|(freed, _)| freed <= at("90")), "{wire}");
        assert!(world.saw("p", &Seen::Drained), "{wire}");
        if wire == Wire::Native {
            assert!(world.lost("d", "b").is_some());
            let beats =
                world.nodes["d"].seen.iter().filter(|(now, seen)| *now >= at("60") && matches!(seen, Seen::Heartbeat(..)));
            assert!(beats.count() < 60, "less is granted each time, and asked for faster, but not without end");
        }
        let _ = b;
        world.lawful();
    }
}

/// Case 32: the reader never appears: one lease, no more, and it is counted.
#[test]
fn a_lease_that_nobody_claims_costs_one_lease() {
    for wire in WIRES {
        let mut holder = LoneHolder::new(wire);
        holder.grant("a");
        holder.poll("30");
        assert_eq!((holder.freed("a"), holder.counters.unclaimed), (Some((at("30"), Freed::Expired)), 1), "{wire}");
        holder.lawful();
    }
}

/// The reader's own ends: finished before a read it is released, and the holder frees at once.
#[test]
fn what_will_not_be_read_is_released() {
    for wire in WIRES {
        let mut world = World::new(wire);
        world.start("p", 0);
        world.start("d", 0);
        let token = world.grant("p", "a").unwrap();
        let handle = world.track("d", "p", "a", token).unwrap();
        world.run_to("10");
        world.finish("d", handle).unwrap();
        assert!(world.finish("d", handle).is_ok(), "under way");
        world.run_to("11");
        let freed = if wire == Wire::Native { Freed::Released } else { Freed::Completed };
        assert_eq!(world.freed("p", "a"), Some((at("10"), freed)), "{wire}");
        assert!(world.finish("d", handle).is_err(), "the handle is stale");
        world.lawful();
    }
}

/// A failed read is given back at once; an abandoned one only when the transport is done with it.
#[test]
fn an_abandoned_read_stays_the_transports_until_it_is_over() {
    let mut world = World::new(Wire::Native);
    world.start("p", 0);
    world.start("d", 0);
    let token = world.grant("p", "a").unwrap();
    let handle = world.track("d", "p", "a", token).unwrap();
    world.run_to("10");
    world.begin_read("d", handle).unwrap();
    world.finish("d", handle).unwrap();
    world.run_to("100");
    assert_eq!(world.freed("p", "a"), None, "beaten for while it runs");
    world.read_ended("d", handle, ReadOutcome::OneSided).unwrap();
    world.run_to("101");
    assert_eq!(world.verdict("d", "a"), Some(Verdict::Failed));
    assert_eq!(world.freed("p", "a"), Some((at("100"), Freed::Released)));
    world.lawful();
}

/// Case 38: whatever the options, a grant is held for its lease, a renew promises the extension, a read within it is valid.
#[test]
fn the_same_holds_under_every_policy() {
    for (hold, proof) in
        [false, true].into_iter().flat_map(|hold| [Proof::Deadline, Proof::Completion].map(|proof| (hold, proof)))
    {
        let config = Config { hold_until_ack: hold, proof, ..Config::default() };
        let mut world = World::with(Wire::Native, config);
        world.start("p", 3);
        world.start("d", 4);
        let token = world.grant("p", "a").unwrap();
        world.grant("p", "nobody").unwrap();
        let handle = world.track("d", "p", "a", token).unwrap();
        world.run_to("100");
        assert_eq!(world.freed("p", "nobody"), Some((at("30"), Freed::Expired)));
        world.begin_read("d", handle).unwrap();
        world.run_to("101");
        world.read_ended("d", handle, ReadOutcome::OneSided).unwrap();
        world.run_to("102");
        let verdict = if proof == Proof::Completion { Verdict::ValidByCompletion } else { Verdict::ValidByDeadline };
        assert_eq!(world.verdict("d", "a"), Some(verdict));
        assert!(matches!(world.freed("p", "a"), Some((_, Freed::Completed))));
        world.lawful();
    }
}

/// Case 42: any mixture of ends leaves nothing behind, on either side.
#[test]
fn nothing_is_left_behind() {
    for wire in WIRES {
        let mut world = World::new(wire);
        world.start("p", 9);
        world.start("d", 99);
        for round in 0..200u64 {
            let request = format!("r{round}");
            let token = world.grant("p", &request).unwrap();
            let handle = (round % 7 != 6).then(|| world.track("d", "p", &request, token).unwrap());
            let now = |tenths: u64| format!("{}.{}", (round * 10 + tenths) / 10, tenths % 10);
            world.run_to(&now(3));
            if let Some(handle) = handle {
                match round % 7 {
                    0 => world.finish("d", handle).unwrap(),
                    1 => world.abort("p", token, Abort::Cancelled).unwrap(),
                    2 => world.abort("p", token, Abort::Failed).unwrap(),
                    kind => {
                        world.begin_read("d", handle).unwrap();
                        world.run_to(&now(6));
                        let outcome = [ReadOutcome::OneSided, ReadOutcome::Failed, ReadOutcome::Served][kind as usize - 3];
                        world.read_ended("d", handle, outcome).unwrap();
                    }
                }
            }
            world.run_to(&now(9));
            world.lawful();
        }
        world.run_to("400");
        assert_eq!(world.node("p").holder.live(), 0, "{wire}");
        // On the text wire the reader is never told of an abort: its engine finishes those.
        let open = if wire == Wire::Native { 0 } else { 200 / 7 * 2 + 2 };
        assert_eq!(world.node("d").reader.open(), open, "{wire}");
        world.lawful();
    }
}

/// Case 16: kinds of a later version are skipped and counted, and life goes on. Case 63: so is junk.
#[test]
fn unknown_kinds_and_junk_are_skipped() {
    let mut world = World::new(Wire::Native);
    world.start("p", 0);
    world.start("d", 0);
    let token = world.grant("p", "a").unwrap();
    world.track("d", "p", "a", token).unwrap();
    let header = |version: u8, kind: u8, length: u8| {
        let mut bytes = vec![0xff, b'K', b'V', b'L', version, kind, length, 0, 0, 0];
        bytes.resize(26, 0);
        bytes
    };
    let junk = [
        (header(1, 0x7f, 0), Rejected::UnknownKind),
        (header(2, 1, 0), Rejected::UnknownVersion),
        (header(1, 9, 1), Rejected::Truncated),
        ([header(1, 9, 0), vec![0]].concat(), Rejected::TrailingBytes),
        (header(1, 9, 0), Rejected::StaleSession),
        (vec![0xff, b'K', b'V', b'L'], Rejected::Truncated),
    ];
    world.run_to("10");
    for (bytes, why) in &junk {
        for node in ["p", "d"] {
            let before = world.nodes[node].counters.rejected(*why);
            world.receive(node, bytes);
            world.turn(node);
            assert_eq!(world.nodes[node].counters.rejected(*why), before + 1, "{node} {why:?}");
        }
    }
    world.receive("p", b"ABORT");
    world.run_to("100");
    assert!(world.saw("p", &Seen::Foreign(b"ABORT".to_vec())));
    assert_eq!(world.freed("p", "a"), None);
    world.lawful();
}

/// Case 61: expiry and transport failures are counted apart. Case 51, 30: no time is endless, and a read of nothing is refused.
#[test]
fn expiry_is_no_transport_failure() {
    let mut world = World::new(Wire::Native);
    world.start("p", 0);
    world.start("d", 0);
    let token = world.grant("p", "a").unwrap();
    world.track("d", "p", "a", token).unwrap();
    world.run_to("10");
    world.node("d").stalled_until = at("60");
    world.run_to("100");
    let counters = &world.nodes["p"].counters;
    assert_eq!((counters.freed(Freed::Expired), counters.transport_errors, counters.peer_lost), (1, 0, 0));
    world.grant_with("p", "long", None, Some(lease_proto::time::Duration::MAX)).unwrap();
    assert_eq!(world.expires("p", "long"), at("86500"), "a day at most");
    let mut reader = LoneReader::new(Wire::Native);
    assert_eq!(reader.track_on("p", 1, &[], "a", 1, ONLY), Err(Refused::Unknown));
    world.lawful();
}
