//! Every rule of the protocol that a trace can see is broken, one at a time: some trace in `traces/` fails each time.
#![cfg(all(kvlease_broken, feature = "sim"))]

use std::{fs, path::Path};

use conformance::sim::{replay, trace::Trace};
use lease_proto::broken::{Rule, break_rule};

/// No fabric of a trace reports a peer dead.
const UNSEEN: [Rule; 1] = [Rule::PeerLostFrees];

#[test]
fn each_broken_rule_makes_a_trace_fail() {
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("traces")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|file| file.extension().is_some_and(|ending| ending == "jsonl")).collect();
    files.sort();
    let traces: Vec<_> = files.iter().map(|file| Trace::parse(&fs::read(file).unwrap()).unwrap()).collect();
    let mut unnoticed = Vec::new();
    for rule in Rule::ALL {
        break_rule(Some(rule));
        let fails = |trace: &&Trace| !replay::run(trace, &mut |_| ()).held();
        let failed: Vec<_> = traces.iter().zip(&files).filter(|(trace, _)| fails(trace)).map(|(_, file)| file).collect();
        println!("{}: {}", rule.name(), failed.len());
        if failed.is_empty() && !UNSEEN.contains(&rule) {
            unnoticed.push(rule.name());
        }
    }
    break_rule(None);
    assert!(unnoticed.is_empty(), "no trace notices {unnoticed:?}");
}
