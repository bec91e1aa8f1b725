//! A peer executable: one transport, in the role that it is told.

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use gpu_mem::Memory;
use lease_proto::{
    clock::SystemClock,
    config::Config,
    permits::Permits,
    time::Duration,
    transport::{Data, ErrorKind},
    wire::Wire,
};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::json;

use super::{
    complain,
    decode::{DecodeArgs, Ended, decode, read_params},
    entropy, log,
    prefill::{PrefillArgs, prefill},
    remark,
};
use crate::{
    bench::node::{self, Hooks, NodeArgs},
    engine::{Arm, Engine, EngineError, Setup, params_extension, say, serve, transport_error},
};

#[derive(Parser)]
#[command(version, about = "One process of a kvlease transport; `kvlease` starts it")]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Hold blocks
    Prefill(PrefillArgs),
    /// Read blocks
    Decode(DecodeArgs),
    /// Be a node of a certification, told what to do on standard input
    Agent(AgentArgs),
    /// Be one of the two processes of a measurement
    #[command(hide = true)]
    Bench(NodeArgs),
}

#[derive(Args)]
#[doc(hidden)]
pub struct AgentArgs {
    /// Engine id
    #[arg(long)]
    name: String,
    /// Wire: native or vllm
    #[arg(long)]
    wire: Wire,
    /// Lease in seconds
    #[arg(long)]
    lease: Duration,
    /// Way of the transport, such as tcp
    #[arg(long)]
    lane: String,
    /// Only the transport, without the protocol
    #[arg(long)]
    raw: bool,
    /// How the transport is driven, where not as usual
    #[arg(long)]
    way: Option<String>,
}

/// Another way to drive a transport, for the cases about it.
pub struct Way<'a> {
    name: &'static str,
    run: RunAgent<'a>,
}

type RunAgent<'a> = Box<dyn FnOnce(&AgentArgs) -> Result<(), EngineError> + 'a>;

impl<'a> Way<'a> {
    /// By this name, with the transport that `open` makes and on which `arm` lets it sleep.
    pub fn new<T: Data<Memory = Memory, Error: 'a> + 'a>(
        name: &'static str,
        open: impl FnOnce(Option<&str>) -> Result<(T, Permits), T::Error> + 'a,
        arm: Arm<T>,
    ) -> Self {
        Self { name, run: Box::new(move |args| run_agent(args, open, arm, Some(name))) }
    }
}

/// Room for leases and requests in a role that is not told how many there will be.
const CAPACITY: usize = 1024;

/// Runs the command line of this process with the transport that `open` makes, given a lane, with the permits by which it serves
/// reads; `arm` lets it sleep. Nodes of a certification may be driven in other `ways`.
pub fn main<T: Data<Memory = Memory>>(
    program: &str,
    open: impl FnOnce(Option<&str>) -> Result<(T, Permits), T::Error>,
    arm: Arm<T>,
    hooks: &Hooks<T>,
    ways: Vec<Way<'_>>,
) -> ExitCode {
    let role = Cli::parse().role;
    log();
    match role {
        Role::Prefill(args) => {
            let setup = || args.role.setup("prefill", Duration::from_secs(30), CAPACITY.max(args.grant.len()));
            let lane = args.role.transport.lane.as_deref();
            match args
                .check()
                .and_then(|()| setup())
                .and_then(|setup| start(setup, || open(lane)))
                .and_then(|engine| prefill(engine, arm, &args))
            {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => complain(program, error),
            }
        }
        Role::Decode(args) => match run_decode(&args, open, arm) {
            Ok(Ended::Read) => ExitCode::SUCCESS,
            Ok(Ended::NotAll(why)) => {
                remark(program, why);
                ExitCode::FAILURE
            }
            Ok(Ended::Unreachable(why)) => complain(program, why),
            Err(error) => complain(program, error),
        },
        Role::Bench(args) => match node::run(&args, open, hooks) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(program, error),
        },
        Role::Agent(args) => {
            let way = args.way.as_ref().map(|name| ways.into_iter().find(|way| way.name == name));
            let ran = match way {
                None => run_agent(&args, open, arm, None),
                Some(Some(way)) => (way.run)(&args),
                Some(None) => say(&json!({"unavailable": "this transport is not driven in that way"})).map_err(broken),
            };
            match ran {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => complain(program, error),
            }
        }
    }
}

fn run_decode<T: Data<Memory = Memory>>(
    args: &DecodeArgs,
    open: impl FnOnce(Option<&str>) -> Result<(T, Permits), T::Error>,
    arm: Arm<T>,
) -> Result<Ended, EngineError> {
    let params = read_params(&args.params).map_err(EngineError::Invalid)?;
    // A lease of half as much again as its extension: both wires' rule, turned round.
    let extension = params.iter().filter_map(params_extension).min().unwrap_or(Duration::from_secs(20));
    let setup = args.role.setup("decode", extension.scale(3, 2), CAPACITY.max(params.len()))?;
    let engine = start(setup, || open(args.role.transport.lane.as_deref()))?;
    decode(engine, arm, args, &params)
}

/// Tells first that it is ready, and in which way it is driven, or why the machine lacks what it needs.
fn run_agent<T: Data<Memory = Memory>>(
    args: &AgentArgs,
    open: impl FnOnce(Option<&str>) -> Result<(T, Permits), T::Error>,
    arm: Arm<T>,
    way: Option<&str>,
) -> Result<(), EngineError> {
    // Whoever started it (a thread, which outlives its nodes) may be killed while this stands still. If that has happened already,
    // the control line is closed.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| EngineError::Invalid(error.to_string()))?;
    let (seed, incarnation) = entropy()?;
    let setup = Setup {
        name: args.name.clone(),
        wire: args.wire,
        config: Config::with_lease(args.lease),
        capacity: CAPACITY,
        seed,
        incarnation,
        raw: args.raw,
    };
    let engine = match start(setup, || open(Some(&args.lane))) {
        Ok(engine) => engine,
        Err(EngineError::Transport { kind: ErrorKind::Unavailable, text }) => {
            return say(&json!({"unavailable": text})).map_err(broken);
        }
        Err(error) => return Err(error),
    };
    say(&json!({"ready": true, "way": way})).map_err(broken)?;
    serve(engine, arm)
}

fn broken(error: std::io::Error) -> EngineError {
    EngineError::Invalid(format!("the control line is broken: {error}"))
}

fn start<T: Data<Memory = Memory>>(
    setup: Setup,
    open: impl FnOnce() -> Result<(T, Permits), T::Error>,
) -> Result<Engine<T>, EngineError> {
    // Terms first: they are wrong or right whatever the machine has.
    setup.config.validate(setup.wire)?;
    let (transport, permits) = open().map_err(transport_error)?;
    Engine::new(transport, permits, Box::new(|| SystemClock.now()), setup)
}
