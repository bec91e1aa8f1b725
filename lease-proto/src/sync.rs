//! Where threads meet: the forward loop, and what works for it in the background.
//!
//! - [`Mailbox`]: a thread that does one slow job after another, for handshakes and other foreign calls.
//! - [`queue`](mod@queue): a bounded queue, for a thread that owns a fabric: commands go in by one, arrivals come out by another.
//!
//! With `--cfg kvlease_loom` loom visits the interleavings of the tests below, and of those of `permits`.

mod mailbox;
pub mod queue;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::{LockResult, PoisonError};

pub use mailbox::{Mailbox, Wanted, WorkerGone};

/// The standard library's, or loom's, which has the same by the same names.
mod primitives {
    #[cfg(kvlease_loom)]
    pub(super) use loom::{
        sync::{Arc, Mutex, MutexGuard, atomic},
        thread,
    };
    #[cfg(not(kvlease_loom))]
    pub(super) use std::{
        sync::{Arc, Mutex, MutexGuard, atomic},
        thread,
    };
}

/// For locks under which nothing is torn when a thread panics: what they guard is whole between any two calls.
fn ignore_poison<T>(locked: LockResult<primitives::MutexGuard<'_, T>>) -> primitives::MutexGuard<'_, T> {
    locked.unwrap_or_else(PoisonError::into_inner)
}
