//! The role of a prefill instance: grants leases and tells what becomes of them.

use std::collections::BTreeSet;

use clap::Args;
use gpu_mem::Memory;
use lease_proto::{
    config::LONGEST_LEASE,
    id::RequestId,
    time::Duration,
    transport::Data,
    wire::{Wire, vllm},
};

use super::{RoleArgs, shown, warn};
use crate::engine::{Arm, Command, Engine, EngineError, LONGEST_SLEEP, Lease, closed, say};

/// What a prefill instance is told.
#[derive(Args, Clone, Debug)]
pub struct PrefillArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub role: RoleArgs,
    /// Be a prefill instance of vLLM: answer for the ranks here, as vLLM's side channel does, and hold their blocks as it would
    /// (with --transport nixl --wire vllm)
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Grant a lease for each of these request ids
    #[arg(long, value_name = "ID", num_args = 1.., required = true)]
    pub grant: Vec<String>,
    /// How many decode ranks will read each of them, as a check
    #[arg(long, value_name = "COUNT")]
    pub consumers: Option<u16>,
    /// A fixed time to live in seconds, 0.1 to 86400, in place of a lease that can be renewed
    #[arg(long, value_name = "SECONDS")]
    pub ttl: Option<Duration>,
}

impl PrefillArgs {
    /// Whether every request can be granted, as far as its id tells.
    ///
    /// # Errors
    /// Which one cannot, and why.
    pub fn check(&self) -> Result<(), EngineError> {
        let mut ids = BTreeSet::new();
        for id in &self.grant {
            let wrong = |why: String| Err(EngineError::Invalid(format!("--grant {}: {why}", shown(id))));
            if id.is_empty() {
                return wrong("a request id has at least one byte".into());
            }
            if let Err(error) = RequestId::try_from(id.as_str()) {
                return wrong(error.to_string());
            }
            if self.role.wire == Wire::Vllm && vllm::check_id(id.as_bytes()).is_err() {
                return wrong(
                    "vLLM's wire carries no id with a comma, nor HB or PUSH_REG: choose another, or --wire native".into(),
                );
            }
            if !ids.insert(id) {
                return wrong("given twice: each request id once".into());
            }
        }
        self.role.check_ranks(self.listen.is_some(), "--listen HOST:PORT")?;
        if self.consumers == Some(0) {
            return Err(EngineError::Invalid("--consumers 0: at least one rank reads, or leave it out".into()));
        }
        match self.ttl {
            Some(ttl) if !(SHORTEST_TTL..=LONGEST_LEASE).contains(&ttl) => Err(EngineError::Invalid(format!(
                "--ttl {ttl}: expected {SHORTEST_TTL} to {LONGEST_LEASE} s, or leave it out for a lease that can be renewed"
            ))),
            _ => Ok(()),
        }
    }
}

/// As short as a lease may be.
const SHORTEST_TTL: Duration = Duration::from_millis(100);

/// Grants, prints the transfer parameters and then events, and returns when all leases are over.
///
/// # Errors
/// A lease that cannot be granted, a transport that broke, a closed standard output.
pub fn prefill<T: Data<Memory = Memory>>(mut engine: Engine<T>, arm: Arm<T>, args: &PrefillArgs) -> Result<(), EngineError> {
    // All or none: parameters that were printed stand for a lease that is kept.
    let mut granted = Vec::new();
    for request in &args.grant {
        let ttl = args.ttl.map(|ttl| ttl.to_string());
        let lease = Lease { request: request.clone(), consumers: args.consumers, ttl, ..Lease::default() };
        let params = engine.execute(Command::Grant(lease));
        granted.push(params.map_err(|error| EngineError::Invalid(format!("--grant {}: {error}", shown(request))))?);
    }
    warn(&engine);
    granted.iter().try_for_each(say).map_err(closed)?;
    loop {
        let next = engine.turn()?;
        while let Some(event) = engine.next_event() {
            say(&event).map_err(closed)?;
        }
        if engine.busy().0 == 0 {
            return engine.linger();
        }
        engine.sleep(arm, next.unwrap_or(LONGEST_SLEEP), false)?;
    }
}
