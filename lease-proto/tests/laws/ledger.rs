//! The naive model of a holder: what it promised to whom, read off its own messages and the engine's calls.

use std::collections::{BTreeMap, BTreeSet};

use lease_proto::{
    event::Freed,
    id::{Incarnation, ReaderRank, Session, Token},
    time::Duration,
    wire::{
        self, Message, Wire,
        native::{Body, Renewed},
        vllm,
    },
};

use super::{
    trace::{Entry, What},
    world::{Life, World},
};

/// One lease as the model knows it. Times are the holder's.
#[derive(Clone, Debug)]
struct Held {
    request: String,
    granted: bool,
    freed: bool,
    expires: u64,
    /// The latest that law 2 allows it to end.
    bound: u64,
    /// To whom what was promised, and for how many ranks.
    promises: BTreeMap<Incarnation, (u64, u16)>,
    done: BTreeMap<(Incarnation, u16), BTreeSet<u16>>,
    /// vLLM's wire: completions that came, and how many the last of them expected.
    completions: (u32, u32),
}

/// One renew being answered: who asked for what, and what was renewed so far.
#[derive(Default)]
struct Asked {
    tokens: Vec<Token>,
    from: Option<(Incarnation, ReaderRank)>,
    renewed: Vec<(String, Token, u64)>,
}

pub struct Ledger<'a> {
    world: &'a World,
    life: &'a Life,
    /// By number, then nonce: a token cannot be sorted.
    held: BTreeMap<(u64, u64), Held>,
    greeted: BTreeMap<Session, Incarnation>,
    sessions: BTreeMap<Session, Incarnation>,
    asked: Asked,
}

type Judged = Result<(), String>;

fn key(token: Token) -> (u64, u64) {
    (token.number, token.nonce)
}

/// Laws 1, 2, 3 and 6 for one process.
pub fn holder_keeps_the_laws(world: &World, life: usize, trace: &[Entry]) -> Judged {
    let mut ledger = Ledger {
        world,
        life: &world.lives[life],
        held: BTreeMap::new(),
        greeted: BTreeMap::new(),
        sessions: BTreeMap::new(),
        asked: Asked::default(),
    };
    for Entry { at, what, .. } in trace.iter().filter(|entry| entry.life == life) {
        let now = ledger.life.clock.read(*at);
        ledger.take(now, what).map_err(|why| format!("process {life}, world {at}: {why}"))?;
    }
    Ok(())
}

impl Ledger<'_> {
    fn take(&mut self, now: u64, what: &What) -> Judged {
        match what {
            What::In(bytes) => {
                self.settle(now, None)?;
                self.received(bytes);
                Ok(())
            }
            What::Out(bytes) => match wire::decode(self.world.script.wire, bytes) {
                Ok(Message::Native { session, body: Body::HelloAck(ack), .. }) => {
                    if let Some(incarnation) = self.greeted.get(&session) {
                        self.sessions.insert(ack.party.session, *incarnation);
                    }
                    Ok(())
                }
                Ok(Message::Native { body: Body::Renewed(renewed), .. }) => self.settle(now, Some(renewed)),
                _ => Ok(()),
            },
            What::Announced { request, token } => {
                self.held.insert(key(*token), announced(request));
                Ok(())
            }
            What::Drains { by } => {
                self.settle(now, None)?;
                for held in self.held.values_mut().filter(|held| held.granted && held.promises.is_empty()) {
                    held.expires = held.expires.min(*by);
                }
                Ok(())
            }
            What::Withdrawn(token) => {
                self.held.remove(&key(*token));
                Ok(())
            }
            What::Granted { request, token, expires } => self.granted(now, request, *token, *expires),
            What::Renewed { request, token, expires } => {
                self.asked.renewed.push((request.clone(), *token, *expires));
                Ok(())
            }
            What::Freed { token, why, expires, now: told, previous_poll } => {
                self.settle(now, None)?;
                self.freed(now, *token, *why, (*expires, *told, *previous_poll))
            }
            What::Turned { next, more } => {
                self.settle(now, None)?;
                self.turned(now, *next, *more)
            }
            _ => Ok(()),
        }
    }

    fn received(&mut self, bytes: &[u8]) {
        match wire::decode(self.world.script.wire, bytes) {
            Ok(Message::Native { session, body, .. }) => {
                if let Body::Hello(hello) = body {
                    self.greeted.insert(hello.party.session, hello.party.incarnation);
                    return;
                }
                let Some(from) = self.sessions.get(&session).copied() else { return };
                match body {
                    Body::Renew(renew) => {
                        self.asked = Asked {
                            tokens: renew.tokens.iter().collect(),
                            from: Some((from, renew.reader)),
                            renewed: Vec::new(),
                        };
                    }
                    Body::Complete(about) | Body::Release(about) => {
                        if let Some(held) = self.held.get_mut(&key(about.token)) {
                            let reader = about.reader;
                            held.done.entry((from, reader.of())).or_default().insert(reader.rank());
                        }
                    }
                    _ => {}
                }
            }
            Ok(Message::Vllm(vllm::Message::Completion { id, consumers })) => {
                let is = |held: &&mut Held| !held.freed && held.request.as_bytes() == id;
                for held in self.held.values_mut().filter(is) {
                    held.completions = (held.completions.0 + 1, consumers);
                }
            }
            _ => {}
        }
    }

    fn granted(&mut self, now: u64, request: &str, token: Token, expires: u64) -> Judged {
        let ttl = self.ttl(token);
        let held = self.held.entry(key(token)).or_insert_with(|| announced(request));
        if std::mem::replace(&mut held.granted, true) {
            return Err(format!("law 6: {token:?} was granted twice"));
        }
        let right = now + ttl.unwrap_or(self.world.terms.lease()).as_nanos();
        if expires != right {
            return Err(format!("{token:?} was granted until {expires} and not {right}"));
        }
        (held.expires, held.bound) = (expires, right);
        Ok(())
    }

    fn ttl(&self, token: Token) -> Option<Duration> {
        self.world.leases.iter().find(|lease| lease.token == token).and_then(|lease| lease.ttl)
    }

    /// The latest end of what is renewed now.
    fn latest(&self, now: u64, token: Token) -> u64 {
        let terms = &self.world.terms;
        now + terms.lease().max(terms.extension()).max(self.ttl(token).unwrap_or_default()).as_nanos()
    }

    /// What was renewed since the last message, told to the reader by `answer` or by nothing.
    fn settle(&mut self, now: u64, answer: Option<Renewed<'_>>) -> Judged {
        let Asked { tokens, from, renewed } = std::mem::take(&mut self.asked);
        let mut renewed = renewed.into_iter().peekable();
        if self.world.script.wire == Wire::Vllm {
            for (request, _, expires) in renewed {
                let is = |held: &&Held| held.granted && !held.freed && held.request == request;
                let found = self.held.iter().find(|(_, held)| is(held)).map(|(key, _)| *key);
                let (number, nonce) = found.ok_or(format!("{request} was renewed and is not leased"))?;
                self.renewed(now, Token { number, nonce }, expires, None)?;
            }
            return Ok(());
        }
        let exceptions: BTreeMap<u16, _> = answer.iter().flat_map(|answer| answer.exceptions.iter()).collect();
        for (index, token) in (0..).zip(tokens) {
            let promised = answer.map(|answer| exceptions.get(&index).copied().unwrap_or(Ok(answer.granted)));
            if matches!(promised, Some(Err(_))) {
                continue;
            }
            // Without an answer the next event tells whether it is this one.
            let Some((.., expires)) = renewed.next_if(|(_, renewed, _)| *renewed == token) else {
                if promised.is_some() {
                    return Err(format!("{token:?} was promised by an answer and not renewed"));
                }
                continue;
            };
            if let Some(Ok(granted)) = promised
                && expires < now.saturating_add(granted.as_nanos())
            {
                return Err(format!("law 1: {token:?} was promised for longer than it is held"));
            }
            self.renewed(now, token, expires, from)?;
        }
        match renewed.next() {
            Some((request, ..)) => Err(format!("{request} was renewed and nobody asked")),
            None => Ok(()),
        }
    }

    fn renewed(&mut self, now: u64, token: Token, expires: u64, from: Option<(Incarnation, ReaderRank)>) -> Judged {
        let latest = self.latest(now, token);
        let Some(held) = self.held.get_mut(&key(token)).filter(|held| held.granted && !held.freed) else {
            return Err(format!("{token:?} was renewed and is not held"));
        };
        if expires < held.expires {
            return Err(format!("law 3: a renewal of {token:?} shortened it from {} to {expires}", held.expires));
        }
        (held.expires, held.bound) = (expires, latest);
        let (who, of) = from.map_or((Incarnation(0), 0), |(who, rank)| (who, rank.of()));
        held.promises.insert(who, (expires, of));
        self.bounded(token)
    }

    fn bounded(&self, token: Token) -> Judged {
        let held = &self.held[&key(token)];
        let wrong = held.expires > held.bound;
        if wrong {
            Err(format!("law 2: {token:?} is held until {}, at most {} is right", held.expires, held.bound))
        } else {
            Ok(())
        }
    }

    fn freed(&mut self, now: u64, token: Token, why: Freed, told: (u64, u64, u64)) -> Judged {
        let by_policy = self.world.terms.hold_until_ack();
        let Some(held) = self.held.get_mut(&key(token)).filter(|held| held.granted) else {
            return Err(format!("law 6: {token:?} was freed and never granted"));
        };
        if std::mem::replace(&mut held.freed, true) {
            return Err(format!("law 6: {token:?} was freed twice"));
        }
        let (_, stamp, previous) = told;
        if stamp != now {
            return Err(format!("law 2: {token:?} was freed at {now} and says {stamp}"));
        }
        let by_readers = matches!(why, Freed::Completed | Freed::Released);
        for (who, (until, of)) in held.promises.iter().filter(|(_, (until, _))| now < *until) {
            let ranks = held.done.get(&(*who, *of)).map_or(0, BTreeSet::len);
            let (came, expected) = held.completions;
            let done = if *of == 0 { came >= expected && expected > 0 } else { ranks == usize::from(*of) };
            if !done || !by_readers {
                return Err(format!("law 1: {token:?} was freed ({}) at {now}, promised until {until}", why.name()));
            }
        }
        if by_policy && why == Freed::Expired && !held.promises.is_empty() {
            return Err(format!("{token:?} expired and nobody has answered for it"));
        }
        if why == Freed::Expired && (now < held.expires || previous >= held.expires && !by_policy) {
            return Err(format!(
                "law 2: {token:?} expired at {now}, after a poll at {previous}, and was due at {}",
                held.expires
            ));
        }
        Ok(())
    }

    /// After a poll nothing live is past its expiry, and the next one is not late.
    fn turned(&self, now: u64, next: Option<u64>, more: bool) -> Judged {
        if self.world.terms.hold_until_ack() || more {
            return Ok(());
        }
        for (key, held) in self.held.iter().filter(|(_, held)| held.granted && !held.freed) {
            if held.expires <= now {
                return Err(format!("law 2: lease {} is live at {now} and expired at {}", key.0, held.expires));
            }
            if next.is_none_or(|next| next > held.expires) {
                return Err(format!(
                    "law 2: lease {} expires at {} and the next poll is asked for at {next:?}",
                    key.0, held.expires
                ));
            }
        }
        Ok(())
    }
}

fn announced(request: &str) -> Held {
    Held {
        request: request.into(),
        granted: false,
        freed: false,
        expires: u64::MAX,
        bound: u64::MAX,
        promises: BTreeMap::new(),
        done: BTreeMap::new(),
        completions: (0, 0),
    }
}
