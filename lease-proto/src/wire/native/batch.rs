//! The two runs of fixed-size records: the tokens of a renew and the exceptions of its answer, read by borrowing and written
//! in place.

use super::{
    EncodeError, HEADER, Rejected,
    body::{Refusal, RenewedPrefix, put},
    write_header,
};
use crate::{
    id::{ReaderRank, Seq, Session, Token},
    time::Duration,
};

const KIND_RENEW: u8 = 3;
const KIND_RENEWED: u8 = 4;
/// Longest form of a [`ReaderRank`]: two varints below 65.
const RENEW_PREFIX: usize = 2;
const RENEWED_PREFIX: usize = 18;
/// Index, code, time.
const EXCEPTION: usize = 11;
/// The code of an exception that was granted all the same, for another time.
const GRANTED: u8 = 0;

/// How many tokens one renew may hold so that it fits `renew_limit` bytes and the longest answer to it fits `answer_limit`.
pub fn tokens_that_fit(renew_limit: usize, answer_limit: usize) -> usize {
    let renew = renew_limit.saturating_sub(HEADER.saturating_add(RENEW_PREFIX)) / Token::LEN;
    let answer = answer_limit.saturating_sub(HEADER.saturating_add(RENEWED_PREFIX)) / EXCEPTION;
    renew.min(answer).min(usize::from(u16::MAX))
}

/// A run of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens<'a>(&'a [[u8; Token::LEN]]);

impl<'a> Tokens<'a> {
    /// Tokens as they lie on the wire; for writers of tests. `None` if there are more than 65 535.
    pub fn from_chunks(chunks: &'a [[u8; Token::LEN]]) -> Option<Self> {
        (chunks.len() <= usize::from(u16::MAX)).then_some(Self(chunks))
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, Rejected> {
        match bytes.as_chunks() {
            (chunks, []) => Self::from_chunks(chunks).ok_or(Rejected::TooLarge),
            _ => Err(Rejected::Truncated),
        }
    }

    pub(super) fn as_bytes(&self) -> &'a [u8] {
        self.0.as_flattened()
    }

    /// How many there are, at most 65 535.
    pub fn len(&self) -> u16 {
        self.0.len() as u16
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tokens in order.
    pub fn iter(&self) -> impl Iterator<Item = Token> + use<'a> {
        self.0.iter().map(|bytes| Token::from_bytes(*bytes))
    }
}

/// A run of exceptions, by ascending index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceptions<'a>(&'a [[u8; EXCEPTION]]);

impl<'a> Exceptions<'a> {
    pub(super) fn decode(bytes: &'a [u8], count: u16) -> Result<Self, Rejected> {
        let (chunks, rest) = bytes.as_chunks();
        if !rest.is_empty() {
            return Err(Rejected::Truncated);
        }
        let mut next = 0u32;
        for chunk in chunks {
            let (index, what) = Self::read(chunk);
            if u32::from(index) < next || index >= count {
                return Err(Rejected::BadCount);
            }
            next = u32::from(index).saturating_add(1);
            let _known = what?;
        }
        Ok(Self(chunks))
    }

    fn read(chunk: &[u8; EXCEPTION]) -> (u16, Result<Result<Duration, Refusal>, Rejected>) {
        let [i0, i1, code, nanos @ ..] = *chunk;
        let granted = u64::from_le_bytes(nanos);
        let what = match code {
            GRANTED => Ok(Ok(Duration::from_nanos(granted))),
            _ if granted != 0 => Err(Rejected::NotCanonical),
            _ => Refusal::try_from(code).map(Err),
        };
        (u16::from_le_bytes([i0, i1]), what)
    }

    pub(super) fn as_bytes(&self) -> &'a [u8] {
        self.0.as_flattened()
    }

    /// Index in the renew, and what holds there: granted for another time, or refused.
    pub fn iter(&self) -> impl Iterator<Item = (u16, Result<Duration, Refusal>)> + use<'a> {
        self.0.iter().filter_map(|chunk| match Self::read(chunk) {
            (index, Ok(what)) => Some((index, what)),
            (_, Err(_)) => None, // ruled out by `decode`
        })
    }
}

/// Writes a renew in place, token by token.
#[derive(Debug)]
pub struct RenewWriter<'a> {
    run: Run<'a>,
}

impl<'a> RenewWriter<'a> {
    /// Starts a renew of `reader`.
    ///
    /// # Errors
    /// `TooLarge` if not even an empty one fits `out`.
    pub fn new(out: &'a mut [u8], reader: ReaderRank) -> Result<Self, EncodeError> {
        let room = out.len();
        let body = out.get_mut(HEADER..).and_then(|body| put(&reader, &[], body)).ok_or(EncodeError::TooLarge { room })?;
        Ok(Self { run: Run { out, end: HEADER.saturating_add(body), count: 0 } })
    }

    /// Adds a token; `false` if it does not fit any more.
    pub fn push(&mut self, token: Token) -> bool {
        self.run.push(&token.to_bytes())
    }

    /// How many tokens were added.
    pub fn count(&self) -> u16 {
        self.run.count
    }

    /// Numbers the message and returns its length.
    pub fn finish(self, session: Session, seq: Seq) -> usize {
        self.run.finish(KIND_RENEW, session, seq)
    }
}

/// Writes the answer to a renew in place, exception by exception.
#[derive(Debug)]
pub struct RenewedWriter<'a> {
    run: Run<'a>,
}

impl<'a> RenewedWriter<'a> {
    /// Starts an answer with room for `count` exceptions.
    ///
    /// # Errors
    /// `TooLarge` if the longest answer would not fit `out`: then the renew was larger than its sender may send.
    pub fn new(out: &'a mut [u8], count: u16) -> Result<Self, EncodeError> {
        let room = out.len();
        let start = HEADER.saturating_add(RENEWED_PREFIX);
        let longest = start.saturating_add(usize::from(count).saturating_mul(EXCEPTION));
        if longest > room {
            return Err(EncodeError::TooLarge { room });
        }
        Ok(Self { run: Run { out, end: start, count: 0 } })
    }

    /// Says that the token at `index` is granted for another time, or refused. Indexes must ascend.
    pub fn push(&mut self, index: u16, what: Result<Duration, Refusal>) {
        let (code, granted) = match what {
            Ok(granted) => (GRANTED, granted),
            Err(refusal) => (refusal.code(), Duration::ZERO),
        };
        let ([i0, i1], [n0, n1, n2, n3, n4, n5, n6, n7]) = (index.to_le_bytes(), granted.as_nanos().to_le_bytes());
        self.run.push(&[i0, i1, code, n0, n1, n2, n3, n4, n5, n6, n7]);
    }

    /// Numbers the message and returns its length.
    pub fn finish(self, session: Session, seq: Seq, re: Seq, count: u16, granted: Duration) -> usize {
        if let Some(body) = self.run.out.get_mut(HEADER..) {
            put(&RenewedPrefix { re, count, granted }, &[], body);
        }
        self.run.finish(KIND_RENEWED, session, seq)
    }
}

/// Records appended to a message whose header is written last.
#[derive(Debug)]
struct Run<'a> {
    out: &'a mut [u8],
    end: usize,
    count: u16,
}

impl Run<'_> {
    fn push(&mut self, record: &[u8]) -> bool {
        match self.out.get_mut(self.end..).and_then(|rest| rest.get_mut(..record.len())) {
            Some(room) if self.count < u16::MAX => {
                room.copy_from_slice(record);
                self.end = self.end.saturating_add(record.len());
                self.count = self.count.saturating_add(1);
                true
            }
            _ => false,
        }
    }

    fn finish(self, kind: u8, session: Session, seq: Seq) -> usize {
        let length = self.end.saturating_sub(HEADER);
        match self.out.get_mut(..HEADER).and_then(|header| write_header(header, kind, length, session, seq)) {
            Some(()) => self.end,
            None => 0, // ruled out by `new`
        }
    }
}
