//! `kvlease simulate`: random worlds, each held against the laws; one that breaks a law is shrunk and written down.

use std::{
    fs,
    io::{self, Write as _},
    panic,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    thread,
};

use clap::{Args, ValueEnum, builder::RangedU64ValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use lease_proto::wire::Wire;
use serde_json::{Value, json};

use super::{complain, entropy, remark};
use crate::sim::{
    chaos::Shape,
    shrink::shrink,
    simulate::{Broken, Outcome, Totals, judge, run_worlds},
    trace::Trace,
};

const PROGRAM: &str = "kvlease simulate";
/// Violations of one world that are printed; most follow from the first.
const SHOWN: usize = 20;

/// Which worlds to draw.
#[derive(Args, Clone, Debug)]
pub struct SimulateArgs {
    /// Seed of the first world; each of the others has the next one [default: random, and printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many worlds
    #[arg(long, value_name = "M", default_value_t = 1000, value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    worlds: u64,
    /// Prefill nodes of a world, at most: 1 to 16
    #[arg(long, value_name = "P", default_value_t = 3, value_parser = upto(16))]
    prefill: usize,
    /// Decode nodes of a world, at most: 1 to 16
    #[arg(long, value_name = "D", default_value_t = 3, value_parser = upto(16))]
    decode: usize,
    /// Requests of a world, at most: 1 to 1000
    #[arg(long, value_name = "R", default_value_t = 12, value_parser = upto(1000))]
    requests: usize,
    /// Crashes, stalls, partitions, junk and all the rest; without, only loss, delay and jitter
    #[arg(long)]
    chaos: bool,
    /// The wire that they speak
    #[arg(long, value_enum, default_value_t = Wires::Native)]
    wire: Wires,
    /// Threads, 1 to 256 [default: one for each processor]
    #[arg(long, value_name = "T", value_parser = upto(256))]
    threads: Option<usize>,
    /// Folder for the trace of a world that breaks a law
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Wires {
    /// kvlease's own
    Native,
    /// vLLM's text
    Vllm,
    /// Native in worlds of even seeds, vllm in those of odd ones
    Both,
}

fn upto(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// Simulates; 0 if all worlds kept the laws, 1 if one did not.
pub fn simulate(args: &SimulateArgs) -> ExitCode {
    // One that every JSON reader reads exactly.
    let seed = match args.seed.map_or_else(|| entropy().map(|(_, seed)| seed >> 11), Ok) {
        Ok(seed) => seed,
        Err(why) => return complain(PROGRAM, why),
    };
    if args.seed.is_none() {
        remark(PROGRAM, format_args!("seed {seed}")); // known also if it is interrupted
    }
    // Before the run, not after it: a folder in which no trace can be written is known at once.
    if let Err(why) = probe(&args.out, seed) {
        return complain(PROGRAM, why);
    }
    let shape = Shape {
        prefill: args.prefill,
        decode: args.decode,
        requests: args.requests,
        chaos: args.chaos,
        wire: match args.wire {
            Wires::Native => Some(Wire::Native),
            Wires::Vllm => Some(Wire::Vllm),
            Wires::Both => None,
        },
    };
    let threads = args.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let bar = bar(args.worlds);
    let Outcome { totals, broken } = run_worlds(seed, args.worlds, &shape, threads, &|done| bar.set_position(done));
    bar.finish_and_clear();
    let (lines, found) = broken.map(|broken| tell(&broken, args)).unwrap_or_default();
    let mut report = json!({"seed": seed});
    if let (Some(report), Value::Object(totals)) = (report.as_object_mut(), totals.to_json()) {
        report.extend(totals);
        report.extend(found.as_object().cloned().unwrap_or_default());
    }
    if let Err(error) = writeln!(io::stdout(), "{lines}{report}")
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        return complain(PROGRAM, format_args!("cannot write: {error}"));
    }
    if found.is_null() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Makes the folder, and a file in it that goes away again.
fn probe(folder: &Path, seed: u64) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: cannot be made: {error}", folder.display()))?;
    let file = folder.join(format!(".kvlease-simulate-{}-{seed}", process::id()));
    let made = fs::write(&file, "x");
    let removed = fs::remove_file(&file);
    made.and(removed).map_err(|error| format!("{}: cannot be written in: {error}", folder.display()))
}

/// What a world broke, line by line; writes it down, if it can, and says how to see it again.
fn tell(broken: &Broken, args: &SimulateArgs) -> (String, Value) {
    let Broken { seed, trace, violations } = broken;
    let Some(first) = violations.first() else { return Default::default() };
    let (law, replays) = (first.law, first.replays);
    remark(PROGRAM, format_args!("seed {seed} breaks law {law}; shrinking its world"));
    let fails = |trace: &Trace| {
        let broken = judge(trace, *seed, &mut Totals::default());
        broken.iter().any(|violation| (violation.law, violation.replays) == (law, replays))
    };
    // One that panics would say so each time.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let small = shrink(trace, fails);
    panic::set_hook(hook);
    let file = args.out.join(format!("violation-law{law}-seed{seed}.jsonl"));
    let written = fs::write(&file, small.to_text());
    if let Err(error) = &written {
        remark(PROGRAM, format_args!("{}: cannot be written: {error}", file.display()));
    }
    let written = written.is_ok();
    let command = match replays && written {
        true => format!("kvlease replay {}", file.display()),
        // Only two runs that are compared show it, or there is no file.
        false => again(*seed, args),
    };
    remark(PROGRAM, format_args!("to see it again: {command}"));
    let lines = violations.iter().take(SHOWN).map(|violation| format!("{}\n", violation.line)).collect();
    let trace = written.then(|| file.to_string_lossy());
    (lines, json!({"violation": {"law": law, "seed": seed, "trace": trace, "again": command}}))
}

/// The command line that runs one world again.
fn again(seed: u64, args: &SimulateArgs) -> String {
    let SimulateArgs { prefill, decode, requests, .. } = args;
    let chaos = if args.chaos { " --chaos" } else { "" };
    let wire = args.wire.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    format!("{PROGRAM} --seed {seed} --worlds 1 --prefill {prefill} --decode {decode} --requests {requests}{chaos} --wire {wire}")
}

/// On a terminal only; nobody needs a line for each world.
fn bar(worlds: u64) -> ProgressBar {
    let bar = ProgressBar::new(worlds);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} worlds, {eta} left") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{replay, simulate::judge};
    use clap::Parser;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        args: SimulateArgs,
    }

    /// The holder's clock runs faster than its terms say, so no deadline proves anything.
    const FAST: &str = concat!(
        r#"{"world":1,"end":"60","nodes":{"d0":{"role":"decode","clock":"7"},"d1":{"role":"decode"},"#,
        r#""p0":{"role":"prefill","drift_ppm":50000}}}"#,
        "\n",
        r#"{"at":"0","node":"p0","do":"grant","request":"a"}"#,
        "\n",
        r#"{"at":"10.0000001","node":"d0","do":"enqueue","request":"a","from":"p0"}"#,
        "\n",
        r#"{"at":"10.0000002","link":"d0>p0","do":"drop","until":"60"}"#,
        "\n",
        r#"{"at":"10.5","node":"d0","do":"read","request":"a","takes":"19.3"}"#,
        "\n",
        r#"{"at":"12","node":"d1","do":"finish","request":"a"}"#,
        "\n",
    );

    #[test]
    fn a_world_that_breaks_a_law_is_written_down_small() {
        let folder = tempfile::tempdir().unwrap();
        let Alone { args } = Alone::parse_from(["simulate", "--out", folder.path().to_str().unwrap()]);
        let trace = Trace::parse(FAST.as_bytes()).unwrap();
        let violations = judge(&trace, 123, &mut Totals::default());
        let (lines, found) = tell(&Broken { seed: 123, trace, violations }, &args);
        assert!(lines.contains(r#""event":"violation","law":4,"request":"a""#), "{lines}");
        let file = folder.path().join("violation-law4-seed123.jsonl");
        let again = format!("kvlease replay {}", file.display());
        assert_eq!((&found["violation"]["seed"], &found["violation"]["again"]), (&123.into(), &again.as_str().into()));
        let small = Trace::parse(&fs::read(file).unwrap()).unwrap();
        assert_eq!((small.world.nodes.len(), small.lines.len()), (2, 4));
        assert!(!replay::run(&small, &mut |_| ()).held());
    }

    #[test]
    fn one_that_cannot_be_written_down_is_told_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let Alone { args } = Alone::parse_from(["simulate", "--out", folder.path().join("gone").to_str().unwrap()]);
        let trace = Trace::parse(FAST.as_bytes()).unwrap();
        let violations = judge(&trace, 123, &mut Totals::default());
        let (lines, found) = tell(&Broken { seed: 123, trace, violations }, &args);
        assert!(lines.contains(r#""event":"violation","law":4,"request":"a""#), "{lines}");
        let violation = &found["violation"];
        assert_eq!((&violation["law"], &violation["trace"]), (&4.into(), &Value::Null));
        assert_eq!(violation["again"], again(123, &args));
    }

    #[test]
    fn what_only_two_runs_show_is_simulated_again() {
        let Alone { args } = Alone::parse_from(["simulate", "--chaos", "--wire", "both", "--requests", "2"]);
        assert_eq!(
            again(7, &args),
            "kvlease simulate --seed 7 --worlds 1 --prefill 3 --decode 3 --requests 2 --chaos --wire both"
        );
    }
}
