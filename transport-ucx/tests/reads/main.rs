//! Reads between two transports of one thread, served by the owner.

mod bytes;
#[path = "../common/mod.rs"]
mod common;
mod ends;
mod random;
mod rights;
mod sharing;
mod world;
