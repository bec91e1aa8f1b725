//! Transports that break a promise: one around the in-memory fabric, with one flaw.

use std::{collections::HashMap, task::Waker};

use conformance::{
    certify::{MemoryLab, lab::Lab},
    loopback::{Fabric, Loopback, LoopbackError, Region},
};
use gpu_mem::Memory;
use lease_proto::{
    frame::{Frame, HEADER},
    id::{Incarnation, Token},
    permits::Permits,
    time::Duration,
    transport::{Capabilities, Control, Data, Error as _, ErrorKind, Incoming, PeerId, Range, ReadId, Reads, Ticket},
};

/// What is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The last byte of a read is another one.
    WrongByte,
    /// The last range of a read is not read, or its last byte.
    LostPart,
    /// A read is told to be done when its bytes are still under way.
    DoneBeforeTheData,
    /// Bytes land beside the destination, too.
    Spills,
    /// A read that failed is never told.
    ForgetsFailures,
    /// The end of a read is told twice.
    EndsTwice,
    /// What cannot be is accepted.
    RefusesNothing,
    /// Who serves does not hear that a token was withdrawn.
    ServesTheWithdrawn,
    /// It states one-sided reads, and needs the owner.
    NeedsTheOwner,
    /// A fence does nothing.
    FenceWithoutEffect,
    /// A registration that was ended goes on.
    NeverDeregisters,
    /// Memory is held for ever.
    KeepsMemory,
    /// It registers a copy of the memory, and reads into one.
    CopiesMemory,
    /// What would block is accepted, and lost.
    NeverBlocks,
    /// Every read goes to the peer and the region of the first.
    MixesPeers,
}

/// A lab of such transports.
pub(crate) fn flawed(flaw: Flaw) -> Box<dyn Lab> {
    // One function each, as a lab takes it.
    macro_rules! lab {
        ($($name:ident)*) => {
            match flaw {
                $(Flaw::$name => Box::new(MemoryLab::with(7, |fabric| Flawed::open(fabric, Flaw::$name))),)*
            }
        };
    }
    lab!(WrongByte LostPart DoneBeforeTheData Spills ForgetsFailures EndsTwice RefusesNothing ServesTheWithdrawn NeedsTheOwner
        FenceWithoutEffect NeverDeregisters KeepsMemory CopiesMemory NeverBlocks MixesPeers)
}

/// The token of the cases about the transport alone.
const TOKEN: Token = Token { number: 7, nonce: 0x5eed };
/// Polls until late bytes are there.
const LATE: usize = 3;

pub(crate) struct Flawed {
    inner: Loopback,
    flaw: Flaw,
    capabilities: Capabilities,
    /// Where reads under way go: from which byte on, and how many.
    under_way: HashMap<ReadId, (Memory, usize, usize)>,
    late: Option<(usize, Memory, usize, Vec<u8>)>,
    again: Option<Incoming<'static>>,
    kept: Vec<Memory>,
    current: Vec<u8>,
    /// The peer of the first read, and the frame of its region.
    first: Option<(PeerId, Vec<u8>)>,
}

pub(crate) struct FlawedRegion {
    region: Option<Region>,
    memory: Memory,
    one_lease: bool,
    forgotten: bool,
}

impl Drop for FlawedRegion {
    fn drop(&mut self) {
        if self.forgotten {
            std::mem::forget(self.region.take());
        }
    }
}

impl AsRef<Loopback> for Flawed {
    fn as_ref(&self) -> &Loopback {
        &self.inner
    }
}

impl Flawed {
    fn open(fabric: &Fabric, flaw: Flaw) -> (Self, Permits) {
        let served = matches!(flaw, Flaw::ServesTheWithdrawn | Flaw::NeedsTheOwner);
        let inner = if served { fabric.endpoint_served() } else { fabric.endpoint() };
        let mut capabilities = inner.capabilities().clone();
        let mut permits = inner.permits();
        if flaw == Flaw::ServesTheWithdrawn {
            permits.permit(TOKEN);
            permits = Permits::new();
        }
        if flaw == Flaw::NeedsTheOwner {
            capabilities.reads = Reads::OneSided;
            capabilities.reads_need_owner = false;
        }
        let (under_way, kept, current) = (HashMap::new(), Vec::new(), Vec::new());
        (Self { inner, flaw, capabilities, under_way, late: None, again: None, kept, current, first: None }, permits)
    }

    fn wrap(&mut self, memory: Memory, one_lease: bool) -> Result<FlawedRegion, LoopbackError> {
        let memory = if self.flaw == Flaw::CopiesMemory { copied(&memory) } else { memory };
        let region = match one_lease {
            true => self.inner.register_fenced(memory.clone())?,
            false => self.inner.register(memory.clone())?,
        };
        if self.flaw == Flaw::KeepsMemory {
            self.kept.push(memory.clone());
        }
        Ok(FlawedRegion { region: Some(region), memory, one_lease, forgotten: self.flaw == Flaw::NeverDeregisters })
    }

    /// What becomes of the bytes of a read that ended well.
    fn spoil(&mut self, memory: Memory, at: usize, length: usize) {
        match self.flaw {
            Flaw::WrongByte => flip(&memory, at + length - 1),
            Flaw::Spills if at + length < memory.len() => flip(&memory, at + length),
            Flaw::DoneBeforeTheData => {
                let mut bytes = vec![0; length];
                memory.copy_out(at, &mut bytes).unwrap();
                memory.copy_in(at, &vec![0; length]).unwrap();
                self.late = Some((LATE, memory, at, bytes));
            }
            _ => {}
        }
    }
}

fn copied(memory: &Memory) -> Memory {
    let (copy, mut bytes) = (Memory::allocate(memory.kind(), memory.len()).unwrap(), vec![0; memory.len()]);
    memory.copy_out(0, &mut bytes).unwrap();
    copy.copy_in(0, &bytes).unwrap();
    copy
}

fn flip(memory: &Memory, at: usize) {
    let mut byte = [0];
    memory.copy_out(at, &mut byte).unwrap();
    memory.copy_in(at, &[!byte[0]]).unwrap();
}

/// A frame's own bytes.
fn whole(frame: Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.payload().len() + HEADER];
    Frame::encode(frame.incarnation(), frame.payload(), &mut bytes).unwrap();
    bytes
}

impl Control for Flawed {
    type Error = LoopbackError;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_metadata(&self) -> &[u8] {
        self.inner.local_metadata()
    }

    fn connect(&mut self, metadata: Frame<'_>) -> Result<Ticket, LoopbackError> {
        self.inner.connect(metadata)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.inner.cancel(ticket);
    }

    fn notify(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), LoopbackError> {
        match self.inner.notify(peer, bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && self.flaw == Flaw::NeverBlocks => Ok(()),
            other => other,
        }
    }

    fn poll(&mut self) -> Result<Option<Incoming<'_>>, LoopbackError> {
        if let Some((polls, memory, at, bytes)) = self.late.take() {
            match polls.checked_sub(1) {
                Some(polls) => self.late = Some((polls, memory, at, bytes)),
                None => memory.copy_in(at, &bytes).unwrap(),
            }
        }
        if let Some(again) = self.again.take() {
            return Ok(Some(again));
        }
        let (read, result) = match self.inner.poll()? {
            None => return Ok(None),
            Some(Incoming::Notification { from, bytes }) => {
                bytes.clone_into(&mut self.current);
                return Ok(Some(Incoming::Notification { from, bytes: &self.current }));
            }
            Some(Incoming::Connected { ticket, peer }) => return Ok(Some(Incoming::Connected { ticket, peer })),
            Some(Incoming::ConnectFailed { ticket, kind }) => return Ok(Some(Incoming::ConnectFailed { ticket, kind })),
            Some(Incoming::PeerLost { peer }) => return Ok(Some(Incoming::PeerLost { peer })),
            Some(Incoming::ReadDone { read, result }) => (read, result),
            Some(other) => unreachable!("{other:?}"),
        };
        let place = self.under_way.remove(&read);
        if let (Ok(_), Some((memory, at, length))) = (result, place) {
            self.spoil(memory, at, length);
        }
        match (self.flaw, result) {
            (Flaw::ForgetsFailures, Err(_)) => return Ok(None),
            (Flaw::EndsTwice, _) => self.again = Some(Incoming::ReadDone { read, result }),
            _ => {}
        }
        Ok(Some(Incoming::ReadDone { read, result }))
    }

    fn flush(&mut self, budget: Duration) -> Result<(), LoopbackError> {
        self.inner.flush(budget)
    }

    fn in_flight(&self, peer: PeerId) -> usize {
        self.inner.in_flight(peer)
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.inner.disconnect(peer);
    }

    fn register_waker(&mut self, waker: &Waker) -> Result<(), LoopbackError> {
        self.inner.register_waker(waker)
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.inner.next_timeout()
    }
}

impl Data for Flawed {
    type Memory = Memory;
    type Registration = FlawedRegion;

    fn register(&mut self, memory: Memory) -> Result<FlawedRegion, LoopbackError> {
        self.wrap(memory, false)
    }

    fn register_fenced(&mut self, memory: Memory) -> Result<FlawedRegion, LoopbackError> {
        self.wrap(memory, true)
    }

    fn fence(&mut self, registration: &FlawedRegion) -> Result<(), LoopbackError> {
        let region = registration.region.as_ref().expect("it stands");
        let without_effect = self.flaw == Flaw::FenceWithoutEffect && registration.one_lease;
        if without_effect { Ok(()) } else { self.inner.fence(region) }
    }

    fn export(&mut self, region: &FlawedRegion, incarnation: Incarnation, out: &mut [u8]) -> Result<usize, LoopbackError> {
        self.inner.export(region.region.as_ref().expect("it stands"), incarnation, out)
    }

    fn read(
        &mut self,
        peer: PeerId,
        token: Token,
        region: Frame<'_>,
        ranges: &[Range],
        into: &FlawedRegion,
        at: u64,
    ) -> Result<ReadId, LoopbackError> {
        let mut wanted = ranges.to_vec();
        if self.flaw == Flaw::LostPart
            && let Some(last) = wanted.pop()
            && (last.length > 1 || wanted.is_empty())
        {
            let length = last.length.saturating_sub(1).max(1);
            wanted.push(Range { length, ..last });
        }
        let first = (self.flaw == Flaw::MixesPeers).then(|| self.first.get_or_insert_with(|| (peer, whole(region))));
        let (peer, region) = first.map_or((peer, region), |(peer, frame)| (*peer, Frame::decode(frame).expect("a frame")));
        let read = self.inner.read(peer, token, region, &wanted, into.region.as_ref().expect("it stands"), at);
        match read {
            Ok(read) => {
                let length = ranges.iter().map(|range| range.length as usize).sum();
                self.under_way.insert(read, (into.memory.clone(), at as usize, length));
                Ok(read)
            }
            Err(error) if error.kind() == ErrorKind::Invalid && self.flaw == Flaw::RefusesNothing => Ok(ReadId(u64::MAX)),
            Err(error) => Err(error),
        }
    }
}
