use std::collections::BTreeMap;

use super::{
    Seen, TestReader, at, conserved, id,
    lone::{Heard, frame, hear, identity, party, token},
    seen,
};
use lease_proto::{
    config::Config,
    counters::Counters,
    drive::{Handled, Machine as _, Sent},
    event::{Context, Event, Lost, Refused, Verdict},
    frame::Frame,
    id::{Identity, Incarnation, ReaderRank, Seq, Session},
    params::Parameters,
    reader::{Handle, ReadOutcome, Reader, Track},
    table::boxed,
    time::{Duration, Instant, PeerInstant},
    transport::{ErrorKind, PeerId, Ticket},
    wire::{
        Message, Wire,
        native::{self, Answer, Body, Gone, HelloAck, Refusal, RenewedWriter, TimeReply},
    },
};

/// What a played holder rank is to its reader.
#[derive(Clone, Debug)]
struct Played {
    identity: Identity,
    /// What the reader wants to read in our headers.
    session: Session,
    seq: u64,
}

/// A reader alone.
pub struct LoneReader {
    pub reader: TestReader,
    pub counters: Counters,
    pub seen: Vec<(Instant, Seen)>,
    pub now: Instant,
    /// Whether connections succeed, hellos are answered, and messages are taken.
    pub reachable: bool,
    pub welcoming: bool,
    pub taking: Result<(), ErrorKind>,
    /// Whether beats that were taken leave the process, as far as can be told after the flush.
    pub leaving: bool,
    /// Largest message that the played holders take.
    pub max_message: u32,
    wire: Wire,
    numbers: u64,
    played: BTreeMap<PeerId, Played>,
}

impl LoneReader {
    pub fn new(wire: Wire) -> Self {
        Self::with(wire, Config::default(), 64)
    }

    pub fn with(wire: Wire, config: Config, slots: usize) -> Self {
        let (terms, who) = (config.validate(wire).unwrap(), identity("d", 2));
        let metadata = frame(who.incarnation, b"d");
        Self {
            reader: Reader::new(who, terms, [9; 16], metadata, boxed(slots), boxed(slots), boxed(4)),
            counters: Counters::default(),
            seen: Vec::new(),
            now: Instant::ZERO,
            reachable: true,
            welcoming: true,
            taking: Ok(()),
            leaving: true,
            max_message: 65_536,
            wire,
            numbers: 0,
            played: BTreeMap::new(),
        }
    }

    pub fn act<T>(&mut self, f: impl FnOnce(&mut TestReader, &mut Context<'_>) -> T) -> T {
        let (now, list) = (self.now, &mut self.seen);
        let mut events = |event: Event<'_>| list.push((now, seen(event)));
        f(&mut self.reader, &mut Context { now, counters: &mut self.counters, events: &mut events })
    }

    pub fn go(&mut self, time: &str) {
        self.now = at(time);
    }

    pub fn track(&mut self, request: &str, number: u64) -> Handle {
        self.track_on("p", 1, &[0], request, number, ReaderRank::ONLY).unwrap()
    }

    /// Tracks a request on ranks of a played holder, under the token `number`.
    pub fn track_on(
        &mut self,
        engine: &str,
        incarnation: u64,
        ranks: &[u16],
        request: &str,
        number: u64,
        reader: ReaderRank,
    ) -> Result<Handle, Refused> {
        let (request, terms) = (id(request), self.reader.terms().clone());
        let incarnation = Incarnation(incarnation);
        let of = |rank: u16| frame(incarnation, format!("{engine} {rank}").as_bytes());
        let params = Parameters {
            token: token(number),
            incarnation,
            engine: engine.as_bytes(),
            ranks: ranks.len() as u16,
            extension: terms.extension(),
            drift_ppm: terms.drift_ppm(),
            frames: &[],
            regions: &[],
        };
        let targets: Vec<_> = ranks.iter().map(|rank| (*rank, of(*rank))).collect();
        self.act(|at, cx| at.track(cx, Track { request: &request, params: &params, reader }, targets))
    }

    /// Moves the clock, polls, connects and greets; returns what else is sent, each with the engine and rank it goes to.
    pub fn poll(&mut self, time: &str) -> Vec<(u16, Heard)> {
        self.go(time);
        self.act(|reader, cx| reader.handle_timeout(cx));
        let mut heard = Vec::new();
        for _ in 0..4 {
            while self.act(|reader, _| reader.poll_cancel()).is_some() || self.act(|reader, _| reader.poll_disconnect()).is_some()
            {
            }
            self.connect();
            self.act(|reader, cx| reader.handle_timeout(cx));
            self.transmit(&mut heard);
        }
        heard
    }

    fn connect(&mut self) {
        loop {
            let mut wanted = None;
            self.act(|reader, cx| {
                if let Some(request) = reader.poll_connect(cx) {
                    let framed = Frame::decode(request.metadata).unwrap();
                    wanted = Some((request.key, framed.incarnation(), String::from_utf8(framed.payload().to_vec()).unwrap()));
                }
            });
            let Some((key, incarnation, name)) = wanted else { return };
            self.numbers += 1;
            let (ticket, peer) = (Ticket(self.numbers), PeerId(self.numbers));
            self.act(|reader, cx| reader.connecting(cx, key, Ok(ticket)));
            if self.reachable {
                let (engine, rank) = name.split_once(' ').unwrap();
                let (rank, max_message) = (rank.parse().unwrap(), self.max_message);
                let identity = Identity { rank, ranks: 64, max_message, ..identity(engine, incarnation.0) };
                self.played.insert(peer, Played { identity, session: Session(0), seq: 0 });
                assert!(self.act(|reader, cx| reader.resolved(cx, ticket, Ok(peer))));
            }
        }
    }

    fn transmit(&mut self, heard: &mut Vec<(u16, Heard)>) {
        let (wire, mut buffer) = (self.wire, vec![0; 65_536]);
        while let Some(transmit) = self.act(|reader, cx| reader.poll_transmit(cx, &mut buffer)) {
            let message = hear(wire, &buffer[..transmit.length]);
            let result = self.taking;
            self.act(|reader, cx| reader.sent(cx, &transmit, result));
            if !self.leaving && result.is_ok() && matches!(transmit.sent, Sent::Heartbeat { .. }) {
                self.act(|reader, cx| reader.sent(cx, &transmit, Err(ErrorKind::WouldBlock)));
            }
            let Some(played) = self.played.get_mut(&transmit.to) else { continue };
            if let Heard::Hello { session, .. } = message {
                played.session = session;
                assert_eq!(transmit.sent, Sent::Greeting);
            }
            let welcomed = self.welcoming && result.is_ok() && matches!(message, Heard::Hello { .. });
            heard.extend((result.is_ok() && !welcomed).then_some((played.identity.rank, message)));
            if welcomed {
                self.welcome(transmit.to);
            }
        }
    }

    fn welcome(&mut self, to: PeerId) {
        let who = self.played[&to].identity.clone();
        let session = Session(0xacc + to.0);
        // Every number that was sent so far is at least one.
        let ack = HelloAck { re: Seq(1), version: native::VERSION, party: party(&who, session) };
        self.say(who.rank, Body::HelloAck(ack));
    }

    /// Says something as the holder's rank that was met last.
    pub fn say(&mut self, rank: u16, body: Body<'_>) {
        let (peer, _) = self.played.iter().rfind(|(_, played)| played.identity.rank == rank).unwrap();
        self.say_as(*peer, body);
    }

    fn say_as(&mut self, peer: PeerId, body: Body<'_>) {
        let played = self.played.get_mut(&peer).unwrap();
        played.seq += 1;
        let message = Message::Native { session: played.session, seq: Seq(played.seq), body };
        self.act(|reader, cx| assert_eq!(reader.handle(cx, Some(peer), message, &mut []), Handled::Done));
    }

    /// Answers a renew.
    pub fn renewed(&mut self, rank: u16, re: Seq, count: u16, granted: &str, exceptions: &[(u16, Result<Duration, Refusal>)]) {
        let mut buffer = vec![0; 65_536];
        let mut writer = RenewedWriter::new(&mut buffer, count.max(exceptions.len() as u16)).unwrap();
        exceptions.iter().for_each(|(index, what)| writer.push(*index, *what));
        let length = writer.finish(Session(0), Seq(0), re, count, granted.parse().unwrap());
        let Ok((_, _, body)) = native::decode(&buffer[..length]) else { panic!("cannot be written") };
        self.say(rank, body);
    }

    /// Answers every renew among what was sent: all granted for so long.
    pub fn grant_all(&mut self, sent: &[(u16, Heard)], granted: &str) {
        for (rank, message) in sent {
            if let Heard::Renew { seq, tokens, .. } = message {
                self.renewed(*rank, *seq, tokens.len() as u16, granted, &[]);
            }
        }
    }

    pub fn completed(&mut self, rank: u16, re: Seq, number: u64) {
        self.say(rank, Body::Completed(Answer { re, token: token(number) }));
    }

    pub fn gone(&mut self, rank: u16, re: Seq, number: u64, why: Refusal) {
        self.say(rank, Body::Gone(Gone { re, token: token(number), why }));
    }

    pub fn time_reply(&mut self, rank: u16) {
        let now = PeerInstant::from_nanos(5);
        self.say(rank, Body::TimeReply(TimeReply { re: Seq(1), received: now, sent: now }));
    }

    /// Loses the connection to a rank.
    pub fn lose_peer(&mut self, rank: u16) {
        let (peer, _) = self.played.iter().rfind(|(_, played)| played.identity.rank == rank).unwrap();
        let peer = *peer;
        assert!(self.act(|reader, cx| reader.peer_lost(cx, peer)));
    }

    pub fn begin(&mut self, handle: Handle) {
        self.act(|reader, cx| reader.begin_read(cx, handle)).unwrap();
    }

    pub fn end(&mut self, handle: Handle, outcome: ReadOutcome) {
        self.act(|reader, cx| reader.read_ended(cx, handle, outcome)).unwrap();
    }

    pub fn verdict(&self, request: &str) -> Option<Verdict> {
        let mut all = self.seen.iter().filter_map(|(_, seen)| match seen {
            Seen::ReadDone(read, verdict) if read == request => Some(*verdict),
            _ => None,
        });
        let first = all.next();
        assert_eq!(all.next(), None, "{request} was judged twice");
        first
    }

    pub fn lost(&self, request: &str) -> Option<Lost> {
        let mut all = self.seen.iter().filter_map(|(_, seen)| match seen {
            Seen::Lost(lost, why) if lost == request => Some(*why),
            _ => None,
        });
        let first = all.next();
        assert_eq!(all.next(), None, "{request} was lost twice");
        first
    }

    pub fn saw(&self, event: &Seen) -> bool {
        self.seen.iter().any(|(_, seen)| seen == event)
    }

    pub fn lawful(&self) {
        conserved("reader", &self.counters, 0, self.reader.open());
    }
}
