//! The role of a prefill instance of vLLM: holds block memory on every rank, answers for it, and grants leases on it.

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
        if args.role.block_map {
            pool.block_maps().for_each(|map| rank.tell("block_map", map));
        }
    }
    let (host, port) = listener.address();
    // All or none: parameters that were printed stand for a lease that is kept.
    let mut remotes = Vec::new();
    for id in &args.grant {
        let refused = |error: EngineError| EngineError::Invalid(format!("--grant {}: {error}", shown(id)));
        let request = RequestId::try_from(id.as_str())?;
        let blocks = grant(&mut ranks, &pools, &request, args).map_err(refused)?;
        let (engine, host, tp) = (setup.name.clone(), host.clone(), args.role.tp);
        remotes.push(Remote { request, engine, host, port, tp, blocks, generation: GENERATION });
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
                pool.end(token.number)?;
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

/// Grants blocks with the request's bytes on every rank, under one token, and returns their ids. How many will read is learnt from their
/// completions.
fn grant(ranks: &mut [NixlRank], pools: &[Pool], request: &RequestId, args: &PrefillArgs) -> Result<Vec<u64>, EngineError> {
    let first = ranks.first_mut().ok_or_else(|| EngineError::Invalid("expected a rank".into()))?;
    let token = first.holder.mint();
    let mut ids = None;
    for (rank, pool) in ranks.iter_mut().zip(pools) {
        // Lent before anything is promised on them.
        let lent = pool.lend(token.number, pool.fill(&request.to_string())?)?;
        let grant = Grant { request, token, consumers: args.consumers, ttl: args.ttl };
        rank.with(|holder, _, cx| holder.grant(cx, grant)).map_err(EngineError::Refused)?;
        // Pools that give and take in one order stay alike; readers go by one list for all.
        if *ids.get_or_insert_with(|| lent.clone()) != lent {
            return Err(EngineError::Invalid("expected the same blocks on every rank".into()));
        }
    }
    Ok(ids.unwrap_or_default())
}
