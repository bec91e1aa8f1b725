//! `kvlease bench` pairs its runs with those of a ucx_perftest, here a stand-in, and ends as it says.
#![cfg(all(feature = "cli", feature = "ucx"))]

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::mpsc::channel,
    thread,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

/// Tells its options, and otherwise writes down what it is started with, then does as `client` and `server` say.
const STAND_IN: &str = r#"#!/bin/sh
here=${0%/*}
case "$1" in
-h) printf '  ucp_am_lat - x\n  ucp_am_bw - x\n  ucp_get - x\n  -e  errors\n  -E <mode>  wait\n'; exit 0 ;;
127.0.0.1) role=client ;;
*) role=server ;;
esac
echo "$role $$ $* $UCX_TLS $UCX_MM_ERROR_HANDLING $UCX_PROTO_EMULATION_ENABLE" >> "$here/log"
. "$here/$role"
"#;

/// A server that ends once a client has been there, and what that client does.
const SERVER: &str = "read _ < \"$here/fifo\"\n";
const CLIENT: &str = "echo done > \"$here/fifo\"\n";
/// Does nothing, for ever.
const HANGS: &str = "read _ < \"$here/nothing\"\n";

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
        let bench = Self { folder };
        for fifo in ["fifo", "nothing", "held"] {
            assert!(Command::new("mkfifo").arg(bench.path(fifo)).status().unwrap().success());
        }
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvlease"));
        command.args(["bench", "ucx"]).args(args);
        for (option, value) in [("--seconds", "0.01".into()), ("--json", self.path("json"))] {
            if !args.contains(&option) {
                command.arg(option).arg(value);
            }
        }
        command.env("KVLEASE_UCX_PERFTEST", self.path("ucx_perftest"));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
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
    let bench = Bench::with(&format!("{early}{ROW}{CLIENT}"), SERVER);
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
        ("echo no such device; exit 3\n", HANGS, "no such device"),
        ("echo Connection refused; exit 1\n", "echo bind failed; exit 4\n", "bind failed"),
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
    hangs(HANGS);
}

#[test]
fn one_that_prints_without_pause_is_ended_and_left_out() {
    hangs("exec yes\n");
}

fn hangs(client: &str) {
    let bench = Bench::with(client, HANGS);
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
fn one_metric_without_a_ratio_is_not_all() {
    let bench = Bench::with(&format!("case \"$*\" in *ucp_am_bw*) echo no bandwidth; exit 3 ;; esac\n{ROW}"), "");
    let output = bench.run(&["--lane", "tcp", "--mode", "poll", "--rounds", "1"]);
    assert_eq!(code(&output), Some(2));
    let expected = "1 of 8 metrics have no ratio, the first is tcp/poll/rate-200: ";
    assert!(complaint(&output).contains(expected) && complaint(&output).contains("no bandwidth"), "{}", complaint(&output));
}

#[test]
fn the_report_is_there_even_if_nobody_takes_the_table() {
    let bench = Bench::with(ROW, "");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = bench.command(&["--only", "tcp/event/latency", "--rounds", "1"]).stdout(full).output().unwrap();
    assert_eq!(code(&output), Some(2));
    assert!(complaint(&output).contains("cannot write to standard output"), "{}", complaint(&output));
    let report = fs::read_to_string(bench.path("json")).unwrap();
    let metrics: Vec<Value> = report.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["metric"].clone()).collect();
    assert_eq!(metrics, ["tcp/event/latency-200", "tcp/event/latency-64k"]);
}

#[test]
fn perftest_does_not_outlive_the_command() {
    let can = Command::new("setpriv").args(["--pdeathsig", "KILL", "true"]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        return; // promised only where util-linux is
    }
    let holds = format!("exec 3> \"$here/held\"; echo up >&3\n{HANGS}");
    let bench = Bench::with(&holds, &holds);
    let mut command = bench.command(&["--only", "tcp/event/latency-200", "--rounds", "1"]);
    let mut kvlease = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (sender, steps) = channel();
    let held = bench.path("held");
    thread::spawn(move || -> io::Result<()> {
        let mut held = File::open(held)?;
        held.read_exact(&mut [0; "up\nup\n".len()])?;
        let _ = sender.send("both run");
        held.read_to_end(&mut Vec::new())?; // there is an end when nobody holds it any more
        let _ = sender.send("both are gone");
        Ok(())
    });
    let step = || steps.recv_timeout(Duration::from_secs(60));
    let started = step();
    kvlease.kill().unwrap();
    kvlease.wait().unwrap();
    assert_eq!((started, step()), (Ok("both run"), Ok("both are gone")));
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

#[test]
fn an_empty_variable_names_nothing() {
    let bench = Bench::with(ROW, "");
    let mut command = bench.command(&["--only", "tcp/event/latency-200", "--rounds", "1"]);
    let output = command.env("KVLEASE_UCX_PERFTEST", "").env("PATH", bench.folder.path()).output().unwrap();
    assert_eq!(code(&output), Some(0), "that of the path is taken: {}", complaint(&output));
}
