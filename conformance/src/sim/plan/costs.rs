//! What one lease costs: the real holder, measured on this machine when a plan is made.

use lease_proto::{
    counters::Counters,
    drive::{Handled, Machine},
    event::Context,
    frame::{Frame, HEADER},
    holder::{Grant, Holder},
    id::{ClockId, EngineId, Entropy, Identity, Incarnation, ReaderRank, RequestId, Seq, Session, Token},
    table::boxed,
    time::{Duration, Instant},
    transport::{PeerId, Ticket},
    wire::{
        self, Message, Wire,
        native::{self, About, Body, Hello, Party, RenewWriter},
        vllm::{HeartbeatWriter, encode_completion},
    },
};

use super::{cpu_time, inputs::Inputs};
use crate::sim::worker::SimHolder;

/// Leases that are measured on: enough to fall out of the nearest caches, as a busy engine's do.
const LEASES: u32 = 20_000;
/// Renewals are repeated for so many seconds.
const LONG_ENOUGH: f64 = 0.1;

/// Slow enough for every message to be answered.
const BETWEEN_MESSAGES: Duration = Duration::from_millis(1);

/// Nanoseconds of one core of this machine per lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// To grant it.
    pub grant: f64,
    /// To renew it once: its share of a message of as many leases as one decode instance has here, read and answered.
    pub renew: f64,
    /// To end it by a completion, read and answered.
    pub end: f64,
}

impl Costs {
    /// Cores for so many of each per second.
    pub(super) fn cores(&self, grants: f64, renewals: f64, ends: f64) -> f64 {
        (grants * self.grant + renewals * self.renew + ends * self.end) / 1e9
    }

    /// Takes about a fifth of a second.
    pub(super) fn measured(inputs: &Inputs) -> Self {
        let batch = (inputs.per_pair().round() as u32).clamp(1, LEASES);
        let mut bench = Bench::new(inputs);
        let start = cpu_time();
        bench.grant();
        let grant = cpu_time() - start;
        let messages = bench.renewals(batch as usize);
        let (start, mut renewed) = (cpu_time(), 0u64);
        while cpu_time() - start < LONG_ENOUGH {
            messages.iter().for_each(|message| bench.take(message));
            renewed += u64::from(LEASES);
        }
        let renew = cpu_time() - start;
        let messages = bench.completions();
        let start = cpu_time();
        messages.iter().for_each(|message| bench.take(message));
        let end = cpu_time() - start;
        let each = |seconds: f64, count: u64| seconds * 1e9 / count as f64;
        Self { grant: each(grant, LEASES.into()), renew: each(renew, renewed), end: each(end, LEASES.into()) }
    }
}

/// A holder and a reader's messages to it.
struct Bench {
    wire: Wire,
    holder: SimHolder,
    counters: Counters,
    now: Instant,
    buffer: Vec<u8>,
    session: Session,
    ids: Vec<RequestId>,
    tokens: Vec<Token>,
}

impl Bench {
    fn new(inputs: &Inputs) -> Self {
        let length = inputs.asked.id_length;
        let identity = identity("p", 1, inputs.asked.max_notification);
        let holder = Holder::new(
            identity,
            inputs.terms.clone(),
            [1; 16],
            boxed(LEASES as usize),
            boxed(2),
            boxed(LEASES as usize), // as many tombstones as leases
        );
        let id = |number: u32| RequestId::new(format!("{number:0length$}").as_bytes()).unwrap_or_default();
        let buffer = vec![0; inputs.asked.max_notification as usize];
        let (ids, tokens) = ((0..LEASES).map(id).collect(), Vec::new());
        Self {
            wire: inputs.asked.wire,
            holder,
            counters: Counters::default(),
            now: Instant::ZERO,
            buffer,
            session: Session(0),
            ids,
            tokens,
        }
    }

    fn call<R>(&mut self, f: impl FnOnce(&mut SimHolder, &mut Context<'_>, &mut [u8]) -> R) -> R {
        self.now = self.now.saturating_add(BETWEEN_MESSAGES);
        let cx = &mut Context { now: self.now, counters: &mut self.counters, events: &mut |_| {} };
        f(&mut self.holder, cx, &mut self.buffer)
    }

    /// A message comes in.
    fn take(&mut self, message: &[u8]) {
        let wire = self.wire;
        self.call(|holder, cx, out| {
            if let Ok(message) = wire::decode(wire, message) {
                holder.handle(cx, Some(PeerId(1)), message, out);
            }
        });
    }

    fn grant(&mut self) {
        for index in 0..self.ids.len() {
            let (token, request) = (self.holder.mint(), self.ids[index].clone());
            let asked = Grant { request: &request, token, consumers: None, ttl: None };
            if self.call(|holder, cx, _| holder.grant(cx, asked)).is_ok() {
                self.tokens.push(token);
            }
        }
        if self.wire == Wire::Native {
            self.greet();
        }
    }

    /// A reader introduces itself, and learns its session.
    fn greet(&mut self) {
        let incarnation = Incarnation(2);
        let mut metadata = [0; HEADER + 1];
        let length = Frame::encode(incarnation, &[0], &mut metadata).unwrap_or(0);
        let reader = identity("d", 2, self.buffer.len() as u32);
        let party = Party {
            engine: reader.engine.as_bytes(),
            incarnation,
            rank: 0,
            ranks: 1,
            clock: reader.clock,
            session: Session(7),
            extension: Duration::from_secs(1),
            drift_ppm: 0,
            max_message: reader.max_message,
            capabilities: 0,
        };
        let token = self.tokens.first().copied().unwrap_or(Token { number: 0, nonce: 0 });
        let hello = Hello { lowest: native::VERSION, highest: native::VERSION, token, party, metadata: &metadata[..length] };
        let mut bytes = [0; 512];
        let length = native::encode(Session(0), Seq(1), &Body::Hello(hello), &mut bytes).unwrap_or(0);
        let session = self.call(|holder, cx, out| {
            let message = wire::decode(Wire::Native, &bytes[..length]).ok()?;
            let Handled::Connect { key, .. } = holder.handle(cx, None, message, out) else { return None };
            holder.connecting(cx, key, Ok(Ticket(1)));
            holder.resolved(cx, Ticket(1), Ok(PeerId(1)));
            let welcome = holder.poll_transmit(cx, out)?;
            match wire::decode(Wire::Native, out.get(..welcome.length)?).ok()? {
                Message::Native { body: Body::HelloAck(ack), .. } => Some(ack.party.session),
                _ => None,
            }
        });
        self.session = session.unwrap_or_default();
    }

    /// One message for each `batch` of the leases, in an order that no cache knows.
    fn renewals(&mut self, batch: usize) -> Vec<Vec<u8>> {
        let mut order: Vec<usize> = (0..self.tokens.len()).collect();
        let mut entropy = Entropy::from_seed([3; 16]);
        (1..order.len()).rev().for_each(|last| order.swap(last, (entropy.draw() % (last as u64 + 1)) as usize));
        let room = self.buffer.len();
        let mut messages = Vec::new();
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            let mut bytes = vec![0; room];
            let (length, named) = match self.wire {
                Wire::Native => self.renew(&rest[..batch.min(rest.len())], &mut bytes),
                Wire::Vllm => self.heartbeat(&rest[..batch.min(rest.len())], &mut bytes),
            };
            bytes.truncate(length);
            bytes.shrink_to_fit();
            messages.push(bytes);
            rest = &rest[named.max(1)..];
        }
        messages
    }

    fn renew(&self, leases: &[usize], out: &mut [u8]) -> (usize, usize) {
        let room = native::tokens_that_fit(out.len(), out.len());
        let Ok(mut writer) = RenewWriter::new(out, ReaderRank::ONLY) else { return (0, 0) };
        let named = leases.iter().take(room).take_while(|index| writer.push(self.tokens[**index])).count();
        (writer.finish(self.session, Seq(2)), named)
    }

    fn heartbeat(&self, leases: &[usize], out: &mut [u8]) -> (usize, usize) {
        let mut writer = HeartbeatWriter::new(out);
        let named = leases.iter().take_while(|index| matches!(writer.push(self.ids[**index].as_bytes()), Ok(true))).count();
        (writer.finish().unwrap_or(0), named)
    }

    fn completions(&self) -> Vec<Vec<u8>> {
        let of = |(id, token): (&RequestId, &Token)| {
            let mut bytes = vec![0; 512];
            let about = About { token: *token, reader: ReaderRank::ONLY };
            let length = match self.wire {
                Wire::Native => native::encode(self.session, Seq(3), &Body::Complete(about), &mut bytes).unwrap_or(0),
                Wire::Vllm => encode_completion(id.as_bytes(), 1, &mut bytes).unwrap_or(0),
            };
            bytes.truncate(length);
            bytes
        };
        self.ids.iter().zip(&self.tokens).map(of).collect()
    }
}

fn identity(engine: &str, incarnation: u64, max_message: u32) -> Identity {
    Identity {
        engine: EngineId::try_from(engine).unwrap_or_default(),
        incarnation: Incarnation(incarnation),
        rank: 0,
        ranks: 1,
        clock: ClockId(incarnation),
        max_message,
    }
}
