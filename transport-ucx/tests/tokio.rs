//! Waiting on a tokio runtime.

mod common;

use std::time::Instant;

use common::{Got, PATIENCE, config, dial, framed, poll, transport};
use lease_proto::{
    frame::Frame,
    transport::{Control as _, Incoming, PeerId},
};
use tokio::task::{LocalSet, spawn_local};
use transport_ucx::{UcxThread, UcxTransport};

on_every_lane!(
    two_transports_of_one_runtime_talk,
    a_transport_that_waits_lets_other_tasks_run,
    dropping_a_wait_loses_nothing,
    a_connection_from_nowhere_is_noticed,
    handles_of_threads_are_awaited_like_any_other_future,
);

/// Runs on a runtime of this thread alone, with patience.
fn local<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    LocalSet::new().block_on(&runtime, async { tokio::time::timeout(PATIENCE, test).await.expect("waited in vain") })
}

async fn next(transport: &mut UcxTransport) -> Got {
    loop {
        match poll(transport) {
            Some(got) => return got,
            None => transport.ready().await.unwrap(),
        }
    }
}

/// Connects `from` to `to`, which then answers every notification with the same for ever.
async fn echo(from: &mut UcxTransport, mut to: UcxTransport) -> PeerId {
    let ticket = dial(from, &to);
    let back = framed(from.local_metadata());
    spawn_local(async move {
        to.connect(Frame::decode(&back).unwrap()).unwrap();
        let (mut peer, mut early) = (None, Vec::new());
        loop {
            match next(&mut to).await {
                Got::Connected(_, back) => peer = Some(back),
                Got::Message(bytes) => early.push(bytes),
                got => panic!("{got:?}"),
            }
            if let Some(peer) = peer {
                early.drain(..).for_each(|bytes| to.notify(peer, &bytes).unwrap());
            }
        }
    });
    match next(from).await {
        Got::Connected(resolved, peer) if resolved == ticket => peer,
        got => panic!("expected the connection, got {got:?}"),
    }
}

fn two_transports_of_one_runtime_talk(lane: &str) {
    local(async {
        let mut from = transport(lane);
        let peer = echo(&mut from, transport(lane)).await;
        for n in 0..200u8 {
            let bytes = vec![n; usize::from(n) * 300];
            from.notify(peer, &bytes).unwrap();
            assert!(next(&mut from).await == Got::Message(bytes));
        }
    });
}

fn a_transport_that_waits_lets_other_tasks_run(lane: &str) {
    local(async {
        let mut idle = transport(lane);
        let waiting = spawn_local(async move { next(&mut idle).await });
        let (mut turns, started) = (0, Instant::now());
        while started.elapsed().as_millis() < 100 {
            tokio::task::yield_now().await;
            turns += 1;
        }
        assert!(turns > 100 && !waiting.is_finished());
        waiting.abort();
    });
}

fn dropping_a_wait_loses_nothing(lane: &str) {
    local(async {
        let mut from = transport(lane);
        let peer = echo(&mut from, transport(lane)).await;
        for n in 0..100 {
            from.notify(peer, &[n]).unwrap();
            loop {
                // Given up as soon as it has begun.
                if let Ok(ready) = tokio::time::timeout(std::time::Duration::ZERO, from.ready()).await {
                    ready.unwrap();
                }
                if let Some(got) = poll(&mut from) {
                    assert_eq!(got, Got::Message(vec![n]));
                    break;
                }
            }
        }
    });
}

/// The descriptor stays silent then: the transport has to look by itself.
fn a_connection_from_nowhere_is_noticed(lane: &str) {
    local(async {
        let mut to = transport(lane);
        let metadata = framed(to.local_metadata());
        spawn_local(async move { next(&mut to).await });
        tokio::task::yield_now().await;
        // Its own thread, so that nothing of this runtime moves but what waits.
        let mut from = UcxThread::spawn(config(lane)).unwrap();
        from.connect(Frame::decode(&metadata).unwrap()).unwrap();
        assert!(matches!(from.recv().await.unwrap(), Incoming::Connected { .. }));
    });
}

fn handles_of_threads_are_awaited_like_any_other_future(lane: &str) {
    let workers = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (mut from, mut to) = (UcxThread::spawn(config(lane)).unwrap(), UcxThread::spawn(config(lane)).unwrap());
    let metadata = framed(to.local_metadata());
    let receiver = async move {
        for expected in 0..100u8 {
            let got = to.recv().await.unwrap();
            assert!(matches!(got, Incoming::Notification { bytes, .. } if bytes == [expected]));
        }
        to
    };
    let sender = async move {
        from.connect(Frame::decode(&metadata).unwrap()).unwrap();
        let Incoming::Connected { peer, .. } = from.recv().await.unwrap() else { panic!("expected the connection") };
        for n in 0..100u8 {
            from.notify(peer, &[n]).unwrap();
            tokio::task::yield_now().await;
        }
        from
    };
    workers.block_on(async {
        let both = async { (tokio::spawn(receiver), sender.await) };
        let (receiver, _from) = tokio::time::timeout(PATIENCE, both).await.unwrap();
        tokio::time::timeout(PATIENCE, receiver).await.unwrap().unwrap();
    });
}
