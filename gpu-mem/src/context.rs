//! The CUDA context that memory needs on a thread that touches it.

use std::sync::Arc;

use crate::{MemoryError, sys::cuda};

/// The primary context of the device that some memory lies on. Whoever registers that memory, moves a transport that reads or writes
/// it, or ends its registration, [`enter`](Context::enter)s it first: CUDA's state is a thread's own, and a library that asks CUDA on
/// a thread without a context fails or crashes (case 65).
///
/// It is the context that engines use too, unless they made one of their own. It lives as long as one of its users does.
#[derive(Clone, Debug)]
pub struct Context(pub(crate) Arc<cuda::Primary>);

impl Context {
    /// Makes it this thread's until what is returned is dropped. Costs two calls of the driver, some 100 ns.
    ///
    /// # Errors
    /// `Driver`, if the driver refuses: the device was lost.
    pub fn enter(&self) -> Result<Entered<'_>, MemoryError> {
        self.0.push().map(|pushed| Entered { _pushed: pushed })
    }
}

/// A context is current on this thread. Not `Send`: it ends where it began. Of several the last one entered must be dropped first.
///
/// ```compile_fail
/// fn elsewhere(entered: gpu_mem::Entered<'static>) {
///     std::thread::spawn(move || drop(entered));
/// }
/// ```
#[derive(Debug)]
#[must_use = "the context is left when this is dropped"]
pub struct Entered<'c> {
    _pushed: cuda::Pushed<'c>,
}
