//! A reader and an owner of one thread. Because the owner moves only when it is polled here, each test chooses the moment at which
//! something happens to a read.

use std::collections::HashMap;

use lease_proto::{
    frame::Frame,
    id::Token,
    transport::{Data as _, ErrorKind, Landed, PeerId, Range, ReadId},
};
use transport_ucx::{Region, UcxConfig, UcxError, UcxTransport};

use crate::common::{Got, TOKEN, bytes_of, connect, exported, pair, patterned, poll, until, zeroed};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const SERVED: Result<Landed, ErrorKind> = Ok(Landed::Served);

/// A reader that is connected to an owner with a region that anybody with [`TOKEN`] may read.
pub(crate) struct World {
    pub(crate) reader: UcxTransport,
    pub(crate) owner: UcxTransport,
    pub(crate) peer: PeerId,
    pub(crate) region: Region,
    pub(crate) exported: Vec<u8>,
    pub(crate) into: Region,
}

impl World {
    pub(crate) fn new(lane: &str, length: u64) -> Self {
        Self::of(pair(lane), length)
    }

    pub(crate) fn with(reader: UcxConfig, owner: UcxConfig, length: u64) -> Self {
        let (mut reader, mut owner) = (UcxTransport::new(reader).unwrap(), UcxTransport::new(owner).unwrap());
        let peer = connect(&mut reader, &mut owner);
        Self::of((reader, owner, peer), length)
    }

    pub(crate) fn of((mut reader, mut owner, peer): (UcxTransport, UcxTransport, PeerId), length: u64) -> Self {
        let region = owner.register(patterned(length as usize)).unwrap();
        let exported = exported(&mut owner, &region);
        owner.permits().permit(TOKEN);
        let into = reader.register(zeroed(length as usize)).unwrap();
        Self { reader, owner, peer, region, exported, into }
    }

    pub(crate) fn try_read(&mut self, token: Token, ranges: &[Range], at: u64) -> Result<ReadId, UcxError> {
        let region = Frame::decode(&self.exported).unwrap();
        self.reader.read(self.peer, token, region, ranges, &self.into, at)
    }

    pub(crate) fn read(&mut self, ranges: &[Range], at: u64) -> ReadId {
        self.try_read(TOKEN, ranges, at).unwrap()
    }

    /// Polls both once, the owner first.
    pub(crate) fn step(&mut self) -> Option<Got> {
        assert_eq!(poll(&mut self.owner), None);
        poll(&mut self.reader)
    }

    /// How a read ends, which is what comes in next.
    pub(crate) fn done(&mut self, read: ReadId) -> Result<Landed, ErrorKind> {
        until("the read", || {
            self.step().map(|got| match got {
                Got::Read(done, result) if done == read => result,
                other => panic!("expected the end of {read:?}, got {other:?}"),
            })
        })
    }

    /// How all these reads end, which is all that comes in.
    pub(crate) fn all_done(&mut self, mut open: Vec<ReadId>) -> Vec<Result<Landed, ErrorKind>> {
        let mut results = HashMap::new();
        let reads = open.clone();
        until("the reads", || {
            if let Some(got) = self.step() {
                let Got::Read(read, result) = got else { panic!("expected the end of a read, got {got:?}") };
                let at = open.iter().position(|open| *open == read).expect("a read ends once");
                open.swap_remove(at);
                results.insert(read.0, result);
            }
            open.is_empty().then_some(())
        });
        reads.iter().map(|read| results[&read.0]).collect()
    }

    pub(crate) fn landed(&self, at: u64, length: u64) -> Vec<u8> {
        bytes_of(self.into.memory(), at as usize, length as usize)
    }

    /// Nothing moves any more that could come in.
    pub(crate) fn settle(&mut self) {
        for _ in 0..50 {
            assert_eq!(self.step(), None);
        }
    }
}
