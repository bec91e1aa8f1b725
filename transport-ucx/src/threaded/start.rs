//! How the thread starts, and how it ends.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
};

use lease_proto::{
    permits::Permits,
    sync::queue::{Consumer, Producer},
    transport::{Capabilities, Control as _},
};
use rustix::io::Errno;

use super::{
    progress::Progress,
    shared::{Arrival, Command, Shared},
};
use crate::{Found, Registrar, UcxConfig, UcxError, UcxTransport};

/// What a thread tells when its transport is up.
pub(super) struct Started {
    pub(super) capabilities: Capabilities,
    pub(super) metadata: Vec<u8>,
    pub(super) found: Found,
    pub(super) permits: Permits,
    pub(super) registrar: Registrar,
}

/// What a thread does until its handle is dropped.
pub(super) type Work = fn(&mut Progress) -> Result<(), UcxError>;

/// The progress thread. Dropping it waits until it has ended.
pub(super) struct Joined(Option<thread::JoinHandle<()>>);

pub(super) const PANICKED: UcxError = UcxError::Backend { call: "the progress thread", status: "it panicked" };

/// Starts the thread and waits until its transport is up.
pub(super) fn start(
    config: UcxConfig,
    commands: Consumer<Command>,
    arrivals: Producer<Arrival>,
    shared: Arc<Shared>,
    work: Work,
) -> Result<(Joined, Started), UcxError> {
    let (up, started) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().name("kvlease-ucx".to_owned());
    let thread = thread.spawn(move || run(config, commands, arrivals, &shared, &up, work));
    let thread = thread.map_err(|error| UcxError::Wait(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)))?;
    // A thread that could not start is at its end, so that nothing is waited for.
    let thread = Joined(Some(thread));
    let started = started.recv().map_err(|_| PANICKED)??;
    Ok((thread, started))
}

fn run(
    config: UcxConfig,
    commands: Consumer<Command>,
    arrivals: Producer<Arrival>,
    shared: &Arc<Shared>,
    up: &mpsc::SyncSender<Result<Started, UcxError>>,
    work: Work,
) {
    let transport = match UcxTransport::new(config) {
        Ok(transport) => transport,
        Err(error) => return drop(up.send(Err(error))),
    };
    let started = Started {
        capabilities: transport.capabilities().clone(),
        metadata: transport.local_metadata().to_vec(),
        found: transport.found().clone(),
        permits: transport.permits(),
        registrar: transport.registrar(),
    };
    let mut progress = match Progress::new(transport, commands, arrivals, Arc::clone(shared)) {
        Ok(progress) => progress,
        Err(error) => return drop(up.send(Err(error))),
    };
    if up.send(Ok(started)).is_err() {
        return;
    }
    let failure = match catch_unwind(AssertUnwindSafe(|| work(&mut progress))) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error,
        Err(_) => PANICKED,
    };
    tracing::error!(error = %failure, "the progress thread failed");
    // Before the queues are closed, which is how the handle learns that there is something to be told.
    let _ = shared.failure.set(failure);
}

impl Drop for Joined {
    fn drop(&mut self) {
        // A panic was for `poll` to tell.
        let _ = self.0.take().map(thread::JoinHandle::join);
    }
}
