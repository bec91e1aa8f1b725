//! A queue of table entries that runs through links inside them: what has something to send, in the order of becoming so.

use super::leg::NIL;
use crate::table::{Entry, Slots, Table};

/// An entry that can wait in a [`Queue`]: `None` while it does not, else the number of the next one, or [`NIL`].
pub(super) trait Waits: Entry {
    fn link(&mut self) -> &mut Option<u32>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
}

impl Queue {
    pub(super) const EMPTY: Self = Self { head: NIL, tail: NIL };

    pub(super) fn first(&self) -> u32 {
        self.head
    }

    /// Puts an entry at the end, unless it waits already.
    pub(super) fn push<T: Waits, S: Slots<T>>(&mut self, table: &mut Table<T, S>, index: u32) {
        let Some(link) = table.get_mut(index).map(T::link).filter(|link| link.is_none()) else { return };
        *link = Some(NIL);
        match table.get_mut(core::mem::replace(&mut self.tail, index)).map(T::link) {
            Some(last) => *last = Some(index),
            None => self.head = index,
        }
    }

    /// Takes the first one out.
    pub(super) fn pop<T: Waits, S: Slots<T>>(&mut self, table: &mut Table<T, S>) -> Option<u32> {
        let first = self.head;
        self.head = table.get_mut(first)?.link().take().unwrap_or(NIL);
        if self.head == NIL {
            *self = Self::EMPTY;
        }
        Some(first)
    }

    /// Takes an entry out, wherever it waits.
    pub(super) fn remove<T: Waits, S: Slots<T>>(&mut self, table: &mut Table<T, S>, index: u32) {
        if table.get_mut(index).is_none_or(|entry| entry.link().is_none()) {
            return;
        }
        let (mut before, mut at) = (NIL, self.head);
        while let Some(next) = table.get_mut(at).and_then(|entry| *entry.link()) {
            if at != index {
                (before, at) = (at, next);
                continue;
            }
            match table.get_mut(before) {
                Some(entry) => *entry.link() = Some(next),
                None => self.head = next,
            }
            if self.tail == index {
                self.tail = before;
            }
            if let Some(entry) = table.get_mut(index) {
                *entry.link() = None;
            }
            return;
        }
    }
}
