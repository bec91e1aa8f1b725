//! One rank of a decode instance: its requests, one read at a time, and its handshakes.

use std::collections::{BTreeMap, BTreeSet};

use lease_proto::{
    clock::VllmOffset,
    frame::{Frame, HEADER},
    id::{Incarnation, ReaderRank, Token},
    params::Parameters,
    reader::{Handle, Track},
    time::{Duration, Instant},
    topology::Ranks,
    transport::PeerId,
};
use serde_json::json;
use transport_nixl::{
    NixlTransport,
    side_channel::{HandshakeError, Target},
};

use super::Outcome;
use crate::{
    cli::decode::DecodeArgs,
    engine::EngineError,
    vllm::{
        params::Remote,
        plan::{MOST_PARTS, Slice},
        pool::block_map,
        ranks::NixlRank,
        reading::{Cannot, Landing, Reading},
    },
};

/// vLLM's wire names leases by their requests alone.
const TOKEN: Token = Token { number: 1, nonce: 0 };

/// Whom a rank reads a request from, and who it is to them.
#[derive(Clone, Debug)]
pub(super) struct Fit {
    pub(super) targets: Vec<Ranks>,
    pub(super) reader: ReaderRank,
    pub(super) same_tp: bool,
}

/// A request that waits to be read.
struct Waiting {
    remote: Remote,
    handle: Handle,
    /// The ranks that it is read from, and which part of their blocks.
    from: Vec<u16>,
    slice: Slice,
    /// Connections to all of them, in their order; or since when one is missing.
    peers: Result<Vec<PeerId>, Instant>,
}

pub(super) struct DecodeRank {
    pub(super) inner: NixlRank,
    waiting: Vec<Waiting>,
    reading: Option<Reading>,
    landing: Landing,
    /// When reads begin, and how long a peer may be gone.
    due: Instant,
    patience: Duration,
    /// Peers by engine and rank that have shaken hands, their agents, which no other life of them has, and their engines' clocks.
    met: BTreeMap<(String, u16), (PeerId, String)>,
    clocks: BTreeMap<String, VllmOffset>,
    tells_blocks: bool,
}

impl DecodeRank {
    /// Tracks all of them.
    ///
    /// # Errors
    /// One that cannot be tracked.
    pub(super) fn new(mut rank: NixlRank, remotes: &[Remote], fits: Vec<Fit>, args: &DecodeArgs) -> Result<Self, EngineError> {
        let mut waiting = Vec::new();
        for (remote, fit) in remotes.iter().zip(fits) {
            let handle = track(&mut rank, remote, &fit)?;
            let slice = Slice { index: fit.reader.rank().into(), of: fit.reader.of().into(), same_tp: fit.same_tp };
            let from = fit.targets.iter().map(|target| number(*target)).collect();
            waiting.push(Waiting { remote: remote.clone(), handle, from, slice, peers: Err(rank.now()) });
        }
        let (due, patience) = (rank.now().saturating_add(args.hold), rank.reader.terms().lost_after());
        let (met, clocks) = (BTreeMap::new(), BTreeMap::new());
        let (landing, tells_blocks) = (Landing::default(), args.role.block_map);
        Ok(Self { inner: rank, waiting, reading: None, landing, due, patience, met, clocks, tells_blocks })
    }

    /// Whether nothing is left to read, nor to tell where somebody can be told.
    pub(super) fn is_done(&self, reached: bool) -> bool {
        self.waiting.is_empty() && self.reading.is_none() && (self.inner.reader.open() == 0 || !reached)
    }

    /// One turn; returns when the next one is due, from now on.
    ///
    /// # Errors
    /// What the transport as a whole reports.
    pub(super) fn turn(&mut self, outcome: &mut Outcome) -> Result<Option<Duration>, EngineError> {
        let next = self.inner.turn()?;
        if self.inner.ear.told.iter().any(|event| matches!(event["event"].as_str(), Some("connected" | "peer_lost"))) {
            self.look(outcome);
        }
        for (read, landed) in std::mem::take(&mut self.inner.ear.landed) {
            if let Some(reading) = &mut self.reading {
                reading.landed(read, landed);
            }
        }
        // Of several engines one may fit.
        let is_final = self.hear_refusal(outcome) && self.is_alone();
        let is_new = self.read(outcome)?;
        self.give_up(is_final, outcome);
        let now = self.inner.now();
        let gone = self.waiting.iter().filter_map(|waiting| waiting.peers.as_ref().err());
        let gone = gone.min().map(|since| since.saturating_add(self.patience));
        let ready = self.reading.is_none() && self.waiting.iter().any(|waiting| waiting.peers.is_ok());
        let own = gone.into_iter().chain(ready.then_some(self.due)).min().map(|at| at.saturating_since(now));
        Ok(if is_new { Some(Duration::ZERO) } else { next.into_iter().chain(own).min() })
    }

    /// Tells why handshakes fail, each reason once. Whether trying again is of no use: engines that do not fit.
    fn hear_refusal(&mut self, outcome: &mut Outcome) -> bool {
        let Some(error) = self.inner.transport.handshake_error() else { return false };
        let why = error.to_string();
        if outcome.refused.as_ref() != Some(&why) {
            self.inner.tell("handshake_failed", json!({"why": why}));
            outcome.refused = Some(why);
        }
        matches!(error, HandshakeError::Incompatible { .. })
    }

    /// Whether all that waits is of one engine.
    fn is_alone(&self) -> bool {
        let mut engines = self.waiting.iter().map(|waiting| &waiting.remote.engine);
        let first = engines.next();
        engines.all(|engine| Some(engine) == first)
    }

    /// Goes on with the read under way, or begins the next one. Whether there is something to do at once.
    fn read(&mut self, outcome: &mut Outcome) -> Result<bool, EngineError> {
        let Some(mut reading) = self.reading.take() else { return self.next(outcome) };
        reading.start(&mut self.inner.transport, &self.landing)?;
        if !reading.is_over() {
            self.reading = Some(reading);
            return Ok(false);
        }
        let (ended, told) = reading.verify(&self.landing)?;
        self.inner.tell("read_landed", told);
        self.inner.with(|_, reader, cx| reader.read_ended(cx, reading.handle, ended))?;
        Ok(true)
    }

    fn next(&mut self, outcome: &mut Outcome) -> Result<bool, EngineError> {
        if self.inner.now() < self.due {
            return Ok(false);
        }
        let Some(at) = self.waiting.iter().position(|waiting| waiting.peers.is_ok()) else { return Ok(false) };
        let Waiting { remote, handle, from, slice, peers } = self.waiting.remove(at);
        let from = from.into_iter().zip(peers.unwrap_or_default());
        let request = remote.request.to_string();
        let why = match Reading::plan(&self.inner.transport, (&remote, handle, TOKEN), from, slice) {
            Ok(reading) => match self.inner.with(|_, reader, cx| reader.begin_read(cx, handle)) {
                Ok(()) => {
                    self.inner.tell("read_started", json!({"request": request}));
                    reading.prepare(&mut self.inner.transport, &mut self.landing)?;
                    self.reading = Some(reading);
                    return Ok(true);
                }
                Err(declined) => declined.name().to_owned(),
            },
            Err(Cannot::Misfit(misfit)) => misfit.to_string(),
            Err(Cannot::Gone) => "peer_lost".to_owned(),
        };
        self.give_back(handle, &request, &why, outcome);
        Ok(true)
    }

    /// Requests of prefill instances that are gone for good, which vLLM's wire would never say: for as long as `lost_after`, or as it
    /// refused us.
    fn give_up(&mut self, is_final: bool, outcome: &mut Outcome) {
        let now = self.inner.now();
        let gone =
            |waiting: &Waiting| matches!(waiting.peers, Err(since) if is_final || now >= since.saturating_add(self.patience));
        let (gone, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting).into_iter().partition(gone);
        self.waiting = waiting;
        let why = if is_final { "incompatible" } else { "no_answer" };
        for Waiting { remote, handle, .. } in gone {
            self.give_back(handle, &remote.request.to_string(), why, outcome);
        }
    }

    /// A request will not be read.
    fn give_back(&mut self, handle: Handle, request: &str, why: &str, outcome: &mut Outcome) {
        outcome.miss(request, why);
        self.inner.tell("not_read", json!({"request": request, "why": why}));
        // It may be lost already, and then there is nothing to give back.
        let _ = self.inner.with(|_, reader, cx| reader.finish(cx, handle));
    }

    /// Connections came or went: which requests can be read?
    fn look(&mut self, outcome: &mut Outcome) {
        let now = self.inner.now();
        let (mut greeted, mut restarted) = (Vec::new(), BTreeSet::new());
        for Waiting { remote, handle, from, peers, .. } in &mut self.waiting {
            let connections: Vec<(u16, Option<PeerId>)> =
                from.iter().map(|rank| (*rank, self.inner.reader.connection(*handle, *rank))).collect();
            for (rank, peer) in connections.iter().filter_map(|(rank, peer)| peer.map(|peer| (*rank, peer))) {
                let agent = self.inner.transport.agent_of(peer).unwrap_or_default().to_owned();
                let key = (remote.engine.clone(), rank);
                match self.met.insert(key, (peer, agent.clone())) {
                    Some((before, _)) if before == peer => continue,
                    // Its blocks are not those that these parameters name.
                    Some((_, other)) if other != agent => drop(restarted.insert(remote.engine.clone())),
                    _ => {}
                }
                greeted.push((remote.engine.clone(), rank, peer));
            }
            let all = connections.into_iter().map(|(_, peer)| peer).collect::<Option<Vec<PeerId>>>();
            *peers = all.ok_or(peers.as_ref().err().copied().unwrap_or(now));
        }
        for (engine, rank, peer) in greeted {
            self.greeted(&engine, rank, peer);
        }
        let of_it = |waiting: &Waiting| restarted.contains(&waiting.remote.engine);
        let (lost, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting).into_iter().partition(of_it);
        self.waiting = waiting;
        for Waiting { remote, handle, .. } in lost {
            self.give_back(handle, &remote.request.to_string(), "peer_restarted", outcome);
        }
    }

    fn greeted(&mut self, engine: &str, rank: u16, peer: PeerId) {
        let Some(handshake) = self.inner.transport.handshake(peer) else { return };
        let clock = self.clocks.entry(engine.to_owned()).or_default();
        handshake.offset.add_to(clock);
        let told = json!({
            "engine": engine,
            "from": rank,
            "offset": clock.nanos().unwrap_or_default() as f64 / 1e9,
            "hash": handshake.compatibility_hash,
            "regions": handshake.metadata.regions(),
            "blocks": handshake.metadata.num_blocks,
        });
        let count = (handshake.metadata.num_blocks as usize).saturating_mul(handshake.metadata.regions());
        let regions = if self.tells_blocks && count <= MOST_PARTS { 0..handshake.metadata.regions() } else { 0..0 };
        let device = handshake.metadata.device_id.into();
        let layouts = regions.filter_map(|region| Some((region, handshake.metadata.layout(region).ok()?)));
        let maps: Vec<_> = layouts.map(|(region, layout)| block_map(region, device, layout)).collect();
        self.inner.tell("handshake", told);
        for mut map in maps {
            map["from"] = rank.into();
            self.inner.tell("block_map", map);
        }
    }
}

fn number(target: Ranks) -> u16 {
    u16::try_from(target.tp).unwrap_or(u16::MAX)
}

fn track(rank: &mut NixlRank, remote: &Remote, fit: &Fit) -> Result<Handle, EngineError> {
    let incarnation = Incarnation(remote.generation);
    let terms = rank.reader.terms();
    let params = Parameters {
        token: TOKEN,
        incarnation,
        engine: remote.engine.as_bytes(),
        ranks: u16::try_from(remote.tp).unwrap_or(u16::MAX),
        extension: terms.extension(),
        drift_ppm: terms.drift_ppm(),
        frames: &[],
        regions: &[],
    };
    let target = |target: &Ranks| {
        let Remote { host, port, engine, .. } = remote;
        let side = Target { host: host.clone(), port: *port, engine_id: engine.clone(), rank: *target };
        let address = NixlTransport::side_channel_metadata(&side).map_err(crate::engine::transport_error)?;
        let mut frame = vec![0; address.len() + HEADER];
        Frame::encode(incarnation, &address, &mut frame).map_err(|error| EngineError::Params(error.to_string()))?;
        Ok((number(*target), frame))
    };
    let targets = fit.targets.iter().map(target).collect::<Result<Vec<_>, EngineError>>()?;
    let track = Track { request: &remote.request, params: &params, reader: fit.reader };
    rank.with(|_, reader, cx| reader.track(cx, track, targets)).map_err(EngineError::Refused)
}
