//! Where the agent is: with the forward loop, or with the thread that makes its slow calls.
//!
//! NIXL loads a peer's metadata under its own lock, 10 ms over tcp and hundreds over RDMA, and every other call would wait for it. So
//! the agent is handed over with the job and comes back with the result; one thread has it at any time, and the loop never waits:
//! what it cannot do meanwhile, it does afterwards.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
    task::{Wake, Waker},
};

use lease_proto::{
    id::Incarnation,
    sync::{Mailbox, WorkerGone},
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::{Failure, NixlError, sys::Agent};

/// A peer's metadata is to be learnt.
pub(crate) struct Job {
    /// The peer's name.
    pub(crate) agent: Arc<str>,
    /// Its life.
    pub(crate) incarnation: Incarnation,
    /// NIXL's metadata.
    pub(crate) metadata: Arc<[u8]>,
    pub(crate) what: What,
}

/// What metadata is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// An agent, maybe with memory of it.
    Agent,
    /// An agent that is known, with more memory than was known.
    More,
    /// A region of an agent that is known.
    Region,
}

/// What became of it.
pub(crate) struct Done {
    pub(crate) job: Job,
    pub(crate) result: Result<(), Failure>,
}

/// The agent, or where it will come back.
pub(crate) struct Desk {
    agent: Option<Agent>,
    slow: Mailbox<(Agent, Job), (Agent, Done)>,
    /// The slow thread is gone, and the agent with it.
    gone: Option<WorkerGone>,
    bell: Arc<Bell>,
    waker: Waker,
}

impl Desk {
    pub(crate) fn new(agent: Agent) -> Result<Self, NixlError> {
        let thread = |error: std::io::Error| NixlError::Thread(error.to_string());
        let slow = Mailbox::spawn(|(agent, job): (Agent, Job), _| {
            let result = agent.learn(&job.metadata);
            (agent, Done { job, result })
        });
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(Bell(eventfd(0, flags).map_err(|error| thread(error.into()))?));
        let waker = Waker::from(Arc::clone(&bell));
        Ok(Self { agent: Some(agent), slow: slow.map_err(thread)?, gone: None, bell, waker })
    }

    /// The agent, if it is here.
    pub(crate) fn agent(&self) -> Option<&Agent> {
        self.agent.as_ref()
    }

    /// Hands a job over, with the agent. The job comes back if that is not here.
    pub(crate) fn start(&mut self, job: Job) -> Result<(), Job> {
        let Some(agent) = self.agent.take() else { return Err(job) };
        self.slow.start((agent, job)).map_err(|(agent, job)| {
            self.agent = Some(agent);
            job
        })
    }

    /// Takes the agent back, if it is free again, and says what became of the job.
    ///
    /// # Errors
    /// `Thread` once it will never come back.
    pub(crate) fn come_back(&mut self) -> Result<Option<Done>, NixlError> {
        if self.agent.is_some() {
            return Ok(None);
        }
        match self.slow.poll() {
            None => self.gone.map_or(Ok(None), |gone| Err(NixlError::Thread(gone.to_string()))),
            Some(Ok((agent, done))) => {
                self.agent = Some(agent);
                Ok(Some(done))
            }
            Some(Err(gone)) => {
                self.gone = Some(gone);
                Err(NixlError::Thread(gone.to_string()))
            }
        }
    }

    /// Rings the bell.
    #[cfg(feature = "side-channel")]
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// A descriptor that becomes readable when the agent is free again; `None` if it is so already.
    pub(crate) fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.bell.silence();
        if self.agent.is_none() {
            self.slow.register_waker(&self.waker);
        }
        Some(self.bell.0.as_fd())
    }

    /// Waits until the agent is free again. Not for the forward loop.
    pub(crate) fn wait(&mut self) -> Result<Option<Done>, NixlError> {
        loop {
            let done = self.come_back()?;
            if self.agent.is_some() {
                return Ok(done);
            }
            if let Some(bell) = self.arm() {
                // Interrupted, it looks again.
                let _ = poll(&mut [PollFd::new(&bell, PollFlags::IN)], None);
            }
        }
    }

    /// The agent, to end it, if it is here.
    pub(crate) fn take(&mut self) -> Option<Agent> {
        self.agent.take()
    }
}

/// Wakes who sleeps on its descriptor.
struct Bell(OwnedFd);

impl Bell {
    fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]); // nothing to read is as good
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes()); // full, it is readable already
    }
}
