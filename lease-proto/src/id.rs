//! Who is who: ids that engines choose, and numbers that tell one life of a thing from the next.
//!
//! Request and engine ids are opaque bytes and never parsed for meaning (case 56). What distinguishes two lives of the
//! same id is a [`Token`] (a lease), an [`Incarnation`] (a process) or a [`Session`] (a conversation) (cases 8, 19, 21, 52).

use core::fmt;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;
use subtle::ConstantTimeEq as _;

/// Longest request or engine id in bytes. Ids seen in the field reach about 115; longer ones are refused at tracking.
pub const MAX_ID: usize = 256;

/// Why bytes are no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Longer than [`MAX_ID`].
    #[error(
        "id has {got} bytes, expected at most {MAX_ID}: shorten it where it is made (a client's X-Request-Id becomes part of it)"
    )]
    TooLong {
        /// Its length in bytes.
        got: usize,
    },
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, Hash)]
        pub struct $name(heapless::Vec<u8, MAX_ID, u16>);

        impl $name {
            /// Takes up to [`MAX_ID`] bytes, any bytes.
            pub fn new(bytes: &[u8]) -> Result<Self, IdError> {
                heapless::Vec::from_slice(bytes).map(Self).map_err(|_| IdError::TooLong { got: bytes.len() })
            }

            /// The id's bytes.
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = IdError;

            fn try_from(text: &str) -> Result<Self, IdError> {
                Self::new(text.as_bytes())
            }
        }

        impl fmt::Display for $name {
            /// The id as text; bytes that are not UTF-8 are shown escaped.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                for chunk in self.0.utf8_chunks() {
                    write!(f, "{}", chunk.valid())?;
                    write!(f, "{}", chunk.invalid().escape_ascii())?;
                }
                Ok(())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0.escape_ascii())
            }
        }
    };
}

id!(
    /// A request as the holder's engine names it.
    RequestId
);
id!(
    /// An engine. Must be unique among the engines that one reader talks to.
    EngineId
);

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(#[serde(with = "postcard::fixint::le")] pub $inner);
    };
}

number!(
    /// One life of an engine process: a random number, new at each start. A new incarnation has new agents or endpoints and
    /// new registrations.
    Incarnation(u64)
);
number!(
    /// One conversation in one direction, chosen at random by the RECEIVER in the handshake, so that messages of an old
    /// incarnation, which cannot know it, are inert.
    Session(u64)
);
number!(
    /// A message's number in its session. An echo for matching answers, never a filter (law 5).
    Seq(u64)
);
number!(
    /// The clock that stamped something. Two processes have different ones unless they say otherwise.
    ClockId(u64)
);

/// One rank of an engine that will read a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "(u16, u16)", try_from = "(u16, u16)")]
pub struct ReaderRank {
    rank: u16,
    of: u16,
}

/// Most ranks that may read one holder rank's blocks: one bit each in a word.
pub const MAX_READERS: u16 = 64;

impl ReaderRank {
    /// The only reader of a lease.
    pub const ONLY: Self = Self { rank: 0, of: 1 };

    /// Rank `rank` of `of`; `None` unless `rank < of <= 64`.
    pub const fn new(rank: u16, of: u16) -> Option<Self> {
        if rank < of && of <= MAX_READERS { Some(Self { rank, of }) } else { None }
    }

    /// This reader's rank, from 0.
    pub const fn rank(self) -> u16 {
        self.rank
    }

    /// How many ranks will read.
    pub const fn of(self) -> u16 {
        self.of
    }

    /// This rank's bit in a set of ranks.
    pub(crate) const fn bit(self) -> u64 {
        1u64.wrapping_shl(self.rank as u32)
    }

    /// The set of all ranks.
    pub(crate) const fn all(self) -> u64 {
        u64::MAX.wrapping_shr(64u32.saturating_sub(self.of as u32))
    }
}

impl From<ReaderRank> for (u16, u16) {
    fn from(reader: ReaderRank) -> Self {
        (reader.rank, reader.of)
    }
}

impl TryFrom<(u16, u16)> for ReaderRank {
    type Error = RankOutOfRange;

    fn try_from((rank, of): (u16, u16)) -> Result<Self, RankOutOfRange> {
        Self::new(rank, of).ok_or(RankOutOfRange { rank, of })
    }
}

/// No such rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reader rank {rank} of {of}: expected a rank below its count, and a count of at most {MAX_READERS}")]
pub struct RankOutOfRange {
    /// The rank.
    pub rank: u16,
    /// The count.
    pub of: u16,
}

/// The right to renew, read, complete and release one lease. A bearer secret: shown only redacted, compared in constant time.
#[derive(Clone, Copy, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "[u8; 16]", from = "[u8; 16]")]
#[allow(clippy::derived_hash_with_manual_eq)] // equality differs in timing only
pub struct Token {
    /// One more at each grant of the incarnation, never reused. The same on every rank of the holder.
    pub number: u64,
    /// From the caller's entropy; makes the token unguessable.
    pub nonce: u64,
}

impl Token {
    /// Bytes of a token on the wire.
    pub const LEN: usize = 16;

    /// `number`, then `nonce`, both little-endian.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        (u128::from(self.number) | u128::from(self.nonce).wrapping_shl(64)).to_le_bytes()
    }

    /// The inverse of [`Token::to_bytes`]. Any sixteen bytes are a token; whether it is live is the holder's business.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let both = u128::from_le_bytes(bytes);
        Self { number: both as u64, nonce: both.wrapping_shr(64) as u64 }
    }
}

impl From<Token> for [u8; Token::LEN] {
    fn from(token: Token) -> Self {
        token.to_bytes()
    }
}

impl From<[u8; Token::LEN]> for Token {
    fn from(bytes: [u8; Token::LEN]) -> Self {
        Self::from_bytes(bytes)
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.to_bytes().ct_eq(&other.to_bytes()).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}, redacted)", self.number)
    }
}

/// Who this process is. New at each start, except for the engine's id and rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The engine's id.
    pub engine: EngineId,
    /// This life of it: from the system's random source.
    pub incarnation: Incarnation,
    /// The rank of this process in its engine, from 0.
    pub rank: u16,
    /// How many ranks the engine has, at least 1.
    pub ranks: u16,
    /// The clock that its instants belong to. The same number only for processes that read the same clock.
    pub clock: ClockId,
    /// Largest message that it takes in bytes, at most what its transport takes.
    pub max_message: u32,
}

/// The caller's entropy, stretched: SipHash-2-4 of a counter under a secret key. Feeds nonces, sessions and jitter, so
/// that a machine with the same seed and inputs does the same things.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Entropy {
    key: [u8; 16],
    drawn: u64,
}

impl Entropy {
    /// Sixteen bytes from the system's random source; a fixed seed only in tests and simulations.
    pub const fn from_seed(key: [u8; 16]) -> Self {
        Self { key, drawn: 0 }
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(1);
        SipHasher24::new_with_key(&self.key).hash(&self.drawn.to_le_bytes())
    }
}

/// Hash by which ids are looked up, under a key of its own: ids come from clients, who must not choose where they collide.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct IdHash([u8; 16]);

impl IdHash {
    pub(crate) fn drawn(entropy: &mut Entropy) -> Self {
        Self((u128::from(entropy.draw()) | u128::from(entropy.draw()).wrapping_shl(64)).to_le_bytes())
    }

    pub(crate) fn of(&self, id: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.0).hash(id)
    }

    /// Of one rank of an engine, whatever its life.
    pub(crate) fn of_rank(&self, engine: &[u8], rank: u16) -> u64 {
        self.of(engine).wrapping_add(u64::from(rank))
    }
}

impl fmt::Debug for IdHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdHash(redacted)")
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::format;

    #[test]
    fn an_id_takes_any_bytes_up_to_its_limit() {
        assert!(RequestId::new(&[0xff; MAX_ID]).is_ok());
        assert_eq!(RequestId::new(&[b'a'; 257]), Err(IdError::TooLong { got: 257 }));
        assert_eq!(format!("{}", RequestId::new(b"a,\xffb").unwrap()), "a,\\xffb");
    }

    #[test]
    fn a_token_never_shows_its_nonce() {
        let token = Token { number: 7, nonce: 0xdead_beef };
        assert_eq!(format!("{token:?}"), "Token(7, redacted)");
        assert_eq!(Token::from_bytes(token.to_bytes()), token);
        assert_ne!(Token { nonce: 1, ..token }, token);
    }

    #[test]
    fn reader_ranks_are_bits_of_one_word() {
        assert_eq!(ReaderRank::new(0, 1), Some(ReaderRank::ONLY));
        assert_eq!(ReaderRank::new(63, 64).unwrap().all(), u64::MAX);
        assert_eq!(ReaderRank::new(1, 2).unwrap().all(), 0b11);
        assert_eq!(ReaderRank::new(1, 2).unwrap().bit(), 0b10);
        for (rank, of) in [(0, 0), (1, 1), (0, 65), (u16::MAX, u16::MAX)] {
            assert_eq!(ReaderRank::new(rank, of), None);
        }
    }

    #[test]
    fn entropy_repeats_from_its_seed_and_differs_between_seeds() {
        let draw = |seed| Entropy::from_seed([seed; 16]).draw();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
