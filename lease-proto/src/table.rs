//! Bounded tables over storage that the caller gives: slots, look-up by hash, and a deadline per entry.
//!
//! One implementation serves an array and a boxed slice. Everything runs through links inside the slots: the free list, the
//! hash chains (slot `i` also holds the head of bucket `i`) and the timing wheel. Nothing is allocated, nothing is scanned.

use crate::{
    deadlines::{Node, Nodes, Wheel},
    time::Instant,
};

const NIL: u32 = u32::MAX;
/// Most keys of one entry.
const KEYS: usize = 2;

/// Room for one entry. `Slot::default()` is an empty one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slot<T> {
    value: Option<T>,
    /// How often the slot was used; tells a stale handle.
    generation: u32,
    /// First entry of the bucket with this slot's number, per key.
    heads: [u32; KEYS],
    /// Next entry of the same bucket, per key; of a free slot the next free one.
    nexts: [u32; KEYS],
    node: Node,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { value: None, generation: 0, heads: [NIL; KEYS], nexts: [NIL; KEYS], node: Node::default() }
    }
}

/// Storage for a table: `[Slot<T>; N]`, or with the feature `alloc` a boxed slice.
pub trait Slots<T>: AsRef<[Slot<T>]> + AsMut<[Slot<T>]> {}

impl<T, S: AsRef<[Slot<T>]> + AsMut<[Slot<T>]>> Slots<T> for S {}

/// An array of `N` empty slots.
pub fn slots<T, const N: usize>() -> [Slot<T>; N] {
    core::array::from_fn(|_| Slot::default())
}

/// A boxed slice of `count` empty slots, for tables too large for the stack.
#[cfg(any(feature = "alloc", test))]
pub fn boxed<T>(count: usize) -> alloc::boxed::Box<[Slot<T>]> {
    core::iter::repeat_with(Slot::default).take(count).collect()
}

/// The table is full: give it more slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table is full: give it more slots")]
pub struct Full;

/// What can lie in a table: something with up to two hash keys, which must not change while it does.
pub(crate) trait Entry {
    /// The hash of key 0 or 1, or `None` if it cannot be found by that key.
    fn hash(&self, key: usize) -> Option<u64>;
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Table<T, S> {
    slots: S,
    free: u32,
    /// Slots from here on have never been used.
    fresh: u32,
    len: u32,
    wheel: Wheel,
    entry: core::marker::PhantomData<T>,
}

struct Links<'a, T>(&'a mut [Slot<T>]);

impl<T> Nodes for Links<'_, T> {
    fn node(&self, index: u32) -> Option<&Node> {
        self.0.get(index as usize).map(|slot| &slot.node)
    }

    fn node_mut(&mut self, index: u32) -> Option<&mut Node> {
        self.0.get_mut(index as usize).map(|slot| &mut slot.node)
    }
}

struct View<'a, T>(&'a [Slot<T>]);

impl<T> Nodes for View<'_, T> {
    fn node(&self, index: u32) -> Option<&Node> {
        self.0.get(index as usize).map(|slot| &slot.node)
    }

    fn node_mut(&mut self, _: u32) -> Option<&mut Node> {
        None
    }
}

impl<T: Entry, S: Slots<T>> Table<T, S> {
    /// A table over empty slots; what they may hold is overwritten.
    pub(crate) fn new(mut slots: S) -> Self {
        slots.as_mut().iter_mut().for_each(|slot| *slot = Slot::default());
        Self { slots, free: NIL, fresh: 0, len: 0, wheel: Wheel::new(), entry: core::marker::PhantomData }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len as usize >= self.slots.as_ref().len()
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.slots.as_ref().get(index as usize)?.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slot(index)?.value.as_mut()
    }

    /// Tells this use of the slot from earlier and later ones.
    pub(crate) fn generation(&self, index: u32) -> Option<u32> {
        let slot = self.slots.as_ref().get(index as usize)?;
        slot.value.is_some().then_some(slot.generation)
    }

    /// All entries, in the order of their slots.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = u32> + use<T, S> {
        0..self.fresh
    }

    pub(crate) fn insert(&mut self, value: T) -> Result<u32, Full> {
        let index = match self.slots.as_ref().get(self.free as usize) {
            Some(slot) => {
                let index = self.free;
                self.free = slot.nexts.first().copied().unwrap_or(NIL);
                index
            }
            None if self.fresh != NIL && (self.fresh as usize) < self.slots.as_ref().len() => {
                let index = self.fresh;
                self.fresh = self.fresh.saturating_add(1);
                index
            }
            None => return Err(Full),
        };
        for key in 0..KEYS {
            let bucket = value.hash(key).and_then(|hash| self.bucket(hash));
            let next = bucket.and_then(|bucket| self.head(bucket, key)).map_or(NIL, |head| core::mem::replace(head, index));
            if let Some(link) = self.next(index, key) {
                *link = next;
            }
        }
        let slot = self.slot(index).ok_or(Full)?;
        slot.value = Some(value);
        slot.generation = slot.generation.wrapping_add(1);
        self.len = self.len.saturating_add(1);
        Ok(index)
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        self.set_deadline(index, None);
        for key in 0..KEYS {
            if let Some(hash) = self.get(index)?.hash(key) {
                self.unlink(index, key, hash);
            }
        }
        let free = self.free;
        let slot = self.slot(index)?;
        slot.nexts = [free, NIL];
        let value = slot.value.take();
        self.free = index;
        self.len = self.len.saturating_sub(1);
        value
    }

    /// The entry with this hash of its key for which `is` holds.
    pub(crate) fn find(&self, key: usize, hash: u64, is: impl Fn(&T) -> bool) -> Option<u32> {
        let slots = self.slots.as_ref();
        let mut at = *slots.get(self.bucket(hash)? as usize)?.heads.get(key)?;
        while let Some(slot) = slots.get(at as usize) {
            if slot.value.as_ref().is_some_and(&is) {
                return Some(at);
            }
            at = *slot.nexts.get(key)?;
        }
        None
    }

    /// Sets, moves or takes away the deadline of an entry. O(1).
    pub(crate) fn set_deadline(&mut self, index: u32, due: Option<Instant>) {
        let mut links = Links(self.slots.as_mut());
        match due {
            Some(due) => self.wheel.set(&mut links, index, due),
            None => self.wheel.clear(&mut links, index),
        }
    }

    /// Takes the deadline of the entry that is due first away and returns the entry's index.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        self.wheel.pop_due(&mut Links(self.slots.as_mut()), now)
    }

    /// When [`Table::pop_due`] may have something: never late.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.wheel.next_due(&View(self.slots.as_ref()))
    }

    fn unlink(&mut self, index: u32, key: usize, hash: u64) {
        let next = self.next(index, key).map_or(NIL, |next| *next);
        let Some(bucket) = self.bucket(hash) else { return };
        let mut at = match self.head(bucket, key) {
            Some(head) if *head == index => {
                *head = next;
                return;
            }
            Some(head) => *head,
            None => return,
        };
        while let Some(link) = self.next(at, key) {
            if *link == index {
                *link = next;
                return;
            }
            at = *link;
        }
    }

    fn bucket(&self, hash: u64) -> Option<u32> {
        hash.checked_rem(self.slots.as_ref().len() as u64).map(|bucket| bucket as u32)
    }

    fn slot(&mut self, index: u32) -> Option<&mut Slot<T>> {
        self.slots.as_mut().get_mut(index as usize)
    }

    fn head(&mut self, bucket: u32, key: usize) -> Option<&mut u32> {
        self.slot(bucket)?.heads.get_mut(key)
    }

    fn next(&mut self, index: u32, key: usize) -> Option<&mut u32> {
        self.slot(index)?.nexts.get_mut(key)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Pair(u64, u64);

    impl Entry for Pair {
        fn hash(&self, key: usize) -> Option<u64> {
            Some(if key == 0 { self.0 } else { self.1 })
        }
    }

    proptest! {
        /// Against a naive list, with so few slots and keys that chains are long and slots are reused.
        #[test]
        fn it_finds_what_a_list_would(steps in proptest::collection::vec((any::<bool>(), 0u64..12, 0u64..4), 1..200)) {
            let mut table = Table::new(slots::<Pair, 8>());
            let mut model: Vec<(u32, Pair)> = Vec::new();
            for (insert, a, b) in steps {
                if insert {
                    match table.insert(Pair(a, b)) {
                        Ok(index) => model.push((index, Pair(a, b))),
                        Err(Full) => prop_assert_eq!(model.len(), 8),
                    }
                } else if let Some(at) = model.iter().position(|(_, pair)| pair.0 == a) {
                    let (index, pair) = model.remove(at);
                    prop_assert_eq!(table.remove(index), Some(pair));
                    prop_assert_eq!(table.get(index), None);
                }
                prop_assert_eq!(table.len() as usize, model.len());
                for key in 0..2 {
                    for hash in 0..12 {
                        let found = table.find(key, hash, |pair| pair.hash(key) == Some(hash)).and_then(|index| table.get(index));
                        prop_assert_eq!(found.is_some(), model.iter().any(|(_, pair)| pair.hash(key) == Some(hash)));
                    }
                }
            }
        }
    }

    #[test]
    fn a_table_without_slots_is_full() {
        let mut table = Table::new(slots::<Pair, 0>());
        assert_eq!(table.insert(Pair(0, 0)), Err(Full));
        assert_eq!((table.find(0, 0, |_| true), table.next_due()), (None, None));
    }

    #[test]
    fn a_reused_slot_has_another_generation() {
        let mut table = Table::new(slots::<Pair, 1>());
        let index = table.insert(Pair(0, 0)).unwrap();
        let first = table.generation(index);
        table.remove(index);
        assert_eq!(table.generation(index), None);
        table.insert(Pair(0, 0)).unwrap();
        assert_ne!(table.generation(index), first);
    }
}
