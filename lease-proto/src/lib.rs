#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

#[cfg(any(feature = "alloc", test))]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

/// Whether a rule is broken on purpose, for tests of the tests; see `broken.rs`.
#[cfg(kvlease_broken)]
macro_rules! broken {
    ($rule:ident) => {
        crate::broken::broken(crate::broken::Rule::$rule)
    };
}
#[cfg(not(kvlease_broken))]
macro_rules! broken {
    ($rule:ident) => {
        false
    };
}

#[cfg(kvlease_broken)]
pub mod broken;
mod bytes;
pub mod clock;
pub mod config;
pub mod counters;
mod deadlines;
pub mod drive;
pub mod event;
mod fifo;
pub mod frame;
pub mod handshake;
pub mod holder;
pub mod id;
pub mod params;
#[cfg(feature = "std")]
pub mod permits;
#[cfg(any(feature = "alloc", test))]
pub mod pieces;
pub mod reader;
#[cfg(feature = "std")]
pub mod sync;
pub mod table;
pub mod time;
pub mod topology;
pub mod transport;
pub mod wire;
