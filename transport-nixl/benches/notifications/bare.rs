//! A bare loop on NIXL's C functions, as one would write it by hand: one call to send a notification; one per poll that fills
//! a map, which is kept, and emptied once each notification was copied out of it. The copies go into one buffer that is kept, too.

use std::{ffi::CString, hint::black_box};

use crate::{
    c::{Agent, Map},
    traffic::{End, Pair},
};

pub(crate) struct Bare {
    /// Each agent with the name of its peer.
    ends: [(Agent, CString); 2],
    /// Empty between polls.
    map: Map,
    copy: Vec<u8>,
}

impl Bare {
    /// NIXL must be loaded.
    pub(crate) fn new() -> Result<Self, String> {
        // As long as the names of this transport's agents: a longer one costs more on each call.
        let [here, there] = ["here", "there"].map(|end| CString::new(format!("{end:-<40}")).unwrap_or_default());
        let (mut first, mut second) = (Agent::new(&here)?, Agent::new(&there)?);
        first.load(&second.metadata()?)?;
        second.load(&first.metadata()?)?;
        Ok(Self { ends: [(first, there), (second, here)], map: Map::new()?, copy: Vec::new() })
    }
}

impl Pair for Bare {
    fn send(&mut self, from: End, bytes: &[u8]) -> Result<(), String> {
        let (agent, peer) = &mut self.ends[from as usize];
        agent.send(peer, bytes)
    }

    fn poll(&mut self, at: End) -> Result<usize, String> {
        let (agent, _) = &mut self.ends[at as usize];
        agent.receive(&mut self.map)?;
        let count = self.map.each(|bytes| {
            self.copy.clear();
            self.copy.extend_from_slice(bytes);
            black_box(&mut self.copy);
        })?;
        if count > 0 {
            self.map.clear()?;
        }
        Ok(count)
    }
}
