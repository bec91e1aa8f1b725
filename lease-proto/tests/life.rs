//! A lease from its grant to its end, between two engines.

mod common;

use common::{Seen, World, at};
use lease_proto::{
    event::{Freed, Verdict},
    reader::ReadOutcome,
    wire::Wire,
};

fn pair(wire: Wire) -> World {
    let mut world = World::new(wire);
    world.start("p", 1_000_000_000_000);
    world.start("d", 12_000_000_000);
    world
}

#[test]
fn a_lease_is_held_as_long_as_it_is_beaten_for_and_freed_when_it_was_read() {
    let mut world = pair(Wire::Native);
    let token = world.grant("p", "a").unwrap();
    let handle = world.track("d", "p", "a", token).unwrap();
    world.run_to("200");
    assert_eq!(world.freed("p", "a"), None);
    assert!(world.saw("d", &Seen::Confirmed("a".into())));
    assert!(!world.saw("d", &Seen::Unproven("a".into())));
    world.begin_read("d", handle).unwrap();
    world.run_to("201");
    world.read_ended("d", handle, ReadOutcome::OneSided).unwrap();
    world.run_to("202");
    assert_eq!(world.verdict("d", "a"), Some(Verdict::ValidByDeadline));
    assert_eq!(world.freed("p", "a"), Some((at("201"), Freed::Completed)));
    assert!(world.saw("d", &Seen::Resolved("a".into())));
    assert_eq!((world.node("p").holder.live(), world.node("d").reader.open()), (0, 0));
}

#[test]
fn a_dead_reader_costs_one_extension_and_no_more() {
    let mut world = pair(Wire::Native);
    let token = world.grant("p", "a").unwrap();
    world.track("d", "p", "a", token).unwrap();
    world.run_to("100");
    let last = world.nodes["p"].seen.iter().filter_map(|(_, seen)| match seen {
        Seen::Renewed(_, expires) => Some(*expires),
        _ => None,
    });
    let expires = last.max().unwrap();
    world.kill("d");
    world.run_to("150");
    let (freed, why) = world.freed("p", "a").unwrap();
    assert_eq!((world.node("p").now(freed), why), (expires, Freed::Expired));
    assert!(freed <= at("120"));
}

#[test]
fn on_the_vllm_wire_it_lives_by_beats_and_ends_by_count() {
    let mut world = pair(Wire::Vllm);
    let token = world.grant("p", "a").unwrap();
    let handle = world.track("d", "p", "a", token).unwrap();
    world.run_to("100");
    assert_eq!(world.freed("p", "a"), None);
    world.begin_read("d", handle).unwrap();
    world.read_ended("d", handle, ReadOutcome::OneSided).unwrap();
    world.run_to("101");
    assert_eq!(world.verdict("d", "a"), Some(Verdict::Unverified));
    assert_eq!(world.freed("p", "a"), Some((at("100"), Freed::Completed)));
}
