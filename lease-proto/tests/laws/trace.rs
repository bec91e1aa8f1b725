//! What happened in a world, in order: the only thing that the laws are judged by.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::Waker,
};

use conformance::loopback::{Fabric, Loopback, LoopbackError};
use lease_proto::{
    event::{Event, Freed, Lost, Verdict},
    frame::Frame,
    id::Token,
    reader::Handle,
    time::Duration,
    transport::{Capabilities, Control, Error as _, ErrorKind, Incoming, PeerId, Ticket},
    wire::{
        self, Message, Wire,
        native::{self, Body, Renewed},
    },
};

/// One thing that happened to the process `life`. Its place in the trace is its place in the order of the world.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub at: u64,
    pub life: usize,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    In(Vec<u8>),
    Out(Vec<u8>),
    Granted {
        request: String,
        token: Token,
        expires: u64,
    },
    Renewed {
        request: String,
        token: Token,
        expires: u64,
    },
    Freed {
        token: Token,
        why: Freed,
        expires: u64,
        now: u64,
        previous_poll: u64,
    },
    Drained,
    Confirmed(Handle),
    Unproven(Handle),
    Lost(Handle, Lost),
    ReadDone(Handle, Verdict),
    Resolved(Handle),
    /// A turn is over: until when the holder sleeps, and whether messages are left.
    Turned {
        next: Option<u64>,
        more: bool,
    },
    /// The engine announced a request; it took back one that was never granted.
    Announced {
        request: String,
        token: Token,
    },
    Withdrawn(Token),
    /// The engine drains; what is not promised is free by then.
    Drains {
        by: u64,
    },
    /// The engine's read of this track is over, at this very moment.
    ReadEnded(usize),
    Died,
}

/// The trace, and whether something happened that no timer tells.
#[derive(Clone, Debug)]
pub struct Trace {
    fabric: Fabric,
    entries: Rc<RefCell<Vec<Entry>>>,
    stirred: Rc<Cell<bool>>,
}

impl Trace {
    pub fn new(fabric: &Fabric) -> Self {
        Self { fabric: fabric.clone(), entries: Rc::default(), stirred: Rc::default() }
    }

    pub fn put(&self, life: usize, what: What) {
        self.entries.borrow_mut().push(Entry { at: self.fabric.now().as_nanos(), life, what });
    }

    pub fn event(&self, life: usize, event: Event<'_>) {
        self.put(
            life,
            match event {
                Event::Granted { request, token, expires } => {
                    What::Granted { request: request.to_string(), token, expires: expires.as_nanos() }
                }
                Event::Renewed { request, token, expires } => {
                    What::Renewed { request: request.to_string(), token, expires: expires.as_nanos() }
                }
                Event::Freed { token, why, expires, now, previous_poll, .. } => What::Freed {
                    token,
                    why,
                    expires: expires.as_nanos(),
                    now: now.as_nanos(),
                    previous_poll: previous_poll.as_nanos(),
                },
                Event::Drained => What::Drained,
                Event::Confirmed { handle, .. } => What::Confirmed(handle),
                Event::Unproven { handle, .. } => What::Unproven(handle),
                Event::Lost { handle, why, .. } => What::Lost(handle, why),
                Event::ReadDone { handle, verdict, .. } => What::ReadDone(handle, verdict),
                Event::Resolved { handle, .. } => What::Resolved(handle),
                _ => return,
            },
        );
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.entries.borrow().clone()
    }

    pub fn any(&self, life: usize, is: impl Fn(&What) -> bool) -> bool {
        self.entries.borrow().iter().any(|entry| entry.life == life && is(&entry.what))
    }

    /// One of the messages that were ever sent.
    pub fn sent(&self, nth: usize) -> Option<Vec<u8>> {
        let entries = self.entries.borrow();
        let sent = || entries.iter().filter_map(|entry| if let What::Out(bytes) = &entry.what { Some(bytes) } else { None });
        sent().nth(nth.checked_rem(sent().count())?).cloned()
    }

    pub fn stir(&self) {
        self.stirred.set(true);
    }

    pub fn take_stirred(&self) -> bool {
        self.stirred.replace(false)
    }
}

/// How a fabric tells of the dead, and how it lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nature {
    /// Deaths are not reported: what is sent to the dead is swallowed.
    pub silent: bool,
    /// A broken holder for the tests of the tests: its answers promise twice of what it keeps.
    pub boasts: bool,
}

/// A loopback endpoint that writes down what passes.
#[derive(Debug)]
pub struct Tap {
    pub inner: Loopback,
    trace: Trace,
    life: usize,
    nature: Nature,
    current: Vec<u8>,
}

impl Tap {
    pub fn new(inner: Loopback, trace: Trace, life: usize, nature: Nature) -> Self {
        Self { inner, trace, life, nature, current: Vec::new() }
    }
}

impl Control for Tap {
    type Error = LoopbackError;

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn local_metadata(&self) -> &[u8] {
        self.inner.local_metadata()
    }

    fn connect(&mut self, metadata: Frame<'_>) -> Result<Ticket, LoopbackError> {
        self.trace.stir();
        self.inner.connect(metadata)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.inner.cancel(ticket);
    }

    fn notify(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), LoopbackError> {
        let boast = self.nature.boasts.then(|| doubled(bytes)).flatten();
        let bytes = boast.as_deref().unwrap_or(bytes);
        self.trace.put(self.life, What::Out(bytes.to_vec()));
        match self.inner.notify(peer, bytes) {
            Err(error) if self.nature.silent && error.kind() == ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }

    fn poll(&mut self) -> Result<Option<Incoming<'_>>, LoopbackError> {
        loop {
            match self.inner.poll()? {
                Some(Incoming::PeerLost { .. }) if self.nature.silent => {}
                Some(Incoming::Notification { from, bytes }) => {
                    self.current = bytes.to_vec();
                    self.trace.put(self.life, What::In(self.current.clone()));
                    return Ok(Some(Incoming::Notification { from, bytes: &self.current }));
                }
                // What borrows nothing can be given on.
                Some(Incoming::Connected { ticket, peer }) => return Ok(Some(Incoming::Connected { ticket, peer })),
                Some(Incoming::ConnectFailed { ticket, kind }) => return Ok(Some(Incoming::ConnectFailed { ticket, kind })),
                Some(Incoming::PeerLost { peer }) => return Ok(Some(Incoming::PeerLost { peer })),
                _ => return Ok(None),
            }
        }
    }

    fn flush(&mut self, budget: Duration) -> Result<(), LoopbackError> {
        self.inner.flush(budget)
    }

    fn in_flight(&self, peer: PeerId) -> usize {
        self.inner.in_flight(peer)
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.inner.disconnect(peer);
    }

    fn register_waker(&mut self, waker: &Waker) -> Result<(), LoopbackError> {
        self.inner.register_waker(waker)
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.inner.next_timeout()
    }
}

/// An answer to a renew with twice the time in it.
fn doubled(bytes: &[u8]) -> Option<Vec<u8>> {
    let Ok(Message::Native { session, seq, body: Body::Renewed(renewed) }) = wire::decode(Wire::Native, bytes) else {
        return None;
    };
    let mut out = vec![0; bytes.len()];
    let body = Body::Renewed(Renewed { granted: renewed.granted.saturating_mul(2), ..renewed });
    let length = native::encode(session, seq, &body, &mut out).ok()?;
    out.truncate(length);
    Some(out)
}
