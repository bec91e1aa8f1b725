//! The role of a prefill instance: grants leases and tells what becomes of them.

use clap::Args;
use lease_proto::time::Duration;

use super::RoleArgs;
use crate::engine::{Command, Engine, EngineError, LONGEST_SLEEP, Lease, Live, say};

/// What a prefill instance is told.
#[derive(Args, Clone, Debug)]
pub struct PrefillArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub role: RoleArgs,
    /// Grant a lease for each of these request ids
    #[arg(long, value_name = "ID", num_args = 1.., required = true)]
    pub grant: Vec<String>,
    /// How many decode ranks will read each of them, as a check
    #[arg(long, value_name = "COUNT")]
    pub consumers: Option<u16>,
    /// A fixed time to live in seconds, in place of a lease that can be renewed
    #[arg(long, value_name = "SECONDS")]
    pub ttl: Option<Duration>,
}

/// Grants, prints the transfer parameters and then events, and returns when all leases are over.
///
/// # Errors
/// A lease that cannot be granted, a transport that broke, a closed standard output.
pub fn prefill<T: Live>(mut engine: Engine<T>, args: &PrefillArgs) -> Result<(), EngineError> {
    let closed = |error: std::io::Error| EngineError::Invalid(format!("cannot write to standard output: {error}"));
    for request in &args.grant {
        let lease = Lease { request: request.clone(), consumers: args.consumers, ttl: args.ttl.map(|ttl| ttl.to_string()) };
        let params = engine.execute(Command::Grant(lease)).map_err(|error| EngineError::Invalid(format!("{request}: {error}")))?;
        say(&params).map_err(closed)?;
    }
    loop {
        let next = engine.turn()?;
        while let Some(event) = engine.next_event() {
            say(&event).map_err(closed)?;
        }
        if engine.busy().0 == 0 {
            return engine.linger();
        }
        engine.sleep(next.unwrap_or(LONGEST_SLEEP), false)?;
    }
}
