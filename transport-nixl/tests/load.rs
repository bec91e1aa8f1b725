//! What is said where NIXL, or what it needs, is not there.
#![cfg(feature = "nixl")]

mod common;

use std::process::Output;

use common::again;
use lease_proto::transport::{Error as _, ErrorKind};
use transport_nixl::{LIBRARY, NixlConfig, NixlTransport, SETTING};

/// Tells this binary, run again, which backend to start.
const BACKEND: &str = "KVLEASE_NIXL_TEST_BACKEND";

/// Not a test of its own: says what comes of starting a transport.
#[test]
fn a_start_for_the_others() {
    let Some(backend) = std::env::var_os(BACKEND) else { return };
    let backend = backend.to_string_lossy().parse().unwrap();
    match NixlTransport::new(NixlConfig { backend, ..NixlConfig::default() }) {
        Ok(_) => println!("\nstarted"),
        Err(error) => println!("\nerror {}: {error}", error.kind()),
    }
}

/// What a process says that starts a transport with this backend and this in its environment.
#[track_caller]
fn start(backend: &str, with: &[(&str, &str)], without: &[&str]) -> String {
    let mut command = again("a_start_for_the_others");
    for name in without {
        command.env_remove(name);
    }
    let Output { status, stdout, stderr } =
        command.env(BACKEND, backend).env("UCX_TLS", "tcp").envs(with.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&stdout);
    assert!(status.success(), "it ended with {status}\n{said}\n{}", String::from_utf8_lossy(&stderr));
    let said = said.lines().find(|line| line.starts_with("error ") || *line == "started").unwrap().to_owned();
    println!("seen: {said}");
    said
}

#[track_caller]
fn fails(kind: ErrorKind, words: &[&str], said: &str) {
    assert!(said.starts_with(&format!("error {kind}: ")), "{said}");
    for word in words {
        assert!(said.contains(word), "expected {word:?} in: {said}");
    }
}

#[test]
fn it_starts_where_all_is_there() {
    assert_eq!(start("nixl", &[], &[]), "started");
    // NIXL finds its plugins by itself.
    assert_eq!(start("nixl", &[], &["NIXL_PLUGIN_DIR"]), "started");
}

#[test]
fn a_folder_without_nixl_is_told_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    fails(ErrorKind::Unavailable, &[path, LIBRARY, SETTING], &start("nixl", &[(SETTING, path)], &[]));
}

#[test]
fn a_library_that_does_not_load_is_told_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join(LIBRARY);
    for content in [&b""[..], b"this is no library", &[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]] {
        std::fs::write(&library, content).unwrap();
        let said = start("nixl", &[(SETTING, folder.path().to_str().unwrap())], &[]);
        fails(ErrorKind::Unavailable, &[library.to_str().unwrap(), "does not load"], &said);
    }
}

#[test]
fn a_backend_without_notifications_is_refused_by_its_name() {
    for name in ["POSIX", "GDS", "OBJ"] {
        fails(ErrorKind::Unsupported, &[name, "notifications"], &start(&format!("nixl:{name}"), &[], &[]));
    }
}

#[test]
fn a_plugin_that_nobody_has_is_told_with_those_that_are_there() {
    fails(ErrorKind::Unavailable, &["libplugin_NOPE.so", "UCX"], &start("nixl:NOPE", &[], &[]));
    fails(ErrorKind::Unavailable, &["NOPE"], &start("nixl:NOPE", &[], &["NIXL_PLUGIN_DIR"]));
}

/// Where there is a fabric for it, it starts.
#[test]
fn a_plugin_that_lacks_a_library_names_it() {
    for name in ["LIBFABRIC", "GPUNETIO"] {
        let said = start(&format!("nixl:{name}"), &[], &[]);
        if said != "started" {
            fails(ErrorKind::Unavailable, &[name], &said);
            assert!(said.contains(".so") || said.contains("device"), "{said}");
        }
    }
}
