//! A waker with a descriptor: who sleeps in `poll` hears it.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    task::{Wake, Waker},
};

use lease_proto::time::Duration;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::UcxError;

pub(super) struct Doorbell {
    bell: Arc<Bell>,
    waker: Waker,
}

struct Bell(OwnedFd);

impl Doorbell {
    pub(super) fn new() -> Result<Self, UcxError> {
        let bell = Arc::new(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(UcxError::Wait)?));
        Ok(Self { waker: Waker::from(Arc::clone(&bell)), bell })
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Readable from a ring until [`Doorbell::silence`].
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.0.as_fd()
    }

    pub(super) fn silence(&self) {
        // Fails where it has not rung.
        let _ = rustix::io::read(&self.bell.0, &mut [0; 8]);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Fails, and does not wait, where the count of rings is at its end: then it is readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Sleeps until one of `fds` is readable or `timeout` has passed.
pub(super) fn sleep(fds: &mut [PollFd<'_>], timeout: Duration) -> Result<(), UcxError> {
    // Longer than the type can say is as good as for ever.
    let timeout = Timespec::try_from(std::time::Duration::from(timeout)).ok();
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(UcxError::Wait(errno)),
    }
}

pub(super) fn readable<'a>(fd: &'a BorrowedFd<'_>) -> PollFd<'a> {
    PollFd::new(fd, PollFlags::IN)
}
