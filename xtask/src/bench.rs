//! `cargo xtask bench`: fetches what the transport is measured against, once, and measures.

use std::{
    env, fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    Setup, Stop, set_up,
    setup::is_there,
    steps::{Failed, Step, target_dir},
};

/// What pip installs, and nothing else: the wheel that has the `ucx_perftest` of the UCX that is built here.
const WHEEL: &str = "libucx-cu12==1.22.0 --hash=sha256:5cbbef0c140a0a158ae3486089af659b38822b2234cd3dc90ba40a5e6553402a\n";
/// The machines that it is for.
const MACHINE: &str = "x86_64";
/// Where `kvlease bench` is told of another one.
const VARIABLE: &str = "KVLEASE_UCX_PERFTEST";

/// Runs `kvlease bench ucx` in the user's own folder, and ends as it ends.
pub(crate) fn bench(setup: &Setup, args: &[String]) -> Result<(), Stop> {
    set_up(setup)?;
    let target = target_dir()?;
    let is_set = env::var_os(VARIABLE).is_some_and(|path| !path.is_empty());
    let fetched = if is_set || !wants_perftest(args) { None } else { fetch(&target.join("perftest"))? };
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

/// Unpacks the wheel into `folder`, unless it is there; where the `ucx_perftest` lies, if there is one for this machine.
fn fetch(folder: &Path) -> Result<Option<PathBuf>, Stop> {
    let perftest = folder.join("libucx/bin/ucx_perftest");
    if perftest.is_file() {
        return Ok(Some(perftest));
    }
    if env::consts::ARCH != MACHINE {
        eprintln!("xtask: the ucx_perftest that this fetches is for {MACHINE}: name another one of UCX 1.22 by {VARIABLE}");
        return Ok(None); // some metrics need none
    }
    let tell = |what: &str| Stop::Tell(format!("{what}, or name a ucx_perftest of UCX 1.22 by {VARIABLE}"));
    let pip = |what: &str| Step::new(what, "python3", ["-m", "pip"]);
    if !(is_there("python3") && pip("looking for pip").args(["--version"]).succeeds()) {
        return Err(tell("fetching ucx_perftest needs python3 with pip: install them"));
    }
    let list = written(folder).map_err(|error| Stop::Tell(format!("{}: cannot be made: {error}", folder.display())))?;
    let step = pip("fetching ucx_perftest (43 MB)").args(["install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    let step = step.args(["--only-binary", ":all:", "--upgrade", "--require-hashes", "--requirement"]).args([list]);
    step.args(["--target"]).args([folder]).with("PIP_ROOT_USER_ACTION", "ignore").run()?;
    Ok(Some(perftest))
}

/// The list that pip reads.
fn written(folder: &Path) -> std::io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let list = folder.join("requirements.txt");
    fs::write(&list, WHEEL)?;
    Ok(list)
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
