//! The wrapper around foreign blobs: worker addresses, agent metadata, remote keys.
//!
//! UCX and NIXL read such blobs without checks; a truncated one crashes the process. So a transport takes them only as a
//! [`Frame`], which can only be made by [`Frame::decode`]. A frame guards against damage and mix-ups, not against a peer that
//! holds a token and lies.
//!
//! ```text
//! offset  size  field
//!      0     3  magic "KVF"
//!      3     1  version, 1
//!      4     8  incarnation of the process that the blob belongs to, little-endian
//!     12     4  payload length, little-endian
//!     16     8  checksum, little-endian: SipHash-2-4 under the key "kvlease frame v1" of bytes 0..16 and the payload
//!     24        payload
//! ```

use core::hash::Hasher as _;

use siphasher::sip::SipHasher24;

use crate::{bytes::Writer, id::Incarnation};

/// Bytes before the payload.
pub const HEADER: usize = 24;
/// Largest payload. NIXL's metadata of a rank with thousands of regions stays well below.
pub const MAX_PAYLOAD: usize = 1 << 20;

const MAGIC: [u8; 3] = *b"KVF";
const VERSION: u8 = 1;
const KEY: [u8; 16] = *b"kvlease frame v1";

/// A blob that arrived whole, and the incarnation it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    incarnation: Incarnation,
    payload: &'a [u8],
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes than the header or the length in it asks for.
    #[error("frame is cut short: expected {expected} bytes, got {got}")]
    Truncated {
        /// Bytes needed.
        expected: usize,
        /// Bytes there.
        got: usize,
    },
    /// Not our magic.
    #[error("not a frame: expected it to start with \"KVF\"")]
    Magic,
    /// A version this build does not read.
    #[error("frame has version {got}, expected {VERSION}: both sides must run versions of kvlease that overlap")]
    Version {
        /// The version in the frame.
        got: u8,
    },
    /// Bytes after the payload.
    #[error("frame has {extra} bytes after its payload")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// The bytes changed on their way.
    #[error("frame is damaged: its checksum does not match")]
    Checksum,
    /// A payload over [`MAX_PAYLOAD`], or an output buffer that is too small.
    #[error("frame payload has {got} bytes, expected at most {max}")]
    TooLarge {
        /// Bytes there.
        got: usize,
        /// Bytes allowed.
        max: usize,
    },
}

impl<'a> Frame<'a> {
    /// Reads exactly one frame.
    ///
    /// ```
    /// use lease_proto::{frame::{Frame, FrameError}, id::Incarnation};
    /// let mut buffer = [0; 64];
    /// let n = Frame::encode(Incarnation(7), b"worker address", &mut buffer)?;
    /// assert_eq!(Frame::decode(&buffer[..n])?.payload(), b"worker address");
    /// assert!(matches!(Frame::decode(&buffer[..n - 1]), Err(FrameError::Truncated { .. })));
    /// # Ok::<(), FrameError>(())
    /// ```
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (frame, rest) = Self::decode_prefix(bytes)?;
        if rest.is_empty() { Ok(frame) } else { Err(FrameError::Trailing { extra: rest.len() }) }
    }

    /// Reads the frame at the start and returns the bytes after it.
    pub fn decode_prefix(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), FrameError> {
        let truncated = |expected| FrameError::Truncated { expected, got: bytes.len() };
        let (header, rest) = bytes.split_first_chunk::<HEADER>().ok_or(truncated(HEADER))?;
        let [m0, m1, m2, version, i @ .., l0, l1, l2, l3, c0, c1, c2, c3, c4, c5, c6, c7] = *header;
        if [m0, m1, m2] != MAGIC {
            return Err(FrameError::Magic);
        }
        if version != VERSION {
            return Err(FrameError::Version { got: version });
        }
        let incarnation = Incarnation(u64::from_le_bytes(i));
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_PAYLOAD {
            return Err(FrameError::TooLarge { got: length, max: MAX_PAYLOAD });
        }
        let (payload, rest) = rest.split_at_checked(length).ok_or(truncated(HEADER.saturating_add(length)))?;
        if u64::from_le_bytes([c0, c1, c2, c3, c4, c5, c6, c7]) != checksum(incarnation, payload) {
            return Err(FrameError::Checksum);
        }
        Ok((Self { incarnation, payload }, rest))
    }

    /// Writes a frame and returns its length, `payload.len() + HEADER`.
    ///
    /// # Errors
    /// `TooLarge` if the payload is, or `out` is too small.
    pub fn encode(incarnation: Incarnation, payload: &[u8], out: &mut [u8]) -> Result<usize, FrameError> {
        let too_large = FrameError::TooLarge { got: payload.len(), max: MAX_PAYLOAD.min(out.len().saturating_sub(HEADER)) };
        let room = out.get_mut(HEADER..).and_then(|rest| rest.get_mut(..payload.len())).ok_or(too_large)?;
        room.copy_from_slice(payload);
        Self::seal(incarnation, payload.len(), out)
    }

    /// Puts the header before a payload of `length` bytes that already lies at [`HEADER`] in `out`; returns the frame's length.
    ///
    /// # Errors
    /// As [`Frame::encode`].
    pub fn seal(incarnation: Incarnation, length: usize, out: &mut [u8]) -> Result<usize, FrameError> {
        let too_large = FrameError::TooLarge { got: length, max: MAX_PAYLOAD.min(out.len().saturating_sub(HEADER)) };
        let (header, rest) = out.split_at_mut_checked(HEADER).ok_or(too_large)?;
        let payload = rest.get(..length).filter(|_| length <= MAX_PAYLOAD).ok_or(too_large)?;
        let mut writer = Writer::new(header);
        prefix(incarnation, payload, &mut |bytes| writer.put(bytes));
        writer.put(&checksum(incarnation, payload).to_le_bytes());
        writer.finish().and_then(|header| header.checked_add(length)).ok_or(too_large)
    }

    /// The process that the blob belongs to.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The blob.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

fn prefix(incarnation: Incarnation, payload: &[u8], put: &mut dyn FnMut(&[u8])) {
    put(&MAGIC);
    put(&[VERSION]);
    put(&incarnation.0.to_le_bytes());
    put(&(payload.len() as u32).to_le_bytes());
}

fn checksum(incarnation: Incarnation, payload: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(&KEY);
    prefix(incarnation, payload, &mut |bytes| hasher.write(bytes));
    hasher.write(payload);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(buffer: &mut [u8]) -> usize {
        Frame::encode(Incarnation(0x0102_0304_0506_0708), b"payload", buffer).unwrap()
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_noticed() {
        let mut buffer = [0; 64];
        let n = sample(&mut buffer);
        for at in 0..n {
            for flip in 1..=255u8 {
                let mut damaged = buffer;
                damaged[at] ^= flip;
                assert!(Frame::decode(&damaged[..n]).is_err(), "byte {at} flipped by {flip}");
            }
            assert!(matches!(Frame::decode(&buffer[..at]), Err(FrameError::Truncated { .. })));
        }
        assert_eq!(Frame::decode(&buffer[..n + 1]), Err(FrameError::Trailing { extra: 1 }));
    }

    #[test]
    fn a_payload_that_does_not_fit_is_refused_and_nothing_is_cut() {
        let mut small = [0; HEADER + 6];
        assert_eq!(Frame::encode(Incarnation(1), b"payload", &mut small), Err(FrameError::TooLarge { got: 7, max: 6 }));
    }
}
