//! One side of the protocol alone, its peers played by the test: every stamp and every byte is the test's choice.

pub use super::{
    lone_holder::{LoneHolder, greeted, rank},
    lone_reader::LoneReader,
};

use lease_proto::{
    frame::Frame,
    id::{ClockId, EngineId, Identity, Incarnation, ReaderRank, Seq, Session, Token},
    time::Duration,
    wire::{
        self, Message, Wire,
        native::{About, Answer, Body, Gone, Hello, Party, Refusal, TimeReply},
    },
};

/// A message, owned.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Hello { token: Token, session: Session },
    HelloAck { session: Session },
    Renew { seq: Seq, reader: ReaderRank, tokens: Vec<Token> },
    Renewed { re: Seq, count: u16, granted: Duration, exceptions: Vec<(u16, Result<Duration, Refusal>)> },
    Complete { seq: Seq, token: Token, reader: ReaderRank },
    Completed { re: Seq, token: Token },
    Release { seq: Seq, token: Token, reader: ReaderRank },
    Gone { re: Seq, token: Token, why: Refusal },
    Time,
    TimeReply,
    Text(String),
}

pub fn hear(wire: Wire, bytes: &[u8]) -> Heard {
    if wire == Wire::Vllm {
        return Heard::Text(String::from_utf8(bytes.to_vec()).unwrap());
    }
    let Ok(Message::Native { seq, body, .. }) = wire::decode(wire, bytes) else { panic!("not a message") };
    match body {
        Body::Hello(Hello { token, party, .. }) => Heard::Hello { token, session: party.session },
        Body::HelloAck(ack) => Heard::HelloAck { session: ack.party.session },
        Body::Renew(renew) => Heard::Renew { seq, reader: renew.reader, tokens: renew.tokens.iter().collect() },
        Body::Renewed(told) => {
            Heard::Renewed { re: told.re, count: told.count, granted: told.granted, exceptions: told.exceptions.iter().collect() }
        }
        Body::Complete(About { token, reader }) => Heard::Complete { seq, token, reader },
        Body::Completed(Answer { re, token }) => Heard::Completed { re, token },
        Body::Release(About { token, reader }) => Heard::Release { seq, token, reader },
        Body::Gone(Gone { re, token, why }) => Heard::Gone { re, token, why },
        Body::Time => Heard::Time,
        Body::TimeReply(TimeReply { .. }) => Heard::TimeReply,
        _ => panic!("unknown body"),
    }
}

pub fn frame(incarnation: Incarnation, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    let length = Frame::encode(incarnation, payload, &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

pub fn identity(engine: &str, incarnation: u64) -> Identity {
    Identity {
        engine: EngineId::try_from(engine).unwrap(),
        incarnation: Incarnation(incarnation),
        rank: 0,
        ranks: 1,
        clock: ClockId(incarnation),
        max_message: 65_536,
    }
}

pub fn party(identity: &Identity, session: Session) -> Party<'_> {
    Party {
        engine: identity.engine.as_bytes(),
        incarnation: identity.incarnation,
        rank: identity.rank,
        ranks: identity.ranks,
        clock: identity.clock,
        session,
        extension: Duration::from_secs(20),
        drift_ppm: 500,
        max_message: identity.max_message,
        capabilities: 0,
    }
}

/// The token of that number.
pub fn token(number: u64) -> Token {
    Token { number, nonce: number.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
}

/// The number of the first message that is so.
pub fn seq_of(sent: &[(u16, Heard)], is: impl Fn(&Heard) -> bool) -> Seq {
    let found = sent.iter().find(|(_, message)| is(message)).map(|(_, message)| message);
    match found {
        Some(Heard::Renew { seq, .. } | Heard::Complete { seq, .. } | Heard::Release { seq, .. }) => *seq,
        _ => panic!("not sent"),
    }
}

pub fn is_renew(heard: &Heard) -> bool {
    matches!(heard, Heard::Renew { .. })
}

pub fn is_complete(heard: &Heard) -> bool {
    matches!(heard, Heard::Complete { .. })
}
