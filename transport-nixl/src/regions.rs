//! Memory that is registered here.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use gpu_mem::Memory;

use crate::sys::Registered;

/// Registered memory. It may be dropped on any thread: the transport ends the registration when it is polled next, and lets the memory
/// go once no read of this side writes to it any more.
///
/// Peers that still read from it do harm: where NIXL emulates reads (tcp), one of memory that was given back since ends THIS process.
/// Keep what is exported registered as long as the transport lives, as engines do with their pools.
pub struct Region {
    id: u64,
    memory: Memory,
    /// Numbers of those that were dropped, for the transport.
    dropped: Arc<Mutex<Vec<u64>>>,
}

impl Region {
    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("len", &self.memory.len()).finish_non_exhaustive()
    }
}

/// All registrations of one transport.
#[derive(Default)]
pub(crate) struct Regions {
    next: u64,
    registered: HashMap<u64, Arc<Registered>>,
    dropped: Arc<Mutex<Vec<u64>>>,
}

impl Regions {
    pub(crate) fn add(&mut self, registered: Registered) -> Region {
        self.next += 1;
        let region = Region { id: self.next, memory: registered.memory.clone(), dropped: Arc::clone(&self.dropped) };
        self.registered.insert(self.next, Arc::new(registered));
        region
    }

    /// What belongs to a region, if it is of this transport.
    pub(crate) fn get(&self, region: &Region) -> Option<&Arc<Registered>> {
        self.registered.get(&region.id).filter(|_| Arc::ptr_eq(&self.dropped, &region.dropped))
    }

    /// Ends the registrations of regions that were dropped, once no read needs them any more: without them NIXL refuses its next piece,
    /// and ended with a read they might wait for the slow thread. Never waits: who drops one just then is heard the next time.
    pub(crate) fn sweep(&mut self) {
        // This and each region that is left hold the list, which tells without a lock, in every poll, that none was dropped.
        if Arc::strong_count(&self.dropped) > self.registered.len() {
            return;
        }
        let Ok(mut dropped) = self.dropped.try_lock() else { return };
        dropped.retain(|id| {
            let is_needed = self.registered.get(id).is_some_and(|registered| Arc::strong_count(registered) > 1);
            if !is_needed {
                self.registered.remove(id);
            }
            is_needed
        });
    }

    pub(crate) fn clear(&mut self) {
        self.registered.clear();
    }
}
