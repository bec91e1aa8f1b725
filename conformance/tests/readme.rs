//! What the README tells to type works as it says.
#![cfg(all(feature = "cli", feature = "ucx"))]

use std::{
    io::Read as _,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const README: &str = include_str!("../../README.md");

/// A shell with what it started, ended with it.
struct Terminal(Child);

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may be over
        let _ = self.0.wait();
    }
}

impl Terminal {
    fn open(role: &str, folder: &std::path::Path) -> Self {
        let shown = format!("target/release/kvlease {role} ");
        let line = README.lines().find(|line| line.starts_with(&shown)).expect("the README shows it");
        // The README's twenty seconds are for people; longer than the lease is enough here. And its port may be taken.
        let line = line.replace("target/release/kvlease", env!("CARGO_BIN_EXE_kvlease")).replace("--hold 20", "--hold 7");
        let line = line.replace("127.0.0.1:5600", "127.0.0.1:0");
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("set -o pipefail; {line}")]).current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(shell.spawn().expect("bash is there"))
    }

    /// Its exit status and all that it said.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().code(), said)
    }
}

#[test]
fn two_terminals_as_the_readme_shows_them() {
    let folder = tempfile::tempdir().unwrap();
    let first = Terminal::open("prefill", folder.path());
    let params = folder.path().join("params.jsonl");
    let started = Instant::now();
    while !std::fs::read_to_string(&params).is_ok_and(|text| text.matches("\"granted\"").count() == 2) {
        assert!(started.elapsed() < Duration::from_secs(60), "no parameters");
        std::thread::yield_now();
    }
    let (code, second) = Terminal::open("decode", folder.path()).end();
    assert_eq!(code, Some(0), "{second}");
    assert_eq!(second.matches("\"verdict\":\"valid\"").count(), 2, "{second}");
    assert_eq!(second.matches("\"bytes\":212992,\"matches\":true").count(), 2, "{second}");
    let (code, first) = first.end();
    assert_eq!(code, Some(0), "{first}");
    assert_eq!(first.matches("\"reason\":\"completed\"").count(), 2, "{first}");
}

#[cfg(feature = "nixl")]
#[test]
fn a_peer_for_vllm_as_the_readme_shows_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = Terminal::open("prefill --transport nixl", folder.path());
    let params = folder.path().join("vllm.jsonl");
    let started = Instant::now();
    while !std::fs::read_to_string(&params).is_ok_and(|text| text.contains("\"granted\"")) {
        assert!(started.elapsed() < Duration::from_secs(60), "no parameters");
        std::thread::yield_now();
    }
    let (code, second) = Terminal::open("decode --transport nixl", folder.path()).end();
    assert_eq!(code, Some(0), "{second}");
    assert!(second.contains("\"matches\":true") && second.contains("\"verdict\":\"unverified\""), "{second}");
    let (code, first) = first.end();
    assert_eq!(code, Some(0), "{first}");
    assert!(first.contains("\"reason\":\"completed\""), "{first}");
}

#[test]
fn every_case_is_listed() {
    let list = Command::new(env!("CARGO_BIN_EXE_kvlease")).args(["certify", "--list"]).output().unwrap();
    assert!(list.status.success());
    assert_eq!(String::from_utf8(list.stdout).unwrap().lines().count(), conformance::certify::all().len());
}
