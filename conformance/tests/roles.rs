//! The two roles as live processes: they lease, renew, complete, die and come back. Judged by what they tell and by the holder's own
//! stamps, never by how long something took.
#![cfg(all(feature = "cli", feature = "ucx"))]

mod common;

use std::{collections::BTreeSet, fs, path::PathBuf};

use common::{End, Run, kvlease};
use lease_proto::time::{Duration, Instant};
use rustix::process::Signal;
use serde_json::Value;

/// Longer than any test.
const FOR_EVER: &str = "600";
const LEASE: Duration = Duration::from_secs(3);

/// One way of the transport with one wire, and the processes of a test on it.
struct Stage {
    lane: &'static str,
    wire: &'static str,
    folder: tempfile::TempDir,
}

impl Stage {
    fn new(lane: &'static str, wire: &'static str) -> Self {
        Self { lane, wire, folder: tempfile::tempdir().unwrap() }
    }

    /// A prefill instance that has granted these, and a file with their parameters.
    fn prefill(&self, requests: &[&str]) -> (Run, PathBuf) {
        let args = ["prefill", "--transport", self.lane, "--wire", self.wire, "--lease", "3", "--grant"];
        let mut prefill = Run::start(&mut kvlease(args.iter().chain(requests)));
        let file = self.folder.path().join("params.jsonl");
        fs::write(&file, prefill.params(requests.len())).unwrap();
        (prefill, file)
    }

    fn decode(&self, file: &PathBuf, hold: &str) -> Run {
        self.decode_with(file, hold, "lost_after=4")
    }

    fn decode_with(&self, file: &PathBuf, hold: &str, term: &str) -> Run {
        let args = ["decode", "--transport", self.lane, "--wire", self.wire, "--term", term, "--hold", hold, "--params"];
        Run::start(kvlease(args).arg(file))
    }

    /// The verdict about a read in time: vLLM's wire proves nothing.
    fn in_time(&self) -> &'static str {
        if self.wire == "native" { "valid" } else { "unverified" }
    }
}

const TCP: [&str; 2] = ["ucx:tcp", "native"];
const SHM: [&str; 2] = ["ucx:shm", "native"];
const TCP_VLLM: [&str; 2] = ["ucx:tcp", "vllm"];
const SHM_VLLM: [&str; 2] = ["ucx:shm", "vllm"];
const ALL: [[&str; 2]; 4] = [TCP, SHM, TCP_VLLM, SHM_VLLM];

/// Tries something on each of these ways and wires, all at the same time: they wait most of it.
fn on_each<const N: usize>(ways: [[&'static str; 2]; N], test: fn(&Stage)) {
    std::thread::scope(|scope| {
        for [lane, wire] in ways {
            let name = format!("{lane} {wire}");
            std::thread::Builder::new().name(name).spawn_scoped(scope, move || test(&Stage::new(lane, wire))).unwrap();
        }
    });
}

#[test]
fn a_request_that_waits_for_three_leases_is_kept_and_completed() {
    on_each(ALL, completes);
}

#[test]
fn the_blocks_of_a_killed_reader_are_freed_at_the_first_poll_after_their_last_promise() {
    on_each(ALL, reader_killed);
}

#[test]
fn a_reader_whose_holder_is_killed_ends_and_says_so() {
    on_each(ALL, holder_killed);
}

#[test]
fn a_reader_that_stood_still_too_long_reads_nothing() {
    on_each([TCP, SHM_VLLM], reader_stopped);
}

#[test]
fn a_holder_that_stood_still_takes_in_the_beats_before_it_expires_anything() {
    on_each([TCP, SHM], holder_stopped);
}

#[test]
fn a_second_reader_of_the_same_parameters_is_told_that_they_are_claimed() {
    on_each([TCP, SHM], second_reader);
}

#[test]
fn parameters_of_a_holder_that_is_gone_end_with_one_line() {
    on_each([TCP, SHM_VLLM], holder_gone);
}

fn time(event: &Value, key: &str) -> Instant {
    event[key].as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no time as {key}: {event}"))
}

fn about<'e>(end: &'e End, event: &str, request: &str) -> Vec<&'e Value> {
    end.events(event).into_iter().filter(|event| event["request"] == request).collect()
}

/// How a request ended: once.
fn freed<'e>(end: &'e End, request: &str, reason: &str) -> &'e Value {
    let all = about(end, "freed", request);
    assert!(all.len() == 1 && all[0]["reason"] == reason, "expected {request} to end once, as {reason}: {all:?}");
    all[0]
}

/// It ended at the first poll at or after the last expiry that was promised, by the holder's own stamps.
fn expired_in_time(end: &End, request: &str) {
    let freed = freed(end, request, "expired");
    let told = about(end, "granted", request).into_iter().chain(about(end, "renewed", request));
    let promised = told.map(|event| time(event, "expires")).max().unwrap();
    assert_eq!(time(freed, "expires"), promised, "{freed}");
    assert!(time(freed, "now") >= promised && time(freed, "previous_poll") < promised, "{freed}");
}

/// It ended well, and what it said besides is at most what its terms cannot hold on vLLM's wire.
fn well(end: &End) {
    let quiet = end.stderr.lines().all(|line| line.starts_with("warning: "));
    assert!(end.code == Some(0) && quiet, "{end:?}");
}

/// It ended badly, with this as its last word.
fn badly(end: &End, code: i32, last: &str) {
    let said = end.stderr.lines().last().unwrap_or_default();
    assert!(end.code == Some(code) && said.contains(last) && !end.stderr.contains("panicked"), "expected {last}: {end:?}");
}

/// Shared memory outlives its processes unless it was marked for destruction or unlinked at once.
fn no_memory_left(pids: &[u32]) {
    let left = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default(); // no such memory on this system
    let ours =
        |line: &&str| line.split_whitespace().nth(4).and_then(|pid| pid.parse().ok()).is_some_and(|pid| pids.contains(&pid));
    assert_eq!(left.lines().find(ours), None);
}

fn named_memory(pid: u32) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    let names = files.map(|file| file.to_string_lossy().into_owned());
    names.filter(|file| file.starts_with("/dev/shm/") && !file.ends_with(" (deleted)")).collect()
}

fn completes(at: &Stage) {
    let (mut prefill, file) = at.prefill(&["a", "b"]);
    let decode = at.decode(&file, "10");
    let pids = [prefill.pid(), decode.pid()];
    prefill.event("renewed", "b");
    assert_eq!(named_memory(prefill.pid()), Vec::<String>::new());
    let decode = decode.end();
    well(&decode);
    let verdicts: Vec<&Value> = decode.events("read_done").iter().map(|event| &event["verdict"]).collect();
    assert_eq!(verdicts, [at.in_time(), at.in_time()]);
    for landed in decode.events("read_landed") {
        assert_eq!((&landed["outcome"], &landed["bytes"], &landed["matches"]), (&"served".into(), &212_992.into(), &true.into()));
    }
    let prefill = prefill.end();
    well(&prefill);
    for request in ["a", "b"] {
        let freed = freed(&prefill, request, "completed");
        let granted = time(about(&prefill, "granted", request)[0], "at");
        assert!(time(freed, "now") >= granted.saturating_add(LEASE.saturating_mul(3)), "held for three leases: {freed}");
        assert!(time(freed, "now") < time(freed, "expires"), "{freed}");
    }
    no_memory_left(&pids);
}

fn reader_killed(at: &Stage) {
    let (mut prefill, file) = at.prefill(&["a"]);
    let decode = at.decode(&file, FOR_EVER);
    let pids = [prefill.pid(), decode.pid()];
    for _ in 0..5 {
        prefill.event("renewed", "a");
    }
    decode.signal(Signal::KILL);
    assert_eq!(decode.end().code, None);
    let prefill = prefill.end();
    well(&prefill);
    expired_in_time(&prefill, "a");
    no_memory_left(&pids);
}

fn holder_killed(at: &Stage) {
    let (mut prefill, file) = at.prefill(&["a"]);
    let decode = at.decode(&file, FOR_EVER);
    let pids = [prefill.pid(), decode.pid()];
    prefill.event("renewed", "a");
    prefill.signal(Signal::KILL);
    assert_eq!(prefill.end().code, None);
    let decode = decode.end();
    badly(&decode, 1, "not read: \"a\" (no answer)");
    assert!(decode.events("read_done").is_empty(), "{decode:?}");
    no_memory_left(&pids);
}

fn reader_stopped(at: &Stage) {
    let (mut prefill, file) = at.prefill(&["a"]);
    let decode = at.decode(&file, "5");
    prefill.event("renewed", "a");
    decode.signal(Signal::STOP);
    let prefill = prefill.end();
    well(&prefill);
    expired_in_time(&prefill, "a");
    decode.signal(Signal::CONT);
    let decode = decode.end();
    assert!(decode.events("read_done").iter().all(|event| event["verdict"] != "valid"), "{decode:?}");
    badly(&decode, 1, "not read: \"a\"");
}

fn holder_stopped(at: &Stage) {
    let (prefill, file) = at.prefill(&["a"]);
    // It is not given up by a reader that waits longer than a busy machine takes to wake it up.
    let mut decode = at.decode_with(&file, "5", "lost_after=30");
    decode.event("confirmed", "a");
    prefill.signal(Signal::STOP);
    decode.event("unproven", "a");
    prefill.signal(Signal::CONT);
    decode.event("confirmed", "a");
    let decode = decode.end();
    well(&decode);
    assert_eq!(decode.events("read_done")[0]["verdict"], "valid");
    let prefill = prefill.end();
    well(&prefill);
    freed(&prefill, "a", "completed");
}

fn second_reader(at: &Stage) {
    let (mut prefill, file) = at.prefill(&["a"]);
    let first = at.decode(&file, "8");
    prefill.event("renewed", "a");
    let second = at.decode(&file, "0").end();
    badly(&second, 1, "not read: \"a\" (claimed)");
    assert!(second.events("read_done").is_empty(), "{second:?}");
    let first = first.end();
    well(&first);
    assert_eq!(first.events("read_done")[0]["verdict"], "valid");
    let prefill = prefill.end();
    well(&prefill);
    freed(&prefill, "a", "completed");
}

fn holder_gone(at: &Stage) {
    let (prefill, file) = at.prefill(&["a"]);
    prefill.signal(Signal::KILL);
    assert_eq!(prefill.end().code, None);
    let decode = at.decode(&file, FOR_EVER).end();
    badly(&decode, 2, "is it still running");
    assert!(decode.events("read_done").is_empty(), "{decode:?}");
}

#[test]
fn each_request_ends_by_itself() {
    let at = Stage::new("ucx", "native");
    let (prefill, file) = at.prefill(&["a", "b", "c"]);
    let first_two: String = fs::read_to_string(&file).unwrap().lines().take(2).map(|line| format!("{line}\n")).collect();
    fs::write(&file, first_two).unwrap();
    well(&at.decode(&file, "0").end());
    let prefill = prefill.end();
    well(&prefill);
    freed(&prefill, "a", "completed");
    freed(&prefill, "b", "completed");
    expired_in_time(&prefill, "c");
}

#[test]
fn parameters_of_two_holders_and_one_that_dies() {
    let (one, other) = (Stage::new("ucx", "native"), Stage::new("ucx", "native"));
    let (mut lives, file) = one.prefill(&["a"]);
    let (mut dies, more) = other.prefill(&["b"]);
    fs::write(&file, [fs::read(&file).unwrap(), fs::read(more).unwrap()].concat()).unwrap();
    let decode = one.decode(&file, "6");
    lives.event("renewed", "a");
    dies.event("renewed", "b");
    dies.signal(Signal::KILL);
    let decode = decode.end();
    badly(&decode, 1, "not read: \"b\" (no answer)");
    assert_eq!(about(&decode, "read_done", "a")[0]["verdict"], "valid");
    let lives = lives.end();
    well(&lives);
    freed(&lives, "a", "completed");
}

#[test]
fn bytes_that_are_not_the_requests_are_not_taken_for_read() {
    let at = Stage::new("ucx", "native");
    let (prefill, file) = at.prefill(&["a", "b"]);
    let lines: Vec<Value> = fs::read_to_string(&file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // The blocks of another request, and some that are not there.
    let mut other = lines[0].clone();
    other["kv_transfer_params"]["remote_block_ids"] = lines[1]["kv_transfer_params"]["remote_block_ids"].clone();
    let mut nowhere = lines[1].clone();
    nowhere["kv_transfer_params"]["remote_block_ids"] = [u32::MAX].as_slice().into();
    fs::write(&file, format!("{other}\n{nowhere}\n")).unwrap();
    let decode = at.decode(&file, "0").end();
    badly(&decode, 1, "not read: \"a\" (wrong bytes), \"b\" (failed)");
    let landed = |request| about(&decode, "read_landed", request)[0];
    assert_eq!((&landed("a")["outcome"], &landed("a")["matches"]), (&"served".into(), &false.into()));
    assert_eq!((&landed("b")["outcome"], &landed("b")["why"]), (&"failed".into(), &"invalid".into()));
    let prefill = prefill.end();
    well(&prefill);
    freed(&prefill, "b", "released");
}

#[test]
fn parameters_have_the_keys_that_vllm_has_and_one_more() {
    let at = Stage::new("ucx", "native");
    let (prefill, file) = at.prefill(&["a", "odd \"id\"\n\u{1f980}"]);
    drop(prefill);
    let lines: Vec<Value> = fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (params, request) in lines.iter().zip(["a", "odd \"id\"\n\u{1f980}"]) {
        let outer: Vec<&String> = params.as_object().unwrap().keys().collect();
        assert_eq!(outer, ["kv_transfer_params"]);
        let params = params["kv_transfer_params"].as_object().unwrap();
        let keys: BTreeSet<&str> = params.keys().map(String::as_str).collect();
        let expected = "do_remote_decode do_remote_prefill remote_block_ids remote_engine_id remote_request_id remote_host remote_port \
                        tp_size dcp_size pp_size remote_num_tokens remote_blocks_expiry_time remote_registration_generation \
                        transfer_mode kvlease";
        assert_eq!(keys, expected.split_whitespace().collect());
        assert_eq!((&params["do_remote_prefill"], &params["remote_request_id"]), (&true.into(), &request.into()));
    }
}

#[test]
fn the_peer_has_ucx_inside_and_the_front_has_none() {
    let at = Stage::new("ucx", "native");
    let (prefill, _) = at.prefill(&["a"]);
    let maps = fs::read_to_string(format!("/proc/{}/maps", prefill.pid())).unwrap();
    let foreign = ["libucp", "libuct", "libucs", "libucm"].iter().find(|library| maps.contains(*library));
    assert_eq!(foreign, None, "{maps}");
    let peer = fs::read_link(format!("/proc/{}/exe", prefill.pid())).unwrap();
    assert!(peer.ends_with("kvlease-peer-ucx"), "{}", peer.display());
    let has_ucx = |program: PathBuf| fs::read(program).unwrap().windows(13).any(|bytes| bytes == b"ucp_ep_create");
    assert!(has_ucx(peer), "linked into the peer");
    assert!(!has_ucx(env!("CARGO_BIN_EXE_kvlease").into()), "two UCX libraries must not meet in one process");
}
