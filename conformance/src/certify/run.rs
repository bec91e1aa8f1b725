//! Runs cases on lanes, a few at a time.

use std::{
    fmt,
    path::PathBuf,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc::channel,
    },
    thread,
    time::Instant,
};

use super::{
    Case, MemoryLab, ProcessLab,
    lab::{Lab, Trouble},
    network,
    report::{Outcome, Verdict},
};
use crate::engine::Kinds;

/// Cases that run at the same time: they wait most of the time.
const AT_ONCE: usize = 4;
/// The seed of the in-memory fabric.
const SEED: u64 = 7;

/// A transport, in one of its ways, and the kinds of memory that it is tried with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The in-memory fabric.
    Loopback(Kinds),
    /// A transport between processes.
    Processes {
        /// Its name.
        transport: &'static str,
        /// Which of its ways.
        lane: String,
        /// The executable that a node is.
        executable: PathBuf,
        /// What its nodes' blocks and landings are.
        memory: Kinds,
    },
}

impl Lane {
    /// The transport's name.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Loopback(_) => "loopback",
            Self::Processes { transport, .. } => transport,
        }
    }

    /// Which of its ways.
    pub fn lane(&self) -> &str {
        match self {
            Self::Loopback(_) => "memory",
            Self::Processes { lane, .. } => lane,
        }
    }

    /// The kinds of memory that it is tried with.
    pub fn memory(&self) -> Kinds {
        match self {
            Self::Loopback(memory) | Self::Processes { memory, .. } => *memory,
        }
    }

    /// Its name, whatever the memory.
    pub fn name(&self) -> String {
        match self {
            Self::Loopback(_) => "loopback".to_owned(),
            Self::Processes { transport, lane, .. } => format!("{transport}:{lane}"),
        }
    }

    fn lab(&self) -> Box<dyn Lab> {
        match self {
            Self::Loopback(memory) => Box::new(MemoryLab::new(SEED).in_memory(*memory)),
            Self::Processes { transport, executable, lane, memory } => {
                Box::new(ProcessLab::new(executable.clone(), transport, lane, *memory))
            }
        }
    }
}

/// Its name, and which memory is read into which where that is not the host's alone: `ucx:tcp cuda:0->host`.
impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.memory() {
            Kinds::HOST => f.write_str(&self.name()),
            memory => write!(f, "{} {memory}", self.name()),
        }
    }
}

/// What is told while it runs.
pub trait Progress {
    /// One case is over.
    fn done(&mut self, outcome: &Outcome);
}

/// Runs every case on every lane; the outcomes come in the order of cases and lanes, whatever ran first.
///
/// # Errors
/// What broke in the lab itself: then there is no verdict about anything.
pub fn run(cases: &[Case], lanes: &[Lane], progress: &mut dyn Progress) -> Result<Vec<Outcome>, String> {
    if lanes.iter().any(|lane| matches!(lane, Lane::Processes { .. })) {
        network::sweep();
    }
    let jobs: Vec<(&Case, &Lane)> = cases.iter().flat_map(|case| lanes.iter().map(move |lane| (case, lane))).collect();
    let next = AtomicUsize::new(0);
    let (results_in, results) = channel();
    let mut outcomes: Vec<Option<Outcome>> = vec![None; jobs.len()];
    let mut broken = None;
    thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(jobs.len()) {
            let (results_in, next, jobs) = (results_in.clone(), &next, &jobs);
            scope.spawn(move || {
                while let Some((at, (case, lane))) = take(next, jobs) {
                    if results_in.send((at, try_case(case, lane))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results_in);
        for (at, result) in results {
            match result {
                Ok(outcome) => {
                    progress.done(&outcome);
                    outcomes[at] = Some(outcome);
                }
                Err(why) => {
                    next.store(jobs.len(), Ordering::Relaxed); // start nothing more
                    broken.get_or_insert(why);
                }
            }
        }
    });
    match broken {
        Some(why) => Err(why),
        None => Ok(outcomes.into_iter().flatten().collect()),
    }
}

fn take<'j, T>(next: &AtomicUsize, jobs: &'j [T]) -> Option<(usize, &'j T)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(at).map(|job| (at, job))
}

fn try_case(case: &Case, lane: &Lane) -> Result<Outcome, String> {
    let start = Instant::now();
    let verdict = match case.try_in(lane.lab()) {
        Ok(()) => Verdict::Pass,
        Err(Trouble::Failed(why)) => Verdict::Fail(why),
        Err(Trouble::Skip(why)) => Verdict::Skip(why),
        Err(Trouble::Harness(why)) => return Err(format!("{} on {lane}: {why}", case.id)),
    };
    Ok(Outcome { case: case.id, requires: case.requires, lane: lane.clone(), verdict, took: start.elapsed() })
}
