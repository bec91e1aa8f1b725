//! Handles, and peer processes: this binary, run again.

use std::time::Instant;

use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Control as _, Error as _, ErrorKind, Incoming, PeerId, Ticket},
};
use transport_ucx::UcxThread;

use crate::common::{Got, LANE, PATIENCE, Process, config, framed, hex, unhex, until};

/// Not a test of its own: answers every notification with the same, until its peer is gone.
#[test]
fn a_peer_for_the_others() {
    let Ok(lane) = std::env::var(LANE) else { return };
    let mut handle = spawn(&lane);
    println!("\nmetadata {}", hex(handle.local_metadata()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let metadata = framed(&unhex(line.trim()));
    handle.connect(Frame::decode(&metadata).unwrap()).unwrap();
    let (mut back, mut early) = (None, Vec::new());
    loop {
        match next(&mut handle) {
            Got::Connected(_, peer) => back = Some(peer),
            // Before the connection back has been answered, some may be here already.
            Got::Message(bytes) => early.push(bytes),
            _ => return,
        }
        let Some(back) = back else { continue };
        for bytes in early.drain(..) {
            until("room", || offer(&mut handle, back, &bytes).ok());
        }
    }
}

pub(crate) fn spawn(lane: &str) -> UcxThread {
    UcxThread::spawn(config(lane)).unwrap()
}

pub(crate) fn pair(lane: &str) -> (UcxThread, UcxThread, PeerId) {
    let (mut from, mut to) = (spawn(lane), spawn(lane));
    let peer = connect(&mut from, &mut to);
    (from, to, peer)
}

pub(crate) fn dial(from: &mut UcxThread, to: &UcxThread) -> Ticket {
    let metadata = framed(to.local_metadata());
    from.connect(Frame::decode(&metadata).unwrap()).unwrap()
}

pub(crate) fn connect(from: &mut UcxThread, to: &mut UcxThread) -> PeerId {
    let ticket = dial(from, to);
    match next(from) {
        Got::Connected(resolved, peer) if resolved == ticket => peer,
        other => panic!("expected the connection, got {other:?}"),
    }
}

pub(crate) fn poll(handle: &mut UcxThread) -> Option<Got> {
    Some(match handle.poll().unwrap()? {
        Incoming::Notification { bytes, .. } => Got::Message(bytes.to_vec()),
        Incoming::Connected { ticket, peer } => Got::Connected(ticket, peer),
        Incoming::ConnectFailed { ticket, kind } => Got::ConnectFailed(ticket, kind),
        Incoming::PeerLost { peer } => Got::Lost(peer),
        Incoming::ReadDone { read, result } => Got::Read(read, result),
        other => panic!("expected what a transport gives, got {other:?}"),
    })
}

/// The next thing that comes in, sleeping meanwhile.
pub(crate) fn next(handle: &mut UcxThread) -> Got {
    until("something to come in", || {
        let got = poll(handle);
        if got.is_none() {
            handle.wait(Duration::from_secs(1)).unwrap();
        }
        got
    })
}

pub(crate) fn offer(handle: &mut UcxThread, peer: PeerId, bytes: &[u8]) -> Result<(), ()> {
    handle.notify(peer, bytes).map_err(|error| assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"))
}

/// Sends until the bound of what is in flight is reached for good, and says how many went.
pub(crate) fn fill(handle: &mut UcxThread, peer: PeerId) -> usize {
    let (started, mut since, mut sent) = (Instant::now(), Instant::now(), 0);
    while since.elapsed().as_millis() < 200 {
        if offer(handle, peer, &[sent as u8; 10_000]).is_ok() {
            sent += 1;
            since = Instant::now();
        }
        assert!(started.elapsed() < PATIENCE, "{sent} were taken");
    }
    sent
}

/// A peer process that is connected in both directions.
pub(crate) fn peer_process(lane: &str, handle: &mut UcxThread) -> (Process, PeerId) {
    let mut process = Process::start_as("harness::a_peer_for_the_others", lane);
    process.tell(&hex(handle.local_metadata()));
    let metadata = framed(&process.metadata);
    let ticket = handle.connect(Frame::decode(&metadata).unwrap()).unwrap();
    match next(handle) {
        Got::Connected(resolved, peer) if resolved == ticket => (process, peer),
        got => panic!("expected the connection, got {got:?}"),
    }
}
