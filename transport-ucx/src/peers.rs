//! The connections, by a key that is never reused: slot and generation.

use lease_proto::id::Incarnation;

use crate::{reads::Lane, sys::Endpoint};

/// A connection and how far it is.
pub(crate) struct Peer {
    pub(crate) endpoint: Endpoint,
    pub(crate) state: State,
    /// The peer's life.
    pub(crate) incarnation: Incarnation,
    pub(crate) lane: Lane,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Waiting for a pong with this number.
    Connecting { nonce: u64 },
    /// The caller's.
    Connected,
    /// Forgotten by the caller, sending the rest.
    Closing,
}

struct Slot {
    generation: u32,
    peer: Option<Peer>,
}

/// All connections, at most `max`.
pub(crate) struct Peers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    max: usize,
}

impl Peers {
    pub(crate) fn new(max: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), max }
    }

    /// Adds the connection that `open` makes for a new key. `None` without room; with an error of `open`, its key is used up.
    pub(crate) fn insert<E>(&mut self, open: impl FnOnce(u64) -> Result<Peer, E>) -> Option<(u64, Result<(), E>)> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.max => {
                self.slots.push(Slot { generation: 0, peer: None });
                u32::try_from(self.slots.len() - 1).ok()?
            }
            None => return None,
        };
        let slot = self.slots.get_mut(index as usize)?;
        let key = u64::from(slot.generation) << 32 | u64::from(index);
        match open(key) {
            Ok(peer) => {
                slot.peer = Some(peer);
                Some((key, Ok(())))
            }
            Err(error) => {
                self.retire(index);
                Some((key, Err(error)))
            }
        }
    }

    pub(crate) fn get(&self, key: u64) -> Option<&Peer> {
        let slot = self.slots.get(index(key) as usize)?;
        slot.peer.as_ref().filter(|_| slot.generation == generation(key))
    }

    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut Peer> {
        let slot = self.slots.get_mut(index(key) as usize)?;
        slot.peer.as_mut().filter(|_| slot.generation == generation(key))
    }

    pub(crate) fn connected_mut(&mut self, key: u64) -> Option<&mut Peer> {
        self.get_mut(key).filter(|peer| peer.state == State::Connected)
    }

    /// Takes a connection out; its key is stale from now on.
    pub(crate) fn remove(&mut self, key: u64) -> Option<Peer> {
        let slot = self.slots.get_mut(index(key) as usize)?;
        let peer = slot.peer.take_if(|_| slot.generation == generation(key))?;
        self.retire(index(key));
        Some(peer)
    }

    /// Closes all connections by force.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
    }

    /// The keys of all connections that are not closing.
    pub(crate) fn open(&self) -> Vec<u64> {
        let slots = (0u32..).zip(&self.slots);
        slots
            .filter(|(_, slot)| slot.peer.as_ref().is_some_and(|peer| peer.state != State::Closing))
            .map(|(index, slot)| u64::from(slot.generation) << 32 | u64::from(index))
            .collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Gives a slot its next generation. One that has had them all is not used again.
    fn retire(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(index);
        }
    }
}

fn index(key: u64) -> u32 {
    key as u32
}

fn generation(key: u64) -> u32 {
    (key >> 32) as u32
}
