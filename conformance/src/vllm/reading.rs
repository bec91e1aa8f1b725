//! One request's read on one rank: every part of it under way at once, then verified byte for byte.

use std::collections::{BTreeSet, VecDeque};

use gpu_mem::{HostSlab, Memory};
use lease_proto::{
    frame::{Frame, HEADER},
    id::Token,
    reader::{Handle, ReadOutcome},
    transport::{Data as _, Error as _, ErrorKind, PeerId, ReadId},
};
use serde_json::{Value, json};
use transport_nixl::{NixlTransport, Region};

use super::{
    params::Remote,
    plan::{MOST_BYTES, MOST_PARTS, Misfit, Part, Slice, plan},
    pool::row,
};
use crate::engine::{EngineError, pattern::Pattern, transport_error};

/// Room for the frame of a region.
const LARGEST_REGION: usize = 1024;

/// Where bytes land: registered once, for the largest request so far.
#[derive(Default)]
pub(super) struct Landing(Option<Region>);

impl Landing {
    /// With room for so many bytes, which hold nothing of use.
    fn prepare(&mut self, transport: &mut NixlTransport, bytes: usize) -> Result<(), EngineError> {
        let region = match self.0.take().filter(|region| region.memory().len() >= bytes) {
            Some(region) => region,
            None => transport.register(Memory::from(HostSlab::new(bytes)?)).map_err(transport_error)?,
        };
        Pattern::of("nothing landed here").write(0, region.memory(), 0, bytes)?;
        self.0 = Some(region);
        Ok(())
    }

    fn region(&self) -> Result<&Region, EngineError> {
        self.0.as_ref().ok_or_else(|| EngineError::Invalid("expected memory to land in".into()))
    }
}

/// A read under way.
pub(super) struct Reading {
    pub(super) handle: Handle,
    remote: Remote,
    token: Token,
    parts: Vec<Placed>,
    /// Numbers of parts that were not started.
    waiting: VecDeque<usize>,
    under_way: BTreeSet<ReadId>,
    failed: Option<ErrorKind>,
}

/// A part, whose it is, and where it lands.
struct Placed {
    part: Part,
    peer: PeerId,
    rank: u16,
    frame: Vec<u8>,
    at: usize,
}

/// Why a read cannot be.
pub(super) enum Cannot {
    /// What a peer tells of its memory does not fit.
    Misfit(Misfit),
    /// The connection is gone.
    Gone,
}

impl Reading {
    /// Plans it: `slice` of each block of these ranks.
    ///
    /// # Errors
    /// Why it cannot be.
    pub(super) fn plan(
        transport: &NixlTransport,
        (remote, handle, token): (&Remote, Handle, Token),
        from: impl IntoIterator<Item = (u16, PeerId)>,
        slice: Slice,
    ) -> Result<Self, Cannot> {
        let (mut parts, mut at, mut blocks) = (Vec::new(), 0u64, 0usize);
        for (rank, peer) in from {
            let handshake = transport.handshake(peer).ok_or(Cannot::Gone)?;
            blocks = blocks.saturating_add(handshake.metadata.regions().saturating_mul(remote.blocks.len()));
            if blocks > MOST_PARTS {
                return Err(Cannot::Misfit(Misfit::TooManyParts));
            }
            for part in plan(&handshake.metadata, &remote.blocks, slice).map_err(Cannot::Misfit)? {
                let mut frame = vec![0; LARGEST_REGION + HEADER];
                let length = transport.vllm_region(peer, part.region, &mut frame).map_err(|_| Cannot::Gone)?;
                frame.truncate(length);
                let begin = usize::try_from(at).map_err(|_| Cannot::Misfit(Misfit::TooLarge))?;
                at = at.saturating_add(part.bytes);
                parts.push(Placed { part, peer, rank, frame, at: begin });
            }
            if at > MOST_BYTES {
                return Err(Cannot::Misfit(Misfit::TooLarge));
            }
        }
        let waiting = (0..parts.len()).collect();
        Ok(Self { handle, remote: remote.clone(), token, parts, waiting, under_way: BTreeSet::new(), failed: None })
    }

    pub(super) fn request(&self) -> String {
        self.remote.request.to_string()
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().map(|placed| placed.part.bytes).sum()
    }

    /// Before its first part is started.
    ///
    /// # Errors
    /// No memory for it.
    pub(super) fn prepare(&self, transport: &mut NixlTransport, landing: &mut Landing) -> Result<(), EngineError> {
        landing.prepare(transport, usize::try_from(self.bytes()).unwrap_or(usize::MAX))
    }

    /// Starts what the transport has room for. One part that fails ends it: the others are only waited for.
    ///
    /// # Errors
    /// None but a landing that was not prepared.
    pub(super) fn start(&mut self, transport: &mut NixlTransport, landing: &Landing) -> Result<(), EngineError> {
        while let Some(number) = self.waiting.pop_front() {
            let Some(Placed { part, peer, frame, at, .. }) = self.parts.get(number) else { continue };
            let started = match Frame::decode(frame) {
                Ok(frame) => transport
                    .read(*peer, self.token, frame, &part.from, landing.region()?, *at as u64)
                    .map_err(|error| error.kind()),
                Err(_) => Err(ErrorKind::Invalid),
            };
            match started {
                Ok(read) => drop(self.under_way.insert(read)),
                Err(ErrorKind::WouldBlock) => {
                    self.waiting.push_front(number);
                    break;
                }
                Err(kind) => self.fail(kind),
            }
        }
        Ok(())
    }

    fn fail(&mut self, kind: ErrorKind) {
        self.failed.get_or_insert(kind);
        self.waiting.clear();
    }

    /// The transport is done with a part.
    pub(super) fn landed(&mut self, read: ReadId, outcome: ReadOutcome) {
        if self.under_way.remove(&read) && outcome == ReadOutcome::Failed {
            self.fail(ErrorKind::BackendFailed);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }

    /// What came of it, with the event that tells of it.
    ///
    /// # Errors
    /// None but a landing that was not prepared.
    pub(super) fn verify(&self, landing: &Landing) -> Result<(ReadOutcome, Value), EngineError> {
        let ranks: BTreeSet<u16> = self.parts.iter().map(|placed| placed.rank).collect();
        let mut told = json!({"request": self.request(), "from": ranks});
        if let Some(kind) = self.failed {
            told["outcome"] = "failed".into();
            told["why"] = kind.name().into();
            return Ok((ReadOutcome::Failed, told));
        }
        let memory = landing.region()?.memory();
        let mut wrong = None;
        for Placed { part, rank, at, .. } in &self.parts {
            if wrong.is_none() {
                let differs = row(&self.request(), *rank, part.region).differs(&part.row, memory, *at)?;
                wrong = differs.map(|first| json!({"from": rank, "region": part.region, "byte": first.saturating_sub(*at)}));
            }
        }
        told["outcome"] = "one_sided".into();
        told["bytes"] = self.bytes().into();
        told["matches"] = wrong.is_none().into();
        if let Some(wrong) = wrong {
            told["wrong"] = wrong;
        }
        Ok((ReadOutcome::OneSided, told))
    }
}
