use lease_proto::{
    frame::{Frame, HEADER},
    id::Incarnation,
    time::Duration,
    transport::{Control as _, Error as _, ErrorKind, Incoming},
};

use super::{
    UcxThread,
    shared::Arrival,
    start::{PANICKED, Work},
};
use crate::{UcxConfig, UcxError};

/// A handle of a thread that only does `work`, and metadata that it takes.
fn spawn(config: UcxConfig, work: Work) -> (UcxThread, Vec<u8>) {
    let config = UcxConfig { tls: Some("shm".to_owned()), ..config };
    let handle = UcxThread::spawn_with(config, work).unwrap();
    let mut metadata = vec![0; HEADER + handle.local_metadata().len()];
    Frame::encode(Incarnation(1), handle.local_metadata(), &mut metadata).unwrap();
    (handle, metadata)
}

#[test]
fn a_thread_that_panics_is_heard_of_and_not_waited_for() {
    let (mut handle, metadata) = spawn(UcxConfig::default(), |_| panic!("expected in this test"));
    handle.wait(Duration::MAX).unwrap();
    for _ in 0..2 {
        assert_eq!(handle.poll().unwrap_err(), PANICKED);
    }
    assert_eq!(PANICKED.kind(), ErrorKind::BackendFailed);
    assert_eq!(handle.flush(Duration::ZERO), Err(PANICKED));
    assert_eq!(handle.connect(Frame::decode(&metadata).unwrap()), Err(PANICKED));
    assert_eq!(handle.open.len(), 0);
}

#[test]
fn what_came_in_before_the_thread_failed_is_polled_before_its_failure() {
    let (mut handle, _) = spawn(UcxConfig::default(), |progress| {
        progress.tell(Arrival::Message(b"last".to_vec()));
        Err(UcxError::Wait(rustix::io::Errno::BADF))
    });
    handle.wait(Duration::MAX).unwrap();
    assert!(matches!(handle.poll(), Ok(Some(Incoming::Notification { bytes: b"last", .. }))));
    handle.wait(Duration::MAX).unwrap();
    assert_eq!(handle.poll().unwrap_err(), UcxError::Wait(rustix::io::Errno::BADF));
}

#[test]
fn a_full_queue_of_commands_refuses_all_but_what_ends_something() {
    let config = UcxConfig { max_peers: 2, max_in_flight_ops: 3, max_inbox_messages: 4, ..UcxConfig::default() };
    let (mut handle, metadata) = spawn(config, |progress| {
        progress.tell(Arrival::Connected { number: 0, resources: Vec::new() });
        (0..3).for_each(|_| progress.tell(Arrival::Message(Vec::new())));
        progress.stall()
    });
    let metadata = Frame::decode(&metadata).unwrap();
    // There are 7 places. Each attempt takes one for itself, and one for its end.
    handle.connect(metadata).unwrap();
    handle.wait(Duration::MAX).unwrap();
    let Ok(Some(Incoming::Connected { peer, .. })) = handle.poll() else { panic!("expected the connection") };
    for _ in 0..2 {
        let cancelled = handle.connect(metadata).unwrap();
        handle.cancel(cancelled);
    }
    handle.notify(peer, b"the last place").unwrap();
    let refused = handle.notify(peer, b"no place").unwrap_err();
    assert_eq!((refused, handle.in_flight(peer)), (UcxError::Busy, 1));
    assert_eq!(handle.connect(metadata).unwrap_err().kind(), ErrorKind::WouldBlock);
    handle.disconnect(peer);
    assert_eq!(handle.notify(peer, b"too late"), Err(UcxError::NotConnected));
    assert_eq!(handle.open.len(), 0);
    assert!(!handle.commands.has_room());
    drop(handle); // hangs if it waits for the commands to be carried out
}
