//! The role of a decode instance: keeps leases while their requests wait, then reads and completes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{BufRead as _, BufReader, Read},
    path::{Path, PathBuf},
};

use clap::Args;
use gpu_mem::Memory;
use lease_proto::{
    time::{Duration, Instant},
    transport::Data,
    wire::Wire,
};
use serde_json::Value;

use super::{RoleArgs, shown, warn};
use crate::engine::{Arm, Command, Engine, EngineError, LONGEST_SLEEP, closed, say};

/// Largest parameter file.
const LARGEST: u64 = 64 << 20;

/// What a decode instance is told.
#[derive(Args, Clone, Debug)]
pub struct DecodeArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub role: RoleArgs,
    /// File with the transfer parameters, one JSON object a line, as a prefill instance prints them; - is standard input, taken
    /// up to the first event, so that a running prefill instance can be piped into this
    #[arg(long, value_name = "FILE")]
    pub params: PathBuf,
    /// How long each request waits before it is read
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    pub hold: Duration,
}

/// The transfer parameters in a file. Lines that are a prefill instance's events are passed over; on standard input the first of
/// them ends the parameters, since a running instance tells events for as long as it lives. `request` finds the request id in those
/// that can be used.
///
/// # Errors
/// What is wrong, with the line.
pub fn read_params(path: &Path, request: impl Fn(&Value) -> Result<String, String>) -> Result<Vec<Value>, String> {
    let name = path.display();
    let is_pipe = path.to_str() == Some("-");
    let input: Box<dyn Read> = match is_pipe {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(path).map_err(|error| format!("{name}: {error}"))?),
    };
    let mut input = BufReader::new(input.take(LARGEST));
    let (mut all, mut requests) = (Vec::new(), BTreeSet::new());
    for (number, line) in (1..).zip(input.by_ref().lines()) {
        let line = line.map_err(|error| format!("{name}:{number}: {error}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |why: String| format!("{name}:{number}: {why}; expected {{\"kv_transfer_params\":{{…}}}} on one line");
        let value: Value = serde_json::from_str(&line).map_err(|error| wrong(format!("not JSON: {error}")))?;
        match &value {
            Value::Object(object) if object.contains_key("event") && is_pipe => {
                // Nobody is held up who goes on telling.
                std::thread::spawn(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
                break;
            }
            Value::Object(object) if object.contains_key("event") => {}
            Value::Object(_) => {
                let request = request(&value).map_err(wrong)?;
                if !requests.insert(request.clone()) {
                    return Err(format!("{name}:{number}: request {} is there twice: each once", shown(&request)));
                }
                all.push(value);
            }
            _ => return Err(wrong("not an object".into())),
        }
    }
    if input.get_ref().limit() == 0 {
        return Err(format!("{name}: larger than {LARGEST} bytes: split it"));
    }
    if all.is_empty() { Err(format!("{name}: no transfer parameters in it")) } else { Ok(all) }
}

/// How a decode instance ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every request was read, as well as its wire can tell.
    Read,
    /// Some were not, and why: lost, or read too late.
    NotAll(String),
    /// A prefill instance was never reached.
    Unreachable(String),
}

impl Ended {
    /// By requests, and why each was not read.
    pub(crate) fn not_all(missed: &BTreeMap<String, String>) -> Self {
        const SHOWN: usize = 5;
        let shown: Vec<String> = missed.iter().take(SHOWN).map(|(request, why)| format!("{} ({why})", shown(request))).collect();
        let more = missed.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Self::NotAll(format!("not read: {}{more}", shown.join(", ")))
    }
}

/// Tracks every request, reads each when it has waited for `hold` and its lease stands, and returns when all are resolved.
///
/// # Errors
/// Parameters that cannot be tracked, a transport that broke, a closed standard output.
pub fn decode<T: Data<Memory = Memory>>(
    mut engine: Engine<T>,
    arm: Arm<T>,
    args: &DecodeArgs,
    params: &[Value],
) -> Result<Ended, EngineError> {
    let mut requests = Requests::new(&mut engine, args, params)?;
    warn(&engine);
    loop {
        let next = engine.turn()?;
        while let Some(event) = engine.next_event() {
            say(&event).map_err(closed)?;
            requests.heard(&event, engine.now());
        }
        for request in requests.due(engine.now()) {
            match engine.execute(Command::Read { request: request.clone() }) {
                Ok(_) => drop(requests.waiting.remove(&request)),
                Err(_) => requests.stands(&request, false), // its promise has lapsed since, or it is lost
            }
        }
        for request in requests.given_up(engine.now()) {
            engine.execute(Command::Finish { request })?;
        }
        if engine.busy().1 == 0 && !engine.has_event() {
            return requests.ended(&mut engine);
        }
        if !engine.has_event() {
            let within = next.into_iter().chain(requests.next(engine.now())).min();
            engine.sleep(arm, within.unwrap_or(LONGEST_SLEEP), false)?;
        }
    }
}

/// What a decode instance knows of its requests.
struct Requests {
    wire: Wire,
    waiting: BTreeMap<String, Waiting>,
    /// Why some will not be read.
    missed: BTreeMap<String, String>,
    /// Prefill instances that it is not connected to, and since when.
    gone: BTreeMap<String, Instant>,
    patience: Duration,
    reached: bool,
}

struct Waiting {
    peer: String,
    stands: bool,
    due: Instant,
}

impl Requests {
    fn new<T: Data<Memory = Memory>>(engine: &mut Engine<T>, args: &DecodeArgs, params: &[Value]) -> Result<Self, EngineError> {
        let start = engine.now();
        let (mut waiting, mut gone) = (BTreeMap::new(), BTreeMap::new());
        for params in params {
            let tracked = engine.execute(Command::Track { params: params.clone(), reader: 0, of: 1 })?;
            let text = |key: &str| tracked[key].as_str().unwrap_or_default().to_owned();
            gone.insert(text("peer"), start);
            waiting.insert(text("request"), Waiting { peer: text("peer"), stands: false, due: start.saturating_add(args.hold) });
        }
        let patience = engine.terms().lost_after();
        Ok(Self { wire: args.role.wire, waiting, missed: BTreeMap::new(), gone, patience, reached: false })
    }

    fn heard(&mut self, event: &Value, now: Instant) {
        let [name, request, peer] = ["event", "request", "peer"].map(|key| event[key].as_str().unwrap_or_default());
        match name {
            "connected" => {
                self.reached = true;
                self.gone.remove(peer);
            }
            "peer_lost" => drop(self.gone.insert(peer.to_owned(), now)),
            "confirmed" => self.stands(request, true),
            "unproven" => self.stands(request, false),
            // On vLLM's wire nothing is answered: a beat that left is all there is.
            "heartbeat_sent" if self.wire == Wire::Vllm => {
                self.waiting.values_mut().filter(|waiting| waiting.peer == peer).for_each(|waiting| waiting.stands = true);
            }
            "lost" => self.miss(request, &event["why"]),
            "read_landed" if event["matches"] == false => self.miss(request, &"wrong_bytes".into()),
            "read_done" if event["verdict"] == self.hoped() => {}
            "read_done" => self.miss(request, &event["verdict"]),
            _ => {}
        }
    }

    /// The best verdict that the wire has.
    fn hoped(&self) -> &'static str {
        if self.wire == Wire::Vllm { "unverified" } else { "valid" }
    }

    fn stands(&mut self, request: &str, stands: bool) {
        if let Some(waiting) = self.waiting.get_mut(request) {
            waiting.stands = stands;
        }
    }

    fn miss(&mut self, request: &str, why: &Value) {
        self.waiting.remove(request);
        self.missed.insert(request.to_owned(), why.as_str().unwrap_or_default().replace('_', " "));
    }

    /// Requests that are to be read now.
    fn due(&self, now: Instant) -> Vec<String> {
        let due = |waiting: &Waiting| self.readable(waiting) && waiting.due <= now;
        self.waiting.iter().filter(|(_, waiting)| due(waiting)).map(|(request, _)| request.clone()).collect()
    }

    fn readable(&self, waiting: &Waiting) -> bool {
        // vLLM's wire would never say that nobody is there any more.
        waiting.stands && !(self.wire == Wire::Vllm && self.gone.contains_key(&waiting.peer))
    }

    /// Requests of prefill instances that are gone for good, on vLLM's wire: on the native one the protocol tells.
    fn given_up(&mut self, now: Instant) -> Vec<String> {
        if self.wire == Wire::Native {
            return Vec::new();
        }
        let gone =
            |waiting: &Waiting| self.gone.get(&waiting.peer).is_some_and(|since| now >= since.saturating_add(self.patience));
        let lost: Vec<String> =
            self.waiting.iter().filter(|(_, waiting)| gone(waiting)).map(|(request, _)| request.clone()).collect();
        lost.iter().for_each(|request| self.miss(request, &"no_answer".into()));
        lost
    }

    /// When there is something to do even if nothing comes in, from now on.
    fn next(&self, now: Instant) -> Option<Duration> {
        let holds = self.waiting.values().filter(|waiting| self.readable(waiting)).map(|waiting| waiting.due);
        let peers = self.waiting.values().filter(|_| self.wire == Wire::Vllm).map(|waiting| &waiting.peer);
        let patience = peers.filter_map(|peer| self.gone.get(peer)).map(|since| since.saturating_add(self.patience));
        holds.chain(patience).min().map(|due| due.saturating_since(now))
    }

    fn ended<T: Data<Memory = Memory>>(&self, engine: &mut Engine<T>) -> Result<Ended, EngineError> {
        if self.missed.is_empty() {
            return Ok(Ended::Read);
        }
        if !self.reached {
            return Ok(Ended::Unreachable(unreachable(&engine.execute(Command::Counters)?)));
        }
        Ok(Ended::not_all(&self.missed))
    }
}

fn unreachable(counters: &Value) -> String {
    let what = if counters["connect_failed"] != 0 { "cannot be reached" } else { "does not answer" };
    format!(
        "the prefill instance of these parameters {what}: is it still running, on the same transport and wire, and are the \
         parameters its own?"
    )
}
