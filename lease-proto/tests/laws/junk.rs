//! Bytes that must change nothing. What a mutation leaves a well-formed request of a live session is no junk, so each of these
//! breaks what makes it one.

use lease_proto::{
    id::{Seq, Session},
    wire::{
        self, Message, Wire,
        native::{self, Body, Hello},
    },
};

const KIND: usize = 5;
const VERSION: usize = 4;
const SESSION: usize = 10;

/// Junk of this kind, made out of a message that was really sent, where it needs one.
pub fn junk(wire: Wire, kind: u8, at: usize, sent: Option<Vec<u8>>) -> Option<Vec<u8>> {
    match wire {
        Wire::Native => native_junk(kind, at, sent?),
        Wire::Vllm => Some(text_junk(kind, at, sent)),
    }
}

fn native_junk(kind: u8, at: usize, mut sent: Vec<u8>) -> Option<Vec<u8>> {
    let noise = |length: usize| (0..length).map(|i| (at.rotate_left(i as u32) ^ i) as u8);
    let is_hello = sent.get(KIND) == Some(&1);
    match kind % 12 {
        0 => sent = noise(at % 200).map(|byte| byte & 0x7f).collect(),
        1 => sent.splice(native::HEADER.min(sent.len()).., noise(at % 50)).for_each(drop),
        2 => sent[KIND] = 11 + (at % 245) as u8,
        3 => sent.truncate(at % sent.len()),
        4 => sent.extend(noise(1 + at % 40)),
        5 => sent[VERSION] = sent[VERSION].wrapping_add(1 + (at % 255) as u8),
        6 => sent = vec![0xff, b'K', b'V', b'L'].into_iter().chain(noise(at % 100)).collect(),
        7 => sent.resize(70_000, 0),
        8 => sent[at % 4] ^= 0x40,
        9 => sent.clear(),
        _ if is_hello => return strange_hello(at, &sent),
        _ => sent[SESSION + at % 8] ^= 1 + (at % 255) as u8,
    }
    // Noise may happen to be as long as the body it replaced, and a hello has no session to be wrong about.
    let harmless = match wire::decode(Wire::Native, &sent) {
        Ok(Message::Native { body: Body::Hello(_), .. }) => false,
        Ok(Message::Native { .. }) => kind % 12 > 9,
        _ => true,
    };
    harmless.then_some(sent)
}

/// A greeting of somebody who holds no token, or whose address is damaged.
fn strange_hello(at: usize, sent: &[u8]) -> Option<Vec<u8>> {
    let Ok(Message::Native { body: Body::Hello(hello), .. }) = wire::decode(Wire::Native, sent) else { return None };
    let mut token = hello.token;
    let mut metadata = hello.metadata.to_vec();
    match at % 3 {
        0 => token.nonce ^= 1 << (at % 64),
        1 => token.number = token.number.wrapping_add(1 << 40),
        _ => {
            let length = metadata.len();
            metadata[at % length] ^= 1 + (at % 255) as u8;
        }
    }
    let mut out = vec![0; sent.len() + 64];
    let hello = Body::Hello(Hello { token, metadata: &metadata, ..hello });
    let length = native::encode(Session(0), Seq(at as u64), &hello, &mut out).ok()?;
    out.truncate(length);
    Some(out)
}

fn text_junk(kind: u8, at: usize, sent: Option<Vec<u8>>) -> Vec<u8> {
    let text: &[u8] = match kind % 16 {
        0 => b"HB:zz",
        1 => b"zz:1",
        2 => b"zz:0",
        3 => b"r0:0",
        4 => b"r0:-1",
        5 => b"r1",
        6 => b"",
        7 => b"HB",
        8 => b"\xff\xfe",
        9 => b"HB:\xc3",
        10 => b"PUSH_REG:\xc1",
        11 => b"r0:99999999999999999999",
        12 => b"r0:1.5",
        13 => b"HB:HB:1",
        14 => b"hb:r0:1",
        _ => {
            let mut sent = sent.unwrap_or_default();
            let end = sent.len();
            sent.insert(at % (end + 1), 0xff);
            return sent;
        }
    };
    text.to_vec()
}
