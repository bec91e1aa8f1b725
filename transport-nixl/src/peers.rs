//! Who this agent knows: peers as the caller numbers them, and the agents behind them, which NIXL knows by name.
//!
//! NIXL keeps one connection per name, whatever number of peers share it, and an error of it stays until the agent was forgotten and
//! learnt again. So each agent has one state here, and what happens to it happens in one order: learnt, known, given up, forgotten,
//! learnt again. It is forgotten only once no transfer with it is under way, since NIXL tells nothing of those any more.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::{Duration as Span, Instant},
};

use lease_proto::id::Incarnation;

#[cfg(feature = "side-channel")]
use crate::side_channel::Handshake;

/// A peer of the caller's.
pub(crate) struct Peer {
    pub(crate) agent: Arc<str>,
    /// Notifications that wait until NIXL is free.
    pub(crate) queued: VecDeque<Vec<u8>>,
    pub(crate) queued_bytes: usize,
}

/// An attempt to connect that waits.
pub(crate) struct Attempt {
    pub(crate) agent: Arc<str>,
    pub(crate) incarnation: Incarnation,
    pub(crate) metadata: Arc<[u8]>,
    /// What it answered on its side channel.
    #[cfg(feature = "side-channel")]
    pub(crate) answer: Option<Arc<Handshake>>,
}

/// An agent that NIXL knows, or will.
pub(crate) struct Remote {
    pub(crate) state: State,
    /// The life that it was learnt of, and from what.
    pub(crate) incarnation: Incarnation,
    metadata: Arc<[u8]>,
    /// The peers that share it.
    pub(crate) peers: BTreeSet<u64>,
    /// Transfers under way.
    pub(crate) transfers: usize,
    /// Regions of it that wait to be learnt. Meanwhile no transfer begins.
    pub(crate) to_learn: usize,
    /// What is known of its memory, by NIXL's metadata.
    pub(crate) regions: HashMap<Arc<[u8]>, Region>,
    /// The engine had taught its agent already, and it stays known when this transport is done with it.
    pub(crate) is_the_engines: bool,
    /// Since when no peer needs it.
    pub(crate) resting: Option<Instant>,
    /// What it answered last on its side channel.
    #[cfg(feature = "side-channel")]
    pub(crate) answer: Option<Arc<Handshake>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The slow thread is at it.
    Learning,
    /// Messages can be sent.
    Known,
    /// Given up: to be forgotten.
    Lost,
}

/// A region's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Region {
    /// The slow thread is at it, or will be.
    Learning,
    /// Reads can begin.
    Known,
}

impl Remote {
    pub(crate) fn learning(attempt: &Attempt, is_the_engines: bool) -> Self {
        Self {
            state: State::Learning,
            incarnation: attempt.incarnation,
            metadata: Arc::clone(&attempt.metadata),
            peers: BTreeSet::new(),
            transfers: 0,
            to_learn: 0,
            regions: HashMap::new(),
            is_the_engines,
            resting: None,
            #[cfg(feature = "side-channel")]
            answer: None,
        }
    }
}

impl Remote {
    /// Whether an attempt is to what was learnt: the same life, by the same metadata.
    pub(crate) fn is_for(&self, attempt: &Attempt) -> bool {
        self.incarnation == attempt.incarnation && self.metadata == attempt.metadata
    }

    /// Whether an attempt is to the same life, by an answer that names other memory than the last one did.
    pub(crate) fn may_grow_to(&self, attempt: &Attempt) -> bool {
        #[cfg(feature = "side-channel")]
        let is_answer = attempt.answer.is_some();
        #[cfg(not(feature = "side-channel"))]
        let is_answer = false;
        is_answer && self.incarnation == attempt.incarnation
    }
}

/// All of them. Numbers of peers and of attempts are never used again.
#[derive(Default)]
pub(crate) struct Peers {
    next: u64,
    pub(crate) peers: BTreeMap<u64, Peer>,
    pub(crate) attempts: BTreeMap<u64, Attempt>,
    pub(crate) remotes: HashMap<Arc<str>, Remote>,
    /// Peers with something queued.
    pub(crate) waiting: BTreeSet<u64>,
    /// Agents that may be to forget.
    pub(crate) idle: Vec<Arc<str>>,
    /// Agents that no peer needs and that stay known for a while, and since when, oldest first. Some may be needed again by now.
    resting: VecDeque<(Arc<str>, Instant)>,
}

impl Peers {
    /// A number that nothing else has.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The attempts that wait for an agent by this metadata.
    pub(crate) fn attempts_for(&self, agent: &str, metadata: &[u8]) -> Vec<u64> {
        let of_it = |attempt: &Attempt| *attempt.agent == *agent && *attempt.metadata == *metadata;
        self.attempts.iter().filter(|(_, attempt)| of_it(attempt)).map(|(number, _)| *number).collect()
    }

    /// An agent has taught more memory.
    pub(crate) fn grow(&mut self, agent: &str, metadata: &Arc<[u8]>) {
        if let Some(remote) = self.remotes.get_mut(agent) {
            remote.metadata = Arc::clone(metadata);
        }
    }

    /// An attempt has succeeded: a peer that shares what is known of its agent.
    pub(crate) fn resolve(&mut self, attempt: u64) -> Option<u64> {
        let attempt = self.attempts.remove(&attempt)?;
        let number = self.number();
        let remote = self.remotes.get_mut(&attempt.agent)?;
        remote.peers.insert(number);
        remote.resting = None;
        #[cfg(feature = "side-channel")]
        if attempt.answer.is_some() {
            remote.answer = attempt.answer;
        }
        self.peers.insert(number, Peer { agent: attempt.agent, queued: VecDeque::new(), queued_bytes: 0 });
        Some(number)
    }

    /// Forgets a peer; its agent may be to forget, too.
    pub(crate) fn remove(&mut self, peer: u64) -> bool {
        self.waiting.remove(&peer);
        let Some(Peer { agent, .. }) = self.peers.remove(&peer) else { return false };
        if let Some(remote) = self.remotes.get_mut(&agent) {
            remote.peers.remove(&peer);
            if remote.peers.is_empty() {
                self.idle.push(agent);
            }
        }
        true
    }

    /// Gives an agent up, with all its peers, whose numbers are returned.
    pub(crate) fn lose(&mut self, agent: &Arc<str>) -> BTreeSet<u64> {
        let Some(remote) = self.remotes.get_mut(agent) else { return BTreeSet::new() };
        remote.state = State::Lost;
        let lost = std::mem::take(&mut remote.peers);
        for peer in &lost {
            self.peers.remove(peer);
            self.waiting.remove(peer);
        }
        self.idle.push(Arc::clone(agent));
        lost
    }

    /// Whether an agent has rested for so long that it is to be forgotten.
    pub(crate) fn has_rested(&self, longest: Span) -> bool {
        self.resting.front().is_some_and(|(_, since)| since.elapsed() > longest)
    }

    /// Agents to forget: those that were lost, and those that no peer has needed for `longest`, or that are more than `most` of these:
    /// NIXL keeps sockets and memory of each that it forgets while the peer lives. Those with transfers under way stay, and are looked at
    /// again when these are over.
    pub(crate) fn take_idle(&mut self, most: usize, longest: Span) -> Vec<(Arc<str>, Remote)> {
        let (mut over, now) = (Vec::new(), Instant::now());
        for agent in std::mem::take(&mut self.idle) {
            let Some(remote) = self.remotes.get_mut(&agent).filter(|remote| remote.transfers == 0) else { continue };
            match remote.state {
                State::Lost => over.extend(self.remotes.remove_entry(&agent)),
                State::Known if remote.peers.is_empty() && remote.resting.is_none() => {
                    remote.resting = Some(now);
                    #[cfg(feature = "side-channel")]
                    {
                        remote.answer = None; // the next attempt brings another
                    }
                    self.resting.retain(|(rests, _)| *rests != agent);
                    self.resting.push_back((agent, now));
                }
                State::Known | State::Learning => {}
            }
        }
        while self.resting.len() > most || self.has_rested(longest) {
            let Some((agent, since)) = self.resting.pop_front() else { break };
            // Else it was needed since; an attempt that waits for it would have been told already.
            if self.remotes.get(&agent).is_some_and(|remote| remote.resting == Some(since)) {
                over.extend(self.remotes.remove_entry(&agent));
            }
        }
        over
    }
}
