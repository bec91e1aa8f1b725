//! kvlease over NIXL.
//!
//! Today this crate answers two questions, and neither needs NIXL to be there: which backend a name such as `nixl:UCX` means
//! and whether it can carry heartbeats ([`Backend`]), and where this machine has the NIXL library ([`find`]). It does not load
//! the library and links nothing: the transport itself is not here yet.

mod backend;
mod find;

pub use backend::{Backend, BackendError, Notifications};
pub use find::{LIBRARY, Machine, Nixl, NotFound, Origin, SETTING, find};
