//! The role of a decode instance of vLLM: every rank shakes hands with the ranks that it reads from, keeps the leases while requests
//! wait, reads and verifies its part of every block, and completes.

mod rank;

use std::collections::BTreeMap;

use lease_proto::{
    config::Terms,
    time::Duration,
    topology::{Ranks, Topology, TopologyError},
};
use serde_json::Value;
use transport_nixl::side_channel::{Client, ClientConfig, Compatibility};

use super::{
    params::Remote,
    ranks::{NixlRank, Open, sleep, start, tell},
};
use crate::{
    cli::{
        decode::{DecodeArgs, Ended},
        remark,
    },
    engine::EngineError,
};
use rank::{DecodeRank, Fit};

/// Room for requests.
const CAPACITY: usize = 1024;

/// Tracks every request on every rank, reads each when it has waited for `hold`, and returns when all are resolved.
///
/// # Errors
/// Parameters that cannot be tracked, a transport that broke, a closed standard output.
pub fn decode(args: &DecodeArgs, params: &[Value], open: Open<'_>) -> Result<Ended, EngineError> {
    let remotes = params.iter().map(Remote::from_params).collect::<Result<Vec<Remote>, String>>().map_err(EngineError::Params)?;
    let fits =
        (0..args.role.tp).map(|rank| fits(&remotes, args.role.tp, rank)).collect::<Result<Vec<Vec<Fit>>, EngineError>>()?;
    let legs = fits.iter().map(|fits| fits.iter().map(|fit| fit.targets.len()).sum()).max().unwrap_or(0);
    let setup = args.role.setup("decode", Duration::from_secs(30), CAPACITY.max(params.len()))?;
    let ranks = start(&args.role, &setup, legs, open)?;
    let terms = setup.config.validate(setup.wire)?;
    let decode_rank = |(mut rank, fits): (NixlRank, Vec<Fit>)| {
        rank.transport.set_side_channel(client(&terms, args.role.compat_hash.clone())?);
        DecodeRank::new(rank, &remotes, fits, args)
    };
    let mut ranks = ranks.into_iter().zip(fits).map(decode_rank).collect::<Result<Vec<DecodeRank>, EngineError>>()?;
    if let Some(warning) = terms.warning() {
        remark("warning", warning);
    }
    let mut outcome = Outcome::default();
    loop {
        let mut next = None;
        for rank in &mut ranks {
            next = next.into_iter().chain(rank.turn(&mut outcome)?).min();
            tell(&mut rank.inner, |event| outcome.heard(event))?;
        }
        // Who was never reached is told nothing.
        if ranks.iter().all(|rank| rank.is_done(outcome.reached)) {
            return Ok(outcome.ended(&remotes));
        }
        sleep(ranks.iter_mut().map(|rank| &mut rank.inner), next)?;
    }
}

/// Whom one rank reads each of these from.
fn fits(remotes: &[Remote], tp: u32, rank: u32) -> Result<Vec<Fit>, EngineError> {
    let fit = |remote: &Remote| {
        let place = Ranks { pp: 0, tp: rank };
        let topology = Topology::new(Ranks { pp: 1, tp }, Ranks { pp: 1, tp: remote.tp })?;
        Ok(Fit { targets: topology.targets(place)?.collect(), reader: topology.reader(place)?, same_tp: tp == remote.tp })
    };
    let fitted = remotes.iter().map(fit).collect::<Result<_, TopologyError>>();
    fitted.map_err(|error| EngineError::Invalid(format!("--tp {tp}: {error}")))
}

/// Its deadlines are within the connection's, so that errors tell what happened.
fn client(terms: &Terms, hash: Option<String>) -> Result<Client, EngineError> {
    let deadline = terms.connect_deadline().scale(2, 5).into();
    let config = ClientConfig {
        connect_deadline: deadline,
        receive_deadline: deadline,
        compatibility: hash.map_or(Compatibility::Learn, Compatibility::Expected),
        ..ClientConfig::default()
    };
    Client::spawn(config).map_err(|error| EngineError::Invalid(format!("cannot start the side channel: {error}")))
}

/// What has become of the requests so far, over all ranks.
#[derive(Default)]
struct Outcome {
    /// Why some were not read.
    missed: BTreeMap<String, String>,
    reached: bool,
    /// Why the last handshake that failed did.
    refused: Option<String>,
}

impl Outcome {
    fn heard(&mut self, event: &Value) {
        let request = event["request"].as_str().unwrap_or_default();
        match event["event"].as_str().unwrap_or_default() {
            "connected" => self.reached = true,
            "lost" => self.miss(request, event["why"].as_str().unwrap_or_default()),
            "read_landed" if event["matches"] == false => self.miss(request, "wrong bytes"),
            // The best verdict that vLLM's wire has is that nobody can tell.
            "read_done" if event["verdict"] != "unverified" => self.miss(request, event["verdict"].as_str().unwrap_or_default()),
            _ => {}
        }
    }

    /// The first reason is the one that is told.
    fn miss(&mut self, request: &str, why: &str) {
        self.missed.entry(request.to_owned()).or_insert_with(|| why.replace('_', " "));
    }

    fn ended(&self, remotes: &[Remote]) -> Ended {
        if self.missed.is_empty() {
            return Ended::Read;
        }
        if self.reached {
            return Ended::not_all(&self.missed);
        }
        let at = remotes.first().map(|remote| format!("{} port {}", remote.host, remote.port)).unwrap_or_default();
        let why = self.refused.as_deref().unwrap_or("is it still running, and are the parameters its own?");
        Ended::Unreachable(format!("the prefill instance at {at} cannot be reached: {why}"))
    }
}
