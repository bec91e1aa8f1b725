//! The command lines: `kvlease`, which links no transport, and the peer executables, one per transport, since two UCX
//! libraries must not meet in one process.

pub mod bench;
pub mod certify;
pub mod decode;
pub mod front;
pub mod inspect;
pub mod peer;
pub mod plan;
pub mod prefill;
pub mod replay;
pub mod simulate;

use std::{fmt, io::Write as _, process::ExitCode, str::FromStr};

use clap::Args;
use gpu_mem::Memory;
use lease_proto::{config::Config, time::Duration, transport::Data, wire::Wire};
use transport_nixl::{Backend, BackendError};

use crate::engine::{Engine, EngineError, Kinds, Setup};

/// Exit status for wrong input and for what this machine lacks.
pub const WRONG_INPUT: u8 = 2;

/// A transport that processes can be started with, and its way where it has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportName {
    /// Such as `ucx`.
    pub name: String,
    /// Such as `tcp`.
    pub lane: Option<String>,
}

impl FromStr for TransportName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, lane) = text.split_once(':').map_or((text, None), |(name, lane)| (name, Some(lane)));
        let lane = match (name, lane) {
            ("ucx", None | Some("tcp" | "shm")) | ("loopback" | "nixl", None) => lane.map(str::to_owned),
            ("ucx", Some(other)) => return Err(format!("ucx has no lane {other:?}: expected ucx, ucx:tcp or ucx:shm")),
            ("nixl", Some(lane)) => Some(nixl_lane(lane)?),
            _ => return Err(format!("expected loopback, ucx, ucx:tcp, ucx:shm, {NIXL}")),
        };
        Ok(Self { name: name.to_owned(), lane })
    }
}

const NIXL: &str = "nixl, nixl:BACKEND such as nixl:UCX, nixl:UCX/tcp or nixl:UCX/shm";

/// A backend as NIXL spells it, and its way where it has several.
fn nixl_lane(lane: &str) -> Result<String, String> {
    if ["tcp", "shm"].contains(&lane) {
        return Err(format!("{lane} is no backend of NIXL's but a way of its UCX: nixl:UCX/{lane}"));
    }
    let (backend, way) = lane.split_once('/').map_or((lane, None), |(backend, way)| (backend, Some(way)));
    let backend: Backend = format!("nixl:{backend}").parse().map_err(|error: BackendError| error.to_string())?;
    let backend = backend.for_heartbeats().map_err(|error| error.to_string())?;
    match (backend.name(), way) {
        (name, None) => Ok(name.to_owned()),
        ("UCX", Some("tcp" | "shm")) => Ok(lane.to_owned()),
        (name, Some(way)) => Err(format!("nixl:{name} has no way {way:?}: expected {NIXL}")),
    }
}

impl fmt::Display for TransportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lane {
            Some(lane) => write!(f, "{}:{lane}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// What both roles are told about themselves.
#[derive(Args, Clone, Debug)]
pub struct RoleArgs {
    /// Transport: ucx, ucx:tcp, ucx:shm, nixl, nixl:BACKEND, nixl:UCX/tcp or nixl:UCX/shm
    #[arg(long, default_value = "ucx")]
    pub transport: TransportName,
    /// Wire: native or vllm
    #[arg(long, default_value_t = Wire::Native)]
    pub wire: Wire,
    /// Lease in seconds (vLLM's kv_lease_duration) [default: 30; a decode instance goes by parameters with the kvlease key]
    #[arg(long, value_name = "SECONDS")]
    pub lease: Option<Duration>,
    /// Engine id [default: the role and a random number]
    #[arg(long, value_name = "ID")]
    pub engine_id: Option<String>,
    /// Ranks of this instance (vLLM's tensor parallel size), all in this process; only towards vLLM
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub tp: u32,
    /// Compatibility hash, as vLLM logs it; only towards vLLM. A prefill instance announces it [default: 64 zeros]; a decode instance
    /// takes no other one [default: takes any]
    #[arg(long, value_name = "HEX")]
    pub compat_hash: Option<String>,
    /// Any other term by its name, such as longest_stall=5
    #[arg(long = "term", value_name = "NAME=VALUE")]
    pub terms: Vec<String>,
    /// Tell where every block lies, one's own or a peer's; only towards vLLM
    #[arg(long, hide = true)]
    pub block_map: bool,
}

impl RoleArgs {
    /// What the engine is started with. Terms that are not given follow from the lease.
    ///
    /// # Errors
    /// A term that is none.
    pub fn setup(&self, role: &str, lease: Duration, capacity: usize) -> Result<Setup, EngineError> {
        let mut config = Config::with_lease(self.lease.unwrap_or(lease));
        set_terms(&mut config, &self.terms).map_err(EngineError::Invalid)?;
        let (seed, incarnation) = entropy()?;
        if self.engine_id.as_deref() == Some("") {
            return Err(EngineError::Invalid("--engine-id is empty: leave it out for a random one".into()));
        }
        let name = self.engine_id.clone().unwrap_or_else(|| format!("{role}-{:08x}", incarnation as u32));
        Ok(Setup { name, wire: self.wire, config, capacity, seed, incarnation, raw: false, memory: Kinds::HOST })
    }
}

/// Most ranks of one process: each has an agent of NIXL's.
const MOST_RANKS: u32 = 64;

impl RoleArgs {
    /// Whether what is said about ranks can be, and whether it is said where there are ranks: where this instance talks to vLLM, by what
    /// `needs` names.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn check_ranks(&self, is_vllms: bool, needs: &str) -> Result<(), EngineError> {
        let wrong = |why: String| Err(EngineError::Invalid(why));
        if is_vllms && (self.transport.name != "nixl" || self.wire != Wire::Vllm) {
            return wrong(format!(
                "{needs}: this is for vLLM, which takes --transport nixl --wire vllm, not --transport {} --wire {}",
                self.transport, self.wire
            ));
        }
        if !(1..=MOST_RANKS).contains(&self.tp) {
            return wrong(format!("--tp {}: expected 1 to {MOST_RANKS} ranks", self.tp));
        }
        if !is_vllms && self.tp != 1 {
            return wrong(format!(
                "--tp {}: one process is one rank, unless it talks to vLLM: add {needs}, or leave it out",
                self.tp
            ));
        }
        match &self.compat_hash {
            Some(_) if !is_vllms => wrong(format!("--compat-hash is for vLLM: add {needs}, or leave it out")),
            Some(hash) if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                wrong(format!("--compat-hash {}: expected 64 hexadecimal digits, as vLLM logs them", shown(hash)))
            }
            _ => Ok(()),
        }
    }
}

/// Sets terms by their names.
fn set_terms(config: &mut Config, terms: &[String]) -> Result<(), String> {
    for term in terms {
        let (name, value) = term.split_once('=').ok_or_else(|| format!("--term {term}: expected NAME=VALUE"))?;
        config.set(name, value).map_err(|error| format!("--term {term}: {error}"))?;
    }
    Ok(())
}

/// Tells the operator what its terms cannot hold.
pub(crate) fn warn<T: Data<Memory = Memory>>(engine: &Engine<T>) {
    if let Some(warning) = engine.terms().warning() {
        remark("warning", warning);
    }
}

/// Sixteen bytes and a number from the system's random source.
pub(crate) fn entropy() -> Result<([u8; 16], u64), EngineError> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).map_err(|error| EngineError::Invalid(format!("no randomness on this system: {error}")))?;
    let (seed, number) = bytes.split_at(16);
    let seed = seed.try_into().unwrap_or_default();
    Ok((seed, u64::from_le_bytes(number.try_into().unwrap_or_default())))
}

/// One line that says what is wrong, whatever bytes the input brought into it, and the exit status for it.
pub fn complain(program: &str, why: impl fmt::Display) -> ExitCode {
    remark(program, why);
    ExitCode::from(WRONG_INPUT)
}

/// One line to standard error; nobody needs to read it.
pub(crate) fn remark(program: &str, what: impl fmt::Display) {
    let mut line = String::new();
    for char in what.to_string().chars() {
        match char {
            char if char.is_control() => line.extend(char.escape_default()),
            char => line.push(char),
        }
    }
    let _ = writeln!(std::io::stderr(), "{program}: {line}");
}

/// An id as it is shown in a complaint about it.
pub(crate) fn shown(id: &str) -> String {
    const LONGEST: usize = 40;
    if id.chars().count() > LONGEST {
        format!("{:?}…", id.chars().take(LONGEST).collect::<String>())
    } else {
        format!("{id:?}")
    }
}

/// Logs to standard error, as `RUST_LOG` says; warnings by default.
pub fn log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init(); // once is enough
}
