//! `kvlease bench`: which figures, how often, and what they are held against.

use std::{
    env,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, ValueEnum, builder::RangedU64ValueParser};
use lease_proto::time::Duration;

use super::{complain, front::peer_executable, remark};
use crate::bench::{
    Cores, Ours, Outcome, Perftest, Plan, measure,
    metric::{Kind, Lane, Metric, Mode, all},
    table, to_json,
};

const PROGRAM: &str = "kvlease bench";

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// What is measured against its own library's benchmark
    transport: Transport,
    /// Lanes, separated by commas [default: all]
    #[arg(long, value_name = "LANE,…", value_delimiter = ',')]
    lane: Vec<Lane>,
    /// How processes wait, separated by commas [default: all]
    #[arg(long, value_name = "MODE,…", value_delimiter = ',')]
    mode: Vec<Mode>,
    /// Only the metrics whose name starts like this, such as tcp/event/latency
    #[arg(long, value_name = "PREFIX")]
    only: Option<String>,
    /// Pairs of runs of each metric, 1 to 100
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<u32>::new().range(1..=100))]
    rounds: u32,
    /// About how long each run is measured, 0.01 to 1
    #[arg(long, value_name = "SECONDS", default_value = "0.3")]
    seconds: Duration,
    /// The ucx_perftest to measure against [default: KVLEASE_UCX_PERFTEST, else that of the path, else what `cargo xtask bench`
    /// has fetched]
    #[arg(long, value_name = "PATH")]
    perftest: Option<PathBuf>,
    /// Write one JSON object per metric to this file, as soon as it is measured
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    /// Raw UCX, against ucx_perftest
    Ucx,
}

/// Measures; 0 if every metric has its ratio, 2 if not. Targets that are missed are told, and no failure.
pub fn bench(args: &BenchArgs) -> ExitCode {
    match try_bench(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => complain(PROGRAM, why),
    }
}

fn try_bench(args: &BenchArgs) -> Result<(), String> {
    let Transport::Ucx = args.transport;
    let metrics = metrics(args)?;
    let seconds = std::time::Duration::from(args.seconds).as_secs_f64();
    if !(0.01..=1.0).contains(&seconds) {
        return Err(format!("--seconds {}: expected 0.01 to 1", args.seconds));
    }
    let cores = Cores::of_this_machine();
    let ours = Ours { executable: peer_executable("ucx")?, cores };
    let needs_it = metrics.iter().any(|metric| metric.kind != Kind::Idle);
    let here = env::current_exe().unwrap_or_default();
    let here = here.parent().unwrap_or(Path::new("")); // target/release
    let theirs = needs_it.then(|| Perftest::find(args.perftest.as_deref(), here, cores)).transpose()?;
    // Before the run, not after it: a report that cannot be written is known at once.
    let json = args.json.as_ref();
    let mut report = json.map(|path| File::create(path).map_err(|error| format!("{}: {error}", path.display()))).transpose()?;
    if let Some(perftest) = &theirs {
        remark(PROGRAM, format_args!("against {}", perftest.describe()));
    }
    remark(PROGRAM, cores.describe());
    if let Some(load) = busy() {
        let why = "ratios will lie far apart, and those of polling mode say nothing: end other work, then measure again";
        remark(PROGRAM, format_args!("this machine is busy (load {load:.1}): {why}"));
    }
    let plan = Plan { rounds: args.rounds, seconds };
    let (mut outcomes, mut reported) = (Vec::new(), Ok(()));
    for (number, metric) in (1..).zip(&metrics) {
        let outcome = measure(*metric, &ours, theirs.as_ref(), plan);
        let ratio = outcome.ratio().map_or("no ratio".to_owned(), |ratio| format!("ratio {:.2}", ratio.median));
        remark(PROGRAM, format_args!("[{number}/{}] {metric}: {ratio}", metrics.len()));
        // At once: whatever ends this run, what was measured is there.
        if let Some(file) = report.as_mut() {
            reported = reported.and_then(|()| file.write_all(format!("{}\n", to_json(&outcome)).as_bytes()));
        }
        outcomes.push(outcome);
    }
    let written = std::io::stdout().write_all(table(&outcomes).as_bytes());
    written.map_err(|error| format!("cannot write to standard output: {error}"))?;
    reported.map_err(|error| format!("cannot write the report: {error}"))?;
    verdict(&outcomes)
}

/// The load of the last minute, if it leaves two processes too little room.
fn busy() -> Option<f64> {
    let load: f64 = std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (load + 1.5 > cores as f64).then_some(load)
}

/// What was asked for and is there.
fn metrics(args: &BenchArgs) -> Result<Vec<Metric>, String> {
    let mut metrics = all();
    metrics.retain(|metric| {
        (args.lane.is_empty() || args.lane.contains(&metric.lane))
            && (args.mode.is_empty() || args.mode.contains(&metric.mode))
            && args.only.as_ref().is_none_or(|only| metric.to_string().starts_with(only.as_str()))
    });
    if !metrics.is_empty() {
        return Ok(metrics);
    }
    let names: Vec<String> = all().iter().map(Metric::to_string).collect();
    Err(format!("no metric is asked for: --lane, --mode and --only leave none of {}", names.join(", ")))
}

/// Whether every metric has its ratio.
fn verdict(outcomes: &[Outcome]) -> Result<(), String> {
    let mut missing = outcomes.iter().filter(|outcome| outcome.ratio().is_none()).peekable();
    let Some(first) = missing.peek() else { return Ok(()) };
    let why = match &first.pairs {
        Err(why) => why,
        Ok(_) => "ucx_perftest did not end in any run: try it by hand, or another one by --perftest",
    };
    let metric = first.metric;
    Err(format!("{} of {} metrics have no ratio, the first is {metric}: {why}", missing.count(), outcomes.len()))
}
