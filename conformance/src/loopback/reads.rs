//! Reads under way. One takes as long as messages there and back; its bytes are those that are there when it ends, so that a late
//! one meets what was written since.
//!
//! A one-sided read ends at the next poll of its reader: its owner may stand still. One that the owner serves ends at the next
//! poll of its owner, who asks its permits before and after. Over a cut link neither gets on: it waits until the link is healed or
//! its owner is gone, as a fabric that retries does.

use gpu_mem::Memory;
use lease_proto::{
    id::Token,
    time::Instant,
    transport::{ErrorKind, Landed, PeerId, Range, ReadId},
};

use super::{
    EndpointId,
    state::{Arrived, Link, State},
};

/// Reads that one endpoint may have under way.
const MOST_READS: usize = 64;
/// Bytes that are moved at once.
const PIECE: usize = 65_536;

/// What a reader wants.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) token: Token,
    pub(super) key: u64,
    /// Inside the region as it was exported.
    pub(super) ranges: Vec<Range>,
    /// Where they go, and from which byte on.
    pub(super) into: (Memory, usize),
}

/// A read under way.
#[derive(Debug)]
pub(super) struct Reading {
    id: ReadId,
    reader: EndpointId,
    peer: PeerId,
    owner: EndpointId,
    /// It takes at least until then.
    due: Instant,
    wanted: Wanted,
}

impl State {
    pub(super) fn read(&mut self, reader: EndpointId, peer: PeerId, wanted: Wanted) -> Result<ReadId, ErrorKind> {
        let owner = self.peer(reader, peer).ok_or(ErrorKind::NotConnected)?;
        if self.reads.iter().filter(|reading| reading.reader == reader).count() >= MOST_READS {
            return Err(ErrorKind::WouldBlock);
        }
        let [there, back] = [(reader, owner), (owner, reader)].map(|(from, to)| self.lane(Link { from, to }).fault.delay);
        let (id, due) = (ReadId(self.number()), self.now.saturating_add(there).saturating_add(back));
        self.reads.push(Reading { id, reader, peer, owner, due, wanted });
        self.wake_who_has_mail();
        Ok(id)
    }

    /// When the next read that gets on will be due.
    pub(super) fn next_read(&self) -> Option<Instant> {
        self.reads.iter().filter(|reading| !self.is_cut(reading.reader, reading.owner)).map(|reading| reading.due).min()
    }

    /// Whether a poll of this endpoint would move a read on.
    pub(super) fn has_reads(&self, id: EndpointId) -> bool {
        self.reads.iter().any(|reading| self.is_moved_by(reading, id))
    }

    fn is_moved_by(&self, reading: &Reading, id: EndpointId) -> bool {
        let mover = if self.permits(reading.owner).is_some() { reading.owner } else { reading.reader };
        mover == id && reading.due <= self.now && !self.is_cut(reading.reader, reading.owner)
    }

    /// Ends the reads that a poll of this endpoint moves.
    pub(super) fn move_reads(&mut self, id: EndpointId) {
        while let Some(at) = self.reads.iter().position(|reading| self.is_moved_by(reading, id)) {
            let reading = self.reads.remove(at);
            let result = self.land(&reading);
            self.end(&reading, result);
        }
    }

    /// The reader forgets this peer.
    pub(super) fn end_reads_over(&mut self, reader: EndpointId, peer: PeerId) {
        self.end_reads(|reading| reading.reader == reader && reading.peer == peer, ErrorKind::NotConnected);
    }

    /// An endpoint is gone.
    pub(super) fn end_reads_of(&mut self, gone: EndpointId) {
        self.reads.retain(|reading| reading.reader != gone);
        self.end_reads(|reading| reading.owner == gone, ErrorKind::PeerLost);
    }

    fn end_reads(&mut self, over: impl Fn(&Reading) -> bool, kind: ErrorKind) {
        while let Some(at) = self.reads.iter().position(&over) {
            let reading = self.reads.remove(at);
            self.end(&reading, Err(kind));
        }
    }

    fn end(&mut self, reading: &Reading, result: Result<Landed, ErrorKind>) {
        self.arrive(reading.reader, Arrived::ReadDone { read: reading.id, result });
    }

    fn land(&self, Reading { owner, wanted, .. }: &Reading) -> Result<Landed, ErrorKind> {
        let source = self.memories.readable(wanted.key, *owner).ok_or(ErrorKind::Rejected)?;
        let permits = self.permits(*owner);
        let permitted = || permits.is_none_or(|permits| permits.holds(wanted.token));
        if !permitted() {
            return Err(ErrorKind::Rejected);
        }
        // A region that was exported larger than it is was altered on its way.
        gather(&source.memory, wanted).ok_or(ErrorKind::Rejected)?;
        match permits {
            _ if !permitted() => Err(ErrorKind::Rejected),
            Some(_) => Ok(Landed::Served),
            None if source.one_lease => Ok(Landed::Fenced),
            None => Ok(Landed::OneSided),
        }
    }
}

fn gather(source: &Memory, Wanted { ranges, into: (into, at), .. }: &Wanted) -> Option<()> {
    let (mut at, mut piece) = (*at, vec![0; PIECE]);
    for range in ranges {
        let start = usize::try_from(range.offset).ok()?;
        let end = start.checked_add(usize::try_from(range.length).ok()?)?;
        for start in (start..end).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(end - start)];
            source.copy_out(start, piece).ok()?;
            into.copy_in(at, piece).ok()?;
            at += piece.len();
        }
    }
    Some(())
}
