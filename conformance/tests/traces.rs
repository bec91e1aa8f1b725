//! Every trace in `traces/` holds, and would not hold for long if something were wrong: the same output each time, also after it
//! was written and read back; listed in the README; no expectation that holds whatever happens.
#![cfg(feature = "sim")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use conformance::sim::{
    line::Line,
    replay::{self, Summary},
    time::WorldTime,
    trace::{self, Action, Trace, What},
};
use lease_proto::{
    event::{Freed, Lost, Refused},
    time::Duration,
    wire::Rejected,
};
use serde_json::{Map, Value, json};

const README: &str = include_str!("../traces/README.md");
const NANOSECOND: Duration = Duration::from_nanos(1);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces")
}

/// The files that are traces, in the order of their names.
fn files() -> BTreeSet<String> {
    let names = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".jsonl")).collect()
}

/// Each trace with its file's name.
fn traces() -> impl Iterator<Item = (String, Trace)> {
    files().into_iter().map(|name| {
        let text = fs::read(folder().join(&name)).unwrap();
        let trace = Trace::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, trace)
    })
}

/// What a run prints, a line each, and what it adds up to.
fn run(trace: &Trace) -> (Vec<String>, Summary) {
    let mut lines = Vec::new();
    let summary = replay::run(trace, &mut |line: &Line<'_>| lines.push(serde_json::to_string(line).unwrap()));
    (lines, summary)
}

/// The events of a run.
fn events(trace: &Trace) -> Vec<Map<String, Value>> {
    run(trace).0.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_trace_holds() {
    for (name, trace) in traces() {
        let (lines, summary) = run(&trace);
        let bad: Vec<_> = lines.iter().filter(|line| line.contains(r#""event":"violation""#) || failed(line).is_some()).collect();
        assert!(summary.held() && bad.is_empty(), "{name}: {bad:#?}");
    }
}

#[test]
fn the_readme_lists_every_trace_and_nothing_else() {
    let row = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let listed: Vec<_> = README.lines().filter_map(row).filter(|file| file.ends_with(".jsonl")).collect();
    let sorted: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(sorted, files());
    assert_eq!(sorted.len(), listed.len(), "a file stands twice");
}

#[test]
fn a_trace_gives_the_same_output_each_time() {
    for (name, trace) in traces() {
        assert_eq!(run(&trace), run(&trace), "{name}");
    }
}

#[test]
fn a_trace_that_is_written_and_read_back_gives_the_same_output() {
    for (name, trace) in traces() {
        let again = Trace::parse(trace.to_text().as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(run(&trace), run(&again), "{name}");
    }
}

#[test]
fn every_trace_expects_something() {
    for (name, trace) in traces() {
        assert!(trace.lines.iter().any(|line| matches!(line.what, What::Expect { .. })), "{name}");
    }
}

/// What is expected fails with any other value, and a nanosecond earlier or later.
#[test]
fn an_expectation_that_is_altered_fails() {
    let mut holding = Vec::new();
    for (name, trace) in traces() {
        let mut altered = Vec::new();
        for line in &trace.lines {
            let What::Expect { at, within, event } = &line.what else { continue };
            let others = others(event).into_iter().map(|event| (*at, *within, event));
            let earlier = at.as_nanos().checked_sub(1).map(|nanos| WorldTime::after(Duration::from_nanos(nanos)));
            let times = [earlier, Some(at.saturating_add(NANOSECOND))].into_iter().flatten();
            let times = times.filter(|at| within.is_zero() && *at <= trace.world.end).map(|at| (at, *within, event.clone()));
            altered.extend(others.chain(times).map(|(at, within, event)| (line.number, What::Expect { at, within, event })));
        }
        holding.extend(holds(&name, &trace, &altered));
    }
    assert!(holding.is_empty(), "these hold as well: {holding:#?}");
}

/// What must not come up to some time does come later: else the time says nothing.
#[test]
fn what_must_not_come_early_comes_later() {
    let mut holding = Vec::new();
    for (name, trace) in traces() {
        let forbidden = trace.lines.iter().filter_map(|line| match &line.what {
            What::Never { until: Some(_), event } => Some((line.number, What::Never { until: None, event: event.clone() })),
            _ => None,
        });
        holding.extend(holds(&name, &trace, &forbidden.collect::<Vec<_>>()));
    }
    assert!(holding.is_empty(), "these never come: {holding:#?}");
}

/// What must not come at all could come: something like it does, but for one key, and its request is one that is acted upon.
#[test]
fn what_must_not_come_could() {
    let mut cannot = Vec::new();
    for (name, trace) in traces() {
        let (all, known) = (events(&trace), requests(&trace));
        for line in &trace.lines {
            let What::Never { until: None, event } = &line.what else { continue };
            let like = |key: &String| {
                let rest: Vec<_> = event.iter().filter(|(other, _)| *other != key).collect();
                all.iter().any(|there| rest.iter().all(|(key, value)| there.get(*key) == Some(*value)))
            };
            // That a whole kind of event does not come, or not on one node, needs nothing like it.
            let whole = event.keys().all(|key| key == "event" || key == "node");
            let request = event.get("request").and_then(Value::as_str);
            let known = request.is_none_or(|request| known.contains(request));
            if !known || !(whole || event.keys().filter(|key| *key != "event").any(like)) {
                cannot.push(format!("{name}, line {}: {}", line.number, json!(event)));
            }
        }
    }
    assert!(cannot.is_empty(), "nothing is like these: {cannot:#?}");
}

/// Runs the trace with these lines in place of its expectations: those that hold.
fn holds(name: &str, trace: &Trace, altered: &[(usize, What)]) -> Vec<String> {
    let mut mutant = trace.clone();
    mutant.lines.retain(|line| matches!(line.what, What::Do { .. } | What::Link { .. }));
    let first = trace.lines.last().map_or(0, |line| line.number) + 1;
    mutant.lines.extend(altered.iter().zip(first..).map(|((_, what), number)| trace::Line { number, what: what.clone() }));
    let failed: BTreeSet<_> = run(&mutant).0.iter().filter_map(|line| failed(line)).collect();
    let held = altered.iter().zip(first..).filter(|(_, number)| !failed.contains(number));
    held.map(|((line, what), _)| format!("{name}, line {line}: {what:?}")).collect()
}

/// The line of the expectation that an output line tells to have failed.
fn failed(line: &str) -> Option<usize> {
    let event: Value = serde_json::from_str(line).unwrap();
    (event["event"] == "failed_expectation").then(|| event["line"].as_u64().unwrap() as usize)
}

/// The same event with other values that it may have.
fn others(event: &Map<String, Value>) -> Vec<Map<String, Value>> {
    let mut all = Vec::new();
    for (key, value) in event {
        let values: Vec<Value> = match (key.as_str(), value) {
            ("expires", Value::String(text)) => {
                let nanos = text.parse::<Duration>().unwrap().as_nanos();
                [nanos - 1, nanos + 1].map(|nanos| Duration::from_nanos(nanos).to_string().into()).into()
            }
            ("leases" | "bytes", value) => {
                let count = value.as_u64().unwrap();
                vec![(count - 1).into(), (count + 1).into()]
            }
            _ => names(event, key).into_iter().map(Value::from).collect(),
        };
        for other in values.into_iter().filter(|other| other != value) {
            let mut event = event.clone();
            event.insert(key.clone(), other);
            all.push(event);
        }
    }
    all
}

/// The names that may stand under this key.
fn names(event: &Map<String, Value>, key: &str) -> Vec<&'static str> {
    match (event["event"].as_str().unwrap(), key) {
        ("freed", "reason") => Freed::ALL.map(Freed::name).into_iter().chain(["lost_in_crash"]).collect(),
        ("refused", "why") => Refused::ALL.map(Refused::name).into(),
        ("rejected", "why") => Rejected::ALL.map(Rejected::name).into(),
        ("lost", "why") => Lost::ALL.map(Lost::name).into(),
        ("read_declined", "why") => vec!["not_tracked", "unproven", "reading", "too_late", "unknown_clock"],
        ("read_done", "verdict") => vec!["valid", "expired", "unverified", "failed"],
        ("read_done", "proof") => vec!["deadline", "completion", "served", "fenced"],
        _ => Vec::new(),
    }
}

/// The requests that are acted upon.
fn requests(trace: &Trace) -> BTreeSet<String> {
    use Action::{Abort, Enqueue, Expect, Finish, Grant, Read, Release};
    let request = |line: &trace::Line| match &line.what {
        What::Do {
            action:
                Grant { request, .. }
                | Expect { request }
                | Abort { request }
                | Enqueue { request, .. }
                | Read { request, .. }
                | Finish { request }
                | Release { request },
            ..
        } => Some(request.clone()),
        _ => None,
    };
    trace.lines.iter().filter_map(request).collect()
}

#[cfg(feature = "cli")]
mod command {
    use std::{
        fs,
        io::{BufRead as _, BufReader},
        path::Path,
        process::{Command, Stdio},
    };

    fn replay(files: &[&Path]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvlease"));
        command.arg("replay").args(files);
        command
    }

    /// A trace that prints more than a pipe takes, and whether it holds.
    fn write(file: &Path, holds: bool) {
        let mut text = r#"{"world":1,"end":"100","nodes":{"p":{"role":"prefill"}}}"#.to_owned();
        for request in 0..5_000 {
            text += &format!("\n{{\"at\":\"0\",\"node\":\"p\",\"do\":\"grant\",\"request\":\"{request}\"}}");
        }
        if !holds {
            text += "\n{\"at\":\"99\",\"expect\":{\"event\":\"granted\"}}";
        }
        fs::write(file, text).unwrap();
    }

    #[test]
    fn the_exit_status_is_right_though_nobody_reads_on() {
        let folder = tempfile::tempdir().unwrap();
        let [good, bad] = ["good.jsonl", "bad.jsonl"].map(|name| folder.path().join(name));
        write(&good, true);
        write(&bad, false);
        for (files, status) in
            [(vec![&*good, &*bad], 1), (vec![&*bad], 1), (vec![&*good, &*good], 0), (vec![&*good, "x".as_ref()], 2)]
        {
            let mut child = replay(&files).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap(); // and no more
            assert!(line.contains("granted"), "{line}");
            let output = child.wait_with_output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(status), "{files:?}: {stderr}");
            assert!(!stderr.contains("cannot write"), "{stderr}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_a_folder_that_leads_nowhere_is_told() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("a.jsonl"), true);
        fs::create_dir(folder.path().join("b.jsonl")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("c.jsonl")).unwrap();
        let output = replay(&[folder.path()]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("c.jsonl: cannot be read") && stderr.contains("2 traces, 1 held"), "{stderr}");
    }
}
