//! Wrong input: one clear line that says what to do, exit status 2, no panic, and nothing that looks like success.
#![cfg(all(feature = "cli", feature = "ucx"))]

mod common;

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read as _,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use common::{End, Run, kvlease};
use conformance::{
    certify::{
        MemoryLab,
        lab::{Lab as _, Spec},
    },
    engine::{Command, Lease},
};
use lease_proto::wire::Wire;
use serde_json::{Value, json};

/// Runs `kvlease` with arguments that are no good, and returns what it says about them.
fn refused<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> String {
    let mut command = kvlease(args);
    let shown = format!("{command:?}");
    let End { code, said, stderr } = Run::start(&mut command).end();
    assert_eq!((code, said.as_slice()), (Some(2), [].as_slice()), "{shown}: {stderr}");
    let first = stderr.lines().next().unwrap_or_default();
    // clap shows the usage besides.
    assert!(first.starts_with("error: ") || stderr.trim_end().lines().count() == 1, "{shown}: not one line: {stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("backtrace"), "{shown}: {stderr}");
    assert!(first.chars().count() < 400 && !first.contains(char::is_control), "{shown}: {first:?}");
    first.to_owned()
}

/// Arguments in one text, and what must be said about them.
fn all_refused(rows: &[(&str, &str)]) {
    for (args, expected) in rows {
        let said = refused(args.split(' '));
        assert!(said.contains(expected), "{args}: expected {expected:?}, got {said:?}");
    }
}

#[test]
fn flags_that_are_none() {
    all_refused(&[
        ("prefil --grant a", "unrecognized subcommand 'prefil'"),
        ("prefill", "required arguments"),
        ("prefill --grant", "a value is required"),
        ("prefill --grant a --zork", "unexpected argument '--zork'"),
        ("decode", "required arguments"),
        ("decode --params x --grant a", "unexpected argument '--grant'"),
        ("certify --zork", "unexpected argument '--zork'"),
        ("certify --transport loopback,zork", "expected loopback, ucx, ucx:tcp, ucx:shm, nixl"),
        ("certify --only zork", "no case starts with \"zork\": see them with --list"),
        ("certify --list --only zork", "see them with --list"),
        ("certify --transport loopback --json /nowhere/at/all", "/nowhere/at/all: No such file"),
        ("certify --transport loopback --json /", "/: Is a directory"),
    ]);
    let said = refused([OsStr::new("certify"), OsStr::new("--only"), OsStr::from_bytes(b"\xff")]);
    assert!(said.contains("invalid UTF-8"), "{said}");
}

#[test]
fn transports_that_are_none_or_not_for_two_processes() {
    for role in ["prefill --grant a", "decode --params x"] {
        all_refused(&[
            (&format!("{role} --transport zork"), "expected loopback, ucx, ucx:tcp, ucx:shm, nixl"),
            (&format!("{role} --transport nixl:UCX/rdma"), "nixl:UCX has no way \"rdma\": expected"),
            (&format!("{role} --transport nixl:POSIX"), "notifications"),
            (&format!("{role} --transport ucx:rdma"), "ucx has no lane \"rdma\": expected"),
            (&format!("{role} --transport ucx:"), "ucx has no lane"),
            (&format!("{role} --transport loopback"), "joins no two processes: use --transport ucx"),
            (&format!("{role} --wire zork"), "--wire"),
        ]);
    }
}

#[test]
fn request_ids_that_cannot_be_granted() {
    let long = "x".repeat(300);
    for (ids, wire, expected) in [
        (vec![""], "native", "a request id has at least one byte"),
        (vec!["good", ""], "vllm", "a request id has at least one byte"),
        (vec![&long], "native", "id has 300 bytes, expected at most 256"),
        (vec!["good", &long], "vllm", "id has 300 bytes, expected at most 256"),
        (vec!["a,b"], "vllm", "choose another, or --wire native"),
        (vec!["good", "HB"], "vllm", "choose another, or --wire native"),
        (vec!["PUSH_REG:x"], "vllm", "choose another, or --wire native"),
        (vec!["a", "b", "a"], "native", "\"a\": given twice"),
        (vec!["a\nb", "a\nb"], "vllm", "\"a\\nb\": given twice"),
    ] {
        let said = refused(["prefill", "--lease", "6", "--wire", wire, "--grant"].into_iter().chain(ids));
        assert!(said.contains(expected), "expected {expected:?}, got {said:?}");
    }
    let said = refused([OsStr::new("prefill"), OsStr::new("--grant"), OsStr::from_bytes(b"a\xff")]);
    assert!(said.contains("invalid UTF-8"), "{said}");
}

#[test]
fn leases_that_cannot_be() {
    const SECONDS: &str = "expected seconds as digits";
    const RANGE: &str = "expected 0.1 to 86400 s";
    all_refused(&[
        ("prefill --grant a --lease 0", RANGE),
        ("prefill --grant a --lease 0.05", RANGE),
        ("prefill --grant a --lease 86400.000000001", RANGE),
        ("prefill --grant a --lease=-1", SECONDS),
        ("prefill --grant a --lease -1", "unexpected argument '-1'"),
        ("prefill --grant a --lease inf", SECONDS),
        ("prefill --grant a --lease nan", SECONDS),
        ("prefill --grant a --lease 1e3", SECONDS),
        ("prefill --grant a --lease 0.0000000001", SECONDS),
        ("prefill --grant a --lease ", SECONDS),
        ("prefill --grant a --lease 99999999999999999999999", "expected at most"),
        ("prefill --grant a --lease 1 --wire vllm", "raise it to at least 2 s"),
        ("prefill --grant a --lease 0 --wire vllm", RANGE),
        ("prefill --grant a --listen 127.0.0.1:0", "takes --transport nixl --wire vllm, not --transport ucx --wire native"),
        ("prefill --grant a --tp 2", "--tp 2: one process is one rank, unless it talks to vLLM: add --listen HOST:PORT"),
        ("prefill --grant a --tp 0", "--tp 0: expected 1 to 64 ranks"),
        ("prefill --grant a --compat-hash 00", "--compat-hash is for vLLM: add --listen HOST:PORT"),
        ("prefill --grant a --consumers 0", "at least one rank"),
        ("prefill --grant a --consumers 65536", "--consumers"),
        ("prefill --grant a --ttl x", SECONDS),
        ("prefill --grant a --ttl 0", "--ttl 0: expected 0.1 to 86400 s"),
        ("prefill --grant a --ttl 0.099999999", RANGE),
        ("prefill --grant a --ttl 86400.000000001", RANGE),
    ]);
}

#[test]
fn terms_that_are_none() {
    all_refused(&[
        ("prefill --grant a --term zork", "--term zork: expected NAME=VALUE"),
        ("prefill --grant a --term zork=1", "--term zork=1: no term has that name"),
        ("prefill --grant a --term lease=x", "--term lease=x: expected seconds"),
        ("prefill --grant a --term losses=1.5", "--term losses=1.5: "),
        ("prefill --grant a --term losses=9", "losses is 9, expected 0 to 3"),
        ("prefill --grant a --term hold_until_ack=maybe", "--term hold_until_ack=maybe: "),
        ("prefill --grant a --lease 6 --term longest_stall=5", "lower longest_stall"),
    ]);
    let said = refused(["prefill", "--grant", "a", "--term", "a\nb"]);
    assert!(said.contains("--term a\\nb: expected NAME=VALUE"), "{said}");
    let said = refused(["prefill", "--grant", "a", "--engine-id", ""]);
    assert!(said.contains("--engine-id is empty"), "{said}");
    let said = refused(["prefill", "--grant", "a", "--engine-id", &"x".repeat(257)]);
    assert!(said.contains("257 bytes"), "{said}");
}

/// Parameters of a holder that nobody can reach over UCX, made as any holder makes them.
fn params(request: &str) -> Value {
    let mut lab = MemoryLab::new(1);
    let node = lab.start(&Spec { name: "p", wire: Wire::Native, raw: false, way: None, side: None }).unwrap();
    lab.ask(node, Command::Grant(Lease { request: request.into(), ..Lease::default() })).unwrap().unwrap()
}

fn changed(key: &str, value: impl Into<Value>) -> String {
    let mut params = params("a");
    params["kv_transfer_params"][key] = value.into();
    params.to_string()
}

fn file(folder: &Path, content: &[u8]) -> PathBuf {
    let path = folder.join("params.jsonl");
    fs::write(&path, content).unwrap();
    path
}

#[test]
fn parameter_files_that_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let good = params("a").to_string();
    let key = params("a")["kv_transfer_params"]["kvlease"].as_str().unwrap().to_owned();
    let middle = key.len() / 2;
    let flipped = format!("{}{}{}", &key[..middle], if key.as_bytes()[middle] == b'A' { 'B' } else { 'A' }, &key[middle + 1..]);
    for (content, expected) in [
        (Vec::new(), "no transfer parameters in it"),
        (b"\n \n".to_vec(), "no transfer parameters in it"),
        (b"{\"event\":\"granted\"}\n".to_vec(), "no transfer parameters in it"),
        (b"hello\n".to_vec(), "params.jsonl:1: not JSON"),
        (b"[1,2]\n".to_vec(), "params.jsonl:1: not an object"),
        (b"{\n".to_vec(), "params.jsonl:1: not JSON"),
        (b"\xff\xfe\n".to_vec(), "params.jsonl:1: stream did not contain valid UTF-8"),
        (vec![b'['; 100_000], "params.jsonl:1: not JSON: recursion limit"),
        (b"{}\n".to_vec(), "do_remote_prefill is not true"),
        (json!({"kv_transfer_params": null}).to_string().into_bytes(), "do_remote_prefill is not true"),
        (changed("do_remote_prefill", false).into_bytes(), "do_remote_prefill is not true"),
        (changed("kvlease", Value::Null).into_bytes(), "kvlease is not a string"),
        (changed("remote_block_ids", Value::Null).into_bytes(), "remote_block_ids is not a list of numbers"),
        (changed("remote_block_ids", json!([])).into_bytes(), "remote_block_ids names no block"),
        (changed("remote_block_ids", json!([1, -1])).into_bytes(), "remote_block_ids is not a list of numbers"),
        (
            r#"{"do_remote_prefill":true,"remote_request_id":"a"}"#.into(),
            "kvlease is missing: pass on what the prefill instance printed",
        ),
        (
            r#"{"do_remote_prefill":true,"remote_request_id":"a","remote_host":"h","remote_port":1}"#.into(),
            "a side channel is named: read these with --transport nixl --wire vllm",
        ),
        (changed("remote_request_id", 7).into_bytes(), "remote_request_id is not a string"),
        (changed("remote_request_id", "").into_bytes(), "remote_request_id is empty"),
        (changed("remote_request_id", "x".repeat(257)).into_bytes(), "id has 257 bytes"),
        (changed("kvlease", "").into_bytes(), "the kvlease key is damaged"),
        (changed("kvlease", "a b").into_bytes(), "not base64url"),
        (changed("kvlease", &key[..middle - middle % 4]).into_bytes(), "the kvlease key is damaged"),
        (changed("kvlease", flipped).into_bytes(), "the kvlease key"),
        (changed("kvlease", "A".repeat(10_000_000)).into_bytes(), "the kvlease key is damaged"),
        (format!("{good}\n{{}}\n").into_bytes(), "params.jsonl:2: do_remote_prefill is not true"),
        (format!("{good}\n\n{good}\n").into_bytes(), "params.jsonl:3: request \"a\" is there twice"),
        (vec![b'\n'; (64 << 20) + 1], "larger than 67108864 bytes"),
    ] {
        let path = file(folder.path(), &content);
        let said = refused([OsStr::new("decode"), OsStr::new("--params"), path.as_os_str()]);
        assert!(said.contains(expected), "expected {expected:?}, got {said:?}");
    }
}

#[test]
fn parameters_that_are_no_file_and_holds_that_are_no_time() {
    all_refused(&[
        ("decode --params /nowhere/at/all", "/nowhere/at/all: No such file"),
        ("decode --params /", "Is a directory"),
        ("decode --params - --lease 6", "-: no transfer parameters in it"),
        ("decode --params x --hold junk", "expected seconds as digits"),
        ("decode --params x --hold=-1", "expected seconds as digits"),
        ("decode --params x --hold inf", "expected seconds as digits"),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), params("a,b").to_string().as_bytes());
    let said = refused(["decode", "--wire", "vllm", "--params", path.to_str().unwrap()]);
    assert!(said.contains("vLLM's wire cannot carry the id"), "{said}");
}

#[test]
fn parameters_of_nobody_end_in_bounded_time_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), params("a").to_string().as_bytes());
    for wire in ["native", "vllm"] {
        let end = Run::start(&mut kvlease(["decode", "--wire", wire, "--params", path.to_str().unwrap()])).end();
        assert_eq!((end.code, end.stderr.lines().count()), (Some(2), 1), "{end:?}");
        assert!(end.stderr.contains("is it still running, on the same transport and wire"), "{end:?}");
        assert!(end.events("read_done").is_empty(), "{end:?}");
    }
}

#[test]
fn a_closed_standard_output_ends_the_process_quietly() {
    for args in ["certify --list", "certify --only notify/empty --transport loopback", "prefill --lease 2 --grant a"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = kvlease(args.split(' ')).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(2), "{args}: {stderr}");
        assert!(!stderr.contains("panicked"), "{args}: {stderr}");
        assert!(stderr.ends_with("cannot write to standard output: Broken pipe (os error 32)\n"), "{args}: {stderr}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_no_success() {
    let args = "certify --only notify/empty --transport loopback --json /dev/full";
    let end = Run::start(&mut kvlease(args.split(' '))).end();
    assert_eq!(end.code, Some(2), "{end:?}");
    assert!(end.stderr.ends_with("cannot write the report: No space left on device (os error 28)\n"), "{end:?}");
}

#[test]
fn a_report_has_one_object_per_case_and_lane() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.jsonl");
    let args = ["certify", "--only", "notify/e", "--transport", "ucx:tcp,loopback,ucx:tcp", "--json", path.to_str().unwrap()];
    let end = Run::start(&mut kvlease(args)).end();
    assert_eq!(end.code, Some(0), "{end:?}");
    let mut report = String::new();
    File::open(path).unwrap().read_to_string(&mut report).unwrap();
    let report: Vec<Value> = report.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lanes: Vec<[&Value; 4]> =
        report.iter().map(|line| ["case", "transport", "lane", "verdict"].map(|key| &line[key])).collect();
    assert_eq!(lanes, [["notify/empty", "loopback", "memory", "pass"], ["notify/empty", "ucx", "tcp", "pass"]]);
    let table: Vec<&str> = end.said.iter().filter_map(Value::as_str).collect();
    assert!(table[0].split_whitespace().eq(["case", "loopback", "ucx:tcp"]), "{table:?}");
    assert!(table[1].split_whitespace().eq(["notify/empty", "pass", "pass"]), "{table:?}");
    assert!(table.contains(&"2 passed, 0 failed, 0 skipped"), "{table:?}");
    assert!(
        end.stderr
            .lines()
            .any(|line| line == "[2/2] pass notify/empty on ucx:tcp" || line == "[2/2] pass notify/empty on loopback")
    );
}

#[test]
fn a_transport_that_is_not_here_is_certified_by_nothing() {
    let without_tcp = |args: &str| Run::start(kvlease(args.split(' ')).env("UCX_NET_DEVICES", "zork")).end();
    for named in ["ucx:tcp", "loopback,ucx:tcp"] {
        let end = without_tcp(&format!("certify --only notify/empty --transport {named}"));
        assert_eq!(end.code, Some(2), "{end:?}");
        let last = end.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("kvlease certify: nothing certified about ucx:tcp: ucx finds no usable transport"), "{end:?}");
    }
    // Nobody asked for it, or for its other way too.
    for others in ["certify --only notify/empty", "certify --only notify/empty --transport ucx"] {
        let end = without_tcp(others);
        assert_eq!(end.code, Some(0), "{end:?}");
        let skipped = |line: &str| line.ends_with(" skipped") && !line.ends_with(" 0 skipped");
        assert!(end.said.iter().any(|line| line.as_str().is_some_and(skipped)), "{end:?}");
    }
}

#[test]
fn a_transport_that_cannot_start_for_another_reason_gives_no_verdict() {
    let mut command = kvlease("certify --only notify/empty --transport loopback,ucx:tcp".split(' '));
    let end = Run::start(command.env("UCX_TCP_CM_REUSEADDR", "zork").env("UCX_MM_ERROR_HANDLING", "zork")).end();
    assert_eq!((end.code, end.said.len()), (Some(2), 0), "{end:?}");
    assert!(end.stderr.contains("did not become ready"), "{end:?}");
}

/// Processes that a process has started.
fn children(pid: u32) -> Vec<u32> {
    let stats = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
        Some((pid, parent(pid)?))
    });
    stats.filter(|(_, parent)| *parent == pid).map(|(child, _)| child).collect()
}

/// Its state and its parent follow its name, which is in brackets.
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_whitespace().take(2).map(str::to_owned).collect())
}

fn parent(pid: u32) -> Option<u32> {
    stat(pid)?[1].parse().ok()
}

fn until<T>(what: &str, mut is: impl FnMut() -> Option<T>) -> T {
    let start = std::time::Instant::now();
    loop {
        if let Some(found) = is() {
            return found;
        }
        assert!(start.elapsed().as_secs() < 60, "not {what}");
        std::thread::yield_now();
    }
}

#[test]
fn nodes_that_stand_still_die_with_who_started_them() {
    let certify = Run::start(&mut kvlease("certify --only fault/native/reader-stopped --transport ucx:tcp".split(' ')));
    let is_stopped = |pid: &u32| stat(*pid).is_some_and(|stat| stat[0] == "T");
    let nodes = until("stopped", || Some(children(certify.pid())).filter(|nodes| nodes.iter().any(is_stopped)));
    certify.signal(rustix::process::Signal::KILL);
    assert_eq!(certify.end().code, None);
    until("gone", || nodes.iter().all(|node| stat(*node).is_none_or(|stat| stat[0] == "Z")).then_some(()));
}

/// The namespaces for partitions that a process has made.
fn namespaces(pid: u32) -> Vec<String> {
    let Ok(list) = std::process::Command::new("ip").args(["netns", "list"]).output() else { return Vec::new() };
    let names = String::from_utf8_lossy(&list.stdout)
        .lines()
        .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
        .collect::<Vec<_>>();
    names.into_iter().filter(|name| name.starts_with(&format!("kvlease-{pid}-"))).collect()
}

#[test]
fn a_partition_leaves_no_network_behind_and_what_a_killed_run_left_goes_with_the_next() {
    let partition = || Run::start(&mut kvlease("certify --only fault/native/partition-long --transport ucx:tcp".split(' ')));
    let killed = partition();
    let pid = killed.pid();
    let over = || stat(pid).is_none_or(|stat| stat[0] == "Z"); // where this machine makes no networks
    let nodes = until("started", || (!namespaces(pid).is_empty() || over()).then(|| children(pid)));
    killed.signal(rustix::process::Signal::KILL);
    killed.end();
    until("gone", || nodes.iter().all(|node| stat(*node).is_none_or(|stat| stat[0] == "Z")).then_some(()));
    let next = partition();
    let own = next.pid();
    let end = next.end();
    assert!(end.code == Some(0) || end.stderr.contains("no network to cut"), "{end:?}");
    assert!(namespaces(pid).is_empty() && namespaces(own).is_empty());
}

#[test]
fn a_running_prefill_instance_can_be_piped_into_a_decode_instance() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut prefill = kvlease("prefill --lease 6 --grant a b".split(' ')).stdout(writer).stderr(Stdio::null()).spawn().unwrap();
    let end = Run::start(kvlease(["decode", "--params", "-"]).stdin(reader)).end();
    prefill.wait().unwrap(); // its last words may find nobody
    assert_eq!(end.code, Some(0), "{end:?}");
    assert_eq!(end.events("read_done").len(), 2, "{end:?}");
}

#[test]
fn cases_can_be_listed_by_prefix() {
    let end = Run::start(&mut kvlease(["certify", "--list", "--only", "connect/"])).end();
    assert_eq!((end.code, end.stderr.as_str()), (Some(0), ""));
    let ids: Vec<&str> = end.said.iter().filter_map(|line| line.as_str()?.split_whitespace().next()).collect();
    assert_eq!(ids, ["early", "cancel", "gone", "lost", "disconnect", "garbage"].map(|id| format!("connect/{id}")));
}
