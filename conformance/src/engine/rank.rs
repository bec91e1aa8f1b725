//! One rank of an engine: both machines of the protocol over one transport, driven together, and what they tell.

use std::collections::VecDeque;

use gpu_mem::Memory;
use lease_proto::{
    counters::Counters,
    drive::{Drive, Engine as Surroundings, Machine},
    event::{Context, Event},
    frame::{Frame, HEADER},
    holder::{Ended, Holder, Lease as HeldLease, Peer as HolderPeer},
    id::{ClockId, EngineId, Identity, Incarnation},
    permits::Permits,
    reader::{Leg, Peer as ReaderPeer, Reader, Request},
    table::{Slot, boxed},
    time::{Duration, Instant},
    transport::Data,
};
use serde_json::Value;

use super::{EngineError, Setup, carrier::Carrier, ear::Ear, transport_error};

pub(crate) type HolderOf = Holder<Box<[Slot<HeldLease>]>, Box<[Slot<HolderPeer>]>, Box<[Slot<Ended>]>>;
pub(crate) type ReaderOf = Reader<Box<[Slot<Request>]>, Box<[Slot<Leg>]>, Box<[Slot<ReaderPeer<Vec<u8>>>]>, Vec<u8>>;

/// Peers that one rank talks to.
const PEERS: usize = 256;
/// Time for pushing accepted messages out at the end of a turn.
pub(crate) const FLUSH: Duration = Duration::from_millis(1);

/// Which rank of its engine, and since when that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    pub(crate) rank: u16,
    pub(crate) ranks: u16,
    pub(crate) started: Instant,
}

/// The machines, their transport and their surroundings.
pub(crate) struct Rank<T> {
    pub(crate) transport: T,
    pub(super) clock: Box<dyn Fn() -> Instant>,
    pub(crate) ear: Ear,
    /// How to connect here.
    pub(crate) frame: Vec<u8>,
    pub(crate) holder: HolderOf,
    pub(crate) reader: ReaderOf,
    drive: Drive,
    pub(crate) counters: Counters,
    pub(super) buffer: Vec<u8>,
    /// Who carries its bytes, where not the transport alone.
    pub(super) carrier: Option<Carrier<T>>,
}

impl<T: Data<Memory = Memory>> Rank<T> {
    /// Over a transport, whose permits it keeps; with room for as many legs of requests as `legs` says.
    ///
    /// # Errors
    /// Terms that do not hold, an id that is too long.
    pub(crate) fn new(
        transport: T,
        permits: Permits,
        clock: Box<dyn Fn() -> Instant>,
        setup: &Setup,
        seat: Seat,
        legs: usize,
    ) -> Result<Self, EngineError> {
        let terms = setup.config.validate(setup.wire)?;
        let max_message = u32::try_from(transport.capabilities().max_notification).unwrap_or(u32::MAX);
        let incarnation = Incarnation(setup.incarnation);
        let identity = Identity {
            engine: EngineId::try_from(setup.name.as_str())?,
            incarnation,
            rank: seat.rank,
            ranks: seat.ranks,
            clock: ClockId(setup.incarnation),
            max_message,
        };
        let mut frame = vec![0; transport.local_metadata().len() + HEADER];
        Frame::encode(incarnation, transport.local_metadata(), &mut frame)
            .map_err(|error| EngineError::Params(error.to_string()))?;
        Ok(Self {
            holder: Holder::new(
                identity.clone(),
                terms.clone(),
                setup.seed,
                boxed(setup.capacity),
                boxed(PEERS),
                boxed(setup.capacity),
            ),
            reader: Reader::new(
                identity.clone(),
                terms.clone(),
                setup.seed.map(|byte| !byte),
                frame.clone(),
                boxed(setup.capacity),
                boxed(legs),
                boxed(PEERS),
            ),
            drive: Drive::new(&terms, max_message),
            buffer: vec![0; transport.capabilities().max_notification.max(frame.len() + 1024)],
            transport,
            clock,
            ear: Ear {
                permits,
                identity,
                started: seat.started,
                told: VecDeque::new(),
                freed: Vec::new(),
                landed: Vec::new(),
                untold: 0,
            },
            frame,
            counters: Counters::default(),
            carrier: None,
        })
    }

    /// The time on its clock.
    pub(crate) fn now(&self) -> Instant {
        (self.clock)()
    }

    /// One turn of the loop; returns when the next one is due, from now on.
    ///
    /// # Errors
    /// What the transport as a whole reports.
    pub(crate) fn turn(&mut self) -> Result<Option<Duration>, EngineError> {
        match self.carrier.take() {
            None => {}
            Some(Carrier::HandsIn(mut hand_in)) => {
                let handed = hand_in(&mut self.transport);
                self.carrier = Some(Carrier::HandsIn(hand_in));
                handed?;
            }
            Some(Carrier::ByHand(mut hand)) => {
                let turn = self.turn_by_hand(&mut *hand);
                self.carrier = Some(Carrier::ByHand(hand));
                return turn;
            }
        }
        let Self { transport, clock, ear, holder, reader, drive, counters, buffer, .. } = self;
        let mut hear = |event: Event<'_>| ear.hear(&event, clock());
        let machines: &mut [&mut dyn Machine] = &mut [holder, reader];
        let surroundings = Surroundings { clock: &mut || clock(), counters, events: &mut hear, buffer };
        let turn = drive.turn(transport, machines, surroundings, FLUSH).map_err(transport_error)?;
        if turn.more {
            return Ok(Some(Duration::ZERO));
        }
        Ok(turn.next.map(|next| next.saturating_since(self.now())))
    }

    /// An event that is the engine's own, not the protocol's.
    pub(crate) fn tell(&mut self, event: &str, more: Value) {
        self.ear.tell(event, more, (self.clock)());
    }

    /// Does something with the machines, at this time.
    pub(crate) fn with<R>(&mut self, f: impl FnOnce(&mut HolderOf, &mut ReaderOf, &mut Context<'_>) -> R) -> R {
        let Self { clock, ear, holder, reader, counters, .. } = self;
        let now = clock();
        let mut hear = |event: Event<'_>| ear.hear(&event, now);
        f(holder, reader, &mut Context { now, counters, events: &mut hear })
    }
}
