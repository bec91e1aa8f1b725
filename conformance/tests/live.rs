//! Both roles towards vLLM, with each other: real processes over NIXL and vLLM's side channel. Judged by what they tell, and by the
//! holder's own stamps. `interop/` has the same with vLLM's own code on the other side.
#![cfg(all(feature = "cli", feature = "nixl"))]

mod common;

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
};

use common::{End, Run, kvlease};
use lease_proto::time::Instant;
use rustix::process::Signal;
use serde_json::{Value, json};
use transport_nixl::{Machine, find};

/// Longer than any test.
const FOR_EVER: &str = "600";
const VLLM: [&str; 4] = ["--transport", "nixl", "--wire", "vllm"];
/// Of a request: three blocks of 64 KiB in each of four regions, over all ranks.
const BYTES: u64 = 3 * 4 * 65_536;

/// Whether there is a NIXL to run on: as everywhere, by `KVLEASE_NIXL` where it is set.
fn has_nixl() -> bool {
    find(&Machine::this()).inspect_err(|why| eprintln!("skipped: {why}")).is_ok()
}

/// One pairing, and the file that stands between them.
struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn file(&self, content: impl AsRef<[u8]>) -> PathBuf {
        let file = self.folder.path().join("params.jsonl");
        fs::write(&file, content).unwrap();
        file
    }

    /// A prefill instance that has granted these, and a file with their parameters.
    fn prefill(&self, more: &[&str], requests: &[&str]) -> (Run, PathBuf) {
        let args = ["prefill", "--listen", "127.0.0.1:0", "--engine-id", "p", "--lease", "6"];
        let mut prefill = Run::start(&mut kvlease(args.iter().chain(&VLLM).chain(more).chain(&["--grant"]).chain(requests)));
        let params = prefill.params(requests.len());
        (prefill, self.file(params))
    }

    fn decode(&self, file: &PathBuf, more: &[&str]) -> Run {
        Run::start(kvlease(["decode", "--lease", "6"].iter().chain(&VLLM).chain(more)).arg("--params").arg(file))
    }
}

fn well(end: &End) {
    assert!(end.code == Some(0) && end.stderr.is_empty(), "{end:?}");
}

/// It ended badly, and said so in one line.
fn badly(end: &End, code: i32, expected: &str) {
    assert!(end.code == Some(code) && end.stderr.contains(expected), "expected {expected:?}: {end:?}");
    assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
}

fn about<'e>(end: &'e End, event: &str, request: &str) -> Vec<&'e Value> {
    end.events(event).into_iter().filter(|event| event["request"] == request).collect()
}

fn ranks(events: &[&Value]) -> BTreeSet<u64> {
    events.iter().map(|event| event["rank"].as_u64().unwrap()).collect()
}

fn time(event: &Value, key: &str) -> Instant {
    event[key].as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no time as {key}: {event}"))
}

/// All ranks read all bytes of both requests and complete them.
fn reads(d_tp: u64, p_tp: u64) {
    if !has_nixl() {
        return;
    }
    let (at, requests) = (Stage::new(), ["cmpl-1-0-aabbccdd", "chatcmpl-5f0c-22334455"]);
    let (prefill, file) = at.prefill(&["--tp", &p_tp.to_string()], &requests);
    let decode = at.decode(&file, &["--tp", &d_tp.to_string(), "--hold", "1.5"]).end();
    well(&decode);
    for request in requests {
        let landed = about(&decode, "read_landed", request);
        assert_eq!((landed.len() as u64, ranks(&landed)), (d_tp, (0..d_tp).collect()), "{landed:?}");
        assert!(landed.iter().all(|event| event["matches"] == true), "{landed:?}");
        assert_eq!(landed.iter().map(|event| event["bytes"].as_u64().unwrap()).sum::<u64>(), BYTES);
        let from: Vec<u64> =
            landed.iter().flat_map(|event| event["from"].as_array().unwrap()).filter_map(Value::as_u64).collect();
        assert_eq!(from.len() as u64, d_tp.max(p_tp), "each rank reads from as many as the sizes say: {landed:?}");
    }
    let shaken = decode.events("handshake");
    assert_eq!(shaken.len() as u64, d_tp.max(p_tp), "{shaken:?}");
    assert!(shaken.iter().all(|event| event["offset"].is_number() && event["hash"] == "0".repeat(64)), "{shaken:?}");
    let prefill = prefill.end();
    well(&prefill);
    for request in requests {
        let freed = about(&prefill, "freed", request);
        assert_eq!((freed.len() as u64, ranks(&freed)), (p_tp, (0..p_tp).collect()), "{freed:?}");
        assert!(freed.iter().all(|event| event["reason"] == "completed"), "{freed:?}");
        assert_eq!(ranks(&about(&prefill, "renewed", request)), (0..p_tp).collect(), "beats came to every rank");
    }
}

#[test]
fn one_rank_reads_from_one() {
    reads(1, 1);
}

#[test]
fn two_ranks_read_whole_blocks_of_four() {
    reads(2, 4);
}

#[test]
fn four_ranks_share_the_blocks_of_two() {
    reads(4, 2);
}

#[test]
fn the_blocks_of_a_killed_reader_are_freed_at_the_first_poll_after_their_last_promise() {
    if !has_nixl() {
        return;
    }
    let at = Stage::new();
    let (mut prefill, file) = at.prefill(&["--tp", "2"], &["a"]);
    let decode = at.decode(&file, &["--tp", "2", "--hold", FOR_EVER]);
    for _ in 0..4 {
        prefill.event("renewed", "a");
    }
    decode.signal(Signal::KILL);
    assert_eq!(decode.end().code, None);
    let prefill = prefill.end();
    well(&prefill);
    for rank in 0..2 {
        let of_rank =
            |event: &str| about(&prefill, event, "a").into_iter().filter(|event| event["rank"] == rank).collect::<Vec<_>>();
        let promised = of_rank("renewed").iter().map(|event| time(event, "expires")).max().unwrap();
        let freed = of_rank("freed");
        assert!(freed.len() == 1 && freed[0]["reason"] == "expired", "{freed:?}");
        assert_eq!(time(freed[0], "expires"), promised, "{freed:?}");
        assert!(time(freed[0], "now") >= promised && time(freed[0], "previous_poll") < promised, "{freed:?}");
    }
}

#[test]
fn requests_of_an_earlier_life_are_not_read_from_a_later_one() {
    if !has_nixl() {
        return;
    }
    let at = Stage::new();
    let (mut first, file) = at.prefill(&[], &["a"]);
    let params: Value = serde_json::from_str(fs::read_to_string(&file).unwrap().trim_end()).unwrap();
    let address = format!("127.0.0.1:{}", params["kv_transfer_params"]["remote_port"]);
    let decode = at.decode(&file, &["--hold", FOR_EVER]);
    first.event("renewed", "a");
    first.signal(Signal::KILL);
    assert_eq!(first.end().code, None);
    let args = ["prefill", "--listen", &address, "--engine-id", "p", "--lease", "30"];
    let _second = Run::start(&mut kvlease(args.iter().chain(&VLLM).chain(&["--grant", "b"])));
    let decode = decode.end();
    assert_eq!(decode.code, Some(1), "{decode:?}");
    assert_eq!(about(&decode, "not_read", "a")[0]["why"], "peer_restarted");
    assert!(decode.events("read_landed").is_empty(), "{decode:?}");
}

#[test]
fn blocks_that_are_not_the_requests_or_not_there_are_not_taken_for_read() {
    if !has_nixl() {
        return;
    }
    let at = Stage::new();
    let (prefill, file) = at.prefill(&[], &["other", "nowhere", "good"]);
    let mut lines: Vec<Value> =
        fs::read_to_string(&file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines[0]["kv_transfer_params"]["remote_block_ids"] = lines[2]["kv_transfer_params"]["remote_block_ids"].clone();
    lines[1]["kv_transfer_params"]["remote_block_ids"] = json!([[0, 64]]);
    let file = at.file(lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    let decode = at.decode(&file, &[]).end();
    badly(
        &decode,
        1,
        "\"nowhere\" (region 0: block 64 of 64, counted from 0: the id is not of this memory, or stale), \"other\" (wrong bytes)",
    );
    assert_eq!(about(&decode, "read_landed", "other")[0]["wrong"], json!({"from": 0, "region": 0, "byte": 0}));
    assert!(about(&decode, "read_landed", "nowhere").is_empty());
    assert_eq!(about(&decode, "read_landed", "good")[0]["matches"], true);
    well(&prefill.end());
}

#[test]
fn only_an_engine_of_the_same_hash_is_read_from_where_one_is_given() {
    if !has_nixl() {
        return;
    }
    let (at, ours, other) = (Stage::new(), "a".repeat(64), "b".repeat(64));
    let (prefill, file) = at.prefill(&["--compat-hash", &ours], &["a"]);
    let refused = at.decode(&file, &["--compat-hash", &other]).end();
    badly(&refused, 2, "the engines differ");
    assert_eq!(refused.events("not_read")[0]["why"], "incompatible");
    let decode = at.decode(&file, &["--compat-hash", &ours]).end();
    well(&decode);
    assert_eq!(decode.events("handshake")[0]["hash"], ours);
    well(&prefill.end());
}

#[test]
fn strangers_at_the_side_channel_are_counted_and_harm_nobody() {
    if !has_nixl() {
        return;
    }
    let at = Stage::new();
    let (prefill, file) = at.prefill(&[], &["a"]);
    let params: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let port = params["kv_transfer_params"]["remote_port"].as_u64().unwrap() as u16;
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stranger.write_all(&[b'x'; 64]).unwrap();
    // Until it is turned away.
    let _ = stranger.read_to_end(&mut Vec::new());
    well(&at.decode(&file, &[]).end());
    let prefill = prefill.end();
    well(&prefill);
    let told = prefill.events("side_channel");
    assert_eq!(told.last().unwrap()["refused"], json!({"not_zeromq": 1}), "{told:?}");
}

#[test]
fn a_prefill_instance_that_is_gone_ends_with_one_line() {
    if !has_nixl() {
        return;
    }
    let at = Stage::new();
    let (prefill, file) = at.prefill(&[], &["a"]);
    prefill.signal(Signal::KILL);
    assert_eq!(prefill.end().code, None);
    let decode = at.decode(&file, &["--term", "lost_after=2", "--hold", FOR_EVER]).end();
    badly(&decode, 2, "nobody takes a connection at \"127.0.0.1\"");
    assert!(decode.events("read_done").is_empty(), "{decode:?}");
}

/// Runs `kvlease` with arguments that are no good, on vLLM's wire over NIXL.
fn refused(args: &[&str], expected: &str) {
    let end = Run::start(&mut kvlease(args.iter().chain(&VLLM))).end();
    badly(&end, 2, expected);
    assert!(end.said.is_empty(), "{end:?}");
}

#[test]
fn arguments_that_cannot_be_are_told_by_their_names() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let hash = "x".repeat(64);
    for (args, expected) in [
        (&["--tp", "2"][..], "--tp 2: one process is one rank, unless it talks to vLLM: add --listen HOST:PORT"),
        (&["--compat-hash", &hash], "--compat-hash is for vLLM: add --listen HOST:PORT"),
        (&["--listen", "127.0.0.1"], "--listen 127.0.0.1: expected HOST:PORT"),
        (&["--listen", "127.0.0.1:65536"], "expected HOST:PORT"),
        (&["--listen", "0.0.0.0:0"], "name one address of this machine"),
        (&["--listen", &taken], "Address already in use"),
        (&["--listen", "127.0.0.1:0", "--tp", "0"], "--tp 0: expected 1 to 64 ranks"),
        (&["--listen", "127.0.0.1:0", "--tp", "3"], "--tp 3: blocks of 65536 bytes cannot be shared"),
        (&["--listen", "127.0.0.1:0", "--compat-hash", &hash], "expected 64 hexadecimal digits"),
        (&["--listen", "127.0.0.1:0", "--lease", "1"], "raise it to at least 2 s"),
    ] {
        refused(&[&["prefill", "--grant", "a"], args].concat(), expected);
    }
    let end = Run::start(&mut kvlease("prefill --transport nixl --grant a --listen 127.0.0.1:0".split(' '))).end();
    badly(&end, 2, "takes --transport nixl --wire vllm, not --transport nixl --wire native");
}

#[test]
fn parameters_that_cannot_be_used_are_told_by_their_keys() {
    let at = Stage::new();
    let good = json!({"kv_transfer_params": {
        "do_remote_prefill": true, "remote_block_ids": [[1, 2]], "remote_engine_id": "p", "remote_request_id": "a",
        "remote_host": "127.0.0.1", "remote_port": 1, "tp_size": 4,
    }});
    let decode = |content: String, more: &[&str], expected: &str| {
        let file = at.file(content);
        refused(&[&["decode", "--params", file.to_str().unwrap()], more].concat(), expected);
    };
    for key in ["remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size"] {
        let mut params = good.clone();
        params["kv_transfer_params"].as_object_mut().unwrap().remove(key).unwrap();
        decode(params.to_string(), &[], &format!("params.jsonl:1: {key} is missing"));
    }
    decode(good.to_string(), &["--tp", "3"], "--tp 3: tensor parallel sizes 3 (reader) and 4 (holder) do not fit");
    decode(good.to_string(), &["--tp", "0"], "--tp 0: expected 1 to 64 ranks");
    decode(format!("{good}\n{good}"), &[], "request \"a\" is there twice");
    let file = at.file(good.to_string());
    let args = ["decode", "--transport", "nixl", "--params", file.to_str().unwrap()];
    badly(&Run::start(&mut kvlease(args)).end(), 2, "a side channel is named: read these with --transport nixl --wire vllm");
}
