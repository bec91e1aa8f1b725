//! What only a handle promises.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
    thread,
};

use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Control as _, Error as _, ErrorKind},
};
use transport_ucx::{UcxConfig, UcxThread};

use crate::{
    common::{self, Got, config, framed, until},
    harness::*,
    on_every_lane,
};

on_every_lane!(
    it_talks_to_a_transport_without_a_thread,
    a_handle_works_on_whatever_thread_it_is,
    an_arrival_wakes_a_waker_once,
    handles_can_be_dropped_in_any_order_in_the_midst_of_everything,
);

#[test]
fn a_transport_that_cannot_start_is_an_error_of_spawn() {
    assert_eq!(UcxThread::spawn(config("no-such-fabric")).err().unwrap().kind(), ErrorKind::Unavailable);
    let wrong = UcxConfig { max_peers: 0, ..config("tcp") };
    assert_eq!(UcxThread::spawn(wrong).err().unwrap().kind(), ErrorKind::Invalid);
}

fn it_talks_to_a_transport_without_a_thread(lane: &str) {
    let (mut threaded, mut plain) = (spawn(lane), common::transport(lane));
    let metadata = framed(plain.local_metadata());
    let ticket = threaded.connect(Frame::decode(&metadata).unwrap()).unwrap();
    let to_plain = until("the connection", || {
        assert_eq!(common::poll(&mut plain), None);
        match poll(&mut threaded)? {
            Got::Connected(resolved, peer) if resolved == ticket => Some(peer),
            got => panic!("{got:?}"),
        }
    });
    let metadata = framed(threaded.local_metadata());
    plain.connect(Frame::decode(&metadata).unwrap()).unwrap();
    let Got::Connected(_, to_threaded) = common::next(&mut plain) else { panic!("expected the connection") };
    threaded.notify(to_plain, b"there").unwrap();
    assert_eq!(common::next(&mut plain), Got::Message(b"there".to_vec()));
    plain.notify(to_threaded, b"and back").unwrap();
    assert_eq!(next(&mut threaded), Got::Message(b"and back".to_vec()));
}

fn a_handle_works_on_whatever_thread_it_is(lane: &str) {
    let (mut from, mut to, peer) = pair(lane);
    for n in 0..20u8 {
        let moved = thread::spawn(move || {
            from.notify(peer, &[n]).unwrap();
            assert_eq!(next(&mut to), Got::Message(vec![n]));
            (from, to)
        });
        (from, to) = moved.join().unwrap();
    }
}

fn an_arrival_wakes_a_waker_once(lane: &str) {
    struct Rung(thread::Thread, AtomicUsize);
    impl Wake for Rung {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(1, Ordering::SeqCst);
            self.0.unpark();
        }
    }
    let (mut from, mut to, peer) = pair(lane);
    let rung = Arc::new(Rung(thread::current(), AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&rung));
    for n in 1..=20 {
        to.register_waker(&waker).unwrap();
        from.notify(peer, b"wake up").unwrap();
        while rung.1.load(Ordering::SeqCst) < n {
            thread::park();
        }
        assert_eq!(poll(&mut to), Some(Got::Message(b"wake up".to_vec())));
        assert_eq!((poll(&mut to), rung.1.load(Ordering::SeqCst)), (None, n));
    }
    // Where something is there, at once.
    from.notify(peer, b"waiting").unwrap();
    to.wait(Duration::MAX).unwrap();
    to.register_waker(&waker).unwrap();
    assert_eq!(rung.1.load(Ordering::SeqCst), 21);
}

fn handles_can_be_dropped_in_any_order_in_the_midst_of_everything(lane: &str) {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (mut a, mut b, mut c) = (spawn(lane), spawn(lane), spawn(lane));
        let to_b = connect(&mut a, &mut b);
        let to_c = connect(&mut b, &mut c);
        let to_a = connect(&mut c, &mut a);
        for _ in 0..50 {
            a.notify(to_b, &[1; 20_000]).unwrap();
            b.notify(to_c, &[2; 20_000]).unwrap();
            c.notify(to_a, &[3; 20_000]).unwrap();
        }
        dial(&mut a, &c);
        b.disconnect(to_c);
        let mut all = [Some(a), Some(b), Some(c)];
        for at in order {
            all[at] = None;
            for handle in all.iter_mut().flatten() {
                poll(handle);
            }
        }
    }
}

/// Tells the process of this test, which is alone in it, that it is the one.
const ALONE: &str = "KVLEASE_UCX_TEST_ALONE";

#[test]
fn spawning_and_dropping_leaves_no_thread_and_no_descriptor() {
    if std::env::var_os(ALONE).is_none() {
        // It counts what the whole process has.
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args(["handle::spawning_and_dropping_leaves_no_thread_and_no_descriptor", "--exact", "--test-threads=1"]);
        assert!(alone.env(ALONE, "").status().unwrap().success());
        return;
    }
    let count = |of: &str| std::fs::read_dir(format!("/proc/self/{of}")).unwrap().count();
    let cycle = |lane| {
        let (mut from, _to, peer) = pair(lane);
        from.notify(peer, b"last words").unwrap();
        if lane == "tcp" {
            from.disconnect(peer);
        }
    };
    // What UCX opens once.
    cycle("tcp");
    cycle("shm");
    let before = || (count("fd"), count("task"));
    let (fds, threads) = before();
    for _ in 0..50 {
        cycle("tcp");
        cycle("shm");
        assert_eq!(before(), (fds, threads));
    }
}
