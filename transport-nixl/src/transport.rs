//! The transport: how it starts, what it is made of, how it moves and how it ends.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration as Span, Instant},
};

use lease_proto::transport::{Capabilities, DeadPeer, ErrorKind, Landed, ReadId, Reads as WhoReads};

use crate::{
    Machine, NixlConfig, NixlError, NoCuda, check,
    desk::{Desk, Job},
    find,
    metadata::Address,
    peers::{Peers, Remote, State},
    reads::{Moved, Reads},
    regions::Regions,
    sys::{self, Agent},
};

/// How soon it wants to be polled again while something is under way.
const SOON: Span = Span::from_micros(50);
/// For so long after the last notification something is taken to be under way: connections are made by polling.
const LIVELY: Span = Span::from_millis(20);

/// Connections, notifications and reads over NIXL.
///
/// One thread at a time drives it, any thread. Dropping it goes on moving what was accepted for at most about
/// [`NixlConfig::close_timeout`]; a read that is under way even then keeps its memory for good.
pub struct NixlTransport {
    pub(crate) config: NixlConfig,
    pub(crate) capabilities: Capabilities,
    pub(crate) name: String,
    pub(crate) metadata: Vec<u8>,
    pub(crate) desk: Desk,
    pub(crate) peers: Peers,
    /// Regions of peers that are to be learnt.
    pub(crate) to_learn: VecDeque<Job>,
    /// Whose turn it is where regions and agents are to be learnt.
    pub(crate) regions_first: bool,
    pub(crate) regions: Regions,
    pub(crate) reads: Reads,
    pub(crate) inbox: VecDeque<Arrival>,
    /// Notifications in it.
    pub(crate) messages: usize,
    /// The notification that the caller is looking at.
    pub(crate) current: Vec<u8>,
    pub(crate) refused: u64,
    /// The engine hands its agent's notifications in.
    pub(crate) is_borrowed: bool,
    pub(crate) last: Instant,
    /// A notification was sent since; the next turn that finds nothing looks at the clock, once for all of them.
    pub(crate) sent: bool,
    #[cfg(feature = "side-channel")]
    pub(crate) side: crate::vllm::SideChannel,
}

/// What waits to be polled.
pub(crate) enum Arrival {
    Message(Vec<u8>),
    Connected(u64, u64),
    ConnectFailed(u64, ErrorKind),
    Lost(u64),
    Read(ReadId, Result<Landed, ErrorKind>),
}

impl NixlTransport {
    /// Finds and loads NIXL, and starts an agent of its own by a name that no other has.
    ///
    /// # Errors
    /// `Unavailable` if NIXL, its backend or what that needs is not on this machine, or this process was not started for it, in words
    /// that say what to do; `Invalid` for a configuration that cannot work; `Unsupported` for a backend without notifications.
    pub fn new(config: NixlConfig) -> Result<Self, NixlError> {
        config.validate()?;
        config.backend.clone().for_heartbeats()?;
        load()?;
        let mut number = [0; 16];
        getrandom::fill(&mut number).map_err(|error| NixlError::Randomness(error.to_string()))?;
        // Another one in each life: NIXL takes a peer of a known name for the one it knew.
        let name = format!("kvlease-{:032x}", u128::from_le_bytes(number));
        let agent = Agent::new(&name, &config)?;
        Self::start(config, name, agent, false)
    }

    pub(crate) fn start(config: NixlConfig, name: String, agent: Agent, is_borrowed: bool) -> Result<Self, NixlError> {
        let failed = |failure| NixlError::Call { call: "asking the agent for its address", failure };
        let address = agent.address().map_err(failed)?;
        let metadata = Address { backend: config.backend.name(), metadata: &address }.encode()?;
        tracing::info!(agent = name, backend = config.backend.name(), "nixl is ready");
        Ok(Self {
            capabilities: capabilities(&config),
            config,
            name,
            metadata,
            desk: Desk::new(agent)?,
            peers: Peers::default(),
            to_learn: VecDeque::new(),
            regions_first: false,
            regions: Regions::default(),
            reads: Reads::default(),
            inbox: VecDeque::new(),
            messages: 0,
            current: Vec::new(),
            refused: 0,
            is_borrowed,
            last: Instant::now(),
            sent: false,
            #[cfg(feature = "side-channel")]
            side: crate::vllm::SideChannel::default(),
        })
    }

    /// The name of its agent.
    pub fn agent_name(&self) -> &str {
        &self.name
    }

    /// Notifications that were dropped: each that was longer than [`NixlConfig::max_notification`], and once those together that came by
    /// one name that nixl-sys cannot ask for, as it is no UTF-8 or has a zero in it.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// All that the agent would tell a peer, memory included: what vLLM's side channel carries. Waits for a connection that is being
    /// made, and is slow for many regions: not for the forward loop.
    ///
    /// # Errors
    /// `BackendFailed`.
    pub fn agent_metadata(&mut self) -> Result<Vec<u8>, NixlError> {
        let call = "asking the agent for its metadata";
        self.with_agent(|agent| agent.everything().map_err(|failure| NixlError::Call { call, failure }))
    }

    /// A descriptor that becomes readable when a connection was made or failed; for how long to sleep on it at most, `next_timeout`
    /// says, since NIXL itself wakes nobody. `None` if something waits to be polled.
    ///
    /// # Errors
    /// None today.
    pub fn arm(&mut self) -> Result<Option<std::os::fd::BorrowedFd<'_>>, NixlError> {
        if !self.inbox.is_empty() {
            return Ok(None);
        }
        #[cfg(feature = "side-channel")]
        if let Some(client) = &mut self.side.client {
            client.register_waker(self.desk.waker());
        }
        Ok(self.desk.arm())
    }

    /// Runs something with the agent, waiting until it is free.
    pub(crate) fn with_agent<R>(&mut self, run: impl FnOnce(&Agent) -> Result<R, NixlError>) -> Result<R, NixlError> {
        if let Some(done) = self.desk.wait()? {
            self.done(done);
        }
        let agent = self.desk.agent().ok_or_else(|| NixlError::Thread("it has the agent".to_owned()))?;
        run(agent)
    }

    /// Lets everything move, without waiting.
    pub(crate) fn turn(&mut self) -> Result<(), NixlError> {
        if self.desk.agent().is_none()
            && let Some(done) = self.desk.come_back()?
        {
            self.done(done);
        }
        #[cfg(feature = "side-channel")]
        self.hear_answers();
        if self.desk.agent().is_none() {
            return Ok(());
        }
        self.regions.sweep();
        self.send_queued();
        self.take_in()?;
        // Only when there is nothing better to do: looking at the clock takes a tenth of a short notification's time.
        if self.inbox.is_empty() && std::mem::take(&mut self.sent) {
            self.last = Instant::now();
        }
        if !self.reads.is_empty() {
            self.move_reads();
        }
        if !self.peers.idle.is_empty() || self.peers.has_rested(self.config.keep_known.into()) {
            self.forget_idle();
        }
        if !(self.peers.attempts.is_empty() && self.to_learn.is_empty()) {
            self.begin_job();
        }
        Ok(())
    }

    /// Takes NIXL's notifications in, unless enough wait to be polled. It moves by this.
    pub(crate) fn take_in(&mut self) -> Result<(), NixlError> {
        let Some(agent) = self.desk.agent().filter(|_| !self.is_borrowed && self.messages < self.config.max_inbox) else {
            return Ok(());
        };
        let (inbox, messages, refused, max) =
            (&mut self.inbox, &mut self.messages, &mut self.refused, self.config.max_notification);
        let taken = agent.notifications(|bytes| match bytes {
            Some(bytes) if bytes.len() <= max => {
                *messages += 1;
                inbox.push_back(Arrival::Message(bytes));
            }
            _ => *refused += 1,
        });
        taken.map_err(|failure| NixlError::Call { call: "asking the agent for notifications", failure })
    }

    /// Hands over what waited for NIXL to be free, if it is.
    pub(crate) fn send_queued(&mut self) {
        if self.peers.waiting.is_empty() || self.desk.agent().is_none() {
            return;
        }
        let mut broken = Vec::new();
        for number in std::mem::take(&mut self.peers.waiting) {
            let (Some(peer), Some(agent)) = (self.peers.peers.get_mut(&number), self.desk.agent()) else { continue };
            peer.queued_bytes = 0;
            if peer.queued.drain(..).any(|bytes| agent.notify(&peer.agent, &bytes).is_err()) {
                broken.push(Arc::clone(&peer.agent));
            }
        }
        self.last = Instant::now();
        broken.iter().for_each(|agent| self.lose(agent));
    }

    fn move_reads(&mut self) {
        let Some(agent) = self.desk.agent() else { return };
        let (mut told, remotes) = (Vec::new(), &self.peers.remotes);
        let is_held = |agent: &str| remotes.get(agent).is_some_and(|remote| remote.to_learn > 0);
        self.reads.go_on(agent, &self.config, is_held, &mut told);
        self.hear(told);
    }

    /// What came of reads.
    pub(crate) fn hear(&mut self, told: Vec<Moved>) {
        for moved in told {
            match moved {
                Moved::Began(agent) => {
                    if let Some(remote) = self.peers.remotes.get_mut(&agent) {
                        remote.transfers += 1;
                    }
                }
                Moved::Over(agent) => {
                    if let Some(remote) = self.peers.remotes.get_mut(&agent) {
                        remote.transfers = remote.transfers.saturating_sub(1);
                        self.peers.idle.push(agent);
                    }
                }
                Moved::Failed(agent) => self.lose(&agent),
                Moved::Read(read, result) => self.inbox.push_back(Arrival::Read(read, result)),
            }
        }
    }

    /// Whether there is room for one more connection; one that is being forgotten counts as well.
    pub(crate) fn admit(&self) -> Result<(), NixlError> {
        let max = self.config.max_peers;
        // What is being learnt, an attempt is for; what rests makes room.
        let counts = |remote: &&Remote| remote.state != State::Learning && remote.resting.is_none();
        let remotes = self.peers.remotes.values().filter(counts).count();
        let open = self.peers.peers.len().max(remotes).saturating_add(self.peers.attempts.len());
        #[cfg(feature = "side-channel")]
        let open = open.saturating_add(self.side.asking());
        if open >= max { Err(NixlError::TooManyPeers { max }) } else { Ok(()) }
    }

    /// How soon it wants to be polled.
    pub(crate) fn soon(&self) -> Span {
        let lively = self.sent || !self.reads.is_empty() || self.last.elapsed() < LIVELY;
        let idle = Span::from(self.config.poll_interval);
        if lively { SOON.min(idle) } else { idle }
    }
}

/// Finds and loads the NIXL of this machine, as [`NixlTransport::new`] does: for a process that uses nixl-sys by itself, before its
/// first call. Without a library to be found such a call ends the process.
///
/// # Errors
/// `Unavailable`, in words that say what to do.
pub fn load() -> Result<(), NixlError> {
    let machine = Machine::this();
    let nixl = find(&machine)?;
    check(&machine, &nixl)?;
    sys::load(&nixl.library)
}

fn capabilities(config: &NixlConfig) -> Capabilities {
    let mut capabilities = Capabilities::notifications(config.max_notification);
    capabilities.ordered = false; // NIXL's guide for backends promises none
    capabilities.answered = false;
    capabilities.holds_back = false;
    capabilities.reads = WhoReads::OneSided;
    capabilities.reads_need_owner = true;
    capabilities.late_read_is_safe = false;
    capabilities.cuda = NoCuda::ready(&config.backend);
    capabilities.dead_peer = DeadPeer::Never;
    capabilities
}

impl Drop for NixlTransport {
    fn drop(&mut self) {
        // The agent comes back first: what is ended here is ended by it.
        if let Ok(Some(done)) = self.desk.wait() {
            self.done(done);
        }
        self.send_queued();
        let (since, timeout) = (Instant::now(), Span::from(self.config.close_timeout));
        let sent = if self.sent { since } else { self.last };
        self.reads.fail(|_| true, ErrorKind::NotConnected, &mut Vec::new());
        while (sent.elapsed() < timeout && !self.is_borrowed) || (self.reads.under_way() > 0 && since.elapsed() < timeout) {
            let Some(agent) = self.desk.agent() else { break };
            if !self.is_borrowed {
                let _ = agent.notifications(|_| {}); // nobody hears them any more
            }
            self.move_reads();
            std::thread::sleep(SOON);
        }
        let left = self.reads.clear();
        if left > 0 {
            tracing::warn!(left, "reads are under way as the transport ends: their memory is kept for good");
        }
        if let Some(agent) = self.desk.take() {
            let idle = self.peers.remotes.iter().filter(|(_, remote)| remote.transfers == 0 && !remote.is_the_engines);
            for (name, _) in idle {
                let _ = agent.forget(name); // it is on its way out
            }
            self.regions.clear();
        }
    }
}
