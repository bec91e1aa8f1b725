//! The file format of traces: what docs/traces.md shows is read, everything else is refused by line and key, and what is
//! written reads back.
#![cfg(feature = "sim")]

#[path = "trace_format/generate.rs"]
mod generate;
#[path = "trace_format/refusals.rs"]
mod refusals;

use conformance::sim::{
    time::WorldTime,
    trace::{Action, Effect, Fault, Role, Trace, TraceError, What},
};
use lease_proto::{config::Proof, time::Duration, wire::Wire};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const WORLD: &str = concat!(
    r#"{"world":1, "wire":"native", "seed":7, "end":"100", "config":{"lease":"30","decoder_ttl":"480"}, "#,
    r#""link":{"delay":"0.001"}, "max_notification":65536, "#,
    r#""nodes":{"p0":{"role":"prefill","clock":"1000000"}, "d0":{"role":"decode","clock":"12","drift_ppm":200}}}"#,
);

fn at(seconds: u64) -> WorldTime {
    WorldTime::after(Duration::from_secs(seconds))
}

/// A trace of a prefill node `p`, a decode node `d` and a router `r`, from these lines on.
fn with(lines: &[&str]) -> Result<Trace, TraceError> {
    let world = r#"{"world":1,"end":"100","nodes":{"p":{"role":"prefill"},"d":{"role":"decode"},"r":{"role":"router"}}}"#;
    Trace::parse([&[world], lines].concat().join("\n").as_bytes())
}

/// What the last of these lines says.
fn last(lines: &[&str]) -> What {
    with(lines).unwrap().lines.pop().unwrap().what
}

fn last_of(text: &str) -> What {
    Trace::parse(text.as_bytes()).unwrap().lines.pop().unwrap().what
}

#[test]
fn the_example_world_is_read() {
    let trace = Trace::parse(WORLD.as_bytes()).unwrap();
    let world = &trace.world;
    assert_eq!((world.wire, world.seed, world.end), (Wire::Native, 7, at(100)));
    assert_eq!((world.delay, world.max_notification), (Duration::from_millis(1), 65_536));
    let [d0, p0] = &world.nodes[..] else { panic!("{world:?}") };
    assert_eq!((d0.name.as_str(), d0.role, d0.clock, d0.drift_ppm), ("d0", Role::Decode, Duration::from_secs(12), 200));
    assert_eq!((p0.name.as_str(), p0.role, p0.clock), ("p0", Role::Prefill, Duration::from_secs(1_000_000)));
    assert_eq!((p0.poll, p0.ranks, p0.terms.lease()), (Duration::ZERO, 1, Duration::from_secs(30)));
    assert_eq!((trace.node("p0"), trace.node("p1")), (Some(1), None));
}

#[test]
fn what_is_left_out_has_its_default() {
    let world = with(&[]).unwrap().world;
    assert_eq!((world.wire, world.seed, world.delay, world.max_notification), (Wire::Native, 0, Duration::ZERO, 65_536));
    let node = &world.nodes[0];
    assert_eq!((node.clock, node.drift_ppm, node.poll, node.ranks), (Duration::ZERO, 0, Duration::ZERO, 1));
    assert_eq!((node.terms.lease(), node.terms.decoder_ttl()), (Duration::from_secs(30), Duration::from_secs(480)));
}

#[test]
fn a_node_s_terms_go_over_the_world_s() {
    let world = concat!(
        r#"{"world":1,"end":"9","config":{"kv_lease_duration":"60","losses":1,"proof":"completion"},"#,
        r#""nodes":{"p":{"role":"prefill","config":{"lease":"90","hold_until_ack":true}},"d":{"role":"decode"}}}"#
    );
    let nodes = Trace::parse(world.as_bytes()).unwrap().world.nodes;
    assert_eq!(nodes.iter().map(|node| node.terms.lease().to_string()).collect::<Vec<_>>(), ["60", "90"]);
    assert_eq!(nodes[0].terms.proof(), Proof::Completion);
}

#[test]
fn the_example_lines_are_read() {
    let text = [
        WORLD,
        "",
        r#"{"at":"0","node":"p0","do":"grant","request":"a"}"#,
        r#"{"at":"3","link":"d0>p0","do":"drop","until":"20"}"#,
        r#"{"at":"31","expect":{"node":"p0","event":"freed","request":"b","reason":"expired"}}"#,
        " \t\r",
        r#"{"at":"31","expect":{"node":"p0"},"within":"0.5"}"#,
        r#"{"never":{"event":"violation"}}"#,
        "{\"never\":{\"expires\":\"30.50\"},\"until\":\"79\"}\r",
        "",
    ];
    let lines = Trace::parse(text.join("\n").as_bytes()).unwrap().lines;
    assert_eq!(lines.iter().map(|line| line.number).collect::<Vec<_>>(), [3, 4, 5, 7, 8, 9]);
    let event = |event: Value| event.as_object().cloned().unwrap();
    let expected = [
        What::Do { at: at(0), node: 1, action: Action::Grant { request: "a".into(), consumers: None, ttl: None } },
        What::Link { at: at(3), from: 0, to: 1, fault: Fault::Window { until: at(20), effect: Effect::Drop } },
        What::Expect {
            at: at(31),
            within: Duration::ZERO,
            event: event(json!({"node": "p0", "event": "freed", "request": "b", "reason": "expired"})),
        },
        What::Expect { at: at(31), within: Duration::from_millis(500), event: event(json!({"node": "p0"})) },
        What::Never { until: None, event: event(json!({"event": "violation"})) },
        What::Never { until: Some(at(79)), event: event(json!({"expires": "30.5"})) },
    ];
    assert!(lines.into_iter().map(|line| line.what).eq(expected));
}

#[test]
fn a_reader_names_its_holder_and_perhaps_the_grant() {
    let grant = r#"{"at":"0","node":"p","do":"grant","request":"a"}"#;
    let enqueue = |request: &str, grant| Action::Enqueue { request: request.into(), from: 1, grant, reader: 0, of: 1 };
    for (line, expected) in [
        (r#"{"at":"1","node":"d","do":"enqueue","request":"a","from":"p"}"#, enqueue("a", None)),
        (r#"{"at":"1","node":"d","do":"enqueue","request":"","prefill":"p"}"#, enqueue("", None)),
        (r#"{"at":"1","node":"d","do":"enqueue","request":"a","prefill":"p","grant":2}"#, enqueue("a", Some(2))),
    ] {
        assert_eq!(last(&[grant, line]), What::Do { at: at(1), node: 0, action: expected });
    }
}

#[test]
fn the_ends_of_a_link_may_hold_its_arrow() {
    let trace = |nodes: &str, link: &str| {
        let nodes: Map<_, _> = nodes.split(' ').map(|name| (name.into(), json!({"role": "decode"}))).collect();
        let (world, line) =
            (json!({"world": 1, "end": "9", "nodes": nodes}), json!({"at": "0", "link": link, "do": "drop_next", "count": 1}));
        Trace::parse(format!("{world}\n{line}").as_bytes())
    };
    let ends = |nodes: &str, link: &str| match trace(nodes, link).unwrap().lines[0].what {
        What::Link { from, to, .. } => (from, to),
        _ => unreachable!(),
    };
    assert_eq!(ends("a a>b c", "a>b>c"), (1, 2));
    assert_eq!(ends("> a", ">>a"), (0, 1));
    refusals::refused(trace("a a>b b>c c", "a>b>c"), 2, "link", "one way to split");
}

#[test]
fn every_name_of_the_output_can_be_expected() {
    for event in [
        json!({"event": "freed", "reason": "lost_in_crash"}),
        json!({"event": "refused", "why": "id_not_encodable"}),
        json!({"event": "rejected", "why": "stale_session"}),
        json!({"event": "lost", "why": "no_answer"}),
        json!({"event": "read_declined", "why": "whatever it says"}),
        json!({"event": "read_done", "verdict": "valid", "proof": "fenced"}),
        json!({"event": "heartbeat_sent", "peer": "p", "leases": 3, "bytes": 44}),
        json!({"event": "violation", "law": 4, "detail": "late"}),
        json!({"why": "not_utf8"}),
    ] {
        with(&[&json!({"never": event}).to_string()]).unwrap();
    }
}

#[test]
fn a_node_that_crashed_can_be_started_again() {
    let [crash, restart] = ["crash", "restart"].map(|what| format!(r#"{{"at":"1","node":"p","do":"{what}"}}"#));
    with(&[&crash, &restart, r#"{"at":"1","node":"p","do":"grant","request":"a"}"#, &crash]).unwrap();
}

#[test]
fn references_follow_their_lines() {
    let grant = r#"{"at":"0","node":"p","do":"grant","request":"a"}"#;
    let other = r#"{"at":"0","node":"r","do":"stall","until":"1"}"#;
    let enqueue = |number: usize| format!(r#"{{"at":"1","node":"d","do":"enqueue","request":"a","from":"p","grant":{number}}}"#);
    let mut trace = with(&[other, grant, "", grant, &enqueue(5)]).unwrap();
    let grant_of = |trace: &Trace| match last_of(&trace.to_text()) {
        What::Do { action: Action::Enqueue { grant, .. }, .. } => grant,
        what => panic!("{what:?}"),
    };
    assert_eq!(grant_of(&trace), Some(4)); // the blank line is not written
    trace.lines.remove(0);
    assert_eq!(grant_of(&trace), Some(3));
    trace.lines.remove(1);
    assert_eq!(grant_of(&trace), None);
}

#[test]
fn a_trace_is_written_as_short_as_it_can_be_said() {
    let lines = [
        r#"{"at":"0.50","do":"enqueue","node":"d","request":"a\n","prefill":"p","reader":0,"of":1}"#,
        r#"{"at":"1","node":"d","do":"receive","hex":"48423A"}"#,
        r#"{"at":"1","node":"d","do":"receive","hex":"FF00","from":"p"}"#,
        r#"{"at":"1","link":"d>p","until":"2.0","do":"delay","by":"0.10"}"#,
        r#"{"at":"1","within":"0","expect":{"expires":"030"}}"#,
    ];
    let written = [
        r#"{"world":1,"end":"100","nodes":{"d":{"role":"decode"},"p":{"role":"prefill"},"r":{"role":"router"}}}"#,
        r#"{"at":"0.5","node":"d","do":"enqueue","request":"a\n","from":"p"}"#,
        r#"{"at":"1","node":"d","do":"receive","text":"HB:"}"#,
        r#"{"at":"1","node":"d","do":"receive","hex":"ff00","from":"p"}"#,
        r#"{"at":"1","link":"d>p","do":"delay","by":"0.1","until":"2"}"#,
        r#"{"at":"1","expect":{"expires":"30"}}"#,
        "",
    ];
    assert_eq!(with(&lines).unwrap().to_text(), written.join("\n"));
}

proptest! {
    #[test]
    fn what_is_written_reads_back(trace in generate::trace()) {
        let text = trace.to_text();
        let read = Trace::parse(text.as_bytes()).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(read.to_text(), text);
        prop_assert_eq!(read, trace);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Trace::parse(&bytes);
    }

    /// Valid traces with bytes struck out, changed or doubled.
    #[test]
    fn mutations_are_read_or_refused(
        trace in generate::trace(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), 0u8..4, any::<u8>()), 1..6),
    ) {
        let mut text = trace.to_text().into_bytes();
        for (place, how, byte) in changes {
            let place = place.index(text.len());
            match how {
                0 => text[place] = byte,
                1 => text.insert(place, byte),
                2 if text.len() > 1 => drop(text.remove(place)),
                _ => text.extend_from_within(place..),
            }
        }
        match Trace::parse(&text) {
            Ok(trace) => prop_assert!(Trace::parse(trace.to_text().as_bytes()).is_ok()),
            Err(error) => prop_assert!((1..=text.len() + 1).contains(&error.line)),
        }
    }
}
