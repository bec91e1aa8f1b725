//! What connections cost. One test, because it counts what the whole process has open.

mod common;

use common::{Got, connect, dial, poll, transport, until};
use lease_proto::{time::Duration, transport::Control as _};
use transport_ucx::LOOK;

#[test]
fn connecting_and_disconnecting_leaves_nothing_open() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let none = descriptors();
    for lane in ["tcp", "shm"] {
        let (mut from, mut to) = (transport(lane), transport(lane));
        // Besides both workers: what UCX opens once, with the first connection.
        let allowed = descriptors() + 4;
        for _ in 0..5 {
            for _ in 0..50 {
                let cancelled = dial(&mut from, &to);
                from.cancel(cancelled);
                let peer = connect(&mut from, &mut to);
                from.notify(peer, b"last words").unwrap();
                from.disconnect(peer);
                until("the notification and the end of the connection", || {
                    assert_eq!(poll(&mut from), None);
                    poll(&mut to).map(|got| assert_eq!(got, Got::Message(b"last words".to_vec())))
                });
            }
            // The far end of a closed connection goes when its keepalive finds nobody there.
            until("both sides to let go", || {
                for transport in [&mut from, &mut to] {
                    assert_eq!(poll(transport), None);
                    transport.wait(Duration::from_millis(1)).unwrap();
                }
                (from.next_timeout() == Some(LOOK) && descriptors() <= allowed).then_some(())
            });
        }
        drop((from, to));
        assert_eq!(descriptors(), none);
    }
}
