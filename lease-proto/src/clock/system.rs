//! A clock for engines on Linux.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::time::{ClockId, clock_gettime};

use crate::time::Instant;

/// Time asleep as far as readings have shown it, in nanoseconds.
static ASLEEP: AtomicU64 = AtomicU64::new(0);
/// The latest instant that was given out.
static LATEST: AtomicU64 = AtomicU64::new(0);

/// A reading in which BOOTTIME and MONOTONIC lie closer than this is not torn.
const CLOSE: u64 = 20_000;
const TRIES: usize = 4;

/// `CLOCK_MONOTONIC_RAW + (CLOCK_BOOTTIME - CLOCK_MONOTONIC)`: not slewed, so that a drift bound is the crystal's, and counting
/// the time that the machine was suspended, during which peers' leases run on (law 4, case 29). Nobody can set it.
///
/// What the kernel counts as suspended is exact where a counter runs on in suspend, and whole seconds where only the real-time
/// clock does. A virtual machine that is paused may count nothing: see the policy `proof = completion`.
///
/// Readings never go back within a process, on whichever thread they are taken. Costs four reads through the vDSO, some
/// 0.1 µs in all, and no system call where there is a vDSO.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl SystemClock {
    /// Now: an instant between this call's begin and its end.
    pub fn now(self) -> Instant {
        // BOOTTIME is read before MONOTONIC, so their difference is the time asleep or less, less by any preemption in between.
        // It never shrinks, so the largest one seen is kept: a torn reading is then harmless, except the very first one after
        // a suspend, for which a close pair is sought.
        for _ in 0..TRIES {
            let before = read(ClockId::Monotonic);
            let boot = read(ClockId::Boottime);
            let after = read(ClockId::Monotonic);
            ASLEEP.fetch_max(boot.saturating_sub(after), Relaxed);
            if after.saturating_sub(before) < CLOSE {
                break;
            }
        }
        let now = read(ClockId::MonotonicRaw).saturating_add(ASLEEP.load(Relaxed));
        Instant::from_nanos(LATEST.fetch_max(now, Relaxed).max(now))
    }
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let whole = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    whole.saturating_mul(1_000_000_000).saturating_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;
    use std::{thread, vec::Vec};

    #[test]
    fn it_advances_with_true_time() {
        let (before, system) = (SystemClock.now(), std::time::Instant::now());
        thread::sleep(core::time::Duration::from_millis(50));
        let (after, elapsed) = (SystemClock.now(), system.elapsed());
        let measured = after.saturating_since(before);
        assert!(measured >= Duration::from_millis(49), "{measured}");
        assert!(measured <= Duration::try_from(elapsed).unwrap().saturating_add(Duration::from_secs(1)), "{measured}");
    }

    /// What one thread read, no later reading of any thread lies before.
    #[test]
    fn it_never_goes_back_on_any_thread() {
        let latest = AtomicU64::new(0);
        thread::scope(|scope| {
            let run = || {
                for _ in 0..20_000 {
                    let seen = latest.load(core::sync::atomic::Ordering::SeqCst);
                    let now = SystemClock.now().as_nanos();
                    assert!(now >= seen, "{now} after {seen}");
                    latest.fetch_max(now, core::sync::atomic::Ordering::SeqCst);
                }
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            assert!(threads.into_iter().all(|thread| thread.join().is_ok()));
        });
    }
}
