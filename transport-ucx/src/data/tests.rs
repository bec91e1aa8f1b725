//! Reads out of memory and into memory that the host does not reach, as that of a device: on no road may it be touched by the host.

use std::sync::Arc;

use gpu_mem::{HostSlab, Memory};
use lease_proto::{
    frame::HEADER,
    transport::{Control as _, Incoming, Landed},
};

use super::*;
use crate::{UcxConfig, sys::Asking};

const TOKEN: Token = Token { number: 1, nonce: 2 };
const LENGTH: usize = 256 << 10;

/// A holder with a region of a pattern, and a reader that is connected to it.
struct Pair {
    holder: UcxTransport,
    reader: UcxTransport,
    peer: PeerId,
}

impl Pair {
    fn new(tls: &str) -> Self {
        let transport = || UcxTransport::new(UcxConfig { tls: Some(tls.to_owned()), ..UcxConfig::default() }).unwrap();
        let (mut holder, mut reader) = (transport(), transport());
        holder.permits().permit(TOKEN);
        let mut metadata = vec![0; holder.local_metadata().len() + HEADER];
        Frame::encode(Incarnation(7), holder.local_metadata(), &mut metadata).unwrap();
        reader.connect(Frame::decode(&metadata).unwrap()).unwrap();
        let peer = loop {
            holder.poll().unwrap();
            if let Some(Incoming::Connected { peer, .. }) = reader.poll().unwrap() {
                break peer;
            }
        };
        Self { holder, reader, peer }
    }

    fn begin(&mut self, from: &Region, ranges: &[Range], into: &Region) {
        let mut exported = vec![0; 4096];
        let length = self.holder.export(from, Incarnation(7), &mut exported).unwrap();
        self.reader.read(self.peer, TOKEN, Frame::decode(&exported[..length]).unwrap(), ranges, into, 0).unwrap();
    }

    fn end(&mut self) -> Result<Landed, ErrorKind> {
        loop {
            self.holder.poll().unwrap();
            if let Some(Incoming::ReadDone { result, .. }) = self.reader.poll().unwrap() {
                return result;
            }
        }
    }
}

fn memory(fill: impl Fn(usize) -> u8) -> Memory {
    let mut slab = HostSlab::new(LENGTH).unwrap();
    slab.iter_mut().enumerate().for_each(|(at, byte)| *byte = fill(at));
    slab.into()
}

fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

#[test]
fn what_the_host_does_not_reach_is_read_all_the_same() {
    for tls in ["tcp", "shm"] {
        let mut pair = Pair::new(tls);
        let reached = (pair.holder.register(memory(pattern)).unwrap(), pair.reader.register(memory(|_| 0)).unwrap());
        let holder = pair.holder.registrar().register_out_of_reach(memory(pattern)).unwrap();
        let reader = pair.reader.registrar().register_out_of_reach(memory(|_| 0)).unwrap();
        for (from, into) in [(&holder, &reader), (&holder, &reached.1), (&reached.0, &reader)] {
            // Short enough for a copy, in one part and in several; too long for one.
            for ranges in [&[(1, 4096)][..], &[(7, 100), (4096, 1), (9000, 3000)], &[(0, LENGTH as u64)]] {
                into.memory().copy_in(0, &[0; LENGTH]).unwrap();
                let ranges: Vec<Range> = ranges.iter().map(|&(offset, length)| Range { offset, length }).collect();
                pair.begin(from, &ranges, into);
                assert_eq!(pair.end(), Ok(Landed::Served), "{tls}: {ranges:?}");
                let expected = ranges.iter().flat_map(|range| range.offset..range.offset + range.length);
                let expected: Vec<u8> = expected.map(|at| pattern(at as usize)).collect();
                let mut read = vec![0; expected.len()];
                into.memory().copy_out(0, &mut read).unwrap();
                assert!(read == expected, "{tls}: {ranges:?}");
            }
        }
        assert_eq!((pair.reader.refused(), pair.holder.refused()), (0, 0));
    }
}

#[test]
fn a_copy_for_memory_that_the_host_does_not_reach_is_refused_and_touches_nothing() {
    let mut pair = Pair::new("tcp");
    let from = pair.holder.register(memory(pattern)).unwrap();
    let into = pair.reader.registrar().register_out_of_reach(memory(|_| 0xee)).unwrap();
    // An open read, and under it an ask for a copy, as no reader of this crate sends it.
    pair.begin(&from, &[Range { offset: 0, length: 4096 }], &into);
    let (mapped, read) = (Arc::clone(into.mapped()), 1);
    let asking = Asking { read, token: TOKEN, region: from.id(), settle: true, into: &mapped };
    let parts = [crate::messages::Part { offset: 0, length: 64 }];
    let connection = pair.reader.peers.connected_mut(pair.peer.0).unwrap();
    connection.endpoint.ask(&asking, LENGTH - 64, 64, parts.into_iter());
    assert_eq!(pair.end(), Err(ErrorKind::BackendFailed));
    assert_eq!(pair.reader.refused(), 1);
    let mut untouched = [0; 64];
    into.memory().copy_out(LENGTH - 64, &mut untouched).unwrap();
    assert_eq!(untouched, [0xee; 64]);
}
