//! The role of a decode instance: keeps leases while their requests wait, then reads and completes.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead as _, BufReader, Read},
    path::{Path, PathBuf},
};

use clap::Args;
use lease_proto::{time::{Duration, Instant}, wire::Wire};
use serde_json::Value;

use super::RoleArgs;
use crate::engine::{Command, Engine, EngineError, LONGEST_SLEEP, Live, Outcome, say};

/// Largest parameter file.
const LARGEST: u64 = 64 << 20;

/// What a decode instance is told.
#[derive(Args, Clone, Debug)]
pub struct DecodeArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub role: RoleArgs,
    /// File with the transfer parameters, one JSON object a line, as a prefill instance prints them; - is standard input
    #[arg(long, value_name = "FILE")]
    pub params: PathBuf,
    /// How long each request waits before it is read
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    pub hold: Duration,
}

/// The transfer parameters in a file. Lines that are a prefill instance's events are passed over.
///
/// # Errors
/// What is wrong, with the line.
pub fn read_params(path: &Path) -> Result<Vec<Value>, String> {
    let name = path.display();
    let input: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(File::open(path).map_err(|error| format!("{name}: {error}"))?),
    };
    let mut all = Vec::new();
    for (number, line) in (1..).zip(BufReader::new(input.take(LARGEST)).lines()) {
        let line = line.map_err(|error| format!("{name}:{number}: {error}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |why: String| format!("{name}:{number}: {why}; expected {{\"kv_transfer_params\":{{…}}}} on one line");
        let value: Value = serde_json::from_str(&line).map_err(|error| wrong(format!("not JSON: {error}")))?;
        match &value {
            Value::Object(object) if object.contains_key("event") => {}
            Value::Object(_) => {
                crate::engine::check_params(&value).map_err(wrong)?;
                all.push(value);
            }
            _ => return Err(wrong("not an object".into())),
        }
    }
    if all.is_empty() { Err(format!("{name}: no transfer parameters in it")) } else { Ok(all) }
}

/// How a decode instance ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every request was read, as well as its wire can tell.
    Read,
    /// Some were not: lost, or read too late.
    NotAll,
    /// A prefill instance was never reached.
    Unreachable(String),
}

/// Tracks every request, reads each when it has waited for `hold` and its lease stands, and returns when all are resolved.
///
/// # Errors
/// Parameters that cannot be tracked, a transport that broke, a closed standard output.
pub fn decode<T: Live>(mut engine: Engine<T>, args: &DecodeArgs, params: &[Value]) -> Result<Ended, EngineError> {
    let closed = |error: std::io::Error| EngineError::Invalid(format!("cannot write to standard output: {error}"));
    let start = engine.now();
    let mut waiting = BTreeMap::<String, Waiting>::new();
    for params in params {
        let tracked = engine.execute(Command::Track { params: params.clone(), reader: 0, of: 1 })?;
        let request = tracked["request"].as_str().unwrap_or_default().to_owned();
        waiting.insert(request, Waiting { stands: false, due: start.saturating_add(args.hold) });
    }
    let (mut reached, mut good, mut failures) = (false, 0, 0u32);
    loop {
        let next = engine.turn()?;
        while let Some(event) = engine.next_event() {
            say(&event).map_err(closed)?;
            let request = event["request"].as_str().unwrap_or_default();
            match event["event"].as_str().unwrap_or_default() {
                "connected" => reached = true,
                "confirmed" => set(&mut waiting, request, true),
                "unproven" => set(&mut waiting, request, false),
                // On vLLM's wire nothing is answered: a beat that left is all there is.
                "heartbeat_sent" if args.role.wire == Wire::Vllm => waiting.values_mut().for_each(|waiting| waiting.stands = true),
                "lost" => drop(waiting.remove(request)),
                "read_done" if event["verdict"] == "valid" || args.role.wire == Wire::Vllm => good += 1,
                "connect_failed" => failures += 1,
                _ => {}
            }
        }
        let now = engine.now();
        let due: Vec<String> = waiting.iter().filter(|(_, w)| w.stands && w.due <= now).map(|(request, _)| request.clone()).collect();
        for request in due {
            waiting.remove(&request);
            // Nothing was written into blocks here, so there is nothing to move: the read is over as soon as it began.
            if engine.execute(Command::Read { request: request.clone() }).is_ok() {
                engine.execute(Command::ReadEnded { request, outcome: Outcome::OneSided })?;
            }
        }
        if engine.busy().1 == 0 && !engine.has_event() {
            return Ok(match good {
                good if good == params.len() => Ended::Read,
                _ if !reached => Ended::Unreachable(unreachable(failures)),
                _ => Ended::NotAll,
            });
        }
        let hold = waiting.values().filter(|waiting| waiting.stands).map(|waiting| waiting.due.saturating_since(now)).min();
        let within = next.into_iter().chain(hold).min().unwrap_or(LONGEST_SLEEP);
        if !engine.has_event() {
            engine.sleep(within, false)?;
        }
    }
}

struct Waiting {
    stands: bool,
    due: Instant,
}

fn set(waiting: &mut BTreeMap<String, Waiting>, request: &str, stands: bool) {
    if let Some(waiting) = waiting.get_mut(request) {
        waiting.stands = stands;
    }
}

fn unreachable(failures: u32) -> String {
    let what = if failures > 0 { "cannot be reached" } else { "does not answer" };
    format!(
        "the prefill instance of these parameters {what}: is it still running, on the same transport and wire, and are the \
         parameters its own?"
    )
}
