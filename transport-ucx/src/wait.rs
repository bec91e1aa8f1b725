//! Waiting: by a descriptor, or asleep.

use std::{os::fd::BorrowedFd, time::Instant};

use lease_proto::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::{UcxError, UcxTransport};
#[cfg(doc)]
use lease_proto::transport::Control;

/// UCX looks at its clock in one of so many calls.
pub(crate) const CALLS_PER_LOOK: u64 = 32;
/// While something waits to be sent: nothing tells when a peer's queue in shared memory has room again.
/// So the first looks come at once, and then fewer, down to one in this time.
pub(crate) const RETRY: Duration = Duration::from_nanos(1 << 20);
/// How long it is looked without sleep: about what falling asleep and waking up cost.
const SPIN: std::time::Duration = std::time::Duration::from_micros(20);
/// The first sleep.
const SOON: Duration = Duration::from_nanos(1 << 14);
/// How often a transport that waits for nothing wants to be polled all the same: its descriptor was seen to stay silent when a
/// connection came in over tcp while there was no other.
pub const LOOK: Duration = Duration::from_millis(20);

impl UcxTransport {
    /// A descriptor that becomes readable when [`Control::poll`] may have something. `None` if it may have something now: poll
    /// until it has nothing, then arm again. Good for one wait; sleep no longer than [`Control::next_timeout`] says.
    ///
    /// # Errors
    /// `BackendFailed`.
    pub fn arm(&mut self) -> Result<Option<BorrowedFd<'_>>, UcxError> {
        self.collect();
        self.note_what_is_stuck();
        // What moved without an arrival may go on at once: a part of a message, or what waited to be sent.
        if std::mem::take(&mut self.moved) || !self.inbox.is_empty() || !self.worker.arm()? {
            return Ok(None);
        }
        self.worker.event_fd().map(Some)
    }

    /// Sleeps until [`Control::poll`] may have something, or `timeout` has passed, or the transport has work of its own. For loops
    /// with nothing else to do: a forward loop polls instead.
    ///
    /// # Errors
    /// `BackendFailed`.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), UcxError> {
        // First, since it may leave something to do; on a borrowed worker the engine's own progress may have come by.
        self.collect();
        // Keepalive is left out: its timer is behind the descriptor.
        let timeout = self.own_work().min(timeout);
        if self.worker.outstanding() > 0 && self.stuck.get_or_insert_with(Instant::now).elapsed() < SPIN {
            return Ok(());
        }
        let Some(fd) = self.arm()? else { return Ok(()) };
        // Longer than the type can say is as good as for ever.
        let timeout = Timespec::try_from(std::time::Duration::from(timeout)).ok();
        match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(UcxError::Wait(errno)),
        }
        Ok(())
    }

    /// Before a sleep: since when what waits to be sent does not move.
    pub(crate) fn note_what_is_stuck(&mut self) {
        if self.stuck.is_none() && self.worker.outstanding() > 0 {
            self.stuck = Some(Instant::now());
        }
    }

    /// How long until this transport wants to be polled for its own sake, keepalive aside.
    pub(crate) fn own_work(&self) -> Duration {
        // As long as it has stood still: twice as long each time.
        let soon = self.stuck.and_then(|since| Duration::try_from(since.elapsed()).ok()).unwrap_or(SOON).clamp(SOON, RETRY);
        let retry = (self.worker.outstanding() > 0 || !self.paused.is_empty()).then_some(soon);
        let closing = self.closing.front().map(|(_, deadline)| {
            let left = deadline.saturating_duration_since(Instant::now());
            Duration::try_from(left).unwrap_or(Duration::MAX)
        });
        let alone = self.peers.is_empty().then_some(LOOK);
        retry.into_iter().chain(closing).chain(alone).min().unwrap_or(Duration::MAX)
    }
}
