//! What is done on a thread that is used for nothing else.

use gpu_mem::Memory;
use lease_proto::transport::{Control, Data};

/// How a transport that lets any thread register does so on one, where it does. Functions and not a trait, as
/// [`Arm`](super::Arm) is.
#[derive(Debug)]
pub struct Elsewhere<T: Data> {
    /// Registers on a thread of its own; [`on_thread`] helps.
    pub register: fn(&mut T, Memory) -> Registered<T>,
    /// Ends a registration on another.
    pub end: fn(<T as Data>::Registration),
}

// Derived, they would ask the same of the transport.
impl<T: Data> Clone for Elsewhere<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Data> Copy for Elsewhere<T> {}

/// What registering gives.
pub type Registered<T> = Result<<T as Data>::Registration, <T as Control>::Error>;

/// Does something on a fresh thread, and waits for it.
pub fn on_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(f).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}
