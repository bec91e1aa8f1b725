//! What this transport's notifications cost over NIXL itself: the transport, a bare loop on NIXL's C functions and NIXL's Python API,
//! in turns and in the same run, on the lane that `UCX_TLS` names. `docs/bench.md` says how to read it.
//!
//! `cargo xtask bench-nixl` runs it on either lane with what it needs.

mod bare;
#[allow(unsafe_code)]
mod c;
mod ours;
mod python;
mod report;
mod rounds;
mod traffic;

use std::{env, fs::File, io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;

use crate::{
    bare::Bare,
    ours::Ours,
    python::Python,
    report::{line, object, title},
    rounds::{Plan, measure},
    traffic::{METRICS, Metric, block},
};

#[derive(Parser)]
#[command(
    name = "notifications",
    about = "Measures notifications against a bare loop on NIXL's C functions, on the lane that UCX_TLS names"
)]
struct Args {
    /// Pairs of blocks of each metric
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of a block, about
    #[arg(long, value_name = "S", default_value_t = 0.1)]
    seconds: f64,
    /// Only the metrics with this in their names
    #[arg(long, value_name = "PART", default_value = "")]
    only: String,
    /// A Python that has NIXL, to measure NIXL's Python API, too
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Append one JSON object per metric to this file, as soon as it is measured
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What cargo passes
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("notifications: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let lane = env::var("UCX_TLS").map_err(|_| "set UCX_TLS to the lane to measure, tcp or shm")?;
    let metrics: Vec<_> = METRICS.into_iter().filter(|metric| metric.to_string().contains(&args.only)).collect();
    if metrics.is_empty() {
        return Err(format!(
            "no metric has {:?} in its name; there are {}",
            args.only,
            METRICS.map(|it| it.to_string()).join(", ")
        ));
    }
    let json = args.json.as_ref().map(|path| File::options().create(true).append(true).open(path).map_err(|why| (path, why)));
    let mut json = json.transpose().map_err(|(path, why)| format!("{} cannot be written: {why}", path.display()))?;
    let mut ours = Ours::new()?; // finds and loads NIXL, too
    let mut bare = Bare::new()?;
    let mut python = args.python.as_deref().map(Python::new).transpose()?;
    for size in [16, 64 << 10] {
        // A connection is made by its first messages.
        let (metric, time) = (Metric::Latency(size), Duration::from_millis(100));
        block(&mut ours, metric, time).and(block(&mut bare, metric, time))?;
        python.as_mut().map(|python| python.block(metric, time)).transpose()?;
    }
    let plan = Plan { rounds: args.rounds, seconds: args.seconds };
    println!("{}", title(&lane));
    for metric in metrics {
        let rounds = measure(metric, plan, &mut ours, &mut bare, python.as_mut()).map_err(|why| format!("{metric}: {why}"))?;
        println!("{}", line(metric, &rounds));
        if let Some(json) = &mut json {
            writeln!(json, "{}", object(&lane, metric, &rounds)).map_err(|why| format!("the report cannot be written: {why}"))?;
        }
    }
    Ok(())
}
