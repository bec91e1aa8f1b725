//! `kvlease`: picks the peer executable of the transport and becomes it, or certifies.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitCode},
};

use crate::{engine::Kinds, launch::prepare};
use clap::{Parser, Subcommand};

use super::{
    TransportName,
    bench::{BenchArgs, bench},
    certify::{CertifyArgs, certify},
    complain,
    decode::DecodeArgs,
    inspect::{InspectArgs, inspect},
    plan::{PlanArgs, plan},
    prefill::PrefillArgs,
    replay::{ReplayArgs, replay},
    simulate::{SimulateArgs, simulate},
};

#[derive(Parser)]
#[command(
    name = "kvlease",
    version,
    about = "Leases on KV blocks between prefill and decode: run both roles, certify and measure transports, simulate, plan"
)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Hold blocks: grant leases, print their transfer parameters and what becomes of them, and exit when all are freed
    Prefill(PrefillArgs),
    /// Read blocks: keep the leases of these parameters for as long as they wait, then complete them
    Decode(DecodeArgs),
    /// Certify the transports of this machine, each case between two processes
    ///
    /// Exits with 0 if something passed and nothing failed, 1 if something failed, 2 if there is no verdict, as about a transport that
    /// was named and is not here.
    Certify(CertifyArgs),
    /// Measure a transport against its own library's benchmark, in pairs of runs, and tell the ratios
    ///
    /// Targets stand beside the ratios and are no exit status. Exits with 0 if all was measured, 2 if not.
    Bench(BenchArgs),
    /// Replay traces: what engines told each other and when, run by the real protocol code on virtual time
    ///
    /// Prints one JSON object a line, the same for the same file. Exits with 0 if all held, 1 if a law was broken or an expectation
    /// failed, 2 if a file is not a trace.
    Replay(ReplayArgs),
    /// Simulate random worlds of engines, clocks and networks on virtual time, and hold the seven laws against each
    ///
    /// Ends with the totals as one JSON object. Exits with 0 if every world kept the laws, 1 if one did not: it is shrunk and written
    /// down as a trace that `kvlease replay` runs. 2 on wrong input.
    Simulate(SimulateArgs),
    /// Tell what one captured notification says, as a JSON object
    ///
    /// Takes the raw bytes from standard input, or --hex. Exits with 0 for a message and for bytes that are none of ours, 1 for what
    /// a peer would drop, which is printed as {"rejected":WHY}, 2 on wrong input. Secrets of leases are not printed.
    Inspect(InspectArgs),
    /// Plan a fleet: what leases cost it, what a dead decode instance holds, how likely a lease runs out falsely
    ///
    /// Tells each by closed form and by one sampled run of the real protocol code, side by side; docs/plan.md says what the numbers
    /// mean. Exits with 0, or with 2 on wrong input.
    Plan(Box<PlanArgs>),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    match Cli::parse().role {
        Role::Prefill(args) => become_peer(&args.role.transport),
        Role::Decode(args) => become_peer(&args.role.transport),
        Role::Certify(args) => certify(&args),
        Role::Bench(args) => bench(&args),
        Role::Replay(args) => replay(&args),
        Role::Simulate(args) => simulate(&args),
        Role::Inspect(args) => inspect(&args),
        Role::Plan(args) => plan(&args),
    }
}

/// The peer executable takes the same arguments.
fn become_peer(transport: &TransportName) -> ExitCode {
    if transport.name == "loopback" {
        return complain("kvlease", "loopback is in memory and joins no two processes: use --transport ucx");
    }
    let executable = match peer_executable(&transport.name) {
        Ok(executable) => executable,
        Err(why) => return complain("kvlease", why),
    };
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut command = Command::new(&executable);
    let error = prepare(command.args(arguments), &transport.name, transport.lane.as_deref(), Kinds::HOST).exec();
    complain("kvlease", format!("cannot start {}: {error}", executable.display()))
}

/// The executable of a transport's peers, which lies beside this one.
pub(crate) fn peer_executable(transport: &str) -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|error| format!("cannot tell where this program lies: {error}"))?;
    let path = here.with_file_name(format!("kvlease-peer-{transport}"));
    if path.is_file() {
        return Ok(path);
    }
    let how = match transport {
        "nixl" => "`cargo xtask nixl` tells how to build it",
        _ => "build it with `cargo build --release -p conformance --features cli,ucx`",
    };
    Err(format!("{} is not there: {how}", path.display()))
}
