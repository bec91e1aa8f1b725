//! A short bounded queue that can be hashed, as a model checker wants of all state.

use core::hash::{Hash, Hasher};

use heapless::Deque;

/// At most `N` things, first in, first out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fifo<T, const N: usize>(Deque<T, N>);

impl<T, const N: usize> Fifo<T, N> {
    pub(crate) const fn new() -> Self {
        Self(Deque::new())
    }

    /// Gives the value back if there is no room.
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        self.0.push_back(value)
    }

    /// Takes in what there is, if there is room.
    pub(crate) fn push_some(&mut self, value: Option<T>) {
        if let Some(value) = value {
            let _ = self.0.push_back(value);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.0.pop_front()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.is_full()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Hash, const N: usize> Hash for Fifo<T, N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.len().hash(state);
        self.0.iter().for_each(|value| value.hash(state));
    }
}
