//! Reads.

use std::thread;

use gpu_mem::{HostSlab, Memory};
use lease_proto::{
    frame::Frame,
    id::{Incarnation, Token},
    transport::{Control as _, Data as _, Error as _, ErrorKind, Landed, PeerId, Range},
};
use transport_ucx::{Region, UcxConfig, UcxThread};

use crate::{
    common::{Got, config, framed},
    harness::*,
    on_every_lane,
};

on_every_lane!(
    an_owner_serves_reads_without_being_polled,
    reads_are_checked_at_once_and_bounded,
    a_read_ends_once_and_its_memory_comes_back_whatever_becomes_of_the_peer,
);

const TOKEN: Token = Token { number: 1, nonce: 2 };

fn memory(bytes: usize, fill: impl Fn(usize) -> u8) -> Memory {
    let mut slab = HostSlab::new(bytes).unwrap();
    slab.iter_mut().enumerate().for_each(|(at, byte)| *byte = fill(at));
    Memory::from(slab)
}

/// A region of `owner` as it tells it to `reader`.
fn exported(owner: &mut UcxThread, region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let length = owner.export(region, Incarnation(7), &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

fn an_owner_serves_reads_without_being_polled(lane: &str) {
    const BYTES: usize = 3 << 20;
    let (mut reader, mut owner, peer) = pair(lane);
    // Registered on one thread, exported and read on another.
    let registrar = owner.registrar();
    let region = thread::spawn(move || registrar.register(memory(BYTES, |at| (at % 251) as u8)).unwrap());
    let region = region.join().unwrap();
    let exported = exported(&mut owner, &region);
    let frame = Frame::decode(&exported).unwrap();
    let into = reader.register(memory(BYTES, |_| 0)).unwrap();
    let whole = [Range { offset: 0, length: BYTES as u64 }];

    let denied = reader.read(peer, TOKEN, frame, &whole, &into, 0).unwrap();
    assert_eq!(next(&mut reader), Got::Read(denied, Err(ErrorKind::Rejected)));
    owner.permits().permit(TOKEN);
    let read = reader.read(peer, TOKEN, frame, &whole, &into, 0).unwrap();
    assert_ne!(read, denied);
    assert_eq!(next(&mut reader), Got::Read(read, Ok(Landed::Served)));
    let mut got = vec![0; BYTES];
    into.memory().copy_out(0, &mut got).unwrap();
    assert!(got.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
    assert_eq!(poll(&mut owner), None);
}

fn reads_are_checked_at_once_and_bounded(lane: &str) {
    let few = UcxConfig { max_reads: 3, ..config(lane) };
    let (mut reader, mut owner) = (UcxThread::spawn(few).unwrap(), spawn(lane));
    let peer = connect(&mut reader, &mut owner);
    let (process, stopped) = peer_process(lane, &mut reader);
    let region = owner.register(memory(8192, |_| 1)).unwrap();
    let exported = exported(&mut owner, &region);
    let frame = Frame::decode(&exported).unwrap();
    let into = reader.register(memory(8192, |_| 0)).unwrap();
    let one = [Range { offset: 0, length: 1 }];
    let mut read =
        |peer, frame, ranges: &[Range], at| reader.read(peer, TOKEN, frame, ranges, &into, at).map_err(|error| error.kind());

    let wrong = framed(b"not a region");
    assert_eq!(read(peer, Frame::decode(&wrong).unwrap(), &one, 0), Err(ErrorKind::Invalid));
    assert_eq!(read(peer, frame, &[], 0), Err(ErrorKind::Invalid));
    assert_eq!(read(peer, frame, &[Range { offset: 8192, length: 1 }], 0), Err(ErrorKind::Invalid));
    assert_eq!(read(peer, frame, &one, 8192), Err(ErrorKind::Invalid));
    assert_eq!(read(PeerId(99), frame, &one, 0), Err(ErrorKind::NotConnected));
    // To a process that does not answer: as many as may be open.
    process.stop();
    let open = [(); 3].map(|()| read(stopped, frame, &one, 0).unwrap());
    assert_eq!(read(stopped, frame, &one, 0), Err(ErrorKind::WouldBlock));
    assert!(read(peer, frame, &one, 0).is_ok(), "another peer's");
    assert!(matches!(next(&mut reader), Got::Read(_, Err(ErrorKind::Rejected))));
    reader.disconnect(stopped);
    for expected in open {
        assert_eq!(next(&mut reader), Got::Read(expected, Err(ErrorKind::NotConnected)));
    }
    assert_eq!(poll(&mut reader), None);
}

fn a_read_ends_once_and_its_memory_comes_back_whatever_becomes_of_the_peer(lane: &str) {
    let mut reader = spawn(lane);
    let (mut process, peer) = peer_process(lane, &mut reader);
    let mut owner = spawn(lane); // of a region that the process does not know
    let region = owner.register(memory(1 << 20, |_| 1)).unwrap();
    let exported = exported(&mut owner, &region);
    process.stop();
    let ours = memory(1 << 20, |_| 0);
    let into = reader.register(ours.clone()).unwrap();
    let whole = [Range { offset: 0, length: 1 << 20 }];
    let mut open: Vec<_> =
        (0..50).map(|_| reader.read(peer, TOKEN, Frame::decode(&exported).unwrap(), &whole, &into, 0).unwrap()).collect();
    drop(into);
    process.kill();
    let mut lost = false;
    while !(open.is_empty() && lost) {
        match next(&mut reader) {
            Got::Read(read, Err(ErrorKind::PeerLost)) => open.retain(|open| *open != read),
            got => lost = got == Got::Lost(peer),
        }
    }
    assert_eq!(poll(&mut reader), None);
    drop(reader);
    assert!(ours.try_into_slab().is_ok());
}
