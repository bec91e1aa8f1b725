use super::{
    Seen, TestHolder, at, conserved, id,
    lone::{Heard, frame, hear, identity, party},
    seen,
};
use lease_proto::{
    config::Config,
    counters::Counters,
    drive::{Handled, Machine as _},
    event::{Context, Event, Freed, Refused},
    holder::{Abort, Grant, Holder},
    id::{ReaderRank, Seq, Session, Token},
    table::boxed,
    time::{Duration, Instant},
    transport::{PeerId, Ticket},
    wire::{
        Message, Wire,
        native::{self, About, Body, Hello, Refusal, Renew, Tokens},
        vllm,
    },
};

/// A holder alone.
pub struct LoneHolder {
    pub holder: TestHolder,
    pub counters: Counters,
    pub seen: Vec<(Instant, Seen)>,
    pub now: Instant,
    wire: Wire,
    numbers: u64,
}

/// A rank that there is.
pub fn rank(rank: u16, of: u16) -> ReaderRank {
    ReaderRank::new(rank, of).unwrap()
}

/// A holder with one lease, and a reader's process that has greeted it.
pub fn greeted() -> (LoneHolder, Token, Session) {
    let mut holder = LoneHolder::new(Wire::Native);
    let token = holder.grant("a");
    let session = holder.greet("d", 2, token).unwrap();
    (holder, token, session)
}

impl LoneHolder {
    pub fn new(wire: Wire) -> Self {
        Self::with(wire, Config::default(), 64)
    }

    pub fn with(wire: Wire, config: Config, slots: usize) -> Self {
        let (terms, seed) = (config.validate(wire).unwrap(), [7; 16]);
        let holder = Holder::new(identity("p", 1), terms, seed, boxed(slots), boxed(4), boxed(slots));
        Self { holder, counters: Counters::default(), seen: Vec::new(), now: Instant::ZERO, wire, numbers: 0 }
    }

    pub fn act<T>(&mut self, f: impl FnOnce(&mut TestHolder, &mut Context<'_>) -> T) -> T {
        let (now, list) = (self.now, &mut self.seen);
        let mut events = |event: Event<'_>| list.push((now, seen(event)));
        f(&mut self.holder, &mut Context { now, counters: &mut self.counters, events: &mut events })
    }

    /// Moves the clock, whichever way, without a poll.
    pub fn go(&mut self, time: &str) {
        self.now = at(time);
    }

    /// Moves the clock and polls; returns what is said unasked.
    pub fn poll(&mut self, time: &str) -> Vec<Heard> {
        self.go(time);
        self.act(|holder, cx| holder.handle_timeout(cx));
        self.notices()
    }

    pub fn notices(&mut self) -> Vec<Heard> {
        let (wire, mut buffer, mut heard) = (self.wire, vec![0; 65_536], Vec::new());
        while let Some(transmit) = self.act(|holder, cx| holder.poll_transmit(cx, &mut buffer)) {
            heard.push(hear(wire, &buffer[..transmit.length]));
        }
        heard
    }

    pub fn grant(&mut self, request: &str) -> Token {
        self.grant_with(request, None, None).unwrap()
    }

    pub fn grant_with(&mut self, request: &str, consumers: Option<u16>, ttl: Option<Duration>) -> Result<Token, Refused> {
        let request = id(request);
        self.act(|holder, cx| {
            let token = holder.announced(&request).unwrap_or_else(|| holder.mint());
            holder.grant(cx, Grant { request: &request, token, consumers, ttl }).map(|_| token)
        })
    }

    pub fn grant_token(&mut self, request: &str, token: Token) -> Result<Instant, Refused> {
        let request = id(request);
        self.act(|holder, cx| holder.grant(cx, Grant { request: &request, token, consumers: None, ttl: None }))
    }

    pub fn expect(&mut self, request: &str) -> Token {
        let request = id(request);
        self.act(|holder, cx| {
            let token = holder.mint();
            holder.expect(cx, &request, token).unwrap();
            token
        })
    }

    pub fn abort(&mut self, token: Token, why: Abort) -> Result<(), Refused> {
        self.act(|holder, cx| holder.abort(cx, token, why))
    }

    pub fn drain(&mut self, within: &str) {
        let within = within.parse().unwrap();
        self.act(|holder, cx| holder.drain(cx, within));
    }

    /// Greets as a reader's process and returns the session to speak in; `None` if the holder does not answer.
    pub fn greet(&mut self, engine: &str, incarnation: u64, token: Token) -> Option<Session> {
        self.greet_in(engine, incarnation, token, incarnation)
    }

    /// Likewise, listening to this session.
    pub fn greet_in(&mut self, engine: &str, incarnation: u64, token: Token, session: u64) -> Option<Session> {
        let who = identity(engine, incarnation);
        let metadata = frame(who.incarnation, engine.as_bytes());
        let hello = Hello {
            lowest: native::VERSION,
            highest: native::VERSION,
            token,
            party: party(&who, Session(session)),
            metadata: &metadata,
        };
        let mut out = vec![0; 65_536];
        let (mut key, mut welcome) = (None, None);
        let message = Message::Native { session: Session(0), seq: Seq(1), body: Body::Hello(hello) };
        self.act(|holder, cx| match holder.handle(cx, None, message, &mut out) {
            Handled::Connect { key: peer, .. } => key = Some(peer),
            Handled::Answer(transmit) => welcome = Some(transmit.length),
            _ => {}
        });
        if let Some(key) = key {
            self.numbers += 1;
            let (ticket, peer) = (Ticket(self.numbers), PeerId(self.numbers));
            self.act(|holder, cx| {
                holder.connecting(cx, key, Ok(ticket));
                assert!(holder.resolved(cx, ticket, Ok(peer)));
            });
            let session = self.notices().into_iter().find_map(|notice| match notice {
                Heard::HelloAck { session } => Some(session),
                _ => None,
            });
            return session;
        }
        match hear(Wire::Native, &out[..welcome?]) {
            Heard::HelloAck { session } => Some(session),
            other => panic!("{other:?}"),
        }
    }

    pub fn say(&mut self, session: Session, body: Body<'_>) -> Option<Heard> {
        self.numbers += 1;
        let (mut out, message) = (vec![0; 65_536], Message::Native { session, seq: Seq(self.numbers), body });
        let mut answer = None;
        self.act(|holder, cx| match holder.handle(cx, None, message, &mut out) {
            Handled::Answer(transmit) => answer = Some(transmit.length),
            Handled::Done => {}
            other => panic!("{other:?}"),
        });
        answer.map(|length| hear(Wire::Native, &out[..length]))
    }

    /// What a renew of one token is answered.
    pub fn renew(&mut self, session: Session, rank: ReaderRank, token: Token) -> Result<Duration, Refusal> {
        let answer =
            self.say(session, Body::Renew(Renew { reader: rank, tokens: Tokens::from_chunks(&[token.to_bytes()]).unwrap() }));
        match answer {
            Some(Heard::Renewed { count: 1, granted, exceptions, .. }) => {
                exceptions.first().map_or(Ok(granted), |(_, what)| *what)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn complete(&mut self, session: Session, rank: ReaderRank, token: Token) -> Result<(), Refusal> {
        match self.say(session, Body::Complete(About { token, reader: rank })) {
            Some(Heard::Completed { token: told, .. }) if told == token => Ok(()),
            Some(Heard::Gone { token: told, why, .. }) if told == token => Err(why),
            other => panic!("{other:?}"),
        }
    }

    pub fn release(&mut self, session: Session, rank: ReaderRank, token: Token) -> Refusal {
        match self.say(session, Body::Release(About { token, reader: rank })) {
            Some(Heard::Gone { token: told, why, .. }) if told == token => why,
            other => panic!("{other:?}"),
        }
    }

    /// Takes vLLM's text in, from a sender that can be told or not.
    pub fn text(&mut self, from: Option<u64>, text: &str) {
        let message = Message::Vllm(vllm::decode(text.as_bytes()).unwrap());
        self.act(|holder, cx| {
            assert_eq!(holder.handle(cx, from.map(PeerId), message, &mut []), Handled::Done);
        });
    }

    pub fn freed(&self, request: &str) -> Option<(Instant, Freed)> {
        let mut all = self.seen.iter().filter_map(|(at, seen)| match seen {
            Seen::Freed { request: freed, why, .. } if freed == request => Some((*at, *why)),
            _ => None,
        });
        let first = all.next();
        assert_eq!(all.next(), None, "{request} was freed twice");
        first
    }

    pub fn refused(&self, why: Refused) -> u64 {
        self.counters.refused(why)
    }

    pub fn lawful(&self) {
        conserved("holder", &self.counters, self.holder.live(), 0);
    }
}
