//! `cargo xtask versions`: transport-nixl against the oldest and the newest nixl-sys that its manifest admits.
//!
//! nixl-sys can be in a program only once, so an engine brings its own version and transport-nixl must do with it. Built as an
//! engine would: from a package of another workspace, with a lock file and a target folder of its own.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    Setup, Stop,
    nixl::{Use, required},
    steps::{Failed, Step, Variables, root, target_dir},
};

/// The lowest version that is tried, as the workspace's manifest states.
const LOWEST: &str = "1.0.0";

pub(crate) fn versions(setup: &Setup) -> Result<(), Stop> {
    versions_of(&required(setup, &[], Use::Build)?.build)
}

/// The same where everything is set up.
pub(crate) fn versions_of(variables: &Variables) -> Result<(), Stop> {
    let folder = target_dir()?.join("versions");
    engine(&folder).map_err(|error| Failed(format!("{}: cannot be made: {error}", folder.display())))?;
    let manifest = folder.join("Cargo.toml");
    let cargo = |what: &str, line: &str| Step::cargo(what, line).args([Path::new("--manifest-path"), &manifest]);
    let mut tried: Vec<String> = vec![];
    for precise in [Some(["--precise", LOWEST]), None] {
        let choose = cargo("choosing nixl-sys", "update --package nixl-sys").args(precise.into_iter().flatten());
        if !choose.succeeds() {
            choose.args(["--offline"]).run()?; // the newest that is known here
        }
        let lock = fs::read_to_string(folder.join("Cargo.lock")).ok();
        let version = lock.as_deref().and_then(locked).ok_or_else(|| Failed("there is no nixl-sys in the lock file".into()))?;
        let check = cargo(&format!("transport-nixl against nixl-sys {version}"), "check --release");
        check.args(["--target-dir"]).args([folder.join("target")]).with_all(variables).run()?;
        tried.push(version.to_owned());
    }
    eprintln!("xtask: transport-nixl builds against nixl-sys {}", tried.join(" and "));
    Ok(())
}

/// A package in a workspace of its own that uses all of transport-nixl. It starts from this workspace's lock file.
fn engine(folder: &Path) -> io::Result<()> {
    let transport: PathBuf = root().join("transport-nixl").canonicalize()?;
    fs::create_dir_all(folder)?;
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    fs::write(folder.join("lib.rs"), "")?;
    fs::write(
        folder.join("Cargo.toml"),
        format!(
            "[package]\nname = \"engine\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n[lib]\npath = \"lib.rs\"\n\n\
             [dependencies.transport-nixl]\npath = {transport:?}\nfeatures = [\"nixl\", \"borrowed-agent\", \"side-channel\"]\n\n\
             [workspace]\nresolver = \"3\"\n"
        ),
    )
}

/// The nixl-sys of a lock file.
fn locked(lock: &str) -> Option<&str> {
    let (_, after) = lock.split_once("name = \"nixl-sys\"\nversion = \"")?;
    after.split_once('"').map(|(version, _)| version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_version_is_the_one_that_the_manifest_states() {
        let manifest = include_str!("../../Cargo.toml");
        let line = manifest.lines().find(|line| line.starts_with("nixl-sys = "));
        assert!(line.is_some_and(|line| line.ends_with(&format!("Lowest tested: {LOWEST}"))), "{line:?}");
    }

    #[test]
    fn the_version_is_read_from_the_lock_file() {
        assert_eq!(locked("[[package]]\nname = \"nixl-sys\"\nversion = \"1.2.3\"\n"), Some("1.2.3"));
        assert!(locked(include_str!("../../Cargo.lock")).is_some());
        assert_eq!(locked("name = \"nix\"\nversion = \"1\""), None);
    }
}
