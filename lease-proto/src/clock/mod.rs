//! What may be said about another process's clock, and how far a promise reaches on one's own.
//!
//! Law 7 forbids to compare instants of two clocks; the ways around it are here. [`OffsetWindow`] bounds the offset between two
//! clocks by measurement. [`proof_deadline`] needs no offset: it carries a duration over, so it only needs to know how far
//! two clocks may drift apart. [`VllmOffset`] is the guess that vLLM's wire leaves room for. `SystemClock` (feature `std`,
//! Linux) is a clock for which the drift bounds hold.
//!
//! Drift bounds are parts per million of true time: a clock of bound `r` advances between `(1 - r) * t` and `(1 + r) * t` in the
//! true time `t`. A bound of 1 000 000 or more is no bound at all: then nothing is proven and no offset holds.

mod offset;
mod proof;
#[cfg(all(feature = "std", target_os = "linux"))]
mod system;
mod vllm;

pub use offset::{AbsentDeadline, Added, Gate, LocalSpan, OffsetInterval, OffsetWindow, Sample, WINDOW};
pub use proof::proof_deadline;
#[cfg(all(feature = "std", target_os = "linux"))]
pub use system::SystemClock;
pub use vllm::{VLLM_TURN2_MARGIN, VllmOffset, vllm_turn2_gate};

/// The drift bound that holds for any computer's clock: crystals stay within 100 ppm, and what slews a clock (ntpd, chronyd,
/// the kernel) within 500.
pub const DRIFT_PPM: u32 = 500;

const MILLION: u64 = 1_000_000;
