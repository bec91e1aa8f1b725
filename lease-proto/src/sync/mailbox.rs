//! The mailbox between the forward loop and a thread that makes slow foreign calls (a handshake, NIXL's metadata load).
//!
//! One job at a time. The loop never waits: it only uses `try_lock`, and a lock is never held across a job. Which side may touch
//! the job and the result is decided by `turn`, so the locks are free whenever they are asked for; they are there because
//! a cell shared without one needs `unsafe`.
//!
//! ```
//! use lease_proto::sync::Mailbox;
//! let mut mailbox = Mailbox::spawn(|n: u32, _| n * 2)?;
//! assert_eq!(mailbox.start(21), Ok(()));
//! assert_eq!(mailbox.start(22), Err(22)); // single flight
//! let doubled = loop {
//!     if let Some(result) = mailbox.poll() {
//!         break result;
//!     }
//!     std::thread::yield_now(); // a forward pass
//! };
//! assert_eq!(doubled, Ok(42));
//! assert_eq!(mailbox.poll(), None); // seen once
//! # Ok::<(), std::io::Error>(())
//! ```

use core::task::Waker;
use std::{io, string::String, sync::TryLockError};

use super::{
    ignore_poison,
    primitives::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, Ordering},
        thread,
    },
};

/// The loop's turn, nothing posted.
const IDLE: u8 = 0;
/// The thread's turn: a job is posted or runs.
const POSTED: u8 = 1;
/// The loop's turn: the job is over.
const DONE: u8 = 2;

/// The thread ended in a panic of the job; its result will never come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the background thread is gone: a job panicked")]
pub struct WorkerGone;

/// The forward loop's end. Dropping it tells the thread to end after its present job, and does not wait for that.
#[derive(Debug)]
pub struct Mailbox<J, R> {
    shared: Arc<Shared<J, R>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Whether the present job is still wanted, for jobs that can stop early.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a>(&'a AtomicBool);

impl Wanted<'_> {
    /// `false` once the job was cancelled or the mailbox dropped.
    pub fn get(self) -> bool {
        !self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct Shared<J, R> {
    turn: AtomicU8,
    /// Of the job in flight.
    cancelled: AtomicBool,
    closed: AtomicBool,
    gone: AtomicBool,
    job: Mutex<Option<J>>,
    /// `None` when done: it was cancelled before it began.
    result: Mutex<Option<R>>,
    waker: Mutex<Option<Waker>>,
}

impl<J: Send + 'static, R: Send + 'static> Mailbox<J, R> {
    /// Starts a thread that does one job after another. A job that hangs occupies it: then drop this mailbox and spawn another.
    ///
    /// # Errors
    /// The system's, if it gives no thread.
    pub fn spawn(work: impl FnMut(J, Wanted<'_>) -> R + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            turn: AtomicU8::new(IDLE),
            cancelled: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            job: Mutex::new(None),
            result: Mutex::new(None),
            waker: Mutex::new(None),
        });
        let worker = Worker(shared.clone());
        let thread = thread::Builder::new().name(String::from("kvlease-slow")).spawn(move || worker.run(work))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl<J, R> Mailbox<J, R> {
    /// Hands a job over.
    ///
    /// # Errors
    /// The job itself, while another one is in flight (a cancelled one too, until it returns) and once the thread is gone.
    pub fn start(&mut self, job: J) -> Result<(), J> {
        if self.is_cancelled() {
            self.poll(); // the thread may have come back from the cancelled job
        }
        if self.shared.turn.load(Ordering::Acquire) != IDLE || self.shared.gone.load(Ordering::Acquire) {
            return Err(job);
        }
        let Some(mut slot) = try_lock(&self.shared.job) else { return Err(job) };
        *slot = Some(job);
        drop(slot);
        self.shared.cancelled.store(false, Ordering::Release);
        self.shared.turn.store(POSTED, Ordering::Release);
        self.unpark();
        Ok(())
    }

    /// The result of the job in flight, once; `None` if there is no job, it is not done yet, or it was cancelled.
    pub fn poll(&mut self) -> Option<Result<R, WorkerGone>> {
        // Read first: a thread that is gone has set its last turn before.
        let gone = self.shared.gone.load(Ordering::Acquire);
        let outcome = match self.shared.turn.load(Ordering::Acquire) {
            DONE => try_lock(&self.shared.result)?.take().map(Ok),
            POSTED if gone => Some(Err(WorkerGone)),
            _ => return None,
        };
        self.shared.turn.store(IDLE, Ordering::Release);
        outcome.filter(|_| !self.is_cancelled())
    }

    /// Gives the job in flight up: its result will not be seen, but dropped. The waker is still woken once the thread is free.
    pub fn cancel(&mut self) {
        self.shared.cancelled.store(true, Ordering::Release);
    }

    /// Wakes `waker` when the job in flight is over or the thread is gone, at once if that is so already; possibly once more
    /// than needed. Replaces the last one, and is used up by waking.
    pub fn register_waker(&mut self, waker: &Waker) {
        match try_lock(&self.shared.waker) {
            Some(mut slot) => *slot = Some(waker.clone()),
            None => return waker.wake_by_ref(), // the thread is just taking the old one
        }
        if self.shared.turn.load(Ordering::Acquire) == DONE || self.shared.gone.load(Ordering::Acquire) {
            waker.wake_by_ref();
        }
    }

    /// Ends the thread and waits until its present job is over. Not for the forward loop.
    pub fn join(mut self) {
        self.close();
        // A panic of the job was for `poll` to tell.
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }

    fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Acquire)
    }

    fn close(&self) {
        self.shared.cancelled.store(true, Ordering::Release);
        self.shared.closed.store(true, Ordering::Release);
        self.unpark();
    }

    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl<J, R> Drop for Mailbox<J, R> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<J, R> Shared<J, R> {
    fn wake(&self) {
        let waker = ignore_poison(self.waker.lock()).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The thread's end.
struct Worker<J, R>(Arc<Shared<J, R>>);

impl<J, R> Worker<J, R> {
    fn run(self, mut work: impl FnMut(J, Wanted<'_>) -> R) {
        let shared = &*self.0;
        while !shared.closed.load(Ordering::Acquire) {
            if shared.turn.load(Ordering::Acquire) != POSTED {
                thread::park();
                continue;
            }
            let job = ignore_poison(shared.job.lock()).take();
            let wanted = Wanted(&shared.cancelled);
            let result = job.filter(|_| wanted.get()).map(|job| work(job, wanted));
            *ignore_poison(shared.result.lock()) = result;
            shared.turn.store(DONE, Ordering::Release);
            shared.wake();
        }
    }
}

impl<J, R> Drop for Worker<J, R> {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Release);
        self.0.wake();
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests;
