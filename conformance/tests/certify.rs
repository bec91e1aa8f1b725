//! The cases can fail: each does, for the right reason, where something is wrong; and a report says what came of them.
#![cfg(feature = "cli")]

mod broken;

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use broken::{Broken, FLAWS, Twist, flawed, rows};
use conformance::{
    certify::{
        Lane, MemoryLab, Outcome, Progress, Verdict, all,
        lab::{Lab, PATIENCE, Spec, Trouble},
        run, table,
    },
    engine::{Command, Kinds, Lease},
};
use gpu_mem::Kind;
use lease_proto::wire::Wire;
use serde_json::{Value, json};

/// Cases that ask for what the fabric does not have, one-sided or served.
const NOT_ONE_SIDED: [&str; 2] = ["read/token", "read/revoked-during"];
const NOT_SERVED: [&str; 2] = ["read/fenced", "lease/native/fenced"];

#[test]
fn every_case_passes_where_nothing_is_wrong() {
    for (served, skipped) in [(false, NOT_ONE_SIDED), (true, NOT_SERVED)] {
        for case in all() {
            let twist = if served { Twist::none().served() } else { Twist::none() };
            match case.try_in(Broken::new(twist)) {
                Ok(()) => assert!(!skipped.contains(&case.id), "{}", case.id),
                Err(Trouble::Skip(_)) => assert!(skipped.contains(&case.id), "{}", case.id),
                other => panic!("{}, served {served}: {other:?}", case.id),
            }
        }
    }
}

#[test]
fn a_transport_that_reports_no_dead_peers_is_not_asked_to() {
    let outcome =
        |id: &str, twist: Twist| all().iter().find(|case| case.id == id).unwrap().try_in(Broken::new(twist.reports_no_dead()));
    assert!(matches!(outcome("connect/lost", Twist::lost("link_lost")), Err(Trouble::Skip(_))));
    assert_eq!(outcome("connect/gone", Twist::lost("link_failed")), Ok(()));
}

#[test]
fn every_case_fails_with_a_reason_where_something_is_wrong() {
    let mut wrong = Vec::new();
    for (number, (cases, expected, twist)) in rows().enumerate() {
        wrong.extend(cases.iter().filter_map(|id| unseen(id, Broken::new(twist()), expected, number)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_case_fails_with_a_reason_where_a_transport_breaks_a_promise() {
    let mut wrong = Vec::new();
    for (number, (cases, expected, flaw)) in FLAWS.iter().enumerate() {
        wrong.extend(cases.iter().filter_map(|id| unseen(id, flawed(*flaw), expected, number)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What a case says instead of what it must say about this lab.
fn unseen(id: &str, lab: Box<dyn Lab>, expected: &str, number: usize) -> Option<String> {
    let case = all().into_iter().find(|case| case.id == id).unwrap_or_else(|| panic!("no case {id}"));
    match case.try_in(lab) {
        Err(Trouble::Failed(why)) if why.contains(expected) => None,
        other => Some(format!("{id}, fault {number}: expected {expected:?}, got {other:?}")),
    }
}

#[test]
fn no_case_is_left_out() {
    let flaws = FLAWS.iter().flat_map(|(cases, _, _)| *cases);
    let seen: BTreeSet<&str> = rows().flat_map(|(cases, _, _)| cases).chain(flaws).copied().collect();
    let blind: Vec<&str> = all().iter().map(|case| case.id).filter(|id| !seen.contains(id)).collect();
    assert!(blind.is_empty(), "nothing shows that these can fail: {blind:?}");
}

#[derive(Default)]
struct Told(Vec<(&'static str, String)>);

impl Progress for Told {
    fn done(&mut self, outcome: &Outcome) {
        self.0.push((outcome.case, outcome.lane.to_string()));
    }
}

#[test]
fn a_run_on_the_fabric_passes_and_reports_each_case_once_in_order() {
    let (cases, mut told) = (all(), Told::default());
    let outcomes = run(&cases, &[Lane::Loopback(Kinds::HOST)], &mut told).unwrap();
    assert_eq!(outcomes.len(), told.0.len());
    assert!(outcomes.iter().map(|outcome| outcome.case).eq(cases.iter().map(|case| case.id)));
    for (outcome, case) in outcomes.iter().zip(&cases) {
        let json = outcome.to_json();
        let skipped = NOT_ONE_SIDED.contains(&case.id);
        let verdict = if skipped { "skip" } else { "pass" };
        let expected = json!({"case": case.id, "transport": "loopback", "lane": "memory", "blocks": "host", "landing": "host", "verdict": verdict, "requires": case.requires});
        expected.as_object().unwrap().iter().for_each(|(key, value)| assert_eq!(&json[key], value, "{json}"));
        assert!(json["seconds"].is_number() && json.get("reason").is_some() == skipped, "{json}");
    }
    let table = table(&outcomes);
    assert_eq!(table.lines().next().unwrap().split_whitespace().collect::<Vec<_>>(), ["case", "loopback"]);
    let (passed, skipped) = (cases.len() - NOT_ONE_SIDED.len(), NOT_ONE_SIDED.len());
    assert!(table.contains(&format!("\n{passed} passed, 0 failed, {skipped} skipped\n")), "{table}");
    assert!(cases.iter().all(|case| table.contains(case.id)));
}

/// A lane whose nodes are this shell script; the folder must live as long.
fn script(text: &str) -> (tempfile::TempDir, Lane) {
    let folder = tempfile::tempdir().unwrap();
    let executable = folder.path().join("node");
    fs::write(&executable, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).unwrap();
    (folder, Lane::Processes { transport: "odd", lane: "script".to_owned(), executable, memory: Kinds::HOST })
}

fn outcome_of(text: &str) -> Outcome {
    let (_folder, lane) = script(text);
    let case = all().into_iter().find(|case| case.id == "notify/empty").unwrap();
    run(&[case], &[lane], &mut Told::default()).unwrap().remove(0)
}

fn reason(outcome: &Outcome) -> (&'static str, String) {
    let json: Value = outcome.to_json();
    (outcome.verdict.word(), json["reason"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn nodes_that_misbehave_fail_the_case_with_their_last_words() {
    let answers = outcome_of(r#"echo '{"ready":true}'; while read -r line; do echo '{"error":"broken on purpose"}'; done"#);
    assert!(matches!(reason(&answers), ("fail", why) if why.contains("broken on purpose")), "{answers:?}");
    let dies = outcome_of(r#"echo '{"ready":true}'; read -r line; echo first >&2; echo my last words >&2; exit 3"#);
    assert!(matches!(reason(&dies), ("fail", why) if why.contains("status: 3") && why.contains("my last words")), "{dies:?}");
    let text = table(&[answers, dies]);
    assert!(text.contains("\n0 passed, 2 failed, 0 skipped\nfail: notify/empty on odd:script: broken on purpose"), "{text}");
}

#[test]
fn nodes_that_tell_without_end_fail_the_case() {
    for spam in [r#"yes '{"event":"spam"}'"#, "yes noise", "cat /dev/zero"] {
        for script in
            [format!(r#"echo '{{"ready":true}}'; exec {spam}"#), format!(r#"echo '{{"ready":true}}'; read -r line; exec {spam}"#)]
        {
            let outcome = outcome_of(&script);
            assert!(matches!(reason(&outcome), ("fail", why) if why.contains("the node tells without end")), "{outcome:?}");
        }
    }
}

#[test]
fn what_the_machine_lacks_is_skipped_with_the_reason() {
    let skipped = outcome_of(r#"echo '{"unavailable":"no such device"}'"#);
    assert_eq!(skipped.verdict, Verdict::Skip("no such device".into()));
    assert_eq!(reason(&skipped), ("skip", "no such device".into()));
    assert!(table(&[skipped]).contains("\n0 passed, 0 failed, 1 skipped\nskip: notify/empty on odd:script: no such device"));
}

const DEVICE: Kind = Kind::Cuda { device: 0 };

#[test]
fn lanes_are_told_apart_by_their_memory_and_nodes_are_told_theirs() {
    // The node says what it was told.
    let says = r#"while [ $# -gt 0 ]; do case $1 in --blocks|--landing) told="$told $1 $2";; esac; shift; done; echo "{\"unavailable\":\"$told\"}""#;
    let cases: Vec<_> = all().into_iter().filter(|case| case.id.starts_with("notify/e")).collect();
    let (_folder, lane) = script(says);
    let lanes: Vec<Lane> =
        [Kind::Host, Kind::Pinned, DEVICE].into_iter().flat_map(Kinds::pairs).map(|pair| in_memory(&lane, pair)).collect();
    let outcomes = run(&cases, &lanes, &mut Told::default()).unwrap();
    let pairs = [("host", "host"), ("pinned", "pinned"), ("host", "cuda:0"), ("cuda:0", "host"), ("cuda:0", "cuda:0")];
    for (outcome, (blocks, landing)) in outcomes.iter().zip(pairs) {
        assert_eq!(reason(outcome), ("skip", format!(" --blocks {blocks} --landing {landing}")));
        let json = outcome.to_json();
        assert_eq!([&json["transport"], &json["lane"], &json["blocks"], &json["landing"]], ["odd", "script", blocks, landing]);
        let name =
            if blocks == "host" && landing == "host" { "odd:script".into() } else { format!("odd:script {blocks}->{landing}") };
        assert_eq!(outcome.lane.to_string(), name);
    }
    let table = table(&outcomes);
    let corners: Vec<&str> =
        table.lines().filter(|line| line.ends_with("  odd:script")).filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(corners, ["case", "pinned->pinned", "host->cuda:0", "cuda:0->host", "cuda:0->cuda:0"], "{table}");
    assert!(table.contains("\nskip: notify/empty on odd:script cuda:0->host:  --blocks cuda:0 --landing host\n"), "{table}");
}

fn in_memory(lane: &Lane, memory: Kinds) -> Lane {
    match lane.clone() {
        Lane::Processes { transport, lane, executable, .. } => Lane::Processes { transport, lane, executable, memory },
        Lane::Loopback(_) => Lane::Loopback(memory),
    }
}

#[test]
fn the_fabric_in_memory_has_only_the_hosts_and_says_so_once() {
    let cases: Vec<_> = all().into_iter().filter(|case| case.moves_memory()).collect();
    let outcomes = run(&cases, &[Lane::Loopback(Kinds::both(DEVICE))], &mut Told::default()).unwrap();
    let table = table(&outcomes);
    let expected = "skip: all cases on loopback cuda:0->cuda:0: the in-memory fabric has host memory only";
    assert_eq!(table.lines().filter(|line| line.starts_with("skip: ")).collect::<Vec<_>>(), [expected], "{table}");
}

#[test]
fn cases_for_another_kind_of_memory_are_those_that_move_it() {
    let moving: Vec<&str> = all().iter().filter(|case| case.moves_memory()).map(|case| case.id).collect();
    let picks = |part: &str| moving.iter().filter(|id| id.starts_with(part)).count();
    assert_eq!(["memory/", "read/", "lease/", "depth/", "drive/", "fault/"].map(picks), [4, 12, 4, 4, 2, 6]);
    assert_eq!(moving.len(), 32);
}

#[test]
fn a_broken_harness_gives_no_verdict_about_anything() {
    let absent = Lane::Processes {
        transport: "odd",
        lane: "absent".to_owned(),
        executable: PathBuf::from("/nowhere/node"),
        memory: Kinds::HOST,
    };
    let (_folder, ends) = script("echo not today >&2; exit 3");
    let (_other, noise) = script("echo hello");
    let cases = all();
    for (lane, expected) in [(absent, "cannot start /nowhere/node"), (ends, "not today"), (noise, "did not become ready")] {
        let why = run(&cases, &[Lane::Loopback(Kinds::HOST), lane], &mut Told::default()).unwrap_err();
        assert!(why.contains(expected) && !why.contains('\n'), "{why}");
    }
}

#[test]
fn a_read_of_fewer_blocks_tells_how_many_bytes_it_read() {
    let mut lab = MemoryLab::new(7);
    let [holder, reader] =
        ["p", "d"].map(|name| lab.start(&Spec { name, wire: Wire::Native, raw: false, way: None, side: None }).unwrap());
    let grant = Command::Grant(Lease { request: "a".into(), ..Lease::default() });
    let mut params = lab.ask(holder, grant).unwrap().unwrap();
    params["kv_transfer_params"]["remote_block_ids"].as_array_mut().unwrap().truncate(1);
    lab.ask(reader, Command::Track { params, reader: 0, of: 1 }).unwrap().unwrap();
    let mut wait = |event: &str| loop {
        let told = lab.next_event(reader, PATIENCE).unwrap().unwrap();
        if told["event"] == event {
            return told;
        }
        if told["event"] == "confirmed" {
            lab.ask(reader, Command::Read { request: "a".into() }).unwrap().unwrap();
        }
    };
    let landed = wait("read_landed");
    assert_eq!((&landed["bytes"], &landed["matches"]), (&json!(16 << 10), &json!(false)), "{landed}");
}
