//! `kvlease`: picks the peer executable of the transport and becomes it, or certifies.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitCode},
};

use clap::{Parser, Subcommand};

use super::{
    TransportName,
    certify::{CertifyArgs, certify},
    complain,
    decode::DecodeArgs,
    prefill::PrefillArgs,
};

#[derive(Parser)]
#[command(
    name = "kvlease",
    version,
    about = "Leases on KV blocks between prefill and decode: run both roles, certify transports"
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
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    match Cli::parse().role {
        Role::Prefill(args) => become_peer(&args.role.transport),
        Role::Decode(args) => become_peer(&args.role.transport),
        Role::Certify(args) => certify(&args),
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
    // UCX takes SIGHUP as soon as it is loaded, unless told otherwise before.
    let error = Command::new(&executable).args(arguments).env("UCX_DEBUG_SIGNO", "0").exec();
    complain("kvlease", format!("cannot start {}: {error}", executable.display()))
}

/// The executable of a transport's peers, which lies beside this one.
pub(crate) fn peer_executable(transport: &str) -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|error| format!("cannot tell where this program lies: {error}"))?;
    let path = here.with_file_name(format!("kvlease-peer-{transport}"));
    if path.is_file() {
        return Ok(path);
    }
    Err(format!(
        "{} is not there: build it with `cargo build --release -p conformance --features cli,{transport}`",
        path.display()
    ))
}
