//! What passes between the handle and its thread.

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use lease_proto::{
    id::Token,
    pieces::Pieces,
    transport::{ErrorKind, Landed},
};

use crate::{UcxConfig, UcxError, sys::Mapped};

/// What the thread shall do. Connections go by the handle's numbers.
pub(super) enum Command {
    /// Open connection `number` with metadata that is ours, in its frame.
    Connect { number: u64, metadata: Vec<u8>, load: Arc<Load> },
    /// Send.
    Notify { number: u64, bytes: Vec<u8> },
    /// Read.
    Read { number: u64, read: u64, wanted: Wanted },
    /// Forget connection `number`, open or not.
    End { number: u64 },
}

/// A read that was checked. Holds the memory that it goes into.
pub(super) struct Wanted {
    pub(super) token: Token,
    /// In its frame.
    pub(super) region: Vec<u8>,
    pub(super) ranges: Pieces,
    pub(super) into: Arc<Mapped>,
    pub(super) at: usize,
}

/// What came in.
pub(super) enum Arrival {
    Message(Vec<u8>),
    Connected { number: u64, resources: Vec<String> },
    ConnectFailed { number: u64, kind: ErrorKind },
    Lost { number: u64 },
    Read { read: u64, result: Result<Landed, ErrorKind> },
}

/// What was accepted for one peer: notifications that have not left, and reads that are not over.
#[derive(Default)]
pub(super) struct Load {
    ops: AtomicUsize,
    bytes: AtomicUsize,
    reads: AtomicUsize,
    gone: AtomicBool,
}

impl Load {
    /// Accepts a notification, if it is within the bounds of what is in flight.
    pub(super) fn accept(&self, bytes: usize, config: &UcxConfig) -> Result<(), UcxError> {
        // Only the handle adds, so what was seen can only have shrunk.
        config.admit((self.ops(), self.bytes.load(Ordering::Acquire)), bytes)?;
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        self.ops.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// So much has left, or was not accepted after all.
    pub(super) fn settle(&self, ops: usize, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.ops.fetch_sub(ops, Ordering::AcqRel);
    }

    /// Accepts a read, if it is within the bound.
    pub(super) fn accept_read(&self, config: &UcxConfig) -> Result<(), UcxError> {
        config.admit_read(self.reads.load(Ordering::Acquire))?;
        self.reads.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// A read is over, or was not accepted after all.
    pub(super) fn settle_read(&self) {
        self.reads.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) fn ops(&self) -> usize {
        self.ops.load(Ordering::Acquire)
    }

    /// The connection is over, and the handle may not have heard of it yet.
    pub(super) fn lose(&self) {
        self.gone.store(true, Ordering::Release);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// What both sides look at.
#[derive(Default)]
pub(super) struct Shared {
    /// Why the thread ended before its time.
    pub(super) failure: OnceLock<UcxError>,
    /// [`UcxTransport::refused`](crate::UcxTransport::refused).
    pub(super) refused: AtomicUsize,
    pub(super) spares: Spares,
}

/// Buffers kept for reuse, so that a steady flow allocates nothing. Both directions draw on them.
#[derive(Default)]
pub(super) struct Spares(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    buffers: Vec<Vec<u8>>,
    /// Their capacity.
    bytes: usize,
}

/// Buffers kept at most, and their bytes together.
const SPARE: usize = 1024;
const SPARE_BYTES: usize = 4 << 20;

impl Spares {
    /// A buffer with a copy of `bytes`.
    pub(super) fn copy(&self, bytes: &[u8]) -> Vec<u8> {
        let mut kept = self.lock();
        let mut buffer = kept.buffers.pop().unwrap_or_default();
        kept.bytes = kept.bytes.saturating_sub(buffer.capacity());
        drop(kept);
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }

    pub(super) fn recycle(&self, buffer: Vec<u8>) {
        let mut kept = self.lock();
        let bytes = kept.bytes.saturating_add(buffer.capacity());
        if buffer.capacity() > 0 && bytes <= SPARE_BYTES && kept.buffers.len() < SPARE {
            kept.bytes = bytes;
            kept.buffers.push(buffer);
        }
    }

    /// Held while one buffer is moved.
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
