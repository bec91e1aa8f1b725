//! What must be in the environment of a process before its transport is loaded there. What the operator has set stays.

use std::process::Command;

use transport_nixl::{Machine, environment, find};

use crate::engine::Kinds;

/// Keeps UCX, ours and NIXL's own, from taking SIGHUP, and from writing to standard output, which is ours.
const QUIET: [(&str, &str); 3] = [("UCX_DEBUG_SIGNO", "0"), ("UCX_LOG_LEVEL", "fatal"), ("UCX_WARN_UNUSED_ENV_VARS", "n")];

/// What NIXL leaves to UCX's own default: 20 s without a word from a dead peer are longer than many a lease.
const NIXL: [(&str, &str); 1] = [("UCX_KEEPALIVE_INTERVAL", "1s")];

/// The ways of NIXL's UCX backend. NIXL wants connections that report a dead peer, which shared memory takes only if told.
const WAYS: [(&str, &[(&str, &str)]); 2] = [("tcp", &[]), ("shm", &[("UCX_MM_ERROR_HANDLING", "y")])];

/// UCX's transports for a way. Those that copy from and to a device come with it where memory is a device's, and over shared memory
/// also the one by which a process reads another's.
pub(crate) fn tls(way: &str, memory: Kinds) -> String {
    match way {
        _ if memory.are_host() => way.to_owned(),
        "shm" => format!("{way},cuda"),
        _ => format!("{way},cuda_copy"),
    }
}

/// Prepares a process that will load this transport, on this way of it, which comes before what the operator has set, for these kinds
/// of memory.
pub(crate) fn prepare<'c>(command: &'c mut Command, transport: &str, lane: Option<&str>, memory: Kinds) -> &'c mut Command {
    let unset = |(name, _): &(&str, &str)| std::env::var_os(name).is_none();
    command.envs(QUIET.into_iter().filter(unset));
    if transport == "nixl" {
        command.envs(NIXL.into_iter().filter(unset));
        // Where there is no NIXL the process says so itself.
        let machine = Machine::this();
        command.envs(find(&machine).map(|nixl| environment(&machine, &nixl)).unwrap_or_default());
        let way = lane.and_then(|lane| lane.rsplit_once('/')).map(|(_, way)| way);
        for (way, settings) in WAYS.into_iter().filter(|(name, _)| way == Some(*name)) {
            command.env("UCX_TLS", tls(way, memory)).envs(settings.to_vec());
        }
    }
    command
}
