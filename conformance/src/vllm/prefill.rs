//! The role of a prefill instance of vLLM: holds block memory on every rank, answers for it, and grants leases on it.

use std::collections::BTreeMap;

use lease_proto::{holder::Grant, id::RequestId, time::Duration};
use serde_json::json;

use super::{
    listener::Listener,
    params::Remote,
    pool::{self, Pool},
    ranks::{NixlRank, Open, sleep, start, tell},
};
use crate::{
    cli::{RoleArgs, prefill::PrefillArgs, remark, shown},
    engine::{EngineError, closed, say},
};

/// The number of the one time that its memory was registered: a larger one would make vLLM shake hands again.
const GENERATION: u64 = 1;
/// A side channel that was bothered is looked after now and then.
const LOOK: Duration = Duration::from_secs(1);

/// Grants on every rank, prints vLLM's transfer parameters and then events, and returns when all leases of all ranks are over.
///
/// # Errors
/// An address that is not to be had, a lease that cannot be granted, a transport that broke, a closed standard output.
pub fn prefill(args: &PrefillArgs, open: Open<'_>) -> Result<(), EngineError> {
    check_tp(&args.role)?;
    let setup = args.role.setup("prefill", Duration::from_secs(30), args.grant.len().max(64))?;
    let mut listener = Listener::bind(args.listen.as_deref().unwrap_or_default())?;
    let mut ranks = start(&args.role, &setup, 1, open)?;
    let blocks = pool::blocks_for(args.grant.len());
    let pools = ranks
        .iter_mut()
        .map(|rank| Pool::register(&mut rank.transport, rank.ear.identity.rank, args.role.tp, blocks))
        .collect::<Result<Vec<Pool>, EngineError>>()?;
    for (rank, pool) in ranks.iter_mut().zip(&pools) {
        // Only now is all memory in it.
        let agent = rank.transport.agent_metadata().map_err(crate::engine::transport_error)?;
        let metadata = pool.metadata(&setup.name, agent);
        listener.publish(rank.ear.identity.rank, &metadata, args.role.compat_hash.as_deref())?;
    }
    let (host, port) = listener.address();
    let remote = |(number, request): (usize, &String)| {
        Ok(Remote {
            request: RequestId::try_from(request.as_str())?,
            engine: setup.name.clone(),
            host: host.clone(),
            port,
            tp: args.role.tp,
            blocks: pool::ids(blocks, number),
            generation: GENERATION,
        })
    };
    let remotes = args.grant.iter().enumerate().map(remote).collect::<Result<Vec<Remote>, EngineError>>()?;
    // All or none: parameters that were printed stand for a lease that is kept.
    let mut held = BTreeMap::new();
    for remote in &remotes {
        let number = grant(&mut ranks, &pools, remote, args)
            .map_err(|error| EngineError::Invalid(format!("--grant {}: {error}", shown(&remote.request.to_string()))))?;
        held.insert(number, remote.blocks.clone());
    }
    if let Some(warning) = ranks.first().and_then(|rank| rank.holder.terms().warning()) {
        remark("warning", warning);
    }
    remotes.iter().try_for_each(|remote| say(&remote.to_params())).map_err(closed)?;
    loop {
        let mut next = Some(LOOK);
        for (rank, pool) in ranks.iter_mut().zip(&pools) {
            next = next.into_iter().chain(rank.turn()?).min();
            for token in std::mem::take(&mut rank.ear.freed) {
                pool.poison(held.get(&token.number).map_or(&[], Vec::as_slice))?;
            }
        }
        let is_over = ranks.iter().all(|rank| rank.holder.live() == 0);
        if let Some(rank) = ranks.first_mut()
            && let Some(refused) = listener.news(rank.now(), is_over)
        {
            rank.tell("side_channel", json!({"refused": refused}));
        }
        ranks.iter_mut().try_for_each(|rank| tell(rank, |_| {}))?;
        if is_over {
            return Ok(());
        }
        sleep(ranks.iter_mut(), next)?;
    }
}

fn check_tp(args: &RoleArgs) -> Result<(), EngineError> {
    if pool::WHOLE_BLOCK.is_multiple_of(args.tp) {
        return Ok(());
    }
    let why =
        format!("--tp {}: blocks of {} bytes cannot be shared by so many ranks, take 1, 2, 4, 8 …", args.tp, pool::WHOLE_BLOCK);
    Err(EngineError::Invalid(why))
}

/// Grants on every rank what is written on every rank, under one token, and returns its number. How many will read is learnt from
/// their completions.
fn grant(ranks: &mut [NixlRank], pools: &[Pool], remote: &Remote, args: &PrefillArgs) -> Result<u64, EngineError> {
    let request = remote.request.to_string();
    pools.iter().try_for_each(|pool| pool.fill(&request, &remote.blocks))?;
    let first = ranks.first_mut().ok_or_else(|| EngineError::Invalid("expected a rank".into()))?;
    let token = first.holder.mint();
    for rank in ranks {
        let grant = Grant { request: &remote.request, token, consumers: args.consumers, ttl: args.ttl };
        rank.with(|holder, _, cx| holder.grant(cx, grant)).map_err(EngineError::Refused)?;
    }
    Ok(token.number)
}
