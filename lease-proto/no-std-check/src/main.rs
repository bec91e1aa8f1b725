//! Proof by linking: lease-proto needs neither std nor alloc, and the operations called here cannot panic.
//!
//! The panic handler calls a function that exists nowhere. If the optimizer can rule every panic out, handler and call are
//! dropped and this links; if one can be reached, the linker names `a_panic_can_be_reached`. Inputs go through `black_box`, so
//! nothing is known about them, not even their lengths. Arithmetic that overflows counts as a panic.
//!
//! Called are `id`, `time`, `clock`, `config`, `topology`, `frame`, `params`, `wire`, both state machines and a turn of `drive`,
//! with the machines in whatever state. Another compiler's optimizer may see less: where it does, make the code plainer. Which
//! code it is shows by leaving calls out.
//!
//! Exempt, since the optimizer does not see what a reader does:
//! - all of `Display` and `Debug`: `core::fmt` adds up lengths with checks.
//! - overflow inside dependencies (see `Cargo.toml`).
#![no_std]
#![no_main]

use core::{hint::black_box, panic::PanicInfo, task::Waker};

use lease_proto::{
    clock::{OffsetWindow, Sample, VllmOffset, vllm_turn2_gate},
    config::Config,
    counters::Counters,
    drive::{Drive, Engine, Machine},
    event::{Context, Event},
    frame::Frame,
    holder::{Abort, Grant, Holder},
    id::{ClockId, EngineId, Entropy, Identity, Incarnation, ReaderRank, RequestId, Seq, Session, Token},
    params::Parameters,
    reader::{ReadOutcome, Reader, Track},
    table::slots,
    time::{Duration, Instant, PeerInstant},
    topology::{Ranks, Topology, TopologyError},
    transport::{Capabilities, Control, ErrorKind, Incoming, PeerId, Ticket},
    wire::{
        self, Wire,
        native::{self, Body, RenewWriter, RenewedWriter},
        vllm::{self, HeartbeatWriter},
    },
};

// Where the start-up code comes from that calls `main`, and where the name below does not.
// SAFETY: the signature is right, since nothing has that name.
#[link(name = "c")]
unsafe extern "C" {
    fn a_panic_can_be_reached() -> !;
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    // SAFETY: never runs; a program that could call it does not link.
    unsafe { a_panic_can_be_reached() }
}

/// The compiler's own functions for 128-bit numbers come built to unwind and name this. Nothing here unwinds.
// SAFETY: no other function has this name in a program without std.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

// SAFETY: the one `main` of this program, as C's start-up code calls one without arguments.
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    let bytes = black_box(&[0; 64][..]);
    let (mut out, mut entropy) = ([0; 64], Entropy::from_seed(black_box([0; 16])));
    let token = Token { number: black_box(1), nonce: entropy.draw() };
    ids(bytes, token);
    time(black_box("30.5"), black_box(Duration::from_nanos(1)));
    frame(bytes, black_box(&mut out[..]));
    native_wire(bytes, black_box(&mut out[..]));
    vllm_wire(bytes, black_box(&mut out[..]));
    params(bytes, black_box(&mut out[..]), black_box(&mut [0; 64][..]));
    clocks(black_box(Instant::ZERO), black_box(PeerInstant::ZERO));
    let _ = black_box(topology(black_box(Ranks { pp: 1, tp: 1 }), black_box(Ranks { pp: 1, tp: 2 })));
    machines(bytes, black_box(&mut out[..]));
    0
}

fn ids(bytes: &[u8], token: Token) {
    let _ = black_box((RequestId::new(bytes), EngineId::new(bytes)));
    let _ = black_box(ReaderRank::new(black_box(1), black_box(2)));
    let _ = black_box(token == Token::from_bytes(black_box(token.to_bytes())));
}

fn time(text: &str, duration: Duration) {
    let _ = black_box((text.parse::<Duration>(), text.parse::<Instant>(), text.parse::<PeerInstant>()));
    let now = black_box(Instant::from_nanos(1));
    let _ = black_box((now.saturating_add(duration), now.saturating_sub(duration), now.saturating_since(black_box(now))));
    let _ = black_box(duration.scale(black_box(2), black_box(3)));
}

fn frame(bytes: &[u8], out: &mut [u8]) {
    let _ = black_box((Frame::decode(bytes), Frame::decode_prefix(bytes)));
    let _ = black_box(Frame::encode(black_box(Incarnation(1)), bytes, out));
}

fn native_wire(bytes: &[u8], out: &mut [u8]) {
    let (session, seq) = black_box((Session(1), Seq(2)));
    if let Ok((session, seq, body)) = black_box(native::decode(bytes)) {
        match &body {
            Body::Renew(renew) => renew.tokens.iter().for_each(|token| _ = black_box(token)),
            Body::Renewed(renewed) => renewed.exceptions.iter().for_each(|exception| _ = black_box(exception)),
            _ => {}
        }
        let _ = black_box(native::encode(session, seq, &body, out));
    }
    if let Ok(mut renew) = RenewWriter::new(out, black_box(ReaderRank::ONLY)) {
        while renew.push(black_box(Token { number: 1, nonce: 2 })) {}
        let _ = black_box((renew.count(), renew.finish(session, seq)));
    }
    if let Ok(mut renewed) = RenewedWriter::new(out, black_box(3)) {
        renewed.push(black_box(0), black_box(Ok(Duration::from_nanos(1))));
        let _ = black_box(renewed.finish(session, seq, black_box(seq), black_box(3), black_box(Duration::from_nanos(1))));
    }
    let _ = black_box(native::tokens_that_fit(black_box(1), black_box(2)));
}

fn vllm_wire(bytes: &[u8], out: &mut [u8]) {
    let mut beat = HeartbeatWriter::new(out);
    while beat.push(bytes) == Ok(true) {}
    let _ = black_box(beat.finish());
    let _ = black_box((vllm::check_id(bytes), vllm::encode_completion(bytes, black_box(2), out)));
    if let Ok(vllm::Message::Heartbeat(ids)) = black_box(vllm::decode(bytes)) {
        ids.iter().for_each(|id| _ = black_box(id));
    }
    let _ = black_box((wire::decode(black_box(Wire::Native), bytes), wire::decode(black_box(Wire::Vllm), bytes)));
}

fn params(bytes: &[u8], out: &mut [u8], text: &mut [u8]) {
    let params = Parameters {
        token: Token { number: black_box(1), nonce: black_box(2) },
        incarnation: black_box(Incarnation(3)),
        engine: bytes,
        ranks: black_box(1),
        extension: black_box(Duration::from_nanos(1)),
        drift_ppm: black_box(500),
        frames: bytes,
        regions: black_box(&[]),
    };
    let _ = black_box(params.to_text(out, text));
    let _ = black_box(Parameters::from_text(black_box("AAAA"), out));
    if let Ok(params) = black_box(Parameters::decode(bytes)) {
        let _ = black_box(params.rank_frame(black_box(1)));
        params.regions().for_each(|region| _ = black_box(region));
    }
}

fn clocks(now: Instant, theirs: PeerInstant) {
    let mut window = black_box(OffsetWindow::new(black_box(500)));
    let sample = Sample { clock: ClockId(1), sent: now, peer_received: theirs, peer_sent: theirs, received: now };
    let _ = black_box(window.add(black_box(sample), now));
    let _ = black_box((window.interval(now), window.to_local(theirs, now)));
    let _ = black_box(window.before(theirs, black_box(Duration::ZERO), now));
    let mut offset = black_box(VllmOffset::new());
    offset.add(now, theirs, black_box(now));
    let _ = black_box(vllm_turn2_gate(now, black_box(Some(theirs)), black_box(offset.nanos()).unwrap_or_default()));
}

fn topology(reader: Ranks, holder: Ranks) -> Result<(), TopologyError> {
    let topology = black_box(Topology::new(reader, holder)?);
    topology.targets(reader)?.for_each(|target| _ = black_box(target));
    let _ = black_box((topology.consumers(), topology.reader(reader)?));
    Ok(())
}

/// Both state machines, with whatever messages, terms and times.
fn machines(bytes: &[u8], out: &mut [u8]) {
    let mut config = black_box(Config::default());
    let _ = black_box(config.set(black_box("lease"), black_box("30")));
    let Ok(terms) = config.validate(black_box(Wire::Native)) else { return };
    let identity = || Identity {
        engine: black_box(EngineId::default()),
        incarnation: black_box(Incarnation(1)),
        rank: black_box(0),
        ranks: black_box(1),
        clock: black_box(ClockId(1)),
        max_message: black_box(64),
    };
    let mut counters = Counters::default();
    let mut events = |event: Event<'_>| _ = black_box(&event);
    let cx = &mut Context { now: black_box(Instant::ZERO), counters: &mut counters, events: &mut events };
    let request = black_box(RequestId::default());
    let holder = Holder::new(identity(), terms.clone(), black_box([1; 16]), slots::<_, 4>(), slots::<_, 4>(), slots::<_, 4>());
    // In whatever state: not only that of a new one.
    let mut holder = black_box(holder);
    let token = black_box(holder.mint());
    let _ = black_box(holder.expect(cx, &request, token));
    let _ = black_box(holder.grant(cx, Grant { request: &request, token, consumers: black_box(None), ttl: black_box(None) }));
    let _ = black_box(holder.abort(cx, black_box(token), black_box(Abort::Failed)));
    holder.drain(cx, black_box(Duration::ZERO));
    machine(cx, &mut holder, bytes, out);

    let reader = Reader::new(identity(), terms, black_box([1; 16]), bytes, slots::<_, 4>(), slots::<_, 4>(), slots::<_, 4>());
    let mut reader = black_box(reader);
    if let Ok(params) = Parameters::decode(bytes) {
        let track = Track { request: &request, params: &params, reader: black_box(ReaderRank::ONLY) };
        if let Ok(handle) = reader.track(cx, track, [(black_box(0), bytes)]) {
            let handle = black_box(handle);
            let _ = black_box(reader.connection(handle, black_box(0)));
            let _ = black_box(reader.begin_read(cx, handle));
            let _ = black_box(reader.read_ended(cx, handle, black_box(ReadOutcome::OneSided)));
            let _ = black_box(reader.finish(cx, handle));
        }
    }
    machine(cx, &mut reader, bytes, out);

    let mut drive = Drive::new(black_box(holder.terms()), black_box(64));
    let engine = Engine { clock: &mut || black_box(Instant::ZERO), counters: cx.counters, events: &mut *cx.events, buffer: out };
    let fabric = &mut Anything(black_box(Capabilities::notifications(64)));
    let _ = black_box(drive.turn(fabric, &mut [&mut holder, &mut reader], engine, black_box(Duration::ZERO)));
}

fn machine(cx: &mut Context<'_>, machine: &mut impl Machine, bytes: &[u8], out: &mut [u8]) {
    for _ in 0..black_box(3) {
        cx.now = black_box(cx.now);
        if let Ok(message) = wire::decode(black_box(Wire::Native), bytes) {
            let _ = black_box(machine.handle(cx, black_box(None), message, out));
        }
        machine.handle_timeout(cx);
        if let Some(peer) = machine.poll_connect(cx).map(|peer| peer.key) {
            machine.connecting(cx, peer, black_box(Ok(Ticket(1))));
        }
        let _ = black_box(machine.resolved(cx, black_box(Ticket(1)), black_box(Ok(PeerId(1)))));
        while let Some(transmit) = machine.poll_transmit(cx, out) {
            machine.sent(cx, &transmit, black_box(Ok(())));
        }
        let _ = black_box(machine.peer_lost(cx, black_box(PeerId(1))));
        let _ = black_box((machine.poll_cancel(), machine.poll_disconnect(), machine.next_timeout()));
    }
}

/// A transport that returns anything.
struct Anything(Capabilities);

impl Control for Anything {
    type Error = ErrorKind;

    fn capabilities(&self) -> &Capabilities {
        &self.0
    }

    fn local_metadata(&self) -> &[u8] {
        black_box(&[])
    }

    fn connect(&mut self, _: Frame<'_>) -> Result<Ticket, ErrorKind> {
        black_box(Ok(Ticket(1)))
    }

    fn cancel(&mut self, _: Ticket) {}

    fn notify(&mut self, _: PeerId, bytes: &[u8]) -> Result<(), ErrorKind> {
        black_box((bytes, Ok(()))).1
    }

    fn poll(&mut self) -> Result<Option<Incoming<'_>>, ErrorKind> {
        black_box(Ok(None))
    }

    fn flush(&mut self, _: Duration) -> Result<(), ErrorKind> {
        black_box(Ok(()))
    }

    fn in_flight(&self, _: PeerId) -> usize {
        black_box(0)
    }

    fn disconnect(&mut self, _: PeerId) {}

    fn register_waker(&mut self, _: &Waker) -> Result<(), ErrorKind> {
        black_box(Ok(()))
    }

    fn next_timeout(&self) -> Option<Duration> {
        black_box(None)
    }
}
