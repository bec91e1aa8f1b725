//! Transports that err, peers that lie about who they are, bursts that nobody has room for.

mod common;

use std::collections::BTreeSet;

use common::{
    Spec, TestReader, World, id,
    lone::{Heard, LoneHolder, LoneReader, frame, hear, identity, token},
};
use lease_proto::{
    config::Config,
    counters::Counters,
    drive::{Drive, Engine, Machine},
    event::{Context, Event, Freed, Refused},
    frame::Frame,
    id::{Incarnation, ReaderRank},
    params::Parameters,
    reader::{ReadOutcome, Reader, Track},
    table::boxed,
    time::{Duration, Instant},
    transport::{Capabilities, Control, ErrorKind, Incoming, PeerId, Ticket},
    wire::Wire,
};

/// A transport that does as the test says and keeps count of what it still holds.
struct Puppet {
    capabilities: Capabilities,
    errs: bool,
    /// Attempts succeed at the next poll.
    reachable: bool,
    in_flight: usize,
    tickets: u64,
    attempts: BTreeSet<u64>,
    connections: BTreeSet<u64>,
}

impl Puppet {
    fn new() -> Self {
        Self {
            capabilities: Capabilities::notifications(65_536),
            errs: false,
            reachable: false,
            in_flight: 0,
            tickets: 0,
            attempts: BTreeSet::new(),
            connections: BTreeSet::new(),
        }
    }

    fn turn(
        &mut self,
        drive: &mut Drive,
        machine: &mut dyn Machine,
        counters: &mut Counters,
        now: Instant,
    ) -> Result<(), ErrorKind> {
        let (mut clock, mut events, mut buffer) = (|| now, |_: Event<'_>| {}, vec![0; 65_536]);
        let engine = Engine { clock: &mut clock, counters, events: &mut events, buffer: &mut buffer };
        drive.turn(self, &mut [machine], engine, Duration::ZERO).map(|_| ())
    }
}

impl Control for Puppet {
    type Error = ErrorKind;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_metadata(&self) -> &[u8] {
        b"puppet"
    }

    fn connect(&mut self, _: Frame<'_>) -> Result<Ticket, ErrorKind> {
        self.tickets += 1;
        self.attempts.insert(self.tickets);
        Ok(Ticket(self.tickets))
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.attempts.remove(&ticket.0);
    }

    fn notify(&mut self, _: PeerId, _: &[u8]) -> Result<(), ErrorKind> {
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Incoming<'_>>, ErrorKind> {
        if self.errs {
            return Err(ErrorKind::BackendFailed);
        }
        let connected = self.attempts.first().copied().filter(|_| self.reachable);
        Ok(connected.map(|number| {
            self.attempts.remove(&number);
            self.connections.insert(number);
            Incoming::Connected { ticket: Ticket(number), peer: PeerId(number) }
        }))
    }

    fn flush(&mut self, _: Duration) -> Result<(), ErrorKind> {
        Ok(())
    }

    fn in_flight(&self, _: PeerId) -> usize {
        self.in_flight
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.connections.remove(&peer.0);
    }

    fn register_waker(&mut self, _: &std::task::Waker) -> Result<(), ErrorKind> {
        Ok(())
    }

    fn next_timeout(&self) -> Option<Duration> {
        None
    }
}

/// A reader that tracks one request on each of so many holders.
fn crowded(wire: Wire, holders: u64) -> (TestReader, Drive, Vec<lease_proto::reader::Handle>) {
    let terms = Config::default().validate(wire).unwrap();
    let own = identity("d", 2);
    let metadata = frame(own.incarnation, b"d");
    let mut reader: TestReader = Reader::new(own, terms.clone(), [9; 16], metadata, boxed(512), boxed(512), boxed(512));
    let (mut counters, mut events) = (Counters::default(), |_: Event<'_>| {});
    let handles = (0..holders).map(|n| {
        let (engine, incarnation, request) = (format!("p{n}"), Incarnation(n + 100), id(&format!("r{n}")));
        let params = Parameters {
            token: token(n + 1),
            incarnation,
            engine: engine.as_bytes(),
            ranks: 1,
            extension: terms.extension(),
            drift_ppm: 500,
            frames: &[],
            regions: &[],
        };
        let mut cx = Context { now: Instant::ZERO, counters: &mut counters, events: &mut events };
        let track = Track { request: &request, params: &params, reader: ReaderRank::ONLY };
        reader.track(&mut cx, track, [(0, frame(incarnation, b"p"))]).unwrap()
    });
    let handles = handles.collect();
    (reader, Drive::new(&terms, 65_536), handles)
}

fn millis(millis: u64) -> Instant {
    Instant::ZERO.saturating_add(Duration::from_millis(millis))
}

#[test]
fn a_transport_that_errs_stops_no_clock() {
    let mut holder = LoneHolder::new(Wire::Native);
    holder.grant("a");
    let (mut puppet, mut counters) = (Puppet::new(), Counters::default());
    let mut drive = Drive::new(&Config::default().validate(Wire::Native).unwrap(), 65_536);
    puppet.errs = true;
    for second in 0..=31 {
        assert_eq!(
            puppet.turn(&mut drive, &mut holder.holder, &mut counters, millis(second * 1000)),
            Err(ErrorKind::BackendFailed)
        );
    }
    assert_eq!((holder.holder.live(), counters.freed(Freed::Expired)), (0, 1));
}

#[test]
fn attempts_that_are_given_up_all_at_once_leave_nothing_at_the_transport() {
    let (mut reader, mut drive, _) = crowded(Wire::Native, 250);
    let (mut puppet, mut counters) = (Puppet::new(), Counters::default());
    puppet.turn(&mut drive, &mut reader, &mut counters, millis(0)).unwrap();
    // Nobody can be reached; one long stall ends with every deadline passed, and later all are lost and forgotten.
    for now in (12_500..60_000).step_by(50).chain((3_700_000..3_800_000).step_by(50)) {
        puppet.turn(&mut drive, &mut reader, &mut counters, millis(now)).unwrap();
    }
    assert_eq!((reader.open(), puppet.attempts.len()), (0, 0));
}

#[test]
fn a_connection_that_comes_after_its_attempt_was_given_up_is_closed() {
    let (mut reader, mut drive, handles) = crowded(Wire::Vllm, 200);
    let (mut puppet, mut counters) = (Puppet { reachable: true, ..Puppet::new() }, Counters::default());
    for now in (0..5000).step_by(50) {
        puppet.turn(&mut drive, &mut reader, &mut counters, millis(now)).unwrap();
    }
    assert_eq!(puppet.connections.len(), 200);
    for handle in handles {
        let mut events = |_: Event<'_>| {};
        reader.finish(&mut Context { now: millis(5000), counters: &mut counters, events: &mut events }, handle).unwrap();
    }
    puppet.connect(Frame::decode(&frame(Incarnation(1), b"x")).unwrap()).unwrap(); // of nobody here
    for now in (5000..6000).step_by(50).chain((3_700_000..3_705_000).step_by(50)) {
        puppet.turn(&mut drive, &mut reader, &mut counters, millis(now)).unwrap();
    }
    assert_eq!((counters.evicted, puppet.connections.len()), (200, 0));
}

#[test]
fn a_stuck_peer_is_not_asked_faster() {
    let beats = |in_flight| {
        let mut reader = LoneReader::new(Wire::Native);
        reader.track("a", 1);
        let first = reader.poll("1");
        reader.grant_all(&first, "20");
        let (mut puppet, mut counters) = (Puppet { in_flight, ..Puppet::new() }, Counters::default());
        let mut drive = Drive::new(&Config::default().validate(Wire::Native).unwrap(), 65_536);
        for now in (1000..41_000).step_by(50) {
            puppet.turn(&mut drive, &mut reader.reader, &mut counters, millis(now)).unwrap();
        }
        counters.heartbeats
    };
    let (free, stuck) = (beats(0), beats(1));
    assert!(free >= 4 && stuck <= free + 8, "{free} and {stuck} beats");
}

/// Two nodes with the same engine id: each lives, and neither loses its leases to the other.
#[test]
fn engines_that_share_an_id_keep_their_leases() {
    let mut world = World::new(Wire::Native);
    world.spawn("p1", Spec::of("prefill"));
    world.spawn("p2", Spec::of("prefill"));
    world.spawn("d", Spec::of("d"));
    for (holder, request, time) in [("p1", "a", "5"), ("p2", "b", "10"), ("p1", "c", "100")] {
        let token = world.grant(holder, request).unwrap();
        world.track("d", holder, request, token).unwrap();
        world.run_to(time);
    }
    for (holder, request) in [("p1", "a"), ("p2", "b"), ("p1", "c")] {
        assert_eq!((world.freed(holder, request), world.lost("d", request)), (None, None), "{request}");
    }
    assert_eq!(world.node("d").counters.peer_restarted, 0);
    world.lawful();
}

/// What comes before a grant must fit it, as what comes after it must.
#[test]
fn an_early_completion_that_does_not_fit_the_grant_frees_nothing() {
    let mut holder = LoneHolder::new(Wire::Native);
    let seed = holder.grant("seed");
    let session = holder.greet("d", 5, seed).unwrap();
    let announced = holder.expect("a");
    holder.complete(session, ReaderRank::ONLY, announced).unwrap();
    holder.grant_with("a", Some(2), None).unwrap();
    assert_eq!((holder.freed("a"), holder.refused(Refused::Inconsistent)), (None, 1));
    holder.lawful();
}

/// A hello under another's name, with a session of its own, takes no answer away from it.
#[test]
fn a_hello_under_anothers_name_is_another_conversation() {
    let mut holder = LoneHolder::new(Wire::Native);
    let (a, b) = (holder.grant("a"), holder.grant("b"));
    let victim = holder.greet("d", 5, a).unwrap();
    let thief = holder.greet_in("d", 5, b, 0xbad).unwrap();
    assert_ne!(victim, thief);
    assert!(holder.renew(victim, ReaderRank::ONLY, a).is_ok(), "its answers still come in its own session");
}

/// One context may serve a whole step, also when the clock has gone back: a proof never grows from that.
#[test]
fn a_clock_that_goes_back_within_a_step_lengthens_no_proof() {
    for shared in [false, true] {
        let mut reader = LoneReader::new(Wire::Native);
        reader.go("100");
        let handle = reader.track("a", 1);
        let mut sent = reader.poll("100");
        sent.extend(reader.poll("100.1"));
        sent.extend(reader.poll("100.2"));
        reader.grant_all(&sent, "20");
        reader.go("105");
        reader.act(|reader, cx| reader.handle_timeout(cx)); // a beat is due
        reader.go("102");
        let (mut buffer, mut renew) = (vec![0; 65_536], None);
        let mut transmit = |reader: &mut TestReader, cx: &mut Context<'_>| {
            while let Some(transmit) = reader.poll_transmit(cx, &mut buffer) {
                if let Heard::Renew { seq, tokens, .. } = hear(Wire::Native, &buffer[..transmit.length]) {
                    renew = Some((seq, tokens.len() as u16));
                }
                reader.sent(cx, &transmit, Ok(()));
            }
        };
        if shared {
            reader.act(|reader, cx| {
                reader.handle_timeout(cx);
                transmit(reader, cx);
            });
        } else {
            reader.act(|reader, cx| reader.handle_timeout(cx));
            reader.act(&mut transmit);
        }
        let (seq, count) = renew.unwrap(); // left at 102: the holder may free at 122
        reader.go("105");
        reader.renewed(0, seq, count, "20", &[]);
        reader.act(|reader, cx| reader.begin_read(cx, handle)).unwrap();
        reader.go("124.5");
        reader.act(|reader, cx| reader.read_ended(cx, handle, ReadOutcome::OneSided)).unwrap();
        assert_eq!(reader.verdict("a"), None, "shared: {shared}");
    }
}
