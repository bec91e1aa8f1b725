//! What the slow thread is given to do, and what follows: agents and their regions are learnt in turns, lost, and forgotten.

use std::sync::Arc;

use lease_proto::transport::ErrorKind;

use crate::{
    NixlTransport,
    desk::{Done, Job, What},
    peers::{Region, Remote, State},
    transport::Arrival,
};

/// Regions that are looked at in one turn: those of agents with reads under way have to wait.
const LOOKS: usize = 64;

impl NixlTransport {
    /// Gives the slow thread something to do, if there is something, and tells attempts that need nothing.
    pub(crate) fn begin_job(&mut self) {
        let began = match self.regions_first {
            true => self.begin_region() || self.begin_agent(),
            false => self.begin_agent() || self.begin_region(),
        };
        if began {
            self.regions_first = !self.regions_first;
        }
    }

    /// NIXL may drop an agent over the metadata of a region of it, and then tells nothing of transfers that are under way, which go on
    /// writing: so none is, meanwhile.
    fn begin_region(&mut self) -> bool {
        for _ in 0..self.to_learn.len().min(LOOKS) {
            let Some(job) = self.to_learn.pop_front() else { return false };
            let of_it = |remote: &&Remote| remote.state == State::Known && remote.incarnation == job.incarnation;
            match self.peers.remotes.get(&job.agent).filter(of_it).map(|remote| remote.transfers) {
                Some(0) => {
                    let begun = self.desk.start(job);
                    return begun.map_err(|job| self.to_learn.push_front(job)).is_ok();
                }
                Some(_) => self.to_learn.push_back(job),
                None => self.region_learnt(&job, Err(ErrorKind::PeerLost)), // its peer was lost since
            }
        }
        false
    }

    fn begin_agent(&mut self) -> bool {
        let numbers: Vec<u64> = self.peers.attempts.keys().copied().collect();
        for number in numbers {
            let Some(attempt) = self.peers.attempts.get(&number) else { continue };
            let (agent, metadata) = (Arc::clone(&attempt.agent), Arc::clone(&attempt.metadata));
            let job = |what| Job { agent: Arc::clone(&agent), incarnation: attempt.incarnation, metadata, what };
            match self.peers.remotes.get(&agent) {
                Some(remote) if remote.state != State::Known => {}
                Some(remote) if remote.is_for(attempt) => {
                    let peer = self.peers.resolve(number);
                    self.inbox.extend(peer.map(|peer| Arrival::Connected(number, peer)));
                }
                // The same life, with more memory than was known.
                Some(remote) if remote.may_grow_to(attempt) => {
                    if remote.transfers == 0 {
                        return self.desk.start(job(What::More)).is_ok();
                    }
                }
                // Another life by the same name, or one that can be reached otherwise: what is known is over.
                Some(_) => {
                    self.lose(&agent);
                    self.forget_idle();
                }
                None => {
                    let is_the_engines = self.is_borrowed && self.desk.agent().is_some_and(|desk| desk.knows(&agent));
                    let remote = Remote::learning(attempt, is_the_engines);
                    let begun = self.desk.start(job(What::Agent)).is_ok();
                    if begun {
                        self.peers.remotes.insert(agent, remote);
                    }
                    return begun;
                }
            }
        }
        false
    }

    /// What became of a job.
    pub(crate) fn done(&mut self, done: Done) {
        self.last = std::time::Instant::now();
        let Done { job, result } = done;
        match job.what {
            What::Region => self.region_learnt(&job, result.map_err(|_| ErrorKind::Rejected)),
            What::More => match result {
                // The attempt is for what is known, from now on.
                Ok(()) => self.peers.grow(&job.agent, &job.metadata),
                Err(_) => self.fail_attempts(&job),
            },
            What::Agent => match result {
                Ok(()) => {
                    if let Some(remote) = self.peers.remotes.get_mut(&job.agent) {
                        remote.state = State::Known;
                    }
                    for number in self.peers.attempts_for(&job.agent, &job.metadata) {
                        let peer = self.peers.resolve(number);
                        self.inbox.extend(peer.map(|peer| Arrival::Connected(number, peer)));
                    }
                    self.peers.idle.push(Arc::clone(&job.agent));
                }
                Err(failure) => {
                    tracing::debug!(agent = &*job.agent, ?failure, "nixl does not take a peer's metadata");
                    self.fail_attempts(&job);
                    self.peers.lose(&job.agent);
                }
            },
        }
    }

    fn fail_attempts(&mut self, job: &Job) {
        for number in self.peers.attempts_for(&job.agent, &job.metadata) {
            self.peers.attempts.remove(&number);
            self.inbox.push_back(Arrival::ConnectFailed(number, ErrorKind::Rejected));
        }
    }

    fn region_learnt(&mut self, job: &Job, result: Result<(), ErrorKind>) {
        if let Some(remote) = self.peers.remotes.get_mut(&job.agent).filter(|remote| remote.incarnation == job.incarnation) {
            remote.to_learn = remote.to_learn.saturating_sub(1);
            match result {
                Ok(()) => drop(remote.regions.insert(Arc::clone(&job.metadata), Region::Known)),
                Err(_) => drop(remote.regions.remove(&job.metadata)),
            }
        }
        let mut told = Vec::new();
        self.reads.learnt(&job.agent, &job.metadata, result, &mut told);
        self.hear(told);
    }

    /// NIXL has given an agent up, or another life of it has come: its peers are lost.
    pub(crate) fn lose(&mut self, agent: &Arc<str>) {
        let lost = self.peers.lose(agent);
        if lost.is_empty() {
            return;
        }
        self.inbox.extend(lost.iter().map(|peer| Arrival::Lost(*peer)));
        let mut told = Vec::new();
        self.reads.fail(|peer| lost.contains(&peer), ErrorKind::PeerLost, &mut told);
        self.hear(told);
    }

    /// Forgets agents that nobody needs: what heals one that was lost.
    pub(crate) fn forget_idle(&mut self) {
        for (name, remote) in self.peers.take_idle(self.config.max_peers, self.config.keep_known.into()) {
            if let Some(agent) = self.desk.agent().filter(|_| !remote.is_the_engines)
                && let Err(failure) = agent.forget(&name)
            {
                tracing::debug!(agent = &*name, ?failure, "nixl does not forget an agent");
            }
        }
    }
}
