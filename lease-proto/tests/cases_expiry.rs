//! Leases that ran out, and what their readers are told.

mod common;

use common::{World, at, lone::LoneHolder, secs};
use lease_proto::{
    config::Config,
    event::{Freed, Refused, Verdict},
    id::ReaderRank,
    reader::ReadOutcome,
    wire::{Wire, native::Refusal},
};

/// Case 6 between two engines: the lease ran out during the read; the completion is answered `expired` and counted.
#[test]
fn a_completion_after_expiry_is_answered_so_and_counted() {
    let mut world = World::new(Wire::Native);
    world.start("p", 1_000_000_000_000);
    world.start("d", 7);
    let token = world.grant("p", "a").unwrap();
    let handle = world.track("d", "p", "a", token).unwrap();
    world.run_to("10");
    world.begin_read("d", handle).unwrap();
    world.node("d").stalled_until = at("51");
    world.run_to("50");
    assert!(matches!(world.freed("p", "a"), Some((_, Freed::Expired))));
    world.run_to("51");
    world.read_ended("d", handle, ReadOutcome::OneSided).unwrap();
    world.run_to("60");
    assert_eq!(world.verdict("d", "a"), Some(Verdict::Expired));
    world.lawful();
}

#[test]
fn a_completion_after_expiry_is_counted_at_the_holder() {
    let mut holder = LoneHolder::new(Wire::Native);
    let [a, keep] = ["a", "keep"].map(|request| holder.grant(request));
    let session = holder.greet("d", 2, keep).unwrap();
    holder.poll("30");
    assert_eq!(holder.complete(session, ReaderRank::ONLY, a), Err(Refusal::Expired));
    assert_eq!((holder.counters.read_after_expiry, holder.refused(Refused::Expired)), (1, 1));
    holder.lawful();
}

/// Proof (B) at the boundary: held until polled away, so a complete at the instant of expiry still counts.
#[test]
fn a_complete_is_good_until_the_lease_is_freed() {
    for (time, polled, good) in
        [("29.999999999", false, true), ("30", false, true), ("30.000000001", false, true), ("30", true, false)]
    {
        let mut holder = LoneHolder::new(Wire::Native);
        let token = holder.grant("a");
        let session = holder.greet("d", 2, token).unwrap();
        holder.go(time);
        if polled {
            holder.poll(time);
        }
        let answer = holder.complete(session, ReaderRank::ONLY, token);
        assert_eq!(answer.is_ok(), good, "{time} {polled}");
        assert_eq!(holder.complete(session, ReaderRank::ONLY, token), answer, "asked again");
        holder.lawful();
    }
}

/// Case 45, 57: the policy keeps blocks past their expiry until the reader has answered, and says so once per lapse.
#[test]
fn held_until_acknowledged_by_policy() {
    let config = Config { hold_until_ack: true, ..Config::default() };
    let mut holder = LoneHolder::with(Wire::Native, config, 64);
    let [promised, unpromised] = ["promised", "unpromised"].map(|request| holder.grant(request));
    let session = holder.greet("d", 2, promised).unwrap();
    assert_eq!(holder.renew(session, ReaderRank::ONLY, promised), Ok(secs("20")));
    for time in ["30", "31", "500"] {
        holder.poll(time);
    }
    assert_eq!((holder.freed("promised"), holder.freed("unpromised")), (None, Some((at("30"), Freed::Expired))));
    assert_eq!(holder.counters.overdue, 1);
    assert_eq!(holder.renew(session, ReaderRank::ONLY, unpromised), Err(Refusal::Expired));
    assert_eq!(holder.renew(session, ReaderRank::ONLY, promised), Ok(secs("20")), "it is held, so it can be promised");
    holder.poll("521");
    assert_eq!(holder.counters.overdue, 2);
    assert_eq!(holder.complete(session, ReaderRank::ONLY, promised), Ok(()));
    assert_eq!(holder.freed("promised"), Some((at("521"), Freed::Completed)));
    holder.lawful();
}

#[test]
fn what_is_held_by_policy_can_be_abandoned() {
    use lease_proto::holder::Abort;
    let config = Config { hold_until_ack: true, ..Config::default() };
    let mut holder = LoneHolder::with(Wire::Native, config, 64);
    let token = holder.grant("a");
    let session = holder.greet("d", 2, token).unwrap();
    holder.renew(session, ReaderRank::ONLY, token).unwrap();
    holder.poll("100");
    holder.abort(token, Abort::Cancelled).unwrap();
    assert_eq!(holder.freed("a"), Some((at("100"), Freed::Aborted)));
    holder.lawful();
}

/// The same on the text wire: whoever was beaten for is held until it is completed.
#[test]
fn held_until_acknowledged_on_the_text_wire() {
    let config = Config { hold_until_ack: true, ..Config::default() };
    let mut holder = LoneHolder::with(Wire::Vllm, config, 64);
    for request in ["beaten", "silent"] {
        holder.grant(request);
    }
    holder.text(Some(1), "HB:beaten");
    holder.poll("1000");
    assert_eq!((holder.freed("beaten"), holder.freed("silent")), (None, Some((at("1000"), Freed::Expired))));
    holder.text(Some(1), "beaten:1");
    assert_eq!(holder.freed("beaten"), Some((at("1000"), Freed::Completed)));
    holder.lawful();
}

/// Law 2 between two engines: whatever the reader did, a lease ends at most an extension after its last renewal, at that poll.
#[test]
fn every_end_comes_from_the_first_poll_at_or_after_the_expiry() {
    for wire in [Wire::Native, Wire::Vllm] {
        let mut world = World::new(wire);
        world.start("p", 1_000_000_000_000);
        world.start("d", 7);
        for n in 0..20 {
            let request = n.to_string();
            let token = world.grant("p", &request).unwrap();
            world.track("d", "p", &request, token).unwrap();
            world.run_to(&format!("{n}.7"));
        }
        world.kill("d");
        world.run_to("60");
        let mut ended = 0;
        for (_, seen) in &world.nodes["p"].seen {
            if let common::Seen::Freed { expires, now, previous_poll, .. } = seen {
                ended += 1;
                assert!(previous_poll < expires && expires <= now, "{previous_poll} {expires} {now}");
            }
        }
        assert_eq!(ended, 20, "{wire}");
        world.lawful();
    }
}
