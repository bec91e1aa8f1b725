//! A reader asks its holder for its clock, and is told (law 7).

mod common;

use common::{World, at, secs};
use lease_proto::{clock::Gate, config::Config, time::PeerInstant, wire::Wire};

#[test]
fn the_true_offset_lies_in_the_interval_and_foreign_deadlines_are_compared_by_its_safe_end() {
    let mut world = World::with(Wire::Native, Config::default());
    world.start("p", 500_000_000_000_000);
    world.start("d", 0);
    let token = world.grant("p", "a").unwrap();
    let handle = world.track("d", "p", "a", token).unwrap();
    world.run_to("1");
    assert!(world.node("d").reader.offset(handle).unwrap().interval(at("1")).is_none(), "nothing was asked yet");
    for second in ["2", "3", "4"] {
        world.node("d").reader.ask_time(handle).unwrap();
        world.run_to(second);
    }
    let window = *world.node("d").reader.offset(handle).unwrap();
    let offset = window.interval(at("4")).unwrap();
    assert!(offset.low() <= 500_000_000_000_000 && offset.high() >= 500_000_000_000_000);
    let deadline = PeerInstant::from_nanos(500_480_000_000_000);
    assert_eq!(window.before(deadline, secs("5"), at("474")), Gate::Read);
    assert_eq!(window.before(deadline, secs("5"), at("476")), Gate::TooLate);
}

#[test]
fn a_question_that_is_not_answered_leaves_nothing_behind() {
    let mut world = World::with(Wire::Vllm, Config::default());
    world.start("p", 0);
    world.start("d", 0);
    let token = world.grant("p", "a").unwrap();
    let handle = world.track("d", "p", "a", token).unwrap();
    world.node("d").reader.ask_time(handle).unwrap();
    world.run_to("20");
    assert!(world.node("d").reader.offset(handle).unwrap().interval(at("20")).is_none());
    assert_eq!(world.freed("p", "a"), None, "beats went on");
    world.finish("d", handle).unwrap();
    world.run_to("21");
    assert!(world.node("d").reader.ask_time(handle).is_err());
}
