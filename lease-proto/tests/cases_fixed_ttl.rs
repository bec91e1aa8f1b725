//! A fixed time to live: the bidirectional case.

mod common;

use common::{Seen, Spec, World, at, lone::LoneHolder, secs};
use lease_proto::{
    event::{Freed, Lost, Verdict},
    id::ReaderRank,
    reader::ReadOutcome,
    wire::Wire,
};

/// The bidirectional case: the same two engines, each holding for the other; D's blocks have a fixed time to live.
#[test]
fn two_engines_hold_for_each_other() {
    let mut world = World::new(Wire::Native);
    world.start("p", 1_000_000_000_000);
    world.spawn("d", Spec { clock: 5, ..Spec::of("d") });
    let forth = world.grant("p", "turn1").unwrap();
    let back = world.grant_with("d", "turn2", None, Some(secs("480"))).unwrap();
    let reads = [("d", "p", "turn1", forth), ("p", "d", "turn2", back)]
        .map(|(reader, holder, request, token)| (reader, request, world.track(reader, holder, request, token).unwrap()));
    world.run_to("300");
    for (reader, request, handle) in reads {
        assert!(!world.saw(reader, &Seen::Unproven(request.into())), "{request}");
        world.begin_read(reader, handle).unwrap();
        world.read_ended(reader, handle, ReadOutcome::OneSided).unwrap();
    }
    world.run_to("301");
    for ((reader, request, _), holder) in reads.into_iter().zip(["p", "d"]) {
        assert_eq!(world.verdict(reader, request), Some(Verdict::ValidByDeadline), "{request}");
        assert_eq!(world.freed(holder, request), Some((at("300"), Freed::Completed)));
    }
    world.lawful();
}

/// A fixed time to live is never extended, and its reader is told what is left of it, exactly.
#[test]
fn a_fixed_time_to_live_does_not_move() {
    let mut holder = LoneHolder::new(Wire::Native);
    let token = holder.grant_with("a", None, Some(secs("480"))).unwrap();
    let session = holder.greet("d", 2, token).unwrap();
    for (time, left) in [("0", Ok("480")), ("479.999999999", Ok("0.000000001")), ("480", Err(()))] {
        holder.go(time);
        let answer = holder.renew(session, ReaderRank::ONLY, token);
        assert_eq!(answer.map_err(|_| ()), left.map(secs), "{time}");
    }
    holder.poll("480");
    assert_eq!(holder.freed("a"), Some((at("480"), Freed::Expired)));
    assert_eq!(holder.counters.late_heartbeat, 0);
    holder.lawful();
}

#[test]
fn a_fixed_time_to_live_runs_out_for_its_reader_too() {
    let mut world = World::new(Wire::Native);
    world.start("p", 9);
    world.start("d", 1_000);
    let token = world.grant_with("d", "a", None, Some(secs("60"))).unwrap();
    let handle = world.track("p", "d", "a", token).unwrap();
    world.run_to("59");
    world.begin_read("p", handle).unwrap();
    world.run_to("60.5");
    world.read_ended("p", handle, ReadOutcome::OneSided).unwrap();
    world.run_to("70");
    assert_eq!((world.lost("p", "a"), world.verdict("p", "a")), (Some(Lost::Expired), Some(Verdict::Expired)));
    assert_eq!(world.freed("d", "a"), Some((at("60"), Freed::Expired)));
    world.lawful();
}
