//! A peer executable: one transport, in the role that it is told.

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use gpu_mem::{Kind, Memory};
use lease_proto::{
    clock::SystemClock,
    config::Config,
    permits::Permits,
    time::Duration,
    transport::{Data, ErrorKind},
    wire::Wire,
};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Value, json};

use super::{
    complain,
    decode::{DecodeArgs, Ended, decode, read_params},
    entropy, log,
    prefill::{PrefillArgs, prefill},
    remark,
};
use crate::{
    bench::node::{self, Hooks, NodeArgs},
    engine::{
        Arm, Carrier, Elsewhere, Engine, EngineError, Kinds, Setup, names_side_channel, params_extension, params_request, say,
        serve, transport_error,
    },
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
    /// Kind of memory that blocks lie in: host, pinned, cuda or cuda:N
    #[arg(long, value_name = "KIND", default_value_t = Kind::Host)]
    blocks: Kind,
    /// Kind of memory that is read into
    #[arg(long, value_name = "KIND", default_value_t = Kind::Host)]
    landing: Kind,
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
        let open = |lane: Option<&str>| open(lane).map(|(transport, permits)| (transport, permits, None));
        Self { name, run: Box::new(move |args| run_agent(args, open, arm, Some(name), None)) }
    }

    /// As [`Way::new`], on an agent of the engine's, which carries the bytes.
    pub fn carried<T: Data<Memory = Memory, Error: 'a> + 'a>(
        name: &'static str,
        open: impl FnOnce(Option<&str>) -> Result<(T, Carrier<T>), T::Error> + 'a,
        arm: Arm<T>,
    ) -> Self {
        let open = |lane: Option<&str>| open(lane).map(|(transport, carrier)| (transport, Permits::new(), Some(carrier)));
        Self { name, run: Box::new(move |args| run_agent(args, open, arm, Some(name), None)) }
    }
}

/// Both roles towards vLLM, for the transport that has them.
pub struct Live<'a> {
    /// The role of a prefill instance that listens.
    pub prefill: &'a dyn Fn(&PrefillArgs) -> Result<(), EngineError>,
    /// The role of a decode instance for parameters that name a side channel.
    pub decode: &'a DecodeLive<'a>,
    /// The request in such parameters, if they can be used.
    pub request: fn(&Value) -> Result<String, String>,
}

type DecodeLive<'a> = dyn Fn(&DecodeArgs, &[Value]) -> Result<Ended, EngineError> + 'a;

/// Room for leases and requests in a role that is not told how many there will be.
const CAPACITY: usize = 1024;

/// Runs the command line of this process with the transport that `open` makes, given a lane, with the permits by which it serves
/// reads; `arm` lets it sleep. Nodes of a certification may be driven in other `ways`, and roles be `live` peers of vLLM.
pub fn main<T: Data<Memory = Memory>>(
    program: &str,
    open: impl FnOnce(Option<&str>) -> Result<(T, Permits), T::Error>,
    arm: Arm<T>,
    hooks: &Hooks<T>,
    ways: Vec<Way<'_>>,
    live: Option<&Live<'_>>,
) -> ExitCode {
    let role = Cli::parse().role;
    log();
    match role {
        Role::Prefill(args) => match run_prefill(&args, open, arm, live) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(program, error),
        },
        Role::Decode(args) => match run_decode(&args, open, arm, live) {
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
                None => {
                    let open = |lane: Option<&str>| open(lane).map(|(transport, permits)| (transport, permits, None));
                    run_agent(&args, open, arm, None, hooks.elsewhere)
                }
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

fn run_prefill<T: Data<Memory = Memory>>(
    args: &PrefillArgs,
    open: impl FnOnce(Option<&str>) -> Result<(T, Permits), T::Error>,
    arm: Arm<T>,
    live: Option<&Live<'_>>,
) -> Result<(), EngineError> {
    args.check()?;
    if let Some(live) = live.filter(|_| args.listen.is_some()) {
        return (live.prefill)(args);
    }
    if live.is_some() && args.role.wire == Wire::Vllm {
        remark("kvlease", "without --listen only kvlease can read these: vLLM needs --listen HOST:PORT");
    }
    let setup = args.role.setup("prefill", Duration::from_secs(30), CAPACITY.max(args.grant.len()))?;
    let engine = start(setup, || open(args.role.transport.lane.as_deref()))?;
    prefill(engine, arm, args)
}

fn run_decode<T: Data<Memory = Memory>>(
    args: &DecodeArgs,
    open: impl FnOnce(Option<&str>) -> Result<(T, Permits), T::Error>,
    arm: Arm<T>,
    live: Option<&Live<'_>>,
) -> Result<Ended, EngineError> {
    let live = live.filter(|_| args.role.wire == Wire::Vllm);
    let request = |params: &Value| match live {
        Some(live) if names_side_channel(params) => (live.request)(params),
        _ => params_request(params),
    };
    let params = read_params(&args.params, request).map_err(EngineError::Invalid)?;
    let of_vllm = live.map_or(0, |_| params.iter().filter(|params| names_side_channel(params)).count());
    args.role.check_ranks(of_vllm > 0, "parameters with remote_host and remote_port")?;
    match live {
        Some(live) if of_vllm == params.len() => return (live.decode)(args, &params),
        Some(_) if of_vllm > 0 => {
            let why = "some of the parameters name a side channel and some have the kvlease key: read them one kind at a time";
            return Err(EngineError::Invalid(why.into()));
        }
        _ => {}
    }
    // A lease of half as much again as its extension: both wires' rule, turned round.
    let extension = params.iter().filter_map(params_extension).min().unwrap_or(Duration::from_secs(20));
    let setup = args.role.setup("decode", extension.scale(3, 2), CAPACITY.max(params.len()))?;
    let engine = start(setup, || open(args.role.transport.lane.as_deref()))?;
    decode(engine, arm, args, &params)
}

/// Tells first that it is ready, and in which way it is driven, or why the machine lacks what it needs.
fn run_agent<T: Data<Memory = Memory>>(
    args: &AgentArgs,
    open: impl FnOnce(Option<&str>) -> Result<(T, Permits, Option<Carrier<T>>), T::Error>,
    arm: Arm<T>,
    way: Option<&str>,
    elsewhere: Option<Elsewhere<T>>,
) -> Result<(), EngineError> {
    // Whoever started it (a thread, which outlives its nodes) may be killed while this stands still. If that has happened already,
    // the control line is closed.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| EngineError::Invalid(error.to_string()))?;
    let memory = Kinds { blocks: args.blocks, landing: args.landing };
    // Kept, as an engine keeps its devices.
    let _sample = match memory.sample() {
        Ok(sample) => sample,
        Err(error) => return say(&json!({"unavailable": error.to_string()})).map_err(broken),
    };
    let (seed, incarnation) = entropy()?;
    let setup = Setup {
        name: args.name.clone(),
        wire: args.wire,
        config: Config::with_lease(args.lease),
        capacity: CAPACITY,
        seed,
        incarnation,
        raw: args.raw,
        memory,
    };
    let mut carrier = None;
    let open = || {
        let (transport, permits, carries) = open(Some(&args.lane))?;
        carrier = carries;
        Ok((transport, permits))
    };
    let mut engine = match start(setup, open) {
        Ok(engine) => engine,
        Err(EngineError::Transport { kind: ErrorKind::Unavailable, text }) => {
            return say(&json!({"unavailable": text})).map_err(broken);
        }
        Err(error) => return Err(error),
    };
    if let Some(carrier) = carrier {
        engine.carried_by(carrier);
    }
    if let Some(elsewhere) = elsewhere {
        engine.registers_elsewhere(elsewhere);
    }
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
