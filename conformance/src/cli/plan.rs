//! `kvlease plan`: what leases cost a fleet and how safe they are.

mod report;

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use lease_proto::{time::Duration, wire::Wire};

use super::{complain, remark, set_terms};
use crate::sim::plan::{Asked, Inputs, Plan, plot};

const PROGRAM: &str = "kvlease plan";

/// Which fleet.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// Wire: native or vllm
    #[arg(long, default_value_t = Wire::Native)]
    wire: Wire,
    /// Lease in seconds (vLLM's kv_lease_duration) [default: 30]
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS")]
    lease: Option<Duration>,
    /// Any other term by its name, such as losses=1
    #[arg(long = "term", value_name = "NAME=VALUE")]
    terms: Vec<String>,
    /// Prefill instances: 1 to 100
    #[arg(long, allow_negative_numbers = true, value_name = "P", default_value_t = 4)]
    prefill: u32,
    /// Decode instances: 1 to 1000
    #[arg(long, allow_negative_numbers = true, value_name = "D", default_value_t = 8)]
    decode: u32,
    /// Requests in flight in the whole fleet: rate times hold, of which two are enough [default: 400]
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    requests: Option<u32>,
    /// Requests per second in the whole fleet
    #[arg(long, allow_negative_numbers = true, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// How long a lease is needed, from its grant to the end of its read, on average [default: 5]
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS")]
    hold: Option<Duration>,
    /// Blocks of one request: bytes, KiB, MiB or GiB
    #[arg(long, allow_negative_numbers = true, value_name = "BYTES", default_value = "512MiB", value_parser = bytes)]
    request_bytes: u64,
    /// Length of request ids in bytes; on the native wire they do not travel
    #[arg(long, allow_negative_numbers = true, value_name = "BYTES", default_value_t = 64)]
    id_length: usize,
    /// Period of a prefill instance's forward loop in seconds; 0: it acts at once [default: 0.05]
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS")]
    poll: Option<Duration>,
    /// Largest notification of the fabric
    #[arg(long, allow_negative_numbers = true, value_name = "BYTES", default_value_t = 65_536)]
    max_notification: u32,
    /// Delay of a message, one way
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS", default_value = "0.001")]
    delay: Duration,
    /// Probability that a message gets lost: 0 to 0.8
    #[arg(long, allow_negative_numbers = true, value_name = "PROBABILITY", default_value_t = 0.001)]
    loss: f64,
    /// Stalls of each decode instance: it neither polls nor sends
    #[arg(long, allow_negative_numbers = true, value_name = "PER_HOUR", default_value_t = 1.0)]
    stall_rate: f64,
    /// Their mean length; lengths are exponential
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS", default_value = "1")]
    stall_mean: Duration,
    /// No stall is longer; also sets the term longest_stall [default: they have no end]
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS")]
    longest_stall: Option<Duration>,
    /// False expiries per year in the whole fleet that are accepted
    #[arg(long, allow_negative_numbers = true, value_name = "PER_YEAR", default_value_t = 1.0)]
    target: f64,
    /// Seed of the sampled run
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Real time that the sampled run may take
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS", default_value_t = 10.0)]
    budget: f64,
    /// World time to count in the sampled run, unless the budget ends first [default: enough for a million lease events]
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS")]
    span: Option<Duration>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Draw reclaim time against false expiry over the lease, as SVG
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Prints a plan.
pub fn plan(args: &PlanArgs) -> ExitCode {
    let inputs = match inputs(args) {
        Ok(inputs) => inputs,
        Err(why) => return complain(PROGRAM, why),
    };
    if let Some(warning) = inputs.terms.warning() {
        remark("warning", warning);
    }
    // Before the run: a plan takes its time.
    let plot = match args.plot.as_deref().map(Plot::open).transpose() {
        Ok(plot) => plot,
        Err(why) => return complain(PROGRAM, why),
    };
    let plan = Plan::of(inputs);
    let drawn = plot.map_or(Ok(()), |plot| plot.draw(&plan));
    let text = if args.json { format!("{}\n", report::json(&plan)) } else { report::table(&plan) };
    let printed = io::stdout().write_all(text.as_bytes());
    let printed = printed.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) });
    match printed.map_err(|error| format!("cannot write: {error}")).and(drawn) {
        Err(why) => complain(PROGRAM, why),
        Ok(()) => ExitCode::SUCCESS,
    }
}

/// Where the plot goes.
struct Plot<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> Plot<'a> {
    /// What is there already stays until there is something to draw.
    fn open(path: &'a Path) -> Result<Self, String> {
        if path.extension().is_none_or(|extension| extension != "svg") {
            return Err(format!("--plot {}: expected a name that ends in .svg", path.display()));
        }
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        file.map(|file| Self { path, file }).map_err(|error| cannot_write(path, &error))
    }

    fn draw(mut self, plan: &Plan) -> Result<(), String> {
        let emptied = match self.file.metadata() {
            Ok(metadata) if metadata.is_file() => self.file.set_len(0),
            _ => Ok(()), // a pipe
        };
        let written = emptied.and_then(|()| self.file.write_all(plot::svg(plan).as_bytes()));
        written.map_err(|error| cannot_write(self.path, &error))?;
        remark(PROGRAM, format_args!("wrote {}", self.path.display()));
        Ok(())
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

/// Terms that have an option of their own, and whether that is given.
fn given_twice(args: &PlanArgs) -> Result<(), String> {
    for term in &args.terms {
        let (option, given) = match term.split_once('=').map(|(name, _)| name) {
            Some("lease" | "kv_lease_duration") => ("--lease", args.lease.is_some()),
            Some("longest_stall") => ("--longest-stall", args.longest_stall.is_some()),
            Some("poll") => ("--poll", args.poll.is_some()),
            _ => continue,
        };
        if given {
            return Err(format!("--term {term} and {option} are both given: leave one of them out"));
        }
    }
    Ok(())
}

fn inputs(args: &PlanArgs) -> Result<Inputs, String> {
    given_twice(args)?;
    let usual = Asked::default();
    let mut config = usual.config;
    config.lease = args.lease.unwrap_or(config.lease);
    set_terms(&mut config, &args.terms)?;
    let asked = Asked {
        wire: args.wire,
        config,
        prefills: args.prefill,
        decoders: args.decode,
        requests: args.requests,
        rate: args.rate,
        hold: args.hold,
        request_bytes: args.request_bytes,
        id_length: args.id_length,
        poll: args.poll.unwrap_or(usual.poll),
        max_notification: args.max_notification,
        delay: args.delay,
        loss: args.loss,
        stalls_per_hour: args.stall_rate,
        stall_mean: args.stall_mean,
        longest_stall: args.longest_stall,
        target: args.target,
        seed: args.seed,
        budget: args.budget,
        span: args.span,
    };
    asked.check().map_err(|error| error.to_string())
}

fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || "expected a whole number of bytes, KiB, MiB or GiB, such as 512MiB".to_owned();
    let units = [("KiB", 1u64 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let unit = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)));
    let (number, unit) = unit.unwrap_or((text, 1));
    number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(wrong)
}
