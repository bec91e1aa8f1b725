//! Reads: cut into pieces, a few under way at a time, each over once all of its pieces are.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use lease_proto::{
    pieces::{Largest, Pieces},
    transport::{ErrorKind, Landed, ReadId},
};

use crate::{
    Failure, NixlConfig,
    metadata::Place,
    sys::{Agent, Registered, Transfer},
};

/// Ranges of one piece.
const PARTS: usize = 1024;

/// A read that is open.
pub(crate) struct Read {
    pub(crate) peer: u64,
    pub(crate) agent: Arc<str>,
    /// What has to be known of the region before; `None` once it is.
    pub(crate) needs: Option<Arc<[u8]>>,
    /// Where the region begins in the peer's memory.
    pub(crate) address: u64,
    /// In which memory of the peer's.
    pub(crate) from: Place,
    pub(crate) pieces: Pieces,
    pub(crate) into: Arc<Registered>,
    pub(crate) at: usize,
    /// Bytes that were asked for.
    asked: u64,
    under_way: usize,
    failed: Option<ErrorKind>,
}

/// What happened to an agent's transfers.
pub(crate) enum Moved {
    /// One began.
    Began(Arc<str>),
    /// One is over.
    Over(Arc<str>),
    /// One failed, and with it, as far as NIXL tells, the connection.
    Failed(Arc<str>),
    /// A read is over.
    Read(ReadId, Result<Landed, ErrorKind>),
}

/// All that are open.
#[derive(Default)]
pub(crate) struct Reads {
    open: BTreeMap<u64, Read>,
    per_peer: HashMap<u64, usize>,
    /// With a piece to ask for, in turns.
    ready: VecDeque<u64>,
    /// Under way, oldest first, each with its read.
    transfers: VecDeque<(u64, Transfer)>,
}

impl Read {
    pub(crate) fn new(
        peer: u64,
        agent: Arc<str>,
        region: (Option<Arc<[u8]>>, u64, Place),
        pieces: Pieces,
        into: (Arc<Registered>, usize),
    ) -> Self {
        let (needs, address, from) = region;
        Self { peer, agent, needs, address, from, pieces, into: into.0, at: into.1, asked: 0, under_way: 0, failed: None }
    }

    fn is_over(&self) -> bool {
        self.under_way == 0 && (self.failed.is_some() || self.asked >= self.pieces.len())
    }
}

impl Reads {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Transfers that are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.transfers.len()
    }

    /// Reads of a peer that are open.
    pub(crate) fn of(&self, peer: u64) -> usize {
        self.per_peer.get(&peer).copied().unwrap_or(0)
    }

    pub(crate) fn begin(&mut self, id: u64, read: Read) {
        *self.per_peer.entry(read.peer).or_default() += 1;
        if read.needs.is_none() {
            self.ready.push_back(id);
        }
        self.open.insert(id, read);
    }

    /// What reads wait for is known, or will never be.
    pub(crate) fn learnt(&mut self, agent: &str, region: &[u8], known: Result<(), ErrorKind>, told: &mut Vec<Moved>) {
        let mut failed = Vec::new();
        for (id, read) in &mut self.open {
            if *read.agent != *agent || read.needs.as_deref() != Some(region) {
                continue;
            }
            read.needs = None;
            match known {
                Ok(()) => self.ready.push_back(*id),
                Err(why) => {
                    read.failed.get_or_insert(why);
                    failed.push(*id);
                }
            }
        }
        failed.into_iter().for_each(|id| self.judge(id, told));
    }

    /// No more is asked for by the reads of these peers; each ends once nothing of it is under way.
    pub(crate) fn fail(&mut self, of: impl Fn(u64) -> bool, why: ErrorKind, told: &mut Vec<Moved>) {
        let reads: Vec<u64> = self.open.iter().filter(|(_, read)| of(read.peer)).map(|(id, _)| *id).collect();
        for id in reads {
            if let Some(read) = self.open.get_mut(&id) {
                read.failed.get_or_insert(why);
                read.needs = None;
            }
            self.judge(id, told);
        }
    }

    /// Looks at what is under way, and asks for more, but of agents that are held.
    pub(crate) fn go_on(&mut self, agent: &Agent, config: &NixlConfig, is_held: impl Fn(&str) -> bool, told: &mut Vec<Moved>) {
        self.look(agent, told);
        let largest = Largest { bytes: config.max_piece as u64, parts: PARTS };
        // What is copied before the call returns takes the loop's own time.
        let mut copied = 0;
        let mut held = 0;
        while self.transfers.len() < config.max_pieces && copied < config.max_piece as u64 && held < self.ready.len() {
            let Some(id) = self.ready.pop_front() else { return };
            let Some(read) = self.open.get_mut(&id) else { continue };
            if is_held(&read.agent) && read.failed.is_none() {
                self.ready.push_back(id);
                held += 1;
                continue;
            }
            let length = read.pieces.piece(read.asked, largest);
            if read.failed.is_some() || length == 0 {
                continue;
            }
            let address = read.address;
            let parts = read.pieces.parts(read.asked, length).map(|part| (address.saturating_add(part.offset), part.length));
            let at = read.at.saturating_add(read.asked as usize);
            match agent.read(&read.agent, parts, read.from, &read.into, at) {
                Ok(transfer) => {
                    read.asked = read.asked.saturating_add(length);
                    match transfer {
                        Some(transfer) => {
                            read.under_way += 1;
                            told.push(Moved::Began(Arc::clone(&read.agent)));
                            self.transfers.push_back((id, transfer));
                        }
                        None => copied = copied.saturating_add(length),
                    }
                    if read.asked < read.pieces.len() {
                        self.ready.push_back(id);
                    }
                }
                Err(failure) => self.broke(id, failure, told),
            }
            self.judge(id, told);
        }
    }

    /// Which transfers are over.
    fn look(&mut self, agent: &Agent, told: &mut Vec<Moved>) {
        for _ in 0..self.transfers.len() {
            let Some((id, transfer)) = self.transfers.pop_front() else { return };
            let is_over = agent.is_over(&transfer);
            if is_over == Ok(false) {
                self.transfers.push_back((id, transfer));
                continue;
            }
            let read = self.open.get_mut(&id);
            told.extend(read.as_ref().map(|read| Moved::Over(Arc::clone(&read.agent))));
            if is_over == Err(Failure::Unknown) {
                // Somebody made the agent forget its peer meanwhile: NIXL goes on writing, and tells nothing any more. So the destination
                // is never given back, and the read's end never told.
                tracing::error!(
                    read = id,
                    "a peer was forgotten under a read, whose destination is lost: let only the transport forget its peers"
                );
                drop(transfer);
                self.broke(id, Failure::Unknown, told);
                continue;
            }
            transfer.end();
            if let Some(read) = read {
                read.under_way = read.under_way.saturating_sub(1);
            }
            if let Err(failure) = is_over {
                self.broke(id, failure, told);
            }
            self.judge(id, told);
        }
    }

    fn broke(&mut self, id: u64, failure: Failure, told: &mut Vec<Moved>) {
        let Some(read) = self.open.get_mut(&id) else { return };
        read.failed.get_or_insert(match failure {
            Failure::Invalid => ErrorKind::Rejected,
            Failure::Unknown | Failure::Backend => ErrorKind::PeerLost,
        });
        if failure != Failure::Invalid {
            told.push(Moved::Failed(Arc::clone(&read.agent)));
        }
    }

    /// Ends a read whose pieces are all over.
    fn judge(&mut self, id: u64, told: &mut Vec<Moved>) {
        if !self.open.get(&id).is_some_and(Read::is_over) {
            return;
        }
        let Some(read) = self.open.remove(&id) else { return };
        if let Some(count) = self.per_peer.get_mut(&read.peer) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.per_peer.remove(&read.peer);
            }
        }
        told.push(Moved::Read(ReadId(id), read.failed.map_or(Ok(Landed::OneSided), Err)));
    }

    /// Drops what is left; transfers under way keep their memory for good. Returns how many.
    pub(crate) fn clear(&mut self) -> usize {
        let left = self.transfers.len();
        *self = Self::default();
        left
    }
}
