//! `kvlease certify`: which cases, on which transports, and what came of it.

use std::{fs::File, io::Write as _, path::PathBuf, process::ExitCode};

use clap::Args;
use gpu_mem::Kind;
use indicatif::{ProgressBar, ProgressStyle};

use super::{TransportName, complain, front::peer_executable};
use crate::{
    certify::{Case, Lane, Outcome, Progress, Verdict, all, lab, run, table},
    engine::Kinds,
};

/// What to certify.
#[derive(Args, Clone, Debug)]
pub struct CertifyArgs {
    /// Transports, separated by commas [default: all that this build and this machine have]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub transport: Vec<TransportName>,
    /// Kind of memory that blocks lie in and are read into: host, pinned, cuda or cuda:N
    ///
    /// A device's memory is tried three ways: read from the host's, read into it, and read from itself. Other memory than the host's is
    /// for the cases that move it: memory/, read/, depth/ and drive/, and of lease/ and fault/ those with a read in them.
    #[arg(long, value_name = "KIND", default_value_t = Kind::Host)]
    pub memory: Kind,
    /// Only the cases whose id starts like this
    #[arg(long, value_name = "PREFIX")]
    pub only: Option<String>,
    /// Tell which cases there are, and run none
    #[arg(long)]
    pub list: bool,
    /// Write one JSON object per case to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Certifies; 0 if something passed and nothing failed, 1 if something failed, 2 if there is no verdict.
pub fn certify(args: &CertifyArgs) -> ExitCode {
    let cases = match cases(args) {
        Ok(cases) => cases,
        Err(why) => return complain("kvlease certify", why),
    };
    if args.list {
        let width = cases.iter().map(|case| case.id.len()).max().unwrap_or(0);
        let list: String = cases.iter().map(|case| format!("{:width$}  {}\n", case.id, case.requires)).collect();
        return print(&list).unwrap_or(ExitCode::SUCCESS);
    }
    // First, not last: a report that cannot be written is known at once, and none of an earlier run is left for this one's.
    let mut report =
        match args.json.as_ref().map(|path| File::create(path).map_err(|error| format!("{}: {error}", path.display()))) {
            Some(Ok(file)) => Some(file),
            Some(Err(why)) => return complain("kvlease certify", why),
            None => None,
        };
    // Every node would say so, too.
    if let Err(why) = Kinds::both(args.memory).sample() {
        return complain("kvlease certify", format!("nothing certified: {why}"));
    }
    let lanes = match lanes(&args.transport, args.memory) {
        Ok(lanes) => lanes,
        Err(why) => return complain("kvlease certify", why),
    };
    let names: Vec<String> = lanes.iter().map(Lane::to_string).collect();
    eprintln!("certifying {}: {} cases each, with leases of {} s", names.join(", "), cases.len(), lab::LEASE);
    let outcomes = match run(&cases, &lanes, &mut Bar::new(cases.len() * lanes.len())) {
        Ok(outcomes) => outcomes,
        Err(why) => return complain("kvlease certify", why),
    };
    let lines: String = outcomes.iter().map(|outcome| format!("{}\n", outcome.to_json())).collect();
    let written = report.as_mut().map_or(Ok(()), |file| file.write_all(lines.as_bytes()));
    if let Some(closed) = print(&table(&outcomes)) {
        return closed;
    }
    if let Err(error) = written {
        return complain("kvlease certify", format!("cannot write the report: {error}"));
    }
    if outcomes.iter().any(|outcome| matches!(outcome.verdict, Verdict::Fail(_))) {
        return ExitCode::FAILURE;
    }
    untried(&args.transport, &outcomes).map_or(ExitCode::SUCCESS, |why| complain("kvlease certify", why))
}

/// The cases that are asked for.
fn cases(CertifyArgs { memory, only, .. }: &CertifyArgs) -> Result<Vec<Case>, String> {
    let mut cases = all();
    cases.retain(|case| *memory == Kind::Host || case.moves_memory());
    let Some(only) = only else { return Ok(cases) };
    cases.retain(|case| case.id.starts_with(only.as_str()));
    match (cases.is_empty(), memory) {
        (false, _) => Ok(cases),
        (true, Kind::Host) => Err(format!("no case starts with {only:?}: see them with --list")),
        (true, _) => Err(format!("no case that moves memory starts with {only:?}: see them with --list --memory {memory}")),
    }
}

/// What was asked for and not tried: a transport that was named, or everything.
fn untried(asked: &[TransportName], outcomes: &[Outcome]) -> Option<String> {
    let mut all: Vec<(String, Vec<&Outcome>)> = asked
        .iter()
        .map(|name| (name.to_string(), outcomes.iter().filter(|outcome| is_lane_of(&outcome.lane, name)).collect()))
        .collect();
    all.push(("all transports".to_owned(), outcomes.iter().collect()));
    all.iter().find_map(|(name, outcomes)| {
        let reasons = outcomes.iter().map(|outcome| match &outcome.verdict {
            Verdict::Skip(why) => Some(why),
            _ => None,
        });
        let reasons = reasons.collect::<Option<Vec<&String>>>()?;
        let why = reasons.first().map_or("there was nothing to try", |why| why.as_str());
        Some(format!("nothing certified about {name}: {why}"))
    })
}

fn is_lane_of(lane: &Lane, TransportName { name, lane: way }: &TransportName) -> bool {
    let is_way =
        |way: &String| lane.lane() == way || lane.lane().strip_prefix(way.as_str()).is_some_and(|rest| rest.starts_with('/'));
    lane.transport() == name && way.as_ref().is_none_or(is_way)
}

/// Prints, and tells how to end if nobody reads it.
fn print(text: &str) -> Option<ExitCode> {
    let printed = std::io::stdout().write_all(text.as_bytes());
    printed.err().map(|error| complain("kvlease certify", format!("cannot write to standard output: {error}")))
}

/// The lanes of the transports that were asked for, or of all there are, with each pair that shows this kind of memory.
fn lanes(asked: &[TransportName], memory: Kind) -> Result<Vec<Lane>, String> {
    const UCX: [&str; 2] = ["tcp", "shm"];
    const NIXL: [&str; 2] = ["UCX/tcp", "UCX/shm"];
    let mut lanes: Vec<Lane> = Vec::new();
    let mut processes = |transport: &'static str, ways: &[&str]| -> Result<(), String> {
        let executable = peer_executable(transport)?;
        for (memory, way) in Kinds::pairs(memory).iter().flat_map(|pair| ways.iter().map(move |way| (*pair, *way))) {
            lanes.push(Lane::Processes { transport, lane: way.to_owned(), executable: executable.clone(), memory });
        }
        Ok(())
    };
    for TransportName { name, lane } in asked {
        match (name.as_str(), lane.as_deref()) {
            ("loopback", _) => {}
            ("nixl", None | Some("UCX")) => processes("nixl", &NIXL)?,
            ("nixl", Some(lane)) => processes("nixl", &[lane])?,
            (_, None) => processes("ucx", &UCX)?,
            (_, Some(lane)) => processes("ucx", &[lane])?,
        }
    }
    if asked.is_empty() && cfg!(feature = "ucx") {
        processes("ucx", &UCX)?;
    }
    if asked.is_empty() && cfg!(feature = "nixl") {
        processes("nixl", &NIXL)?;
    }
    if asked.is_empty() || asked.iter().any(|asked| asked.name == "loopback") {
        lanes.push(Lane::Loopback(Kinds::both(memory)));
    }
    lanes.sort_by_key(Lane::to_string);
    lanes.dedup();
    Ok(lanes)
}

/// A bar on a terminal, a line per case in a pipe.
struct Bar {
    bar: ProgressBar,
    done: usize,
    all: usize,
}

impl Bar {
    fn new(all: usize) -> Self {
        let bar = ProgressBar::new(all as u64);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Self { bar, done: 0, all }
    }
}

impl Progress for Bar {
    fn done(&mut self, outcome: &Outcome) {
        self.done += 1;
        let line = format!("{} {} on {}", outcome.verdict.word(), outcome.case, outcome.lane);
        if self.bar.is_hidden() {
            eprintln!("[{}/{}] {line}", self.done, self.all);
        } else {
            self.bar.set_message(line);
            self.bar.inc(1);
            if self.done == self.all {
                self.bar.finish_and_clear();
            }
        }
    }
}
