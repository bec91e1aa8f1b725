//! What D asks and how P stamps its answer.

use lease_proto::{time::PeerInstant, topology::Ranks};

use super::{
    CodecError,
    msgpack::{Reader, Writer},
};

const GET_META_MSG: &[u8] = b"get_meta_msg";

/// The bytes that ask for the metadata of one rank: `[bin "get_meta_msg", pp_rank, tp_rank]`.
///
/// ```
/// use lease_proto::topology::Ranks;
/// use transport_nixl::side_channel::{decode_request, encode_request};
/// let bytes = encode_request(Ranks { pp: 0, tp: 0 });
/// assert_eq!(bytes, b"\x93\xC4\x0Cget_meta_msg\x00\x00");
/// assert_eq!(decode_request(&bytes)?, Ranks { pp: 0, tp: 0 });
/// # Ok::<(), transport_nixl::side_channel::CodecError>(())
/// ```
pub fn encode_request(rank: Ranks) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.list_len(3);
    writer.bytes(GET_META_MSG);
    writer.uint(rank.pp.into());
    writer.uint(rank.tp.into());
    writer.into_bytes()
}

/// Which rank's metadata is asked for. Integers may be of any width.
///
/// # Errors
/// Anything else than such a request.
pub fn decode_request(bytes: &[u8]) -> Result<Ranks, CodecError> {
    let mut reader = Reader::new(bytes, "request");
    if reader.list_len(3)? != 3 {
        return Err(reader.expected("[get_meta_msg, pp_rank, tp_rank]"));
    }
    if reader.bytes()? != GET_META_MSG {
        return Err(reader.expected("get_meta_msg"));
    }
    let rank = Ranks { pp: reader.at("pp_rank").int()?, tp: reader.at("tp_rank").int()? };
    reader.end()?;
    Ok(rank)
}

/// P's clock as it travels: seconds as a float of 64 bits.
pub fn encode_stamp(seconds: f64) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.float(seconds);
    writer.into_bytes()
}

/// P's clock, rounded to nanoseconds. A float holds 0.1 µs after 30 years of uptime, and more before.
///
/// # Errors
/// Anything but a float of 64 bits that is an instant: 0 to 584 years.
pub fn decode_stamp(bytes: &[u8]) -> Result<PeerInstant, CodecError> {
    let mut reader = Reader::new(bytes, "ts");
    let nanos = reader.float()? * 1e9;
    // The cast cannot lose anything but a fraction within this range, and NaN is outside it.
    if !(0.0..u64::MAX as f64).contains(&nanos) {
        return Err(reader.expected("seconds since a clock's start"));
    }
    reader.end()?;
    Ok(PeerInstant::from_nanos(nanos.round() as u64))
}
