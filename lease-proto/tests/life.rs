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

#[test]
fn a_request_is_read_over_the_connection_to_its_holder_until_it_is_resolved() {
    let mut world = pair(Wire::Native);
    world.start("q", 5_000_000_000);
    let (token, other) = (world.grant("p", "a").unwrap(), world.grant("q", "b").unwrap());
    let (first, second) = (world.track("d", "p", "a", token).unwrap(), world.track("d", "q", "b", other).unwrap());
    assert_eq!(world.node("d").reader.connection(first, 0), None, "not connected yet");
    world.run_to("1");
    let reader = &world.node("d").reader;
    let (p, q) = (reader.connection(first, 0).unwrap(), reader.connection(second, 0).unwrap());
    assert_ne!(p, q);
    assert_eq!(reader.connection(first, 1), None, "not read from");
    world.finish("d", first).unwrap();
    world.run_to("2");
    let reader = &world.node("d").reader;
    assert_eq!((reader.connection(first, 0), reader.connection(second, 0)), (None, Some(q)));
}
