//! Certifies kvlease transports.

pub mod loopback;
