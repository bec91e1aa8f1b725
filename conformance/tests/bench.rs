//! `kvlease bench` pairs its runs with those of a ucx_perftest, here a stand-in, and ends as it says.
#![cfg(all(feature = "cli", feature = "ucx"))]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

/// Tells its options, and otherwise writes down what it is started with, then does as `client` and `server` say.
const STAND_IN: &str = r#"#!/bin/sh
here=$(dirname "$0")
case "$1" in
-h) printf '  ucp_am_lat - x\n  ucp_am_bw - x\n  ucp_get - x\n  -e  errors\n  -E <mode>  wait\n'; exit 0 ;;
127.0.0.1) role=client ;;
*) role=server ;;
esac
echo "$role $$ $* $UCX_TLS $UCX_MM_ERROR_HANDLING $UCX_PROTO_EMULATION_ENABLE" >> "$here/log"
. "$here/$role"
"#;

const ROW: &str = "echo iterations,and,so,on\necho 100,10.000,11.0,12.0,1.0,1.0,100000,100000\n";

struct Bench {
    folder: TempDir,
}

impl Bench {
    fn with(client: &str, server: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("ucx_perftest", STAND_IN), ("client", client), ("server", server)] {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvlease"));
        command.args(["bench", "ucx"]).args(args);
        for (option, value) in [("--seconds", "0.01".into()), ("--json", self.path("json"))] {
            if !args.contains(&option) {
                command.arg(option).arg(value);
            }
        }
        command.env("KVLEASE_UCX_PERFTEST", self.path("ucx_perftest")).output().unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path("json")).unwrap()).unwrap()
    }
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()
}

#[test]
fn runs_come_in_pairs_with_the_settings_of_the_transport() {
    // A server that is not ready at once.
    let early = "[ -e \"$here/early\" ] || { touch \"$here/early\"; echo 'connect() failed: Connection refused'; exit 1; }\n";
    let bench = Bench::with(&format!("{early}{ROW}"), "sleep 0.2\n");
    let output = bench.run(&["--only", "tcp/event/latency-200", "--rounds", "3"]);
    assert_eq!(code(&output), Some(0), "{}", complaint(&output));
    let (json, log) = (bench.json(), bench.log());
    let rounds = json["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 3, "{json}");
    let mut ratios: Vec<f64> = rounds.iter().map(|pair| pair[0].as_f64().unwrap() / pair[1].as_f64().unwrap()).collect();
    ratios.sort_by(f64::total_cmp);
    for (name, ratio) in ["min", "ratio", "max"].into_iter().zip(ratios) {
        assert!((json[name].as_f64().unwrap() - ratio).abs() < 1e-9, "{name} in {json}");
    }
    assert!(rounds.iter().all(|pair| pair[1] == 10.0 && pair[0].as_f64().unwrap() > 0.0), "{json}");
    let lines = |role: &str| log.lines().filter(|line| line.starts_with(role)).count();
    assert_eq!((lines("server"), lines("client")), (3, 4), "{log}");
    assert!(
        log.lines().all(|line| line.contains("-t ucp_am_lat -s 200 -n ") && line.contains(" -E sleep -v -e tcp y y")),
        "{log}"
    );
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.lines().any(|line| line.starts_with("tcp/event/latency-200 ") && line.contains("<= 1.05")), "{table}");
}

#[test]
fn an_idle_transport_needs_no_perftest() {
    let bench = Bench::with("exit 1\n", "exit 1\n");
    let output = bench.run(&["--only", "tcp/poll/idle", "--rounds", "1"]);
    assert_eq!((code(&output), bench.log()), (Some(0), String::new()), "{}", complaint(&output));
    assert!(bench.json()["rounds"][0][1].as_f64().unwrap() > 0.0);
}

#[test]
fn a_perftest_that_fails_is_no_measurement() {
    for (client, server, expected) in [
        ("echo no such device; exit 3\n", "sleep 1\n", "no such device"),
        ("sleep 0.2; echo Connection refused; exit 1\n", "echo bind failed; exit 4\n", "bind failed"),
        ("echo nonsense\n", "", "expected eight numbers"),
        (ROW, "echo the other broke; exit 5\n", "the other broke"),
    ] {
        let bench = Bench::with(client, server);
        let output = bench.run(&["--only", "shm/event/rate-200", "--rounds", "1"]);
        assert_eq!(code(&output), Some(2), "{client}");
        assert!(complaint(&output).contains(expected), "{}", complaint(&output));
        assert!(bench.json()["failed"].as_str().unwrap().contains(expected), "{}", bench.json());
    }
}

#[test]
fn one_that_hangs_is_ended_and_left_out() {
    let bench = Bench::with("exec sleep 100\n", "exec sleep 100\n");
    let output = bench.run(&["--only", "tcp/event/read-4k", "--rounds", "1"]);
    assert_eq!(code(&output), Some(2), "nothing was compared");
    assert!(complaint(&output).contains("did not end in any run"), "{}", complaint(&output));
    assert_eq!((&bench.json()["ratio"], &bench.json()["rounds"][0][1]), (&Value::Null, &Value::Null));
    for line in bench.log().lines() {
        let pid = line.split(' ').nth(1).unwrap();
        assert!(!PathBuf::from(format!("/proc/{pid}")).exists(), "{line} is awaited");
    }
}

#[test]
fn wrong_input_says_what_is_right() {
    let bench = Bench::with(ROW, "");
    for (args, expected) in [
        (&["--only", "udp"][..], "leave none of tcp/event/latency-200, "),
        (&["--only", "shm/", "--lane", "tcp"], "leave none of"),
        (&["--perftest", "/nowhere/x"], "cannot start /nowhere/x"),
        (&["--perftest", "/bin/echo"], "does not name ucp_am_lat: expected the ucx_perftest of UCX 1.22"),
        (&["--seconds", "2"], "--seconds 2: expected 0.01 to 1"),
        (&["--json", "/nowhere/x"], "/nowhere/x: No such file"),
    ] {
        let output = bench.run(args);
        assert_eq!(code(&output), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(expected), "{args:?}: {}", complaint(&output));
    }
    for args in [&["--rounds", "0"][..], &["--lane", "rc"], &["--mode", "both"]] {
        assert_eq!(code(&bench.run(args)), Some(2), "{args:?}");
    }
}
