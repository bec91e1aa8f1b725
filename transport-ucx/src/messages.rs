//! What two transports say to each other besides notifications. All numbers are little-endian.
//!
//! ```text
//! ping     key u64, nonce u64, active-message ids of who asks u16
//! pong     key u64, nonce u64
//! ask      landing u32, nonce u64, ids of who asks u16, settle u8, token 16 bytes, region u64, then for each range: offset u64,
//!          length u32
//! data     (in the header) landing u32, nonce u64, settled u8; the bytes are the payload
//! refusal  landing u32, nonce u64, reason u8
//! ```
//!
//! An ask without ranges only asks whether the token still holds. `settle` asks for a copy, if it is short enough; `settled` says that
//! the token held when the last byte had been read.

use lease_proto::id::Token;

/// What follows the first of a transport's active-message ids.
pub(crate) mod id {
    pub(crate) const NOTIFY: u16 = 0;
    pub(crate) const PING: u16 = 1;
    pub(crate) const PONG: u16 = 2;
    pub(crate) const ASK: u16 = 3;
    pub(crate) const DATA: u16 = 4;
    pub(crate) const REFUSAL: u16 = 5;
    /// How many there are.
    pub(crate) const COUNT: u16 = 6;
}

/// Most bytes that one ask may ask for.
pub(crate) const PIECE: usize = 4 << 20;
/// Most ranges that one ask may name.
pub(crate) const RANGES: usize = 128;
/// Longest ask, in bytes.
pub(crate) const LONGEST: usize = Ask::HEAD + RANGES * Ask::RANGE;

/// Which connection asks whether anybody is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ping {
    pub(crate) key: u64,
    /// A number that only this peer has seen.
    pub(crate) nonce: u64,
    /// Where to send the answer.
    pub(crate) ids: u16,
}

impl Ping {
    pub(crate) const LENGTH: usize = 18;

    pub(crate) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        put(&mut bytes, &[&self.key.to_le_bytes(), &self.nonce.to_le_bytes(), &self.ids.to_le_bytes()]);
        bytes
    }

    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let ping = Self { key: u64_of(&mut bytes)?, nonce: u64_of(&mut bytes)?, ids: u16_of(&mut bytes)? };
        bytes.is_empty().then_some(ping)
    }
}

/// The answer to a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pong {
    pub(crate) key: u64,
    pub(crate) nonce: u64,
}

impl Pong {
    pub(crate) const LENGTH: usize = 16;

    pub(crate) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        put(&mut bytes, &[&self.key.to_le_bytes(), &self.nonce.to_le_bytes()]);
        bytes
    }

    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let pong = Self { key: u64_of(&mut bytes)?, nonce: u64_of(&mut bytes)? };
        bytes.is_empty().then_some(pong)
    }
}

/// Where the answer to an ask lands: a number that the reader gives out anew, and one that nobody can guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Landing {
    pub(crate) index: u32,
    pub(crate) nonce: u64,
}

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

/// A reader asks for bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) landing: Landing,
    /// Where to send the answer.
    pub(crate) ids: u16,
    /// Whether it wants a copy, which is settled.
    pub(crate) settle: bool,
    pub(crate) token: Token,
    pub(crate) region: u64,
    parts: &'a [[u8; Ask::RANGE]],
}

impl<'a> Ask<'a> {
    const HEAD: usize = 39;
    const RANGE: usize = 12;

    /// Writes an ask behind what `out` holds.
    pub(crate) fn write(
        out: &mut Vec<u8>,
        landing: Landing,
        (ids, settle): (u16, bool),
        token: Token,
        region: u64,
        parts: impl Iterator<Item = Part>,
    ) {
        out.extend_from_slice(&landing.to_bytes());
        out.extend_from_slice(&ids.to_le_bytes());
        out.push(u8::from(settle));
        out.extend_from_slice(&token.to_bytes());
        out.extend_from_slice(&region.to_le_bytes());
        for part in parts {
            out.extend_from_slice(&part.offset.to_le_bytes());
            out.extend_from_slice(&part.length.to_le_bytes());
        }
    }

    /// `None` for what no reader writes: cut, with too many ranges, with an empty one, or for more than [`PIECE`].
    pub(crate) fn from_bytes(mut bytes: &'a [u8]) -> Option<Self> {
        let landing = Landing::take(&mut bytes)?;
        let (ids, settle) = (u16_of(&mut bytes)?, bool_of(&mut bytes)?);
        let token = Token::from_bytes(take(&mut bytes)?);
        let region = u64_of(&mut bytes)?;
        let (parts, rest) = bytes.as_chunks();
        let ask = Self { landing, ids, settle, token, region, parts };
        let whole = rest.is_empty() && parts.len() <= RANGES && ask.parts().all(|part| part.length > 0);
        (whole && ask.length() <= PIECE).then_some(ask)
    }

    pub(crate) fn parts(&self) -> impl ExactSizeIterator<Item = Part> + use<'a> {
        self.parts
            .iter()
            .map(|&[o @ .., l0, l1, l2, l3]| Part { offset: u64::from_le_bytes(o), length: u32::from_le_bytes([l0, l1, l2, l3]) })
    }

    /// Bytes asked for.
    pub(crate) fn length(&self) -> usize {
        self.parts().fold(0, |sum, part| sum.saturating_add(part.length as usize))
    }
}

impl Landing {
    pub(crate) fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        put(&mut bytes, &[&self.index.to_le_bytes(), &self.nonce.to_le_bytes()]);
        bytes
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Some(Self { index: take(bytes).map(u32::from_le_bytes)?, nonce: u64_of(bytes)? })
    }
}

/// The header of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) landing: Landing,
    pub(crate) settled: bool,
}

impl Data {
    pub(crate) const LENGTH: usize = 13;

    pub(crate) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        put(&mut bytes, &[&self.landing.to_bytes(), &[u8::from(self.settled)]]);
        bytes
    }

    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let landing = Landing::take(&mut bytes)?;
        let settled = bool_of(&mut bytes)?;
        bytes.is_empty().then_some(Self { landing, settled })
    }
}

/// Why an owner does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// There is no permit for the token, or no such region.
    Rejected,
    /// A range is outside the region.
    Invalid,
    /// Too much is being served: ask again later.
    Busy,
    /// UCX does not send it.
    Failed,
}

impl Reason {
    const ALL: [Self; 4] = [Self::Rejected, Self::Invalid, Self::Busy, Self::Failed];
}

/// The answer of an owner that does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) landing: Landing,
    pub(crate) reason: Reason,
}

impl Refusal {
    pub(crate) const LENGTH: usize = 13;

    pub(crate) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        put(&mut bytes, &[&self.landing.to_bytes(), &[self.reason as u8]]);
        bytes
    }

    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let landing = Landing::take(&mut bytes)?;
        let [reason] = *bytes else { return None };
        Some(Self { landing, reason: *Reason::ALL.get(usize::from(reason))? })
    }
}

/// Fills `out` from its start.
fn put(out: &mut [u8], fields: &[&[u8]]) {
    let mut room = out.iter_mut();
    for byte in fields.iter().copied().flatten() {
        if let Some(place) = room.next() {
            *place = *byte;
        }
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

fn bool_of(bytes: &mut &[u8]) -> Option<bool> {
    match take(bytes)? {
        [flag @ 0..=1] => Some(flag == 1),
        _ => None,
    }
}

fn u64_of(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(u64::from_le_bytes)
}

fn u16_of(bytes: &mut &[u8]) -> Option<u16> {
    take(bytes).map(u16::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANDING: Landing = Landing { index: 7, nonce: u64::MAX - 1 };

    fn ask(parts: &[Part]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Ask::write(&mut bytes, LANDING, (40, true), Token { number: 1, nonce: 2 }, 3, parts.iter().copied());
        bytes
    }

    #[test]
    fn each_message_comes_back_as_it_was_and_never_cut_or_with_more_behind_it() {
        let ping = Ping { key: 1 << 40, nonce: 5, ids: 300 };
        assert_eq!(Ping::from_bytes(&ping.to_bytes()), Some(ping));
        let pong = Pong { key: 1 << 40, nonce: 5 };
        assert_eq!(Pong::from_bytes(&pong.to_bytes()), Some(pong));
        for settled in [false, true] {
            let data = Data { landing: LANDING, settled };
            assert_eq!(Data::from_bytes(&data.to_bytes()), Some(data));
        }
        for reason in Reason::ALL {
            let refusal = Refusal { landing: LANDING, reason };
            assert_eq!(Refusal::from_bytes(&refusal.to_bytes()), Some(refusal));
        }
        let longer = |bytes: &[u8]| [bytes, b"!"].concat();
        let (ping, data) = (ping.to_bytes(), Data { landing: LANDING, settled: true }.to_bytes());
        for cut in 0..Ping::LENGTH {
            assert_eq!((Ping::from_bytes(&ping[..cut]), Pong::from_bytes(&ping[..cut.min(15)])), (None, None));
        }
        for cut in 0..Data::LENGTH {
            assert_eq!((Data::from_bytes(&data[..cut]), Refusal::from_bytes(&data[..cut])), (None, None));
        }
        assert_eq!((Ping::from_bytes(&longer(&ping)), Data::from_bytes(&longer(&data))), (None, None));
        assert_eq!(Data::from_bytes(&[&data[..12], &[2]].concat()), None);
        assert_eq!(Refusal::from_bytes(&[&data[..12], &[4]].concat()), None);
    }

    #[test]
    fn an_ask_names_what_was_asked_for_within_its_bounds() {
        let parts = [Part { offset: u64::MAX, length: 1 }, Part { offset: 0, length: (PIECE - 1) as u32 }];
        let bytes = ask(&parts);
        let read = Ask::from_bytes(&bytes).unwrap();
        assert_eq!((read.landing, read.ids, read.settle, read.region), (LANDING, 40, true, 3));
        assert!(read.token == Token { number: 1, nonce: 2 });
        assert_eq!((read.parts().collect::<Vec<_>>(), read.length()), (parts.to_vec(), PIECE));
        assert_eq!(Ask::from_bytes(&ask(&[])).unwrap().length(), 0);
        let small = Part { offset: 0, length: 1 };
        assert_eq!(ask(&[small; RANGES]).len(), LONGEST);
        assert!(Ask::from_bytes(&ask(&[small; RANGES])).is_some());
        for wrong in [&[small; RANGES + 1][..], &[parts[0], parts[1], small], &[Part { offset: 0, length: 0 }]] {
            assert!(Ask::from_bytes(&ask(wrong)).is_none());
        }
        for cut in (0..bytes.len()).filter(|cut| (cut - cut.min(&Ask::HEAD)) % Ask::RANGE != 0 || *cut < Ask::HEAD) {
            assert!(Ask::from_bytes(&bytes[..cut]).is_none(), "{cut} bytes");
        }
    }
}
