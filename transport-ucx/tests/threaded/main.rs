//! The transport on its own thread: the scenarios of the others through its handle, and what only it promises.

#[path = "../common/mod.rs"]
mod common;
mod connect;
mod handle;
mod harness;
mod notify;
mod process;
mod reads;
