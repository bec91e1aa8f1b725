//! `kvlease certify --memory`: what a machine lacks is said before anything starts, and what was tried says with which memory.
#![cfg(feature = "cli")]

mod common;

use std::process::Command;

use common::{End, Run, kvlease};
use serde_json::Value;

/// A machine without devices, whatever it has.
fn without_devices(command: &mut Command) -> End {
    Run::start(command.env("CUDA_VISIBLE_DEVICES", "")).end()
}

#[test]
fn a_device_that_is_not_there_is_said_so_before_anything_starts() {
    for (memory, absent) in [("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:999", "cuda:999"), ("pinned", "pinned")] {
        let end = without_devices(&mut kvlease(["certify", "--memory", memory, "--transport", "loopback"]));
        assert_eq!((end.code, end.said.len(), end.stderr.lines().count()), (Some(2), 0, 1), "{end:?}");
        assert!(end.stderr.starts_with(&format!("kvlease certify: nothing certified: no {absent} memory: ")), "{end:?}");
    }
}

#[test]
fn a_report_of_another_run_is_not_left_where_this_one_s_belongs() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    std::fs::write(&report, "{\"verdict\":\"pass\"}\n").unwrap();
    let end = without_devices(kvlease(["certify", "--memory", "cuda", "--transport", "loopback", "--json"]).arg(&report));
    assert_eq!(end.code, Some(2), "{end:?}");
    assert_eq!(std::fs::read_to_string(&report).unwrap(), "");
}

#[test]
fn kinds_that_are_none_are_refused_with_those_that_are() {
    for memory in ["bogus", "", "cuda:", "cuda:x", "cuda:-1", "CUDA", "host:0"] {
        let end = Run::start(&mut kvlease(["certify", &format!("--memory={memory}")])).end();
        assert_eq!((end.code, end.said.len()), (Some(2), 0), "{end:?}");
        let first = end.stderr.lines().next().unwrap_or_default();
        assert!(first.contains("--memory <KIND>") && !end.stderr.contains("panicked"), "{end:?}");
        assert!(memory.is_empty() || first.ends_with("expected host, pinned, cuda or cuda:N"), "{end:?}");
    }
}

#[test]
fn cases_without_memory_in_them_are_not_for_another_kind() {
    let end = Run::start(&mut kvlease("certify --memory cuda:1 --only notify".split(' '))).end();
    assert_eq!((end.code, end.said.len()), (Some(2), 0), "{end:?}");
    let expected = "kvlease certify: no case that moves memory starts with \"notify\": see them with --list --memory cuda:1\n";
    assert_eq!(end.stderr, expected);
    let listed = Run::start(&mut kvlease("certify --memory cuda:1 --list".split(' '))).end();
    let ids: Vec<&str> = listed.said.iter().filter_map(|line| line.as_str()?.split_whitespace().next()).collect();
    let expected: Vec<&str> = conformance::certify::all().iter().filter(|case| case.moves_memory()).map(|case| case.id).collect();
    assert_eq!((listed.code, ids), (Some(0), expected));
}

#[test]
fn the_report_says_which_memory_was_read_into_which() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.jsonl");
    let args = ["certify", "--memory", "host", "--only", "memory", "--transport", "loopback", "--json", path.to_str().unwrap()];
    let end = Run::start(&mut kvlease(args)).end();
    assert_eq!(end.code, Some(0), "{end:?}");
    assert!(end.said.contains(&Value::String("4 passed, 0 failed, 0 skipped".into())), "{end:?}");
    let report = std::fs::read_to_string(path).unwrap();
    let lines: Vec<Value> = report.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |key: &str| lines.iter().filter_map(|line| line[key].as_str()).collect::<Vec<_>>();
    assert_eq!(of("case"), ["memory/kind", "memory/owned", "memory/threads", "memory/refused"]);
    assert_eq!([of("blocks"), of("landing"), of("verdict")], [["host"; 4], ["host"; 4], ["pass"; 4]]);
}

#[cfg(feature = "ucx")]
#[test]
fn a_node_that_has_no_such_memory_says_so_as_about_a_transport() {
    for (option, memory) in [("--blocks", "cuda"), ("--landing", "cuda:999"), ("--blocks", "pinned")] {
        let mut node = Command::new(env!("CARGO_BIN_EXE_kvlease-peer-ucx"));
        let line = format!("agent --name p --wire native --lease 3 --lane tcp {option} {memory}");
        let end = without_devices(node.args(line.split(' ')).stdin(std::process::Stdio::null()));
        let [said] = end.said.as_slice() else { panic!("{end:?}") };
        let why = said["unavailable"].as_str().unwrap_or_default();
        assert!(end.code == Some(0) && why.starts_with("no ") && why.contains(" memory: "), "{end:?}");
    }
}
