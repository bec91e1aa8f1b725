//! Clocks that the caller gives.

use std::{fmt, sync::Arc};

use lease_proto::{clock::SystemClock, time::Instant};
use rustix::time::{ClockId, clock_gettime};

/// A function that tells the time: seconds for [`Server`](super::Server)s, [`Instant`] for [`Client`](super::Client)s.
#[derive(Clone)]
pub struct Clock<T>(Arc<dyn Fn() -> T + Send + Sync>);

impl<T> Clock<T> {
    /// The clock that `now` reads. Called on the background thread; must not block.
    pub fn new(now: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(super) fn now(&self) -> T {
        (self.0)()
    }
}

impl<T> fmt::Debug for Clock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// [`perf_counter`].
impl Default for Clock<f64> {
    fn default() -> Self {
        Self::new(perf_counter)
    }
}

/// [`SystemClock`].
impl Default for Clock<Instant> {
    fn default() -> Self {
        Self::new(|| SystemClock.now())
    }
}

/// What Python's `time.perf_counter()` says on Linux, and so the clock of the deadlines that a vLLM process stamps: `CLOCK_MONOTONIC` in
/// seconds.
pub fn perf_counter() -> f64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
