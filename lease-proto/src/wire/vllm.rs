//! The text that vLLM's NixlConnector sends (vLLM 0.33, connector version 15).
//!
//! | kind | bytes | from, to |
//! |---|---|---|
//! | heartbeat | `HB:` and request ids joined by `,` | reader, holder |
//! | completion or release | request id, `:` (the LAST colon counts), how many readers will complete | reader, holder |
//! | push registration | `PUSH_REG:` and msgpack | not read here |
//!
//! There is no version, no length, no answer and no escape: what an id may hold is all that keeps the kinds apart, so
//! [`check_id`] refuses at tracking what would be read as something else.

use super::{EncodeError, Rejected};
use crate::bytes::Writer;

const HEARTBEAT: &str = "HB:";
const PUSH_REGISTRATION: &str = "PUSH_REG:";
/// What Python's `int()` ignores around a number, of ASCII.
const WHITESPACE: [char; 6] = [' ', '\t', '\n', '\x0b', '\x0c', '\r'];

/// One notification of vLLM's wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Renews every lease it names.
    Heartbeat(Ids<'a>),
    /// One reader is done with a lease: it has read, or will not.
    Completion {
        /// The request as the holder names it. May be empty, and then names nothing.
        id: &'a [u8],
        /// How many readers will complete at this holder rank, at least 1.
        consumers: u32,
    },
    /// Push mode's registration, for the engine: the bytes after the prefix.
    PushRegistration(&'a [u8]),
}

/// The ids of a heartbeat, in its order: empty ones skipped, spaces kept, repeats kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids<'a>(&'a [u8]);

impl<'a> Ids<'a> {
    /// The ids. There may be none.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.0.split(|&byte| byte == b',').filter(|id| !id.is_empty())
    }
}

/// Reads one notification. `HB:` is case-sensitive and wins over a completion.
///
/// ```
/// use lease_proto::wire::vllm::{Message, decode};
/// let Ok(Message::Heartbeat(ids)) = decode(b"HB:r, s,,") else { panic!() };
/// assert!(ids.iter().eq([&b"r"[..], b" s"]));
/// assert_eq!(decode(b"hb:r:2"), Ok(Message::Completion { id: b"hb:r", consumers: 2 }));
/// ```
///
/// # Errors
/// `NotUtf8`, `NoColon`, or `BadCount` for what no reader count can be. vLLM itself raises on the first two, and on a count that
/// is not a number; a count below 1 can never be reached there. Counts are read as Python's `int()` reads them (`" 2"`,
/// `"+2"`, `"1_0"`, `"01"`), but for digits and spaces beyond ASCII and counts above `u32::MAX`.
pub fn decode(bytes: &[u8]) -> Result<Message<'_>, Rejected> {
    // Before UTF-8: msgpack follows.
    if let Some(registration) = bytes.strip_prefix(PUSH_REGISTRATION.as_bytes()) {
        return Ok(Message::PushRegistration(registration));
    }
    let text = str::from_utf8(bytes).map_err(|_| Rejected::NotUtf8)?;
    if let Some(ids) = text.strip_prefix(HEARTBEAT) {
        return Ok(Message::Heartbeat(Ids(ids.as_bytes())));
    }
    // Not `rsplit_once`: of this the optimizer can see that it does not panic.
    let colon = bytes.iter().rposition(|&byte| byte == b':').ok_or(Rejected::NoColon)?;
    let (id, count) = text.split_at_checked(colon).ok_or(Rejected::NoColon)?;
    let consumers = parse_count(count).ok_or(Rejected::BadCount)?;
    Ok(Message::Completion { id: id.as_bytes(), consumers })
}

/// Reads a colon and a number.
fn parse_count(text: &str) -> Option<u32> {
    let text = text.strip_prefix(':')?.trim_matches(WHITESPACE);
    let mut count = 0u32;
    let mut after_digit = false;
    for byte in text.strip_prefix('+').unwrap_or(text).bytes() {
        match byte {
            b'0'..=b'9' => count = count.checked_mul(10)?.checked_add(u32::from(byte.wrapping_sub(b'0')))?,
            b'_' if after_digit => {}
            _ => return None,
        }
        after_digit = byte != b'_';
    }
    (after_digit && count > 0).then_some(count)
}

/// Whether this wire can carry an id in every message.
///
/// # Errors
/// `IdNotEncodable` for an id that is empty, is not UTF-8, holds a comma, or whose completion would be read as a heartbeat or
/// a push registration: `HB` and `PUSH_REG` themselves and what starts with either and a colon.
pub fn check_id(id: &[u8]) -> Result<(), EncodeError> {
    let text = str::from_utf8(id).map_err(|_| EncodeError::IdNotEncodable)?;
    let taken = |prefix: &str| text.starts_with(prefix) || prefix.strip_suffix(':') == Some(text);
    if text.is_empty() || text.contains(',') || taken(HEARTBEAT) || taken(PUSH_REGISTRATION) {
        return Err(EncodeError::IdNotEncodable);
    }
    Ok(())
}

/// Writes one heartbeat of at most the buffer's length.
///
/// ```
/// use lease_proto::wire::vllm::HeartbeatWriter;
/// let mut buffer = [0; 8];
/// let mut beat = HeartbeatWriter::new(&mut buffer);
/// assert_eq!(beat.push(b"aa"), Ok(true));
/// assert_eq!(beat.push(b"bb"), Ok(true));
/// assert_eq!(beat.push(b"cc"), Ok(false)); // send this one, start another
/// assert_eq!(beat.finish(), Some(8));
/// assert_eq!(&buffer, b"HB:aa,bb");
/// ```
#[derive(Debug)]
pub struct HeartbeatWriter<'a> {
    out: &'a mut [u8],
    written: usize,
}

impl<'a> HeartbeatWriter<'a> {
    /// A heartbeat without ids. `out` is as long as the longest message that the peer and the transport take, in bytes.
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, written: 0 }
    }

    /// Adds an id, or says `false` and leaves the message as it was: then it is full.
    ///
    /// # Errors
    /// `IdNotEncodable` as [`check_id`]; `TooLarge` if the id would not fit into an empty message either.
    pub fn push(&mut self, id: &[u8]) -> Result<bool, EncodeError> {
        check_id(id)?;
        let room = self.out.len();
        let mut writer = Writer::new(self.out.get_mut(self.written..).unwrap_or_default());
        writer.put(if self.written == 0 { HEARTBEAT.as_bytes() } else { b"," });
        writer.put(id);
        match writer.finish() {
            Some(added) => {
                self.written = self.written.saturating_add(added);
                Ok(true)
            }
            None if self.written == 0 => Err(EncodeError::TooLarge { room }),
            None => Ok(false),
        }
    }

    /// The message's length in bytes, or `None` if no id was added and there is nothing to send.
    pub fn finish(self) -> Option<usize> {
        (self.written > 0).then_some(self.written)
    }
}

/// Writes a completion and returns its length in bytes. `consumers` is what [`crate::topology`] says of this holder rank; 0
/// counts as 1, as in vLLM's `max(1, …)`.
///
/// # Errors
/// `IdNotEncodable` as [`check_id`], `TooLarge`.
pub fn encode_completion(id: &[u8], consumers: u32, out: &mut [u8]) -> Result<usize, EncodeError> {
    check_id(id)?;
    let too_large = EncodeError::TooLarge { room: out.len() };
    let (mut digits, mut left) = ([b' '; 10], consumers.max(1));
    for digit in digits.iter_mut().rev() {
        if left > 0 {
            *digit = b'0'.wrapping_add((left % 10) as u8);
            left /= 10;
        }
    }
    let mut writer = Writer::new(out);
    writer.put(id);
    writer.put(b":");
    writer.put(digits.trim_ascii_start());
    writer.finish().ok_or(too_large)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, string::String, vec, vec::Vec};
    use proptest::prelude::*;

    fn ids(bytes: &[u8]) -> Vec<&[u8]> {
        match decode(bytes) {
            Ok(Message::Heartbeat(ids)) => ids.iter().collect(),
            other => panic!("{other:?}"),
        }
    }

    fn completion(id: &str, consumers: u32) -> Result<Message<'_>, Rejected> {
        Ok(Message::Completion { id: id.as_bytes(), consumers })
    }

    #[test]
    fn heartbeats_are_split_as_vllm_splits_them() {
        for (bytes, expected) in [
            ("HB:", &[][..]),
            ("HB:,", &[]),
            ("HB:a,", &["a"]),
            ("HB:a,a", &["a", "a"]),
            ("HB:a,b:2", &["a", "b:2"]),
            ("HB:HB:1", &["HB:1"]),
            ("HB:1", &["1"]),
            ("HB:r, s,,", &["r", " s"]),
        ] {
            assert!(ids(bytes.as_bytes()).into_iter().eq(expected.iter().map(|id| id.as_bytes())), "{bytes:?}");
        }
    }

    #[test]
    fn completions_are_counted_as_vllm_counts_them() {
        for (bytes, expected) in [
            ("a:2", completion("a", 2)),
            ("a:2:2", completion("a:2", 2)),
            (":1", completion("", 1)),
            ("hb:r", Err(Rejected::BadCount)),
            ("hb:1", completion("hb", 1)),
            ("HB", Err(Rejected::NoColon)),
            ("a:01", completion("a", 1)),
            ("a: 2", completion("a", 2)),
            ("r: 1 ", completion("r", 1)),
            ("a:\t\n\x0b\x0c\r+1_0\r", completion("a", 10)),
            ("a:0_1", completion("a", 1)),
            ("a:4294967295", completion("a", u32::MAX)),
            ("a:4294967296", Err(Rejected::BadCount)),
            ("a:99999999999999999999", Err(Rejected::BadCount)),
            ("a:", Err(Rejected::BadCount)),
            ("a:0", Err(Rejected::BadCount)),
            ("a:-1", Err(Rejected::BadCount)),
            ("a:+", Err(Rejected::BadCount)),
            ("a:+ 1", Err(Rejected::BadCount)),
            ("a:_1", Err(Rejected::BadCount)),
            ("a:1_", Err(Rejected::BadCount)),
            ("a:1__0", Err(Rejected::BadCount)),
            ("a:1 0", Err(Rejected::BadCount)),
            ("a:\x1f1", Err(Rejected::BadCount)),
            ("a:0x1", Err(Rejected::BadCount)),
            ("a", Err(Rejected::NoColon)),
            ("", Err(Rejected::NoColon)),
        ] {
            assert_eq!(decode(bytes.as_bytes()), expected, "{bytes:?}");
        }
    }

    #[test]
    fn bytes_that_would_raise_inside_vllm_are_rejected_by_kind() {
        for bytes in [&b"\xff\xfe"[..], b"HB:\xc3", b"a\xc3:1"] {
            assert_eq!(decode(bytes), Err(Rejected::NotUtf8), "{bytes:?}");
        }
    }

    #[test]
    fn push_registrations_are_left_to_the_engine() {
        assert_eq!(decode(b"PUSH_REG:"), Ok(Message::PushRegistration(b"")));
        assert_eq!(decode(b"PUSH_REG:\xc1"), Ok(Message::PushRegistration(b"\xc1")));
        assert_eq!(decode(b"PUSH_REG:1"), Ok(Message::PushRegistration(b"1")));
    }

    #[test]
    fn ids_that_would_be_read_as_something_else_are_refused() {
        for id in [&b""[..], b"a,b", b"\xff", b"HB", b"HB:", b"HB:x", b"PUSH_REG", b"PUSH_REG:", b"PUSH_REG:x"] {
            assert_eq!(check_id(id), Err(EncodeError::IdNotEncodable), "{id:?}");
            assert_eq!(HeartbeatWriter::new(&mut [0; 64]).push(id), Err(EncodeError::IdNotEncodable));
            assert_eq!(encode_completion(id, 1, &mut [0; 64]), Err(EncodeError::IdNotEncodable));
        }
        for id in ["hb", "HBx", "a:b", " ", "0", "é", "a:1"] {
            assert_eq!(check_id(id.as_bytes()), Ok(()), "{id:?}");
        }
    }

    #[test]
    fn a_heartbeat_of_54_byte_ids_holds_as_many_as_the_limit_allows() {
        for (limit, expected) in [(256, 4), (4096, 74), (65_536, 1191)] {
            let mut buffer = vec![0; limit];
            let mut beat = HeartbeatWriter::new(&mut buffer);
            let mut sent = Vec::new();
            loop {
                let id = format!("chatcmpl-{:08x}-0000-4000-8000-000000000000-{:08x}", sent.len(), sent.len());
                assert_eq!(id.len(), 54);
                if !beat.push(id.as_bytes()).unwrap() {
                    break;
                }
                sent.push(id);
            }
            let length = beat.finish().unwrap();
            assert_eq!((sent.len(), length), (expected, 55 * expected + 2));
            assert!(ids(&buffer[..length]).into_iter().eq(sent.iter().map(String::as_bytes)));
        }
    }

    #[test]
    fn a_message_that_does_not_fit_is_not_begun() {
        let id = vec![b'a'; 65_536];
        assert_eq!(HeartbeatWriter::new(&mut [0; 1024]).push(&id), Err(EncodeError::TooLarge { room: 1024 }));
        assert_eq!(HeartbeatWriter::new(&mut [0; 3]).push(b"a"), Err(EncodeError::TooLarge { room: 3 }));
        assert_eq!(HeartbeatWriter::new(&mut [0; 64]).finish(), None);
        assert_eq!(encode_completion(b"a", 10, &mut [0; 3]), Err(EncodeError::TooLarge { room: 3 }));
        let long = [&b"HB:"[..], &id].concat();
        assert_eq!(ids(&long), [&id[..]]);
    }

    #[test]
    fn a_completion_is_the_id_a_colon_and_the_count() {
        let mut buffer = [0; 64];
        let n = encode_completion(b"cmpl-1-0-aabbccdd", 1, &mut buffer).unwrap();
        assert_eq!(&buffer[..n], b"cmpl-1-0-aabbccdd:1");
        let n = encode_completion(b"r", 0, &mut buffer).unwrap();
        assert_eq!(decode(&buffer[..n]), completion("r", 1));
    }

    /// Ids with what gives trouble: prefixes of messages, colons, commas, spaces, digits, bytes of any kind.
    fn any_id() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            "(HB:?|PUSH_REG:?)?[a-c:, 0-9_é]{0,8}".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 0..16)
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(
            requests in proptest::collection::vec(any_id(), 0..20),
            consumers in 1u32..,
            limit in 0usize..64,
        ) {
            let mut buffer = vec![0; limit];
            let mut beat = HeartbeatWriter::new(&mut buffer);
            let mut sent = Vec::new();
            for id in &requests {
                if beat.push(id) == Ok(true) {
                    sent.push(&id[..]);
                }
            }
            if let Some(length) = beat.finish() {
                prop_assert_eq!(ids(&buffer[..length]), sent);
            }
            for id in &requests {
                let mut buffer = [0; 64];
                match encode_completion(id, consumers, &mut buffer) {
                    Ok(length) => prop_assert_eq!(decode(&buffer[..length]), Ok(Message::Completion { id, consumers })),
                    Err(error) => prop_assert_eq!(Err(error), check_id(id)),
                }
            }
        }

        #[test]
        fn any_bytes_are_read_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..64), text in any_id()) {
            for bytes in [bytes, text] {
                if let Ok(Message::Heartbeat(ids)) = decode(&bytes) {
                    prop_assert!(ids.iter().all(|id| !id.is_empty()));
                }
            }
        }
    }
}
