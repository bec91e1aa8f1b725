//! Memory and reads.

use std::sync::Arc;

use lease_proto::{
    frame::Frame,
    id::{Incarnation, Token},
    pieces::{Pieces, PiecesError},
    transport::{Data, ErrorKind, PeerId, Range, ReadId},
};

use crate::{
    UcxError, UcxTransport,
    regions::{Region, Registrar, RemoteRegion},
    sys::Mapped,
    transport::Arrival,
};

/// Memory of `gpu-mem`, the host's or a CUDA device's. What a registration costs is pinning its pages where a fabric reads
/// by itself, and nothing elsewhere; one for a lease alone is pinned for each lease anew, and a reader that comes after its end
/// loses its connection.
impl Data for UcxTransport {
    type Memory = gpu_mem::Memory;
    type Registration = Region;

    fn register(&mut self, memory: gpu_mem::Memory) -> Result<Region, UcxError> {
        self.registrar.register(memory)
    }

    fn register_fenced(&mut self, memory: gpu_mem::Memory) -> Result<Region, UcxError> {
        self.registrar.register_fenced(memory)
    }

    fn fence(&mut self, registration: &Region) -> Result<(), UcxError> {
        self.registrar.fence(registration)
    }

    fn export(&mut self, region: &Region, incarnation: Incarnation, out: &mut [u8]) -> Result<usize, UcxError> {
        self.registrar.export(region, incarnation, out)
    }

    fn read(
        &mut self,
        peer: PeerId,
        token: Token,
        region: Frame<'_>,
        ranges: &[Range],
        into: &Region,
        at: u64,
    ) -> Result<ReadId, UcxError> {
        let (region, ranges, at) = check(&self.registrar, region, ranges, into, at)?;
        self.begin_read(peer, token, &region, ranges, (into.mapped(), at))
    }
}

/// What can be told of a read without its connection: the region, what to read of it, and where to.
pub(crate) fn check<'a>(
    registrar: &Registrar,
    region: Frame<'a>,
    ranges: &[Range],
    into: &Region,
    at: u64,
) -> Result<(RemoteRegion<'a>, Pieces, usize), UcxError> {
    let region = RemoteRegion::decode(region)?;
    registrar.owns(into)?;
    if into.is_fenced() {
        return Err(UcxError::FencedDestination);
    }
    let at = usize::try_from(at).ok().filter(|at| *at <= into.len());
    let at = at.ok_or(PiecesError::Room)?;
    let ranges = Pieces::check(ranges, region.length, (into.len() - at) as u64)?;
    Ok((region, ranges, at))
}

impl UcxTransport {
    /// Begins a read that was checked.
    pub(crate) fn begin_read(
        &mut self,
        peer: PeerId,
        token: Token,
        region: &RemoteRegion<'_>,
        ranges: Pieces,
        into: (&Arc<Mapped>, usize),
    ) -> Result<ReadId, UcxError> {
        let connection = self.peers.connected_mut(peer.0).ok_or(UcxError::NotConnected)?;
        if region.incarnation != connection.incarnation {
            return Err(UcxError::OtherLife);
        }
        let lane = &mut connection.lane;
        self.config.admit_read(lane.open)?;
        let read = self.reads.begin(peer.0, (&connection.endpoint, lane), (token, region), ranges, into)?;
        self.reads.ask(&connection.endpoint, lane, self.config.max_read_bytes);
        Ok(read)
    }

    /// Something came of a read: judges it if it is over, and asks for what is next.
    pub(crate) fn came(&mut self, read: u64, peer: Option<u64>, bytes: usize) {
        let Some(key) = peer else { return };
        if let Some(connection) = self.peers.get_mut(key) {
            connection.lane.came(1, bytes);
        }
        self.go_on(read, key);
    }

    fn go_on(&mut self, read: u64, key: u64) {
        let mut connection = self.peers.get_mut(key);
        let worker = &self.worker;
        let over = self.reads.go_on(read, connection.as_mut().map(|peer| &mut peer.lane), || worker.give_up(read));
        if let Some((read, result)) = over {
            self.inbox.push_back(Arrival::Read(read, result));
        }
        self.ask(key);
    }

    /// All reads of a connection end, once what is landing already has landed.
    pub(crate) fn fail_reads(&mut self, key: u64, why: ErrorKind) {
        if self.reads.is_empty() {
            return;
        }
        for read in self.reads.fail_all(key, why) {
            self.go_on(read, key);
        }
    }

    /// Leaves an owner that is too busy alone for a moment.
    pub(crate) fn pause(&mut self, peer: Option<u64>) {
        let Some(key) = peer else { return };
        if let Some(connection) = self.peers.get_mut(key) {
            connection.lane.pause_for_a_moment();
            if !self.paused.contains(&key) {
                self.paused.push_back(key);
            }
        }
    }

    /// Asks again where a pause is over.
    pub(crate) fn resume(&mut self) {
        for _ in 0..self.paused.len() {
            let Some(key) = self.paused.pop_front() else { return };
            self.ask(key);
            if self.peers.get(key).is_some_and(|peer| peer.lane.is_paused()) {
                self.paused.push_back(key);
            }
        }
    }

    fn ask(&mut self, key: u64) {
        if let Some(connection) = self.peers.connected_mut(key) {
            self.reads.ask(&connection.endpoint, &mut connection.lane, self.config.max_read_bytes);
        }
    }
}

#[cfg(test)]
mod tests;
