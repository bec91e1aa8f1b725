//! What a fabric must offer: one trait for control, one for data.
//!
//! Nothing here blocks; the forward loop calls all of it. Slow foreign calls happen on a thread that the transport owns, and
//! their results come out of [`Control::poll`]. What a transport can and cannot do it STATES in its [`Capabilities`], and the
//! conformance suite checks every statement.

use core::{fmt, task::Waker};

use crate::{
    frame::Frame,
    id::{Incarnation, Token},
    time::Duration,
};

/// A connected peer as its transport numbers it. Never reused within a transport's life: a handle of an old connection is
/// `NotConnected`, never somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// A connection attempt that [`Control::poll`] will resolve, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A read in flight that [`Control::poll`] will resolve, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// What kind of failure an error is, for code that acts on it without knowing the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bound on what is in flight is reached: poll, then try again.
    WouldBlock,
    /// Larger than [`Capabilities::max_notification`].
    TooLarge,
    /// No such peer, or no longer: a handshake is needed (case 26).
    NotConnected,
    /// The fabric reports the peer dead. Advice: it starts a new handshake and never ends a lease.
    PeerLost,
    /// The library below failed in a way it does not explain.
    BackendFailed,
    /// This transport cannot do that at all.
    Unsupported,
    /// The peer, or the fabric on its behalf, refused.
    Rejected,
    /// The caller's or a peer's input is malformed.
    Invalid,
    /// What this transport needs is not on this machine.
    Unavailable,
}

impl ErrorKind {
    /// Its name in lower case, as printed in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WouldBlock => "would block",
            Self::TooLarge => "too large",
            Self::NotConnected => "not connected",
            Self::PeerLost => "peer lost",
            Self::BackendFailed => "backend failed",
            Self::Unsupported => "unsupported",
            Self::Rejected => "rejected",
            Self::Invalid => "invalid",
            Self::Unavailable => "unavailable",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A transport's own error.
pub trait Error: fmt::Debug + fmt::Display {
    /// What kind of failure this is.
    fn kind(&self) -> ErrorKind;
}

impl Error for ErrorKind {
    fn kind(&self) -> ErrorKind {
        *self
    }
}

/// What a transport states about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Largest notification in bytes.
    pub max_notification: usize,
    /// Whether notifications to one peer arrive in the order of sending.
    pub ordered: bool,
    /// Whether a connection is reported only once the peer's transport has answered. If not, a peer that is dead or stands still may
    /// be reported connected, and only its silence tells.
    pub answered: bool,
    /// Whether who sends to a peer that takes nothing in is held back by `WouldBlock`. If not, the fabric queues without bound, and
    /// only what is sent unanswered bounds it.
    pub holds_back: bool,
    /// Who serves reads, if there are any.
    pub reads: Reads,
    /// Whether a read may wait for the owner's process. Where the owner does not serve by itself, the fabric may do so behind its back
    /// and unasked: such a read waits as long as the owner stands still, even once the peer was forgotten.
    pub reads_need_owner: bool,
    /// Whether a read that comes after the end of the registration is refused, and a reader that dies in the midst of one harms nobody.
    /// If not, the fabric may end the owner's process: keep what is exported registered, and readers and owners of one fate.
    pub late_read_is_safe: bool,
    /// Whether device memory of CUDA can be registered.
    pub cuda: bool,
    /// Whether a registration can be invalidated for good (proof D).
    pub fence: bool,
    /// Whether and how fast the death of a peer's process is reported.
    pub dead_peer: DeadPeer,
}

impl Capabilities {
    /// Notifications of up to `max_notification` bytes, in order, and nothing else.
    pub const fn notifications(max_notification: usize) -> Self {
        Self {
            max_notification,
            ordered: true,
            answered: true,
            holds_back: true,
            reads: Reads::None,
            reads_need_owner: false,
            late_read_is_safe: true,
            cuda: false,
            fence: false,
            dead_peer: DeadPeer::Never,
        }
    }
}

/// Who moves the bytes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// This transport does not read.
    None,
    /// The fabric, without the owner's help: an `Ok` says nothing about the lease.
    OneSided,
    /// The owner, who checks token and bounds while serving (proof C).
    OwnerServed,
}

/// Whether the death of a peer's process is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadPeer {
    /// Not at all.
    Never,
    /// Usually within this time. A stopped process or a cut link may still go unnoticed.
    Within(Duration),
}

/// What came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incoming<'a> {
    /// A notification, whole and unchanged.
    Notification {
        /// The peer it came from, where the fabric itself can tell. A name written by the sender does not count.
        from: Option<PeerId>,
        /// Its bytes, until the next call.
        bytes: &'a [u8],
    },
    /// A connection attempt succeeded.
    Connected {
        /// Which one.
        ticket: Ticket,
        /// The peer from now on.
        peer: PeerId,
    },
    /// A connection attempt failed.
    ConnectFailed {
        /// Which one.
        ticket: Ticket,
        /// Why.
        kind: ErrorKind,
    },
    /// The fabric reports a peer dead, once. The handle is no longer connected.
    PeerLost {
        /// Which one.
        peer: PeerId,
    },
    /// A read is over and its destination is the caller's again.
    ReadDone {
        /// Which one.
        read: ReadId,
        /// `Ok` only if ALL parts landed, are visible, and the exporter's registration was live throughout.
        result: Result<Landed, ErrorKind>,
    },
}

/// How the bytes of a read came, which decides what it proves about the lease (law 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Landed {
    /// The fabric moved them without asking the owner: proves nothing by itself.
    OneSided,
    /// The owner served them, and held the lease's permit until after the last byte was read (proof C).
    Served,
    /// One-sided, out of a region that is fenced before its memory is used again (proof D).
    Fenced,
}

/// Connections and notifications.
///
/// Dropping a transport closes every connection without blocking the peers.
pub trait Control {
    /// The transport's error.
    type Error: Error;

    /// What this transport can do. Constant during its life.
    fn capabilities(&self) -> &Capabilities;

    /// What a peer needs to connect here: the transport's own bytes, which the caller puts into a [`Frame`].
    fn local_metadata(&self) -> &[u8];

    /// Starts to connect. The ticket is resolved by [`Control::poll`], unless it is cancelled first. How long to wait is the
    /// caller's decision (case 48).
    ///
    /// # Errors
    /// `Invalid` for metadata that is not this transport's, `WouldBlock` when too many attempts are open.
    fn connect(&mut self, metadata: Frame<'_>) -> Result<Ticket, Self::Error>;

    /// Gives a connection attempt up; its ticket will not be resolved. Unknown tickets are ignored.
    fn cancel(&mut self, ticket: Ticket);

    /// Hands a notification over. `Ok` means accepted for sending, nothing more.
    ///
    /// # Errors
    /// `TooLarge`, `NotConnected`, `PeerLost`, or `WouldBlock` when the bound on what is in flight to that peer is reached.
    fn notify(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), Self::Error>;

    /// The next thing that came in, or `None`. Never waits.
    ///
    /// # Errors
    /// Only what concerns the whole transport; what concerns one peer comes as [`Incoming`].
    fn poll(&mut self) -> Result<Option<Incoming<'_>>, Self::Error>;

    /// Pushes accepted notifications towards the wire, for at most about `budget`, and never waits for a peer.
    ///
    /// # Errors
    /// As [`Control::poll`].
    fn flush(&mut self, budget: Duration) -> Result<(), Self::Error>;

    /// Accepted notifications to `peer` that have not left this process as far as the transport knows; 0 for a backend that
    /// gives no completion.
    fn in_flight(&self, peer: PeerId) -> usize;

    /// Forgets a peer. Never waits; notifications in flight may be lost.
    fn disconnect(&mut self, peer: PeerId);

    /// Wakes `waker` when [`Control::poll`] may have something, once.
    ///
    /// # Errors
    /// `Unsupported` where the transport can only be waited for by a file descriptor, or not at all.
    fn register_waker(&mut self, waker: &Waker) -> Result<(), Self::Error>;

    /// How long from now until the transport wants to be polled even if nothing arrives (keepalive, back-off).
    fn next_timeout(&self) -> Option<Duration>;
}

/// A range of a peer's exported region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Bytes from the region's start.
    pub offset: u64,
    /// Bytes to read.
    pub length: u64,
}

/// Memory and reads.
///
/// Where the owner serves ([`Reads::OwnerServed`]) it does so for tokens that it was given a permit for, and for no others: see
/// `permits` (feature `std`).
pub trait Data: Control {
    /// Memory with its owner, as this transport takes it.
    type Memory;
    /// Memory registered here. Dropping it ends the registration: what is exported is not served any more, and the memory is
    /// given back once no operation touches it.
    type Registration;

    /// Registers memory for any number of leases. It stays owned by the registration.
    ///
    /// # Errors
    /// `Unsupported` for a kind of memory that would be slow or wrong here, `BackendFailed` otherwise.
    fn register(&mut self, memory: Self::Memory) -> Result<Self::Registration, Self::Error>;

    /// Registers memory for ONE lease, to be fenced at its end (proof D). What that costs its transport says.
    ///
    /// # Errors
    /// As [`Data::register`], and `Unsupported` without the capability [`Capabilities::fence`].
    fn register_fenced(&mut self, memory: Self::Memory) -> Result<Self::Registration, Self::Error>;

    /// Invalidates a registration of [`Data::register_fenced`] for good: once this returns `Ok`, a read that ends `Ok` has read
    /// nothing that was written later. Call it before the blocks are used again. Fencing twice is allowed.
    ///
    /// # Errors
    /// `Invalid` for a registration that is not for one lease alone, `WouldBlock` while an operation of this side uses it: poll,
    /// then try again.
    fn fence(&mut self, registration: &Self::Registration) -> Result<(), Self::Error>;

    /// Writes what a peer needs to read this region, framed with `incarnation`, and returns its length.
    ///
    /// # Errors
    /// `TooLarge` if `out` is too small.
    fn export(&mut self, region: &Self::Registration, incarnation: Incarnation, out: &mut [u8]) -> Result<usize, Self::Error>;

    /// Starts to read `ranges` of a peer's region, one after the other, into `into` from byte `at` on. Ranges are checked before
    /// anything moves. Until [`Incoming::ReadDone`] the destination is the transport's, whatever becomes of the peer.
    ///
    /// # Errors
    /// `Invalid` for a region or a destination that is not this transport's or of another life of the peer, no ranges, empty ranges, ranges outside the region or the destination,
    /// and a destination that is registered for one lease; `NotConnected`; `WouldBlock` when the bound on reads is reached.
    fn read(
        &mut self,
        peer: PeerId,
        token: Token,
        region: Frame<'_>,
        ranges: &[Range],
        into: &Self::Registration,
        at: u64,
    ) -> Result<ReadId, Self::Error>;
}
