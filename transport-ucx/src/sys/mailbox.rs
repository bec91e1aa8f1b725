//! Where callbacks leave what happened, for the worker's owner to collect, and what they need to know.

use std::{
    cell::Cell,
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::{BuildHasher as _, RandomState},
    ptr,
    sync::Arc,
};

use lease_proto::permits::Permits;
use ucx_sys::sys as ucx;

use super::{
    Mapped, Status,
    landing::{Expected, Landings},
    operation::{Kind, Operation},
};
use crate::{
    messages::{Landing, Reason},
    regions::Regions,
};

/// What happened.
pub(crate) enum Event {
    /// A notification came in.
    Message(Vec<u8>),
    /// A peer answered the ping that was sent to it as `key` with `nonce`.
    Pong { key: u64, nonce: u64 },
    /// The endpoint `key` failed and takes no more work.
    Failed { key: u64, status: Status },
    /// All that was sent on the endpoint `key` before its flush is done, well or not.
    Flushed { key: u64 },
    /// Bytes of a read landed, or did not; whether the owner said that the lease held until they were read.
    Landed { read: u64, bytes: usize, result: Result<bool, Status> },
    /// An owner does not serve bytes of a read, which begin there in its destination.
    Refused { read: u64, offset: usize, bytes: usize, reason: Reason },
}

/// What a peer may cost.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Longest message in bytes.
    pub(crate) message: usize,
    /// Most answers to pings in flight.
    pub(crate) pongs: usize,
    /// Most answers to asks in flight.
    pub(crate) serving: usize,
    /// Most refusals of asks in flight.
    pub(crate) refusing: usize,
}

/// What reads are served by.
pub(crate) struct Served {
    pub(crate) permits: Permits,
    pub(crate) regions: Regions,
}

/// Buffers and operations kept for reuse, so that a steady flow allocates nothing.
const SPARE: usize = 256;
/// Largest buffer kept.
pub(super) const SPARE_BYTES: usize = 64 << 10;

/// Owned by a worker until after its destruction; callbacks get a pointer to it.
pub(super) struct Mailbox {
    pub(super) limits: Limits,
    /// The first of this worker's active-message ids.
    pub(super) ids: u16,
    pub(super) served: Served,
    /// Set once the worker is there.
    pub(super) worker: Cell<ucx::ucp_worker_h>,
    landings: Cell<Landings>,
    secret: RandomState,
    secrets: Cell<u64>,
    events: Cell<VecDeque<Event>>,
    /// How many.
    waiting: Cell<usize>,
    buffers: Cell<Vec<Vec<u8>>>,
    #[allow(clippy::vec_box)] // The box is what UCX holds meanwhile.
    operations: Cell<Vec<Box<Operation>>>,
    /// Operations that UCX holds.
    pub(super) outstanding: Cell<usize>,
    /// Those that answer pings.
    pub(super) pongs: Cell<usize>,
    /// Those that answer asks.
    pub(super) serving: Cell<usize>,
    /// Those that refuse asks.
    pub(super) refusing: Cell<usize>,
    /// Those with copies of what was asked for; the others, in `serving`, lie where they are read from.
    copying: Cell<usize>,
    /// Operations that UCX was done with after the call that began them.
    pub(super) called_back: Cell<usize>,
    /// How many answers wait on each endpoint. UCX keeps it until then, even one that failed.
    answering: Cell<HashMap<ucx::ucp_ep_h, usize>>,
    /// How many those are in all.
    answers: Cell<usize>,
    /// Messages dropped because no honest peer sends such.
    pub(super) refused: Cell<usize>,
}

impl Mailbox {
    pub(super) fn new(limits: Limits, ids: u16, served: Served) -> Self {
        Self {
            limits,
            ids,
            served,
            worker: Cell::new(ptr::null_mut()),
            landings: Cell::default(),
            secret: RandomState::new(),
            secrets: Cell::new(0),
            events: Cell::default(),
            waiting: Cell::new(0),
            buffers: Cell::default(),
            operations: Cell::default(),
            outstanding: Cell::new(0),
            pongs: Cell::new(0),
            serving: Cell::new(0),
            refusing: Cell::new(0),
            copying: Cell::new(0),
            called_back: Cell::new(0),
            answering: Cell::default(),
            answers: Cell::new(0),
            refused: Cell::new(0),
        }
    }

    pub(super) fn post(&self, event: Event) {
        add(&self.waiting, 1);
        with(&self.events, |events| events.push_back(event));
    }

    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.waiting.get() == 0
    }

    pub(super) fn next(&self) -> Option<Event> {
        // Most often there is none, and then nothing is moved.
        if self.is_quiet() {
            return None;
        }
        subtract(&self.waiting, 1);
        with(&self.events, VecDeque::pop_front)
    }

    /// A message's buffer, for the next one.
    pub(super) fn recycle(&self, buffer: Vec<u8>) {
        if buffer.capacity() <= SPARE_BYTES {
            with(&self.buffers, |buffers| keep(buffers, buffer));
        }
    }

    /// An operation of `kind`.
    pub(super) fn operation(&self, kind: Kind) -> Box<Operation> {
        let mut operation = with(&self.operations, Vec::pop).unwrap_or_default();
        operation.begin(self, kind);
        operation
    }

    /// An operation of `kind` that sends a copy of `bytes`.
    pub(super) fn operation_with(&self, kind: Kind, bytes: &[u8]) -> Box<Operation> {
        let mut operation = self.operation(kind);
        operation.buffer().extend_from_slice(bytes);
        operation
    }

    pub(super) fn recycle_operation(&self, operation: Box<Operation>) {
        with(&self.operations, |operations| keep(operations, operation));
    }

    /// A place where `length` bytes of a read will land.
    pub(super) fn expect(&self, read: u64, mapped: Arc<Mapped>, offset: usize, length: usize) -> Landing {
        let nonce = self.next_secret();
        with(&self.landings, |landings| landings.add(nonce, Expected { read, mapped, offset, length }))
    }

    /// A number that no peer can guess.
    pub(crate) fn next_secret(&self) -> u64 {
        self.secrets.set(self.secrets.get().wrapping_add(1));
        self.secret.hash_one(self.secrets.get())
    }

    pub(super) fn take_landing(&self, landing: Landing) -> Option<Expected> {
        with(&self.landings, |landings| landings.take(landing))
    }

    /// Nothing will land there, if it has not.
    pub(super) fn fail(&self, landing: Landing, status: Status) {
        if let Some(Expected { read, length, .. }) = self.take_landing(landing) {
            self.post(Event::Landed { read, bytes: length, result: Err(status) });
        }
    }

    /// Nothing that was asked for this read lands any more, except what is landing already; how many places, and bytes, that was.
    pub(super) fn give_up(&self, read: u64) -> (usize, usize) {
        with(&self.landings, |landings| landings.give_up(read))
    }

    /// Answers to asks under way, from where the bytes lie or with copies of them.
    pub(super) fn served_by(&self, mapped: bool) -> &Cell<usize> {
        if mapped { &self.serving } else { &self.copying }
    }

    /// How many answers wait on `reply`.
    pub(super) fn waiting_on(&self, reply: ucx::ucp_ep_h) -> usize {
        // Most often none waits anywhere, and then nothing is looked up.
        if self.answers.get() == 0 {
            return 0;
        }
        with(&self.answering, |answering| answering.get(&reply).copied().unwrap_or(0))
    }

    /// An answer could not go out on `reply` at once.
    pub(super) fn answer_waits(&self, reply: ucx::ucp_ep_h) {
        add(&self.answers, 1);
        with(&self.answering, |answering| *answering.entry(reply).or_default() += 1);
    }

    pub(super) fn answer_waits_no_more(&self, reply: ucx::ucp_ep_h) {
        with(&self.answering, |answering| {
            if let Entry::Occupied(mut waiting) = answering.entry(reply) {
                subtract(&self.answers, 1);
                *waiting.get_mut() -= 1;
                if *waiting.get() == 0 {
                    waiting.remove();
                }
            }
        });
    }

    /// The endpoints on which answers wait.
    pub(super) fn answering(&self) -> Vec<ucx::ucp_ep_h> {
        with(&self.answering, |answering| answering.keys().copied().collect())
    }

    pub(super) fn message(&self, bytes: &[u8]) {
        let mut buffer = with(&self.buffers, Vec::pop).unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        self.post(Event::Message(buffer));
    }

    pub(super) fn refuse(&self) {
        add(&self.refused, 1);
    }
}

pub(super) fn add(cell: &Cell<usize>, n: usize) {
    cell.set(cell.get().saturating_add(n));
}

pub(super) fn subtract(cell: &Cell<usize>, n: usize) {
    cell.set(cell.get().saturating_sub(n));
}

/// Lends a cell's content to `f`, which must not call UCX.
fn with<T: Default, R>(cell: &Cell<T>, f: impl FnOnce(&mut T) -> R) -> R {
    let mut content = cell.take();
    let result = f(&mut content);
    cell.set(content);
    result
}

fn keep<T>(spares: &mut Vec<T>, spare: T) {
    if spares.len() < SPARE {
        spares.push(spare);
    }
}
