//! Bytes that nobody should have sent.

use lease_proto::{
    id::{ReaderRank, Seq, Session, Token},
    time::Duration,
    wire::{
        Wire,
        native::{self, About, Answer, Body, Gone, Refusal, Renew, RenewedWriter, Tokens},
    },
};

use super::Dice;

/// Texts from the field that a decoder of vLLM's wire has to live with.
const TEXTS: [&str; 22] = [
    "HB:",
    "HB:,",
    "HB:r0,",
    "HB:r0,r0",
    "HB:r0,r1:2",
    "HB:HB:1",
    "r0:",
    ":1",
    "r0",
    "r0:0",
    "r0:-1",
    "r0:01",
    "r0: 2",
    "r0:1_0",
    "r0:99999999999999999999",
    "r0:2:2",
    "PUSH_REG:",
    "",
    "hello",
    "HB:é",
    "r1:1",
    "nobody:1",
];

pub(super) fn draw(dice: &mut Dice, wire: Wire) -> Vec<u8> {
    match dice.below(if wire == Wire::Native { 10 } else { 4 }) {
        0 | 1 => dice.pick(&TEXTS).as_bytes().to_vec(),
        2 => (0..dice.log(300)).map(|_| dice.draw() as u8).collect(),
        3 => dice.pick(&[&b"\xff\xfe"[..], b"HB:\xc3", b"PUSH_REG:\xc1"]).to_vec(),
        _ => native(dice),
    }
}

/// A message of a session that nobody has, or one with a byte too many, too few or wrong.
fn native(dice: &mut Dice) -> Vec<u8> {
    let (mut out, token) = ([0; 512], Token { number: dice.below(20), nonce: dice.draw() });
    let length = message(dice, token, &mut out).unwrap_or_default();
    let mut bytes = out[..length].to_vec();
    match dice.below(6) {
        0 => bytes.truncate(dice.index(length + 1)),
        1 => bytes.extend([0; 3]),
        2 | 3 if length > 0 => {
            let at = dice.index(length.min(native::HEADER + 2));
            bytes[at] ^= 1 << dice.below(8);
        }
        _ => {}
    }
    bytes
}

fn message(dice: &mut Dice, token: Token, out: &mut [u8]) -> Option<usize> {
    let (session, seq, re) = (Session(dice.draw()), Seq(dice.below(100)), Seq(dice.below(8)));
    let about = About { token, reader: ReaderRank::ONLY };
    let chunks = [token.to_bytes()];
    let body = match dice.below(7) {
        0 => Body::Time,
        1 => Body::Complete(about),
        2 => Body::Release(about),
        3 => Body::Renew(Renew { reader: ReaderRank::ONLY, tokens: Tokens::from_chunks(&chunks)? }),
        4 => Body::Completed(Answer { re, token }),
        5 => Body::Gone(Gone { re, token, why: Refusal::Revoked }),
        _ => return Some(RenewedWriter::new(out, 1).ok()?.finish(session, seq, re, 1, Duration::from_secs(20))),
    };
    native::encode(session, seq, &body, out).ok()
}
