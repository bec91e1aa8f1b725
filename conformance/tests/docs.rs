//! What docs/traces.md shows works as it says.
#![cfg(feature = "sim")]

use conformance::sim::{replay, trace::Trace};

const PAGE: &str = include_str!("../../docs/traces.md");

/// The lines that are printed, and whether all held.
fn run(text: &str) -> (Vec<String>, bool) {
    let trace = Trace::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let mut lines = Vec::new();
    let summary = replay::run(&trace, &mut |line| lines.push(serde_json::to_string(line).unwrap()));
    (lines, summary.held())
}

fn shown() -> &'static str {
    let (_, rest) = PAGE.split_once("```json\n").expect("the page shows a trace");
    rest.split_once("```").expect("to its end").0
}

#[test]
fn the_incident_holds_on_either_wire_and_shows_their_difference() {
    let (lines, held) = run(shown());
    assert!(held, "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("\"verdict\":\"unverified\"")), "{lines:#?}");
    let (lines, held) = run(&shown().replace("\"wire\":\"vllm\"", "\"wire\":\"native\""));
    assert!(held, "{lines:#?}");
    let declined = r#"{"at":"44","node":"decode","event":"read_declined","request":"cmpl-7","why":"#;
    assert!(lines.iter().any(|line| line.starts_with(declined)), "{lines:#?}");
}

/// A line of a trace for each action and each fault that the page's tables name, and the other way round.
#[test]
fn every_action_on_the_page_exists() {
    let world = r#"{"world":1,"end":"100","nodes":{"d0":{"role":"decode"},"p0":{"role":"prefill"},"r0":{"role":"router"}}}"#;
    let actions = [
        ("grant", r#""node":"p0","do":"grant","request":"a","consumers":1,"ttl":"5""#),
        ("expect", r#""node":"p0","do":"expect","request":"a""#),
        ("abort", r#""node":"p0","do":"abort","request":"a""#),
        ("drain", r#""node":"p0","do":"drain","for":"5""#),
        ("enqueue", r#""node":"d0","do":"enqueue","request":"a","from":"p0","reader":0,"of":2"#),
        ("read", r#""node":"d0","do":"read","request":"a","takes":"1""#),
        ("read", r#""node":"d0","do":"read","request":"a","fails_after":"1""#),
        ("finish", r#""node":"d0","do":"finish","request":"a""#),
        ("release", r#""node":"r0","do":"release","request":"a""#),
        ("stall", r#""node":"p0","do":"stall","until":"5""#),
        ("suspend", r#""node":"p0","do":"suspend","until":"5","counted":true"#),
        ("drift", r#""node":"p0","do":"drift","ppm":-200"#),
        ("crash", r#""node":"p0","do":"crash""#),
        ("restart", r#""node":"p0","do":"restart""#),
        ("receive", r#""node":"p0","do":"receive","text":"HB:a","from":"d0""#),
        ("receive", r#""node":"p0","do":"receive","hex":"ff4b""#),
        ("drop", r#""link":"d0>p0","do":"drop","until":"5""#),
        ("hold", r#""link":"d0>p0","do":"hold","until":"5""#),
        ("delay", r#""link":"d0>p0","do":"delay","by":"1","until":"5""#),
        ("duplicate", r#""link":"d0>p0","do":"duplicate","times":2,"until":"5""#),
        ("reorder", r#""link":"d0>p0","do":"reorder","until":"5""#),
        ("partition", r#""link":"d0>p0","do":"partition","until":"5""#),
        ("drop_next", r#""link":"d0>p0","do":"drop_next","count":2"#),
        ("replay", r#""link":"d0>p0","do":"replay","nth":0"#),
    ];
    for (name, line) in actions {
        assert!(PAGE.contains(&format!("`{name}`")), "the page names {name}");
        run(&format!("{world}\n{{\"at\":\"1\",{line}}}\n"));
    }
    let (_, tables) = PAGE.split_once("## Actions").unwrap();
    let (table, _) = tables.split_once("`{\"at\":TIME,\"link\"").unwrap();
    for row in table.lines().filter(|line| line.starts_with("| `")).skip(1) {
        for name in row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2) {
            assert!(actions.iter().any(|(known, _)| *known == name), "{name} is an action");
        }
    }
}
