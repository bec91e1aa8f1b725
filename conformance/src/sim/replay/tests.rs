use std::fmt::Write as _;

use super::*;

/// What a run prints of this kind, and its summary.
fn run_of(text: &str, event: &str) -> (Vec<(String, Option<usize>)>, Summary) {
    let mut seen = Vec::new();
    let trace = Trace::parse(text.as_bytes()).unwrap();
    let summary = run(&trace, &mut |line: &Line<'_>| {
        if line.event == event {
            seen.push((line.at.to_string(), line.line));
        }
    });
    (seen, summary)
}

fn rooms_of(nodes: &str, lines: &[&str]) -> Vec<Room> {
    let world = format!(r#"{{"world":1,"end":"100","nodes":{{{nodes}}}}}"#);
    rooms(&Trace::parse([&[world.as_str()], lines].concat().join("\n").as_bytes()).unwrap())
}

#[test]
fn nodes_that_never_meet_need_no_room_for_each_other() {
    let mut world = r#"{"world":1,"end":"100","nodes":{"p":{"role":"prefill"}"#.to_owned();
    (0..2000).for_each(|node| write!(world, r#","d{node}":{{"role":"decode","ranks":2}}"#).unwrap());
    world += "}}\n";
    world += concat!(
        r#"{"at":"0","node":"p","do":"grant","request":"a"}"#,
        "\n",
        r#"{"at":"0","node":"d7","do":"enqueue","request":"a","from":"p"}"#,
        "\n",
        r#"{"at":"1","node":"d7","do":"read","request":"a","takes":"1"}"#,
        "\n",
        r#"{"at":"2","expect":{"event":"read_done","verdict":"valid"}}"#,
    );
    let rooms = rooms(&Trace::parse(world.as_bytes()).unwrap());
    let slots = |sizes: &Sizes| {
        let Sizes { leases, ended, requests, legs, readers, holders } = sizes;
        leases + ended + requests + legs + readers + holders
    };
    let all: usize = rooms.iter().map(|room| usize::from(room.workers) * slots(&room.sizes)).sum();
    assert_eq!((rooms.len(), all), (2001, 4001 * 6 + 3 + 2 * 3));
    let (done, summary) = run_of(&world, "read_done");
    assert!(summary.held() && done.len() == 1, "{summary:?}");
}

#[test]
fn those_that_meet_have_room_for_each_life() {
    let nodes = concat!(
        r#""d":{"role":"decode"},"p":{"role":"prefill","ranks":3},"q":{"role":"prefill"},"#,
        r#""r":{"role":"router"},"s":{"role":"router"}"#,
    );
    let rooms = rooms_of(
        nodes,
        &[
            r#"{"at":"0","node":"p","do":"grant","request":"a"}"#,
            r#"{"at":"0","node":"p","do":"restart"}"#,
            r#"{"at":"0","node":"p","do":"expect","request":"a"}"#,
            r#"{"at":"0","node":"d","do":"enqueue","request":"a","from":"p","of":2}"#,
            r#"{"at":"0","node":"d","do":"enqueue","request":"a","from":"p","of":2}"#,
            r#"{"at":"0","node":"d","do":"enqueue","request":"a","from":"p","of":2}"#,
            r#"{"at":"0","node":"d","do":"enqueue","request":"a","from":"q","reader":1,"of":2}"#,
            r#"{"at":"0","node":"r","do":"release","request":"a"}"#,
            r#"{"at":"0","node":"s","do":"release","request":"b"}"#,
            r#"{"at":"0","node":"q","do":"receive","text":"x"}"#,
        ],
    );
    let all: Vec<_> = rooms
        .iter()
        .map(|Room { workers, sizes }| {
            let Sizes { leases, ended, requests, legs, readers, holders } = *sizes;
            (*workers, [leases, ended, requests, legs, readers, holders])
        })
        .collect();
    let expected = [
        (2, [1, 1, 4, 10, 1, 7]),
        (3, [3, 3, 1, 1, 5, 1]),
        (1, [1, 1, 1, 1, 3, 1]),
        (1, [1, 1, 2, 4, 1, 4]),
        (1, [1, 1, 2, 4, 1, 4]),
    ];
    assert_eq!(all, expected);
}

#[test]
fn expectations_fail_in_the_order_of_their_lines() {
    let text = [
        r#"{"world":1,"end":"50","nodes":{"p":{"role":"prefill"}}}"#,
        r#"{"never":{"node":"p"},"until":"0"}"#,
        r#"{"never":{"event":"granted","request":"a"}}"#,
        r#"{"never":{"request":"a"}}"#,
        r#"{"never":{"event":"granted"}}"#,
        r#"{"never":{"request":"b"}}"#,
        r#"{"at":"0","node":"p","do":"grant","request":"a"}"#,
        r#"{"at":"0","expect":{"request":"a"}}"#,
        r#"{"at":"0","within":"1","expect":{"event":"granted","request":"b"}}"#,
        r#"{"at":"0","within":"1","expect":{"event":"granted"}}"#,
        r#"{"at":"1","within":"30","expect":{"event":"freed"}}"#,
        r#"{"at":"1","expect":{"event":"freed"}}"#,
        r#"{"at":"50","within":"9","expect":{"node":"p"}}"#,
    ];
    let (failed, summary) = run_of(&text.join("\n"), "failed_expectation");
    let at = |at: &str, line| (at.to_owned(), Some(line));
    assert_eq!(failed, [at("0", 2), at("0", 3), at("0", 4), at("0", 5), at("1", 9), at("1", 12), at("50", 13)]);
    assert_eq!(summary.failed_expectations, 7);
}

/// Each of many expectations is met by its own event; to hold each against each would take minutes.
#[test]
fn many_expectations_are_not_held_against_each_event() {
    const MANY: usize = 20_000;
    let mut text = r#"{"world":1,"end":"10","nodes":{"p":{"role":"prefill"}}}"#.to_owned();
    for request in 0..MANY {
        write!(text, "\n{{\"at\":\"0\",\"node\":\"p\",\"do\":\"grant\",\"request\":\"{request}\"}}").unwrap();
        write!(text, "\n{{\"at\":\"0\",\"expect\":{{\"event\":\"granted\",\"request\":\"{request}\"}}}}").unwrap();
        write!(text, "\n{{\"never\":{{\"event\":\"freed\",\"request\":\"{request}\"}}}}").unwrap();
    }
    let (granted, summary) = run_of(&text, "granted");
    assert!(granted.len() == MANY && summary.held(), "{summary:?}");
}
