//! The native wire: a fixed header, then a body in postcard.
//!
//! ```text
//! offset  size  field
//!      0     4  FF 4B 56 4C: FF is never valid UTF-8, so no vLLM text starts like this; then "KVL"
//!      4     1  version, 1
//!      5     1  kind
//!      6     4  body length, little-endian
//!     10     8  session, little-endian; zero in a hello
//!     18     8  number of the message in its session, little-endian
//!     26        body
//! ```
//!
//! A message is accepted only in its one canonical form: no trailing bytes, no padded varints (postcard itself would take
//! them), no code without a meaning.

mod batch;
mod body;

pub use batch::{Exceptions, RenewWriter, RenewedWriter, Tokens, tokens_that_fit};
pub use body::{About, Answer, Body, Gone, Hello, HelloAck, Party, Refusal, Renew, Renewed, TimeReply};

use super::{EncodeError, Rejected};
use crate::{
    bytes::Writer,
    id::{Seq, Session},
};

/// Bytes before the body.
pub const HEADER: usize = 26;
/// The version that this build reads and writes.
pub const VERSION: u8 = 1;
/// Bytes of a hello beyond its framed metadata and the engine's id, at most. An answer to it is shorter.
pub const MAX_HELLO_OVERHEAD: usize = HEADER + 80;

const MAGIC: [u8; 4] = [0xff, b'K', b'V', b'L'];

/// Whether bytes claim to be of the native wire, of whatever version.
pub fn is_native(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Reads one message: its session, its number and its body.
///
/// # Errors
/// Anything that is not one whole message in canonical form; `NotCanonical` for bytes that are not even [`is_native`], which
/// [`super::decode`] hands back instead.
pub fn decode(bytes: &[u8]) -> Result<(Session, Seq, Body<'_>), Rejected> {
    match bytes.strip_prefix(&MAGIC) {
        None => return Err(Rejected::NotCanonical),
        // Before anything else: another version may have another header.
        Some([version, ..]) if *version != VERSION => return Err(Rejected::UnknownVersion),
        Some(_) => {}
    }
    let (header, rest) = bytes.split_first_chunk::<HEADER>().ok_or(Rejected::Truncated)?;
    let [_, _, _, _, _, kind, l0, l1, l2, l3, s0, s1, s2, s3, s4, s5, s6, s7, seq @ ..] = *header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let (body, trailing) = rest.split_at_checked(length).ok_or(Rejected::Truncated)?;
    if !trailing.is_empty() {
        return Err(Rejected::TrailingBytes);
    }
    let session = Session(u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]));
    Ok((session, Seq(u64::from_le_bytes(seq)), body::decode(kind, body)?))
}

/// Writes one message and returns its length. Batches are better written in place, by [`RenewWriter`] and [`RenewedWriter`].
///
/// What it writes reads back, if a [`Party`] is one that may be: its rank below its count, its id within
/// [`crate::id::MAX_ID`].
///
/// ```
/// use lease_proto::{id::{Seq, Session}, wire::native::{self, Body}};
/// let mut buffer = [0; 64];
/// let n = native::encode(Session(1), Seq(2), &Body::Time, &mut buffer)?;
/// assert_eq!(native::decode(&buffer[..n]), Ok((Session(1), Seq(2), Body::Time)));
/// # Ok::<(), lease_proto::wire::EncodeError>(())
/// ```
///
/// # Errors
/// `TooLarge` if `out` is too small.
pub fn encode(session: Session, seq: Seq, body: &Body<'_>, out: &mut [u8]) -> Result<usize, EncodeError> {
    let room = out.len();
    let (header, rest) = out.split_at_mut_checked(HEADER).ok_or(EncodeError::TooLarge { room })?;
    let length = body::encode(body, rest).ok_or(EncodeError::TooLarge { room })?;
    write_header(header, body.kind(), length, session, seq).ok_or(EncodeError::TooLarge { room })?;
    Ok(HEADER.saturating_add(length))
}

fn write_header(header: &mut [u8], kind: u8, length: usize, session: Session, seq: Seq) -> Option<()> {
    let mut writer = Writer::new(header);
    writer.put(&MAGIC);
    writer.put(&[VERSION, kind]);
    writer.put(&u32::try_from(length).ok()?.to_le_bytes());
    writer.put(&session.0.to_le_bytes());
    writer.put(&seq.0.to_le_bytes());
    writer.finish().map(|_| ())
}
