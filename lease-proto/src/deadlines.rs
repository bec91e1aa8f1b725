//! The expiry queue: a hierarchical timing wheel, exact to the nanosecond.
//!
//! Setting and moving a deadline is O(1), whatever lives. Taking what is due costs what is due: a deadline is passed down, at
//! most once per level, only when less than a sixty-fourth of the time that was left is left, so that one which is moved in
//! time is never touched. Deadlines come out in their own order, not in that of insertion, so nothing expired can hide behind
//! something live (case 1).
//!
//! The lists run through nodes that lie in the caller's slots, so the wheel allocates nothing.

use core::hash::{Hash, Hasher};

use crate::time::Instant;

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = 11; // 11 x 6 bits cover all of a u64
const NIL: u32 = u32::MAX;
/// How many deadlines [`Wheel::next_due`] looks at to be exact; with more in one slot it answers the slot's start.
const EXACT: usize = 32;

/// One slot's place in the wheel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    due: Instant,
    prev: u32,
    next: u32,
    /// Level and slot of the list it is in.
    home: Option<(u8, u8)>,
}

impl Default for Node {
    fn default() -> Self {
        Self { due: Instant::ZERO, prev: NIL, next: NIL, home: None }
    }
}

/// Something that holds a node per index. Indexes outside are ignored.
pub(crate) trait Nodes {
    fn node(&self, index: u32) -> Option<&Node>;
    fn node_mut(&mut self, index: u32) -> Option<&mut Node>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct List {
    head: u32,
    tail: u32,
}

const EMPTY: List = List { head: NIL, tail: NIL };

/// The wheel's lists. The position (`cursor`) never goes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wheel {
    cursor: u64,
    occupied: [u64; LEVELS],
    lists: [[List; SLOTS]; LEVELS],
}

impl Hash for Wheel {
    /// The nodes and what is occupied determine the lists.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.cursor, self.occupied).hash(state);
    }
}

impl Wheel {
    pub(crate) const fn new() -> Self {
        Self { cursor: 0, occupied: [0; LEVELS], lists: [[EMPTY; SLOTS]; LEVELS] }
    }

    /// Gives `index` the deadline `due`, in place of the one it had.
    pub(crate) fn set(&mut self, nodes: &mut impl Nodes, index: u32, due: Instant) {
        self.clear(nodes, index);
        if let Some(node) = nodes.node_mut(index) {
            node.due = due;
            self.push(nodes, index, due);
        }
    }

    /// Takes the deadline of `index` away.
    pub(crate) fn clear(&mut self, nodes: &mut impl Nodes, index: u32) {
        let Some(Node { prev, next, home: Some((level, slot)), .. }) = nodes.node(index).cloned() else { return };
        if let Some(list) = self.list_mut(level, slot) {
            if list.head == index {
                list.head = next;
            }
            if list.tail == index {
                list.tail = prev;
            }
            if list.head == NIL {
                self.mark(level, slot, false);
            }
        }
        if let Some(node) = nodes.node_mut(prev) {
            node.next = next;
        }
        if let Some(node) = nodes.node_mut(next) {
            node.prev = prev;
        }
        if let Some(node) = nodes.node_mut(index) {
            *node = Node { due: node.due, ..Node::default() };
        }
    }

    /// Takes out the earliest deadline that is not after `now`.
    pub(crate) fn pop_due(&mut self, nodes: &mut impl Nodes, now: Instant) -> Option<u32> {
        loop {
            let Some((level, slot, start)) = self.first().filter(|(_, _, start)| *start <= now.as_nanos()) else {
                self.cursor = self.cursor.max(now.as_nanos());
                return None;
            };
            self.cursor = self.cursor.max(start);
            let head = self.list_mut(level, slot)?.head;
            if level == 0 {
                self.clear(nodes, head);
                return Some(head);
            }
            // Pass the slot's deadlines down, in order: seen from its start they belong to lower levels.
            while let Some(List { head, .. }) = self.list_mut(level, slot).copied().filter(|list| list.head != NIL) {
                self.clear(nodes, head);
                let due = nodes.node(head)?.due;
                self.push(nodes, head, due);
            }
        }
    }

    /// When something may be due next: exact while few deadlines share the nearest slots, early otherwise, never late.
    pub(crate) fn next_due(&self, nodes: &impl Nodes) -> Option<Instant> {
        let earliest = |(level, slot, start): (u8, u8, u64)| {
            let (mut next, mut earliest) = (self.list(level, slot)?.head, Instant::MAX);
            for _ in 0..EXACT {
                let Some(node) = nodes.node(next) else { return Some(earliest) };
                earliest = earliest.min(node.due);
                next = node.next;
            }
            Some(Instant::from_nanos(start))
        };
        self.firsts().filter_map(earliest).min()
    }

    fn push(&mut self, nodes: &mut impl Nodes, index: u32, due: Instant) {
        let (level, slot) = self.home(due.as_nanos().max(self.cursor));
        let Some(tail) = self.list(level, slot).map(|list| list.tail) else { return };
        if let Some(node) = nodes.node_mut(index) {
            *node = Node { due, prev: tail, next: NIL, home: Some((level, slot)) };
        }
        if let Some(node) = nodes.node_mut(tail) {
            node.next = index;
        }
        if let Some(list) = self.list_mut(level, slot) {
            *list = List { head: if tail == NIL { index } else { list.head }, tail: index };
        }
        self.mark(level, slot, true);
    }

    /// The lowest level whose slots reach that far.
    fn home(&self, due: u64) -> (u8, u8) {
        let reaches = |level: &u32| turns(due, *level).saturating_sub(turns(self.cursor, *level)) < SLOTS as u64;
        let level = (0..LEVELS as u32).find(reaches).unwrap_or_default();
        (level as u8, slot(turns(due, level)))
    }

    /// The list that comes first: its level, its slot, and the first instant that belongs there. Of two with the same, the one
    /// that is to be passed down.
    fn first(&self) -> Option<(u8, u8, u64)> {
        let mut first: Option<(u8, u8, u64)> = None;
        for next in self.firsts() {
            if first.is_none_or(|(_, _, start)| next.2 <= start) {
                first = Some(next);
            }
        }
        first
    }

    /// Of each level the list that comes first.
    fn firsts(&self) -> impl Iterator<Item = (u8, u8, u64)> {
        (0..LEVELS as u32).zip(&self.occupied).filter_map(|(level, occupied)| {
            let turn = turns(self.cursor, level);
            let ahead = occupied.rotate_right(u32::from(slot(turn))).trailing_zeros();
            let turn = turn.saturating_add(u64::from(ahead));
            (ahead < u64::BITS).then(|| (level as u8, slot(turn), turn.wrapping_shl(level.wrapping_mul(BITS))))
        })
    }

    fn list(&self, level: u8, slot: u8) -> Option<&List> {
        self.lists.get(usize::from(level))?.get(usize::from(slot))
    }

    fn list_mut(&mut self, level: u8, slot: u8) -> Option<&mut List> {
        self.lists.get_mut(usize::from(level))?.get_mut(usize::from(slot))
    }

    fn mark(&mut self, level: u8, slot: u8, occupied: bool) {
        let bit = 1u64.wrapping_shl(u32::from(slot));
        if let Some(word) = self.occupied.get_mut(usize::from(level)) {
            *word = if occupied { *word | bit } else { *word & !bit };
        }
    }
}

/// The slot of the `turn`th turn of its level.
fn slot(turn: u64) -> u8 {
    (turn & (SLOTS as u64).wrapping_sub(1)) as u8
}

/// How many slots of a level lie before an instant.
fn turns(nanos: u64, level: u32) -> u64 {
    nanos.wrapping_shr(level.wrapping_mul(BITS))
}

#[cfg(test)]
mod tests {
    use alloc::{collections::BTreeMap, vec, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    impl Nodes for Vec<Node> {
        fn node(&self, index: u32) -> Option<&Node> {
            self.get(index as usize)
        }

        fn node_mut(&mut self, index: u32) -> Option<&mut Node> {
            self.get_mut(index as usize)
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Set(u32, u64),
        Clear(u32),
        Advance(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let span = prop_oneof![0u64..70, 0u64..5_000, 0u64..60_000_000_000, Just(u64::MAX)];
        let step = prop_oneof![
            (0u32..24, span.clone()).prop_map(|(i, d)| Step::Set(i, d)),
            (0u32..24).prop_map(Step::Clear),
            span.prop_map(|d| Step::Advance(d / 2)),
        ];
        proptest::collection::vec(step, 1..120)
    }

    proptest! {
        /// Against a naive map: the same deadlines at the same polls, in order, and a next timeout that is never late.
        #[test]
        fn it_gives_out_what_a_sorted_map_would(steps in steps()) {
            let (mut wheel, mut nodes, mut model, mut now) = (Wheel::new(), vec![Node::default(); 24], BTreeMap::new(), 0u64);
            for step in steps {
                match step {
                    Step::Set(index, ahead) => {
                        let due = Instant::from_nanos(now.saturating_add(ahead));
                        wheel.set(&mut nodes, index, due);
                        model.insert(index, due);
                    }
                    Step::Clear(index) => {
                        wheel.clear(&mut nodes, index);
                        model.remove(&index);
                    }
                    Step::Advance(by) => {
                        now = now.saturating_add(by);
                        let mut last = Instant::ZERO;
                        while let Some(index) = wheel.pop_due(&mut nodes, Instant::from_nanos(now)) {
                            let due = model.remove(&index).expect("it was set");
                            prop_assert!(due >= last && due.as_nanos() <= now);
                            last = due;
                        }
                        prop_assert!(model.values().all(|due| due.as_nanos() > now), "something expired is still inside");
                    }
                }
                prop_assert_eq!(wheel.next_due(&nodes), model.values().min().copied());
            }
        }
    }

    #[test]
    fn a_moved_deadline_costs_the_polls_nothing() {
        let (mut wheel, mut nodes) = (Wheel::new(), vec![Node::default(); 1000]);
        for round in 0..50u64 {
            for index in 0..1000 {
                wheel.set(&mut nodes, index, Instant::from_nanos((round + 5) * 4_000_000_000 + u64::from(index)));
            }
            let before = wheel.lists;
            assert_eq!(wheel.pop_due(&mut nodes, Instant::from_nanos(round * 4_000_000_000)), None);
            assert!(wheel.lists == before, "a list was touched");
        }
    }
}
