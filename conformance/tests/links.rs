//! Two UCX libraries must not meet in one process: each executable has the one that it should, and no other.
#![cfg(all(feature = "cli", feature = "nixl"))]

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A function of UCX's own that a program has in it if it was linked with UCX.
const OF_UCX: &[u8] = b"ucp_worker_create";

fn is_linked_with_ucx(executable: &str) -> bool {
    fs::read(executable).unwrap().windows(OF_UCX.len()).any(|bytes| bytes == OF_UCX)
}

#[test]
fn only_the_peer_of_ucx_is_linked_with_ucx() {
    assert!(!is_linked_with_ucx(env!("CARGO_BIN_EXE_kvlease")));
    assert!(!is_linked_with_ucx(env!("CARGO_BIN_EXE_kvlease-peer-nixl")));
    #[cfg(feature = "ucx")]
    assert!(is_linked_with_ucx(env!("CARGO_BIN_EXE_kvlease-peer-ucx")));
}

#[test]
fn what_nixl_calls_of_ucx_is_nixls_own() {
    let line = "prefill --transport nixl:UCX/tcp --lease 60 --grant a";
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvlease"));
    let mut child = child.args(line.split(' ')).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut granted = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut granted).unwrap();
    // `kvlease` has become the peer by now: the process is the same.
    let maps = fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(granted.contains("kv_transfer_params"), "{granted}");
    let files: BTreeSet<PathBuf> = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).map(PathBuf::from).collect();
    let named = |prefix: &str| -> Vec<&Path> {
        let is = |file: &&PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
        files.iter().filter(is).map(PathBuf::as_path).collect()
    };
    let (ucp, nixl) = (named("libucp"), named("libnixl_capi"));
    let [ucp] = ucp[..] else { panic!("expected one UCX, got {ucp:?}") };
    let [nixl] = nixl[..] else { panic!("expected one NIXL, got {nixl:?}") };
    let root = |library: &Path| library.ancestors().nth(2).unwrap().to_owned();
    assert_eq!(root(ucp), root(nixl), "UCX is not the one that came with NIXL");
}
