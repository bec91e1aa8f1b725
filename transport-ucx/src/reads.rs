//! Reads: cut into pieces, asked for a few at a time, judged when the last is there.

use std::{
    collections::{HashMap, VecDeque},
    rc::Rc,
    sync::Arc,
    time::Instant,
};

use lease_proto::{
    id::Token,
    pieces::{Largest, Pieces},
    transport::{ErrorKind, Landed, ReadId},
};

use crate::{
    UcxError,
    messages::{self, Part, Reason},
    regions::RemoteRegion,
    sys::{Asking, Endpoint, Mapped, RemoteKey, Status},
};

/// Long enough that asking costs nothing, short enough that several are under way; as many ranges as one ask can name.
const PIECE: Largest = Largest { bytes: 1 << 20, parts: messages::RANGES };
const _: () = assert!(PIECE.bytes <= messages::PIECE as u64);

/// Up to so many bytes the owner is asked to copy: about where that costs as much as asking once more, in shared memory and elsewhere.
const COPIED_NEAR: usize = 16 << 10;
const COPIED_FAR: usize = 64 << 10;
/// Most answers of an owner that are awaited on one connection, and most one-sided parts, one piece of them aside.
const ANSWERS: usize = 16;
const PARTS: usize = 128;
/// How long an owner that serves too much is left alone.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// All reads that are not over.
#[derive(Default)]
pub(crate) struct Reads {
    open: HashMap<u64, Read>,
    count: u64,
}

/// What a connection's reads share.
#[derive(Default)]
pub(crate) struct Lane {
    /// Reads that are not over.
    pub(crate) open: usize,
    /// Bytes that were asked for and have not come, and in how many answers they will.
    asked: usize,
    answers: usize,
    /// Reads with something left to ask for, in turn.
    turn: VecDeque<u64>,
    /// The owner serves too much until then, or so we hope.
    pause: Option<Instant>,
}

struct Read {
    peer: u64,
    token: Token,
    how: How,
    ranges: Pieces,
    into: Arc<Mapped>,
    at: usize,
    /// Bytes from the start that were asked for.
    asked: usize,
    /// Pieces that the owner was too busy for: where, and how long.
    again: Vec<(usize, usize)>,
    /// Answers that are awaited.
    waiting: usize,
    /// Something came that was not settled when it was sent.
    unsettled: bool,
    failed: Option<ErrorKind>,
    /// Whether it is in its lane's turn.
    queued: bool,
}

#[derive(Clone)]
enum How {
    /// By the owner, out of its region with this number.
    Served(u64),
    /// By the fabric, from this address on.
    OneSided { key: Rc<RemoteKey>, address: u64, landed: Landed },
}

impl How {
    fn most(&self) -> usize {
        match self {
            Self::Served(_) => ANSWERS,
            Self::OneSided { .. } => PARTS,
        }
    }
}

/// What a read wants next.
enum Want {
    Nothing,
    Piece(usize, usize),
    /// To know that the token held until now.
    Check,
}

/// A read that is over.
pub(crate) type Over = (ReadId, Result<Landed, ErrorKind>);

impl Reads {
    /// Begins a read of checked ranges on a connection; it moves with [`Reads::ask`].
    pub(crate) fn begin(
        &mut self,
        peer: u64,
        (endpoint, lane): (&Endpoint, &mut Lane),
        (token, region): (Token, &RemoteRegion<'_>),
        ranges: Pieces,
        (into, at): (&Arc<Mapped>, usize),
    ) -> Result<ReadId, UcxError> {
        let how = if endpoint.fabric().one_sided && region.remote_key.usable().is_some() {
            let key = RemoteKey::unpack(endpoint, region.remote_key)
                .map_err(|status| UcxError::Backend { call: "ucp_ep_rkey_unpack", status: status.text() })?;
            // What goes by shared memory (xpmem) is not revoked by the end of a registration.
            let fenced = region.fenced && !endpoint.fabric().shared_memory;
            let landed = if fenced { Landed::Fenced } else { Landed::OneSided };
            How::OneSided { key: Rc::new(key), address: region.address, landed }
        } else {
            How::Served(region.id)
        };
        self.count = self.count.saturating_add(1);
        let id = self.count;
        let read = Read {
            peer,
            token,
            how,
            ranges,
            into: Arc::clone(into),
            at,
            asked: 0,
            again: Vec::new(),
            waiting: 0,
            unsettled: false,
            failed: None,
            queued: true,
        };
        self.open.insert(id, read);
        lane.open += 1;
        lane.turn.push_back(id);
        Ok(ReadId(id))
    }

    /// Asks for as much of a connection's reads as may be under way.
    pub(crate) fn ask(&mut self, endpoint: &Endpoint, lane: &mut Lane, most: usize) {
        if lane.pause.is_some_and(|until| Instant::now() < until) {
            return;
        }
        lane.pause = None;
        while let Some(&id) = lane.turn.front() {
            let Some(read) = self.open.get_mut(&id) else {
                lane.turn.pop_front();
                continue;
            };
            match read.want() {
                Want::Nothing => {
                    read.queued = false;
                    lane.turn.pop_front();
                }
                // One piece may always be under way.
                Want::Piece(_, length) if lane.is_full(read.how.most(), length, most) => return,
                Want::Piece(start, length) => {
                    read.take(start, length);
                    lane.asked = lane.asked.saturating_add(length);
                    lane.answers = lane.answers.saturating_add(read.request(id, endpoint, start, length));
                }
                Want::Check => {
                    read.unsettled = false;
                    lane.answers = lane.answers.saturating_add(read.request(id, endpoint, 0, 0));
                }
            }
        }
    }

    /// Bytes of a read came, or will not. Returns its connection.
    pub(crate) fn landed(&mut self, id: u64, result: Result<bool, Status>) -> Option<u64> {
        let read = self.open.get_mut(&id)?;
        read.waiting = read.waiting.saturating_sub(1);
        match result {
            Ok(settled) => read.unsettled |= !settled && matches!(read.how, How::Served(_)),
            Err(status) => read.fail(status.kind()),
        }
        Some(read.peer)
    }

    /// An owner does not serve a piece. Returns the connection.
    pub(crate) fn refused(&mut self, id: u64, offset: usize, bytes: usize, reason: Reason) -> Option<u64> {
        let read = self.open.get_mut(&id)?;
        read.waiting = read.waiting.saturating_sub(1);
        match reason {
            Reason::Rejected => read.fail(ErrorKind::Rejected),
            Reason::Invalid => read.fail(ErrorKind::Invalid),
            Reason::Failed => read.fail(ErrorKind::BackendFailed),
            Reason::Busy if bytes == 0 => read.unsettled = true,
            Reason::Busy => read.again.push((offset.saturating_sub(read.at), bytes)),
        }
        Some(read.peer)
    }

    /// Goes on with a read of which something came: over, if nothing is left; else it gets its turn again.
    ///
    /// `give_up` withdraws what still waits to land, and says how many answers and bytes that was.
    pub(crate) fn go_on(&mut self, id: u64, lane: Option<&mut Lane>, give_up: impl FnOnce() -> (usize, usize)) -> Option<Over> {
        let read = self.open.get_mut(&id)?;
        let mut nobody = Lane::default();
        let lane = lane.unwrap_or(&mut nobody);
        if read.failed.is_some() && read.waiting > 0 {
            let (answers, bytes) = give_up();
            read.waiting = read.waiting.saturating_sub(answers);
            lane.came(answers, bytes);
        }
        if !matches!(read.want(), Want::Nothing) {
            if !read.queued {
                read.queued = true;
                lane.turn.push_back(id);
            }
            return None;
        }
        if read.waiting > 0 {
            return None;
        }
        let read = self.open.remove(&id)?;
        lane.open = lane.open.saturating_sub(1);
        let landed = match read.how {
            How::Served(_) => Landed::Served,
            How::OneSided { landed, .. } => landed,
        };
        Some((ReadId(id), read.failed.map_or(Ok(landed), Err)))
    }

    /// The reads of a connection, all of which fail now.
    pub(crate) fn fail_all(&mut self, peer: u64, why: ErrorKind) -> Vec<u64> {
        let mut failed = Vec::new();
        for (id, read) in self.open.iter_mut().filter(|(_, read)| read.peer == peer) {
            read.fail(why);
            failed.push(*id);
        }
        failed.sort_unstable();
        failed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }
}

impl Lane {
    /// So many answers, with so many bytes, have come, or will not.
    pub(crate) fn came(&mut self, answers: usize, bytes: usize) {
        self.answers = self.answers.saturating_sub(answers);
        self.asked = self.asked.saturating_sub(bytes);
    }

    /// Whether a piece of `length` bytes has to wait.
    fn is_full(&self, answers: usize, length: usize, most: usize) -> bool {
        self.answers >= answers || (self.answers > 0 && self.asked.saturating_add(length) > most)
    }

    /// The owner serves too much.
    pub(crate) fn pause_for_a_moment(&mut self) {
        self.pause = Some(Instant::now() + PAUSE);
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.pause.is_some()
    }
}

impl Read {
    fn fail(&mut self, why: ErrorKind) {
        self.failed.get_or_insert(why);
    }

    fn want(&self) -> Want {
        if self.failed.is_some() {
            return Want::Nothing;
        }
        if let Some(&(start, length)) = self.again.last() {
            return Want::Piece(start, length);
        }
        match self.ranges.piece(self.asked as u64, PIECE) as usize {
            0 if self.waiting == 0 && self.unsettled => Want::Check,
            0 => Want::Nothing,
            length => Want::Piece(self.asked, length),
        }
    }

    /// A piece is asked for now.
    fn take(&mut self, start: usize, length: usize) {
        if self.again.pop().is_none() {
            self.asked = start.saturating_add(length);
        }
    }

    /// Asks for a piece; in how many answers it will come.
    fn request(&mut self, id: u64, endpoint: &Endpoint, start: usize, length: usize) -> usize {
        let (place, before) = (self.at.saturating_add(start), self.waiting);
        match self.how.clone() {
            How::Served(region) => {
                let most = if endpoint.fabric().shared_memory { COPIED_NEAR } else { COPIED_FAR };
                // A copy comes into the hands of the host, which cannot pass it on to a device.
                let settle = self.into.is_host() && length <= most;
                let asking = Asking { read: id, token: self.token, region, settle, into: &self.into };
                self.waiting += 1;
                endpoint.ask(&asking, place, length, parts(&self.ranges, start, length));
            }
            How::OneSided { key, address, .. } => {
                let mut place = place;
                for part in parts(&self.ranges, start, length) {
                    let bytes = part.length as usize;
                    self.waiting += 1;
                    endpoint.get(id, &key, address.saturating_add(part.offset), &self.into, place, bytes);
                    place = place.saturating_add(bytes);
                }
            }
        }
        self.waiting - before
    }
}

/// The parts of a piece; no piece is longer than a part can tell.
fn parts(ranges: &Pieces, start: usize, length: usize) -> impl Iterator<Item = Part> {
    let parts = ranges.parts(start as u64, length as u64);
    parts.map(|part| Part { offset: part.offset, length: part.length as u32 })
}
