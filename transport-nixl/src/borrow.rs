//! The transport on the engine's own agent.

use lease_proto::transport::PeerId;

use crate::{NixlConfig, NixlError, NixlTransport, sys::Agent, transport::Arrival};

impl NixlTransport {
    /// A transport on the engine's own agent, which has the configuration's backend already.
    ///
    /// It never asks the agent for notifications, since it could not hand those back that are not its own: the engine does as before,
    /// and hands each to [`NixlTransport::hand_in`]; what is not the protocol's comes back as
    /// [`Event::Foreign`](lease_proto::event::Event::Foreign), unchanged. NIXL moves as the engine lets it. Connecting teaches the agent
    /// the peer's metadata on another thread, and the engine's own calls wait for that as they do for each other; a peer that the agent
    /// knew before stays known when the transport is done with it, and registrations and reads are the transport's own.
    ///
    /// One borrowed transport per agent, and the engine invalidates no peer that this one uses: NIXL would tell nothing any more of reads that go
    /// on writing, and their destinations are lost. A peer that the engine had taught its agent is the engine's to heal, too: once lost, it has to be
    /// invalidated and taught again.
    ///
    /// The agent outlives the transport if the engine keeps it; reads under way as the transport is dropped keep their memory for good.
    ///
    /// # Errors
    /// `Invalid` for a configuration that cannot work or a backend that the agent does not have, `Unsupported` for one without
    /// notifications, `BackendFailed` otherwise.
    pub fn borrow(agent: &nixl_sys::Agent, config: NixlConfig) -> Result<Self, NixlError> {
        config.validate()?;
        config.backend.clone().for_heartbeats()?;
        let agent = Agent::borrow(agent, config.backend.name())?;
        Self::start(config, agent.name(), agent, true)
    }

    /// The name of a peer's agent, for an engine that sends to it by its own.
    pub fn agent_of(&self, peer: PeerId) -> Option<&str> {
        self.peers.peers.get(&peer.0).map(|peer| &*peer.agent)
    }

    /// Takes a notification that the engine's agent received, of any length. A poll gives it out.
    ///
    /// # Errors
    /// The notification itself, while as many wait to be polled as [`NixlConfig::max_inbox`] allows.
    pub fn hand_in(&mut self, bytes: Vec<u8>) -> Result<(), Vec<u8>> {
        if self.messages >= self.config.max_inbox {
            return Err(bytes);
        }
        self.messages += 1;
        self.inbox.push_back(Arrival::Message(bytes));
        Ok(())
    }
}
