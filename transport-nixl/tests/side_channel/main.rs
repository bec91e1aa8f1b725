//! Both ends of the side channel, against each other, against what libzmq 4.3.5 says, and against strangers.
#![cfg(feature = "side-channel")]

mod client;
mod peer;
mod server;
