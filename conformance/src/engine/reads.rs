//! The reads that an engine has under way: each into a registered destination of its own, verified byte for byte when it is over.

use std::collections::{HashMap, VecDeque};

use gpu_mem::{Kind, Memory};
use lease_proto::{
    frame::Frame,
    id::Token,
    reader::{Handle, ReadOutcome},
    transport::{Data, Error as _, ErrorKind, PeerId, Range, ReadId},
};
use serde_json::{Value, json};

use super::{EngineError, blocks::LEASE_BYTES, pattern::Pattern, transport_error};

/// A request that is tracked, and where its bytes lie.
#[derive(Clone, Debug)]
pub(super) struct Tracked {
    pub(super) handle: Handle,
    pub(super) token: Token,
    /// The frame of its region.
    pub(super) region: Vec<u8>,
    pub(super) ranges: Vec<Range>,
}

/// Reads that wait for room, those under way, and destinations for more.
pub(super) struct Reads<R> {
    /// Of the destinations.
    kind: Kind,
    waiting: VecDeque<(String, PeerId)>,
    /// With the bytes that were asked for.
    under_way: HashMap<ReadId, (String, usize, Landing<R>)>,
    spare: Vec<Landing<R>>,
}

struct Landing<R> {
    registration: R,
    memory: Memory,
}

/// A read that is over, with the event that tells of it.
pub(super) struct Over {
    pub(super) request: String,
    pub(super) outcome: ReadOutcome,
    pub(super) told: Value,
}

impl Over {
    fn failed(request: String, why: &str) -> Self {
        Self { told: json!({"request": request, "outcome": "failed", "why": why}), request, outcome: ReadOutcome::Failed }
    }
}

impl<R> Reads<R> {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, waiting: VecDeque::new(), under_way: HashMap::new(), spare: Vec::new() }
    }

    pub(super) fn want(&mut self, request: String, peer: PeerId) {
        self.waiting.push_back((request, peer));
    }

    /// Starts what the transport has room for; what cannot be started is over.
    pub(super) fn start<T>(&mut self, transport: &mut T, tracked: &HashMap<String, Tracked>) -> Result<Vec<Over>, EngineError>
    where
        T: Data<Memory = Memory, Registration = R>,
    {
        let mut over = Vec::new();
        while let Some((request, peer)) = self.waiting.pop_front() {
            let Some(Tracked { token, region, ranges, .. }) = tracked.get(&request) else { continue };
            let landing = self.landing(transport)?;
            let Ok(region) = Frame::decode(region) else {
                over.push(Over::failed(request, "the parameters name no region"));
                continue;
            };
            match transport.read(peer, *token, region, ranges, &landing.registration, 0) {
                Ok(read) => {
                    let bytes = ranges.iter().map(|range| range.length as usize).sum();
                    self.under_way.insert(read, (request, bytes, landing));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.spare.push(landing);
                    self.waiting.push_front((request, peer));
                    break;
                }
                Err(error) => {
                    self.spare.push(landing);
                    over.push(Over::failed(request, error.kind().name()));
                }
            }
        }
        Ok(over)
    }

    /// A destination that holds nothing of use.
    fn landing<T>(&mut self, transport: &mut T) -> Result<Landing<R>, EngineError>
    where
        T: Data<Memory = Memory, Registration = R>,
    {
        let landing = match self.spare.pop() {
            Some(landing) => landing,
            None => {
                let memory = Memory::allocate(self.kind, LEASE_BYTES)?;
                Landing { registration: transport.register(memory.clone()).map_err(transport_error)?, memory }
            }
        };
        Pattern::of("nothing landed here").write(0, &landing.memory, 0, LEASE_BYTES)?;
        Ok(landing)
    }

    /// The transport is done with a read.
    pub(super) fn landed(&mut self, read: ReadId, outcome: ReadOutcome) -> Result<Over, EngineError> {
        let nobodys = || EngineError::Invalid(format!("expected a read that is under way, got {}", read.0));
        let (request, bytes, landing) = self.under_way.remove(&read).ok_or_else(nobodys)?;
        let name = match outcome {
            ReadOutcome::OneSided => "one_sided",
            ReadOutcome::Served => "served",
            ReadOutcome::Fenced => "fenced",
            ReadOutcome::Failed => "failed",
        };
        let mut told = json!({"request": request, "outcome": name});
        if outcome != ReadOutcome::Failed {
            let whole = Range { offset: 0, length: LEASE_BYTES as u64 };
            let differs = Pattern::of(&request).differs(&[whole], &landing.memory, 0)?;
            told["bytes"] = bytes.into();
            told["matches"] = differs.is_none().into();
        }
        self.spare.push(landing);
        Ok(Over { request, outcome, told })
    }
}
