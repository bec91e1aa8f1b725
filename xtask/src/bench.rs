//! `cargo xtask bench`: fetches what the transport is measured against, once, and measures.

use std::{
    env,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    Setup, Stop,
    fetch::Wheel,
    set_up,
    setup::{BUILD, Tool},
    steps::{Failed, Step, target_dir},
};

/// The wheel that has the `ucx_perftest` of the UCX that is built here.
const PERFTEST: Wheel = Wheel {
    name: "libucx-cu12",
    version: "1.22.0",
    hashes: &["5cbbef0c140a0a158ae3486089af659b38822b2234cd3dc90ba40a5e6553402a"],
    megabytes: 43,
    python: &[],
    files: &[PROGRAM],
};
const PROGRAM: &str = "libucx/bin/ucx_perftest";
/// The machines that it is for.
const MACHINE: &str = "x86_64";
/// Where `kvlease bench` is told of another one.
const VARIABLE: &str = "KVLEASE_UCX_PERFTEST";

/// Runs `kvlease bench ucx` in the user's own folder, and ends as it ends.
pub(crate) fn bench(setup: &Setup, args: &[String]) -> Result<(), Stop> {
    let target = target_dir()?;
    let is_set = env::var_os(VARIABLE).is_some_and(|path| !path.is_empty());
    let fetched = if is_set || !wants_perftest(args) { None } else { fetched(setup, &target.join("perftest"))? };
    set_up(setup, &BUILD)?;
    Step::cargo("building the suite", "build --release -p conformance --features cli").run()?;
    let kvlease = target.join("release/kvlease");
    let mut command = Command::new(&kvlease);
    let error = command.args(["bench", "ucx"]).args(args).envs(fetched.map(|path| (VARIABLE, path))).exec();
    Err(Stop::Failed(Failed(format!("{} does not start: {error}", kvlease.display()))))
}

/// Whether these arguments measure, and name no `ucx_perftest`.
fn wants_perftest(args: &[String]) -> bool {
    !args.iter().any(|arg| arg.starts_with("--perftest") || ["-h", "--help"].contains(&arg.as_str()))
}

/// Where the `ucx_perftest` lies, if there is one for this machine; fetches it into `folder` unless it is there.
fn fetched(setup: &Setup, folder: &Path) -> Result<Option<PathBuf>, Stop> {
    if env::consts::ARCH != MACHINE {
        eprintln!("xtask: the ucx_perftest that this fetches is for {MACHINE}: name another one of UCX 1.22 by {VARIABLE}");
        return Ok(None); // some metrics need none
    }
    if !PERFTEST.is_in(folder) {
        eprintln!("xtask: {PERFTEST} is missing and will be fetched, unless {VARIABLE} names a ucx_perftest of UCX 1.22");
        set_up(setup, &[Tool::Pip])?;
        PERFTEST.fetch(folder)?;
    }
    Ok(Some(folder.join(PROGRAM)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fetched_only_to_measure_with() {
        let wants = |line: &str| wants_perftest(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert!(wants("") && wants("--only tcp --rounds 1"));
        for line in ["--help", "--lane tcp -h", "--perftest x", "--perftest=x --lane tcp"] {
            assert!(!wants(line), "{line}");
        }
    }
}
