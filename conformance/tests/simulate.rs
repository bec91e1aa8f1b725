//! Random worlds keep the laws, everything happens in them, and a world that fails can be written down, read and made small.
#![cfg(feature = "sim")]

use conformance::sim::{
    chaos::{Shape, assumed, generate},
    line::Line,
    replay,
    shrink::shrink,
    simulate::{Outcome, run_worlds},
    trace::{Action, Trace, What},
};
use lease_proto::wire::Wire;

fn shape(chaos: bool, wire: Wire) -> Shape {
    Shape { chaos, wire: Some(wire), ..Shape::default() }
}

fn totals(worlds: u64, shape: &Shape) -> serde_json::Value {
    let Outcome { totals, broken } = run_worlds(1, worlds, shape, 2, &|_| ());
    assert!(broken.is_none(), "{broken:?}");
    assert_eq!((totals.worlds, totals.violations), (worlds, 0));
    totals.to_json()
}

#[track_caller]
fn all_happened(totals: &serde_json::Value, kind: &str, names: &[&str]) {
    for name in names {
        assert!(totals[kind][name].as_u64() > Some(0), "{kind} {name}: {totals}");
    }
}

#[test]
fn a_thousand_worlds_of_chaos_keep_the_laws_and_everything_happens_in_them() {
    let totals = totals(1000, &shape(true, Wire::Native));
    let reasons = ["completed", "released", "expired", "aborted", "drained", "revoked", "lost_in_crash"];
    all_happened(&totals, "freed", &reasons);
    all_happened(&totals, "verdicts", &["valid by deadline", "valid by completion", "expired", "unverified", "failed"]);
    all_happened(&totals, "lost", &["expired", "unknown", "revoked", "claimed", "no_answer"]);
    all_happened(
        &totals,
        "refused",
        &["unknown", "expired", "not_yet", "claimed", "inconsistent", "revoked", "duplicate", "draining"],
    );
    all_happened(&totals, "rejected", &["stale_session", "truncated", "trailing_bytes"]);
}

#[test]
fn so_do_worlds_on_vllm_s_wire_where_nothing_is_valid() {
    let totals = totals(300, &shape(true, Wire::Vllm));
    all_happened(&totals, "freed", &["completed", "expired", "aborted", "drained", "lost_in_crash"]);
    all_happened(&totals, "verdicts", &["unverified", "failed"]);
    all_happened(&totals, "rejected", &["not_utf8", "no_colon", "bad_count"]);
    assert_eq!(totals["verdicts"]["valid by deadline"], 0);
}

#[test]
fn mild_worlds_read_most_of_what_they_grant_in_time() {
    let totals = totals(300, &shape(false, Wire::Native));
    let count = |name: &str| totals["verdicts"][name].as_u64().unwrap();
    assert!(count("valid by deadline") + count("valid by completion") > count("expired") + count("unverified"), "{totals}");
    assert_eq!(totals["freed"]["lost_in_crash"], 0);
}

/// All that a run prints.
fn output(trace: &Trace) -> Vec<String> {
    let mut lines = Vec::new();
    replay::run(trace, &mut |line: &Line<'_>| lines.push(serde_json::to_string(line).unwrap()));
    lines
}

#[test]
fn a_world_follows_from_its_seed_and_survives_being_written_down() {
    for seed in 0..200 {
        let shape = Shape { wire: None, chaos: seed % 3 > 0, ..Shape::default() };
        let trace = generate(seed, &shape);
        assert_eq!(trace, generate(seed, &shape));
        assert!(assumed(&trace));
        let text = trace.to_text();
        let read = Trace::parse(text.as_bytes()).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        assert_eq!(read, trace, "seed {seed}");
        assert_eq!(output(&read), output(&trace), "seed {seed}");
    }
}

#[test]
fn shapes_bound_their_worlds() {
    for seed in 0..100 {
        let shape = Shape { prefill: 1, decode: 2, requests: 1, ..shape(false, Wire::Native) };
        let trace = generate(seed, &shape);
        let roles = |letter| trace.world.nodes.iter().filter(|node| node.name.starts_with(letter)).count();
        assert!(roles('p') == 1 && (1..=2).contains(&roles('d')) && roles('r') <= 1);
        let grants = trace.lines.iter().filter(|line| matches!(line.what, What::Do { action: Action::Grant { .. }, .. }));
        assert!(grants.count() <= 1);
    }
}

/// Who runs which world is nobody's business.
#[test]
fn the_number_of_threads_changes_nothing() {
    let shape = shape(true, Wire::Native);
    let json = |threads| run_worlds(7, 100, &shape, threads, &|_| ()).totals.to_json();
    assert_eq!(json(1), json(3));
}

#[test]
fn what_fails_is_made_small_and_still_fails() {
    let crashes = |trace: &Trace| {
        let crash = |line: &conformance::sim::trace::Line| matches!(line.what, What::Do { action: Action::Crash, .. });
        let lost = output(trace).iter().any(|line| line.contains("lost_in_crash"));
        trace.lines.iter().any(crash) && lost
    };
    let seeds = (0..).map(|seed| generate(seed, &shape(true, Wire::Native)));
    for trace in seeds.filter(|trace| trace.lines.len() > 30 && crashes(trace)).take(5) {
        let mut runs = 0;
        let small = shrink(&trace, |trace| {
            runs += 1;
            crashes(trace)
        });
        assert!(crashes(&small) && runs <= 4_000);
        assert_eq!(Trace::parse(small.to_text().as_bytes()).as_ref(), Ok(&small));
        // A grant and the crash; the node that dies.
        assert_eq!((small.lines.len(), small.world.nodes.len()), (2, 1), "{}", small.to_text());
        assert!(assumed(&small));
    }
}

#[test]
fn what_cannot_be_smaller_stays() {
    let trace = Trace::parse(br#"{"world":1,"end":"0","nodes":{"p0":{"role":"prefill"}}}"#).unwrap();
    assert_eq!(shrink(&trace, |_| true), trace);
}

#[cfg(feature = "cli")]
mod command {
    use std::process::{Command, Output};

    use serde_json::Value;

    fn simulate(args: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvlease"));
        command.arg("simulate").args(args.split_whitespace()).current_dir(std::env::temp_dir()).output().unwrap()
    }

    /// The one object that it prints.
    fn report(args: &str) -> Value {
        let Output { status, stdout, stderr } = simulate(args);
        let text = String::from_utf8(stdout).unwrap();
        assert_eq!((status.code(), text.lines().count()), (Some(0), 1), "{args}: {text}");
        let report: Value = serde_json::from_str(&text).unwrap();
        // A seed that was drawn is told before the run, too.
        let drawn = if args.contains("--seed") { String::new() } else { format!("kvlease simulate: seed {}\n", report["seed"]) };
        assert_eq!(String::from_utf8_lossy(&stderr), drawn, "{args}");
        report
    }

    #[test]
    fn it_ends_with_one_object() {
        let worlds = |args: &str| report(args)["worlds"].as_u64();
        let first = report("--seed 18446744073709551615 --worlds 20 --chaos --wire both");
        assert_eq!(first, report("--seed 18446744073709551615 --worlds 20 --chaos --wire both --threads 1"));
        assert_eq!((&first["seed"], &first["worlds"], &first["violations"]), (&u64::MAX.into(), &20.into(), &0.into()));
        assert!(first["grants"].as_u64() > Some(20));
        assert_eq!(worlds("--worlds 3 --prefill 16 --decode 16 --requests 40 --wire vllm"), Some(3));
    }

    #[test]
    fn a_seed_that_is_not_given_is_drawn() {
        assert_ne!(report("--worlds 1")["seed"], report("--worlds 1")["seed"]);
    }

    #[test]
    fn wrong_arguments_are_refused_with_their_bounds() {
        let rows = [
            ("--worlds 0", "1.."),
            ("--prefill 0", "1..=16"),
            ("--decode 17", "1..=16"),
            ("--requests 1001", "1..=1000"),
            ("--threads 0", "1..=256"),
            ("--wire tcp", "native, vllm, both"),
            ("--seed -1", "'-1'"),
            ("--zork", "--zork"),
            ("--out /dev/null/x", "cannot be made"),
            ("--out /proc", "/proc: cannot be written in"),
        ];
        for (args, said) in rows {
            let Output { status, stdout, stderr } = simulate(args);
            let stderr = String::from_utf8_lossy(&stderr);
            assert_eq!((status.code(), stdout.len()), (Some(2), 0), "{args}: {stderr}");
            assert!(stderr.contains(said), "{args}: {stderr}");
        }
    }
}
