//! Set-up and chores: `cargo xtask certify`, `cargo xtask test` and their smaller siblings.
//!
//! xtask is itself a Rust program: it needs Rust and a linker (`cc`) before it can look after anything else.
//!
//! Everything is built in the ONE release profile, so that the vendored UCX is compiled once per checkout. Runs that set
//! compiler flags or have a workspace of their own (loom, fuzz, no_std) keep UCX out of their graph and build beside it.

mod bench;
mod bench_nixl;
mod check;
mod clang;
mod fetch;
mod gpu_bundle;
mod nixl;
mod setup;
mod steps;
mod versions;

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use nixl::{Optional, Ready, Use};
use setup::{Packages, Plan, Tool, is_there, listed, plan};
use steps::{Failed, Step, root, target_dir};

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "Set-up and chores of this workspace")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Sets up what is missing, builds the suite and certifies the transports of this machine
    Certify {
        #[command(flatten)]
        setup: Optional,
        /// Passed on to `kvlease certify`; see them with `cargo xtask certify -- --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Sets up what is missing and runs all tests
    Test {
        #[command(flatten)]
        setup: Optional,
        /// Only tests with this in their names
        name: Option<String>,
        /// Passed on to the test binaries, such as `-- --nocapture`
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Sets up what is missing, fetches ucx_perftest, builds the suite and measures against it
    Bench {
        #[command(flatten)]
        setup: Setup,
        /// Passed on to `kvlease bench ucx`; see them with `cargo xtask bench -- --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Sets up what is missing, fetches NIXL's Python API and measures notifications over NIXL against NIXL itself
    BenchNixl {
        #[command(flatten)]
        setup: Setup,
        /// Passed on to the benchmark, once per lane; see them with `cargo xtask bench-nixl -- --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Sets up what is missing and runs the suite against vLLM's own connector
    Interop {
        #[command(flatten)]
        setup: Setup,
        /// Passed on to `conformance/interop/run.py`; see them with `cargo xtask interop -- --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Sets up what is missing to build with NIXL and to load it
    Nixl {
        #[command(flatten)]
        setup: Setup,
    },
    /// Puts the suite with CUDA, and all it loads, into one folder to carry to a machine with a GPU
    GpuBundle {
        #[command(flatten)]
        setup: Setup,
    },
    /// Checks format, lints, docs and dependencies; every warning is an error
    Check {
        #[command(flatten)]
        setup: Optional,
    },
    /// Builds transport-nixl against the oldest and the newest nixl-sys
    Versions {
        #[command(flatten)]
        setup: Setup,
    },
    /// Lets loom visit every interleaving of lease-proto's `sync`
    Loom,
    /// Breaks the protocol's rules one by one and lets the simulator find each
    Broken,
    /// Links a no_std binary in which any panic that can be reached is a link error
    NoStd,
    /// Fuzzes lease-proto's decoders (needs nightly Rust, cargo-fuzz and a C++ compiler)
    Fuzz {
        /// What to fuzz; all of them, one after the other, if not given
        target: Option<Target>,
        /// Seconds for each target; 0 is for ever
        #[arg(long, value_name = "S", default_value_t = 60)]
        time: u32,
    },
}

#[derive(Args)]
struct Setup {
    /// Install what is missing with sudo; root installs without being told
    #[arg(long)]
    install: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Target {
    /// kvlease's own wire
    Native,
    /// vLLM's wire
    Vllm,
    /// The frame around foreign blobs
    Frame,
}

impl Target {
    /// Its name, which is also that of its binary and of its folders.
    fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Vllm => "vllm",
            Self::Frame => "frame",
        }
    }
}

/// Why a chore ended early.
enum Stop {
    /// A step failed: exit 1.
    Failed(Failed),
    /// The user has to do something first: exit 2.
    Tell(String),
}

impl From<Failed> for Stop {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Certify { setup, args } => certify(&setup, &args),
        Chore::Test { setup, name, args } => test(&setup, name.as_deref(), &args),
        Chore::Bench { setup, args } => bench::bench(&setup, &args),
        Chore::BenchNixl { setup, args } => bench_nixl::bench_nixl(&setup, &args),
        Chore::Interop { setup, args } => interop(&setup, &args),
        Chore::Nixl { setup } => nixl::nixl(&setup),
        Chore::GpuBundle { setup } => gpu_bundle::gpu_bundle(&setup),
        Chore::Check { setup } => check::check(&setup),
        Chore::Versions { setup } => versions::versions(&setup),
        Chore::Loom => loom(),
        Chore::Broken => broken(),
        Chore::NoStd => no_std(),
        Chore::Fuzz { target, time } => fuzz(target, time),
    };
    let (text, code) = match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Stop::Failed(Failed(text))) => (text, 1),
        Err(Stop::Tell(text)) => (text, 2),
    };
    eprintln!("xtask: {text}");
    ExitCode::from(code)
}

/// Makes sure that these tools are there.
fn set_up(setup: &Setup, tools: &[Tool]) -> Result<(), Stop> {
    let missing = || tools.iter().copied().filter(|tool| !tool.is_there()).collect::<Vec<_>>();
    let is_root = || Step::new("asking for the user", "id", ["-u"]).output().is_ok_and(|id| id.trim() == "0");
    let before = missing();
    match plan(&before, Packages::of_this_machine(), is_root(), setup.install) {
        Plan::Ready => return Ok(()),
        Plan::Tell(text) => return Err(Stop::Tell(text)),
        Plan::Install(commands) => {
            let steps: Vec<_> = commands.iter().map(|line| Step::new("set-up", line[0], &line[1..])).collect();
            eprintln!("xtask: missing {}, so this will run:", listed(&before));
            steps.iter().for_each(|step| eprintln!("xtask:   {step}"));
            steps.iter().try_for_each(Step::run)?;
        }
    }
    match missing().as_slice() {
        [] => Ok(()),
        still => Err(Stop::Tell(format!("{} still missing after the set-up: install by hand", listed(still)))),
    }
}

/// Runs `kvlease certify` in the user's own folder, and ends as it ends.
fn certify(setup: &Optional, args: &[String]) -> Result<(), Stop> {
    let kvlease = suite(nixl::set_up(setup, Use::Run)?.as_ref())?;
    Err(ends_as(Command::new(kvlease).arg("certify").args(args)))
}

/// Runs what is in `conformance/interop` in the user's own folder, and ends as it ends.
fn interop(setup: &Setup, args: &[String]) -> Result<(), Stop> {
    let ready = nixl::required(setup, &[Tool::Pip, Tool::Venv], Use::Run)?;
    let kvlease = suite(Some(&ready))?;
    let (home, python) = connector()?;
    let mut command = Command::new(python);
    command.arg(root().join("conformance/interop/run.py")).arg("--home").arg(home).arg("--kvlease").arg(kvlease);
    Err(ends_as(command.args(args)))
}

/// Fetches vLLM's connector, once; the folder, and the Python in it, which has NIXL.
fn connector() -> Result<(PathBuf, PathBuf), Failed> {
    let home = target_dir()?.join("interop");
    let fetch = root().join("conformance/interop/fetch.py");
    Step::new("fetching vLLM's connector", "python3", [fetch]).args([&home]).run()?;
    let python = home.join("venv/bin/python");
    Ok((home, python))
}

/// Builds the command `kvlease` with its peers; where it lies.
fn suite(nixl: Option<&Ready>) -> Result<PathBuf, Failed> {
    let step = Step::cargo("building the suite", "build --release -p conformance --features");
    match nixl {
        Some(ready) => step.args(["cli,nixl"]).with_all(&ready.build).run()?,
        None => step.args(["cli"]).run()?,
    }
    Ok(target_dir()?.join("release/kvlease"))
}

/// Becomes that command; why it does not.
fn ends_as(command: &mut Command) -> Stop {
    let error = command.exec();
    Stop::Failed(Failed(format!("{} does not start: {error}", Path::new(command.get_program()).display())))
}

fn test(setup: &Optional, name: Option<&str>, args: &[String]) -> Result<(), Stop> {
    let ready = nixl::set_up(setup, Use::Run)?;
    let workspace = "test --release --workspace --exclude transport-nixl --features conformance/cli,transport-ucx/borrowed-worker,\
                     transport-ucx/tokio";
    let mut steps = vec![
        Step::cargo("tests", workspace).args(ready.iter().flat_map(|_| ["--features", "conformance/nixl"])),
        // Alone, so that no other crate turns on what they need and do not ask for.
        Step::cargo("tests of lease-proto, alone with std", "test --release -p lease-proto --features std"),
        Step::cargo("tests of gpu-mem, alone without CUDA", "test --release -p gpu-mem"),
        Step::cargo("tests of transport-nixl", "test --release -p transport-nixl --features side-channel"),
    ];
    if let Some(ready) = &ready {
        steps = steps.into_iter().map(|step| step.with_all(&ready.build)).collect();
        let line = "test --release -p transport-nixl --features nixl,borrowed-agent,side-channel";
        steps.push(Step::cargo("tests of transport-nixl with NIXL", line).with_all(&ready.build).with_all(&ready.run));
    }
    for step in steps {
        step.args(name).args((!args.is_empty()).then_some("--")).args(args).run()?;
    }
    for example in ready.iter().flat_map(|_| ["bytes", "borrowed_agent"]) {
        let line = "run --release -p transport-nixl --features borrowed-agent --example";
        let step = Step::cargo("an example", line).args([example]);
        ready.iter().fold(step, |step, ready| step.with_all(&ready.build).with_all(&ready.run)).run()?;
    }
    Step::cargo("an example", "run --release -p gpu-mem --example leases").run()?;
    for example in ["lease", "borrowed"] {
        let line = "run --release -p transport-ucx --features borrowed-worker --example";
        Step::cargo("an example", line).args([example]).run()?;
    }
    // No tests: what they need turns features on.
    Step::cargo("build of lease-proto without features", "build --release -p lease-proto").run()?;
    match is_there("c++") {
        true => Step::cargo("build of the fuzz targets", "check --release -p kvlease-fuzz --features libfuzzer").run()?,
        false => eprintln!("xtask: build of the fuzz targets: skipped, since libFuzzer needs a C++ compiler and there is no c++"),
    }
    loom()?;
    broken()?;
    no_std()
}

fn loom() -> Result<(), Stop> {
    let step = Step::cargo("loom", "test --release -p lease-proto --features std --lib --target-dir");
    Ok(step.args([target_dir()?.join("loom")]).args(["sync"]).with("RUSTFLAGS", "--cfg kvlease_loom").run()?)
}

fn broken() -> Result<(), Stop> {
    let line = "test --release -p lease-proto -p conformance --no-default-features --features lease-proto/std,conformance/sim \
                --test broken_rules --test broken_traces --target-dir";
    let step = Step::cargo("rules broken one by one", line).args([target_dir()?.join("broken")]);
    Ok(step.args(["--", "--nocapture"]).with("RUSTFLAGS", "--cfg kvlease_broken").run()?)
}

fn no_std() -> Result<(), Stop> {
    let step = Step::cargo("no_std and no panic", "build --release --manifest-path lease-proto/no-std-check/Cargo.toml");
    Ok(step.args(["--target-dir"]).args([target_dir()?.join("no-std-check")]).run()?)
}

fn fuzz(target: Option<Target>, time: u32) -> Result<(), Stop> {
    // By way of rustup: the cargo that runs us does not know `+nightly`.
    let nightly = |what: &str, line: &str| Step::new(what, "rustup", "run nightly cargo fuzz".split(' ').chain(line.split(' ')));
    if !nightly("looking for cargo-fuzz", "--version").succeeds() {
        let line = "rustup toolchain install nightly --profile minimal && cargo install cargo-fuzz";
        return Err(Stop::Tell(format!("fuzzing needs nightly Rust and cargo-fuzz: {line}")));
    }
    if !is_there("c++") {
        return Err(Stop::Tell("fuzzing needs a C++ compiler (c++): install g++ or clang".into()));
    }
    let build = target_dir()?.join("fuzz");
    for target in target.map_or(Target::value_variants().to_vec(), |target| vec![target]) {
        let name = target.name();
        // New inputs go into the first folder; the seeds are only read.
        let (corpus, seeds) = (format!("fuzz/corpus/{name}"), format!("fuzz/seeds/{name}"));
        fs::create_dir_all(root().join(&corpus)).map_err(|error| Stop::Tell(format!("{corpus} cannot be made: {error}")))?;
        let step = nightly(&format!("fuzzing {name}"), "run --features libfuzzer --target-dir").args([&build]);
        step.args([name, &corpus, &seeds, "--"]).args([format!("-max_total_time={time}")]).run()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, error::ErrorKind};

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_readme_shows_commands_that_exist() {
        let readme = include_str!("../../README.md");
        let shown: Vec<&str> = readme.split('`').chain(readme.lines()).filter(|text| text.starts_with("cargo xtask ")).collect();
        assert!(shown.len() >= 2);
        for line in shown {
            let words = line.split_whitespace().skip(1).filter(|word| *word != "…");
            if let Err(error) = Cli::try_parse_from(words) {
                assert_eq!(error.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, "{line}: {error}");
            }
        }
    }

    #[test]
    fn certify_passes_on_what_it_does_not_know() {
        let line = "xtask certify --install --transport ucx --json out.json";
        let Chore::Certify { setup, args } = Cli::parse_from(line.split(' ')).chore else { panic!("certify") };
        assert!(setup.setup.install && !setup.no_nixl);
        assert_eq!(args, ["--transport", "ucx", "--json", "out.json"]);
        let Chore::Certify { setup, args } = Cli::parse_from(["xtask", "certify", "--no-nixl", "--list"]).chore else {
            panic!("certify")
        };
        assert_eq!((setup.no_nixl, args), (true, vec!["--list".to_owned()]));
    }

    #[test]
    fn bench_nixl_passes_on_all_but_the_set_up() {
        let line = "xtask bench-nixl --install --rounds 9 --json out.json";
        let Chore::BenchNixl { setup, args } = Cli::parse_from(line.split(' ')).chore else { panic!("bench-nixl") };
        assert!(setup.install);
        assert_eq!(args, ["--rounds", "9", "--json", "out.json"]);
        let Chore::BenchNixl { args, .. } = Cli::parse_from(["xtask", "bench-nixl", "--", "--help"]).chore else {
            panic!("bench-nixl")
        };
        assert_eq!(args, ["--help"]);
    }

    #[test]
    fn test_passes_on_what_follows_the_dashes_and_knows_no_other_flag() {
        let line = "xtask test wire -- --nocapture";
        let Chore::Test { name, args, .. } = Cli::parse_from(line.split(' ')).chore else { panic!("test") };
        assert_eq!((name.as_deref(), args), (Some("wire"), vec!["--nocapture".to_owned()]));
        for line in ["xtask test --bogus", "xtask check --bogus", "xtask fuzz --bogus"] {
            let Err(error) = Cli::try_parse_from(line.split(' ')) else { panic!("{line} is refused") };
            assert_eq!((error.kind(), error.exit_code()), (ErrorKind::UnknownArgument, 2));
        }
    }
}
