//! What can be wrong with bytes of the side channel.

use lease_proto::transport::{Error, ErrorKind};

use super::LayoutError;

/// Bytes that are not what vLLM's side channel carries. Each names the key, as vLLM spells it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The bytes end in the midst of a value.
    #[error("the bytes end within {key}: the message was cut off")]
    Truncated {
        /// Whose value is cut off.
        key: &'static str,
    },
    /// A value of another type.
    #[error("{key} must be {expected}: the peer speaks another version of the connector, or is no vLLM peer")]
    Type {
        /// Whose value.
        key: &'static str,
        /// What it has to be.
        expected: &'static str,
    },
    /// A required key is not there.
    #[error("{key} is missing: the peer speaks another version of the connector, or is no vLLM peer")]
    Missing {
        /// Which.
        key: &'static str,
    },
    /// A number that cannot be.
    #[error("{key} is {got}, expected at most {max}, and at least 1 for sizes and counts")]
    Range {
        /// Whose value.
        key: &'static str,
        /// The number.
        got: i128,
        /// The largest one that is taken.
        max: u64,
    },
    /// More than is taken from anybody.
    #[error("{key} has length {got}, expected at most {max}")]
    TooLong {
        /// Whose value.
        key: &'static str,
        /// Its length: bytes of text or of a payload, values of a list, pairs of a map.
        got: usize,
        /// The bound.
        max: usize,
    },
    /// Lists that have to be of one length are not.
    #[error("{key} has {got} entries for {regions} regions, expected one for each")]
    Lengths {
        /// The list.
        key: &'static str,
        /// Its length.
        got: usize,
        /// How many regions there are, by `kv_caches_base_addr`.
        regions: usize,
    },
    /// A region in which a block would not be where it is said to be.
    #[error("{0}")]
    Region(#[from] LayoutError),
    /// vLLM's connector does not pair with such an engine.
    #[error("pcp_size {pcp} with dcp_size {dcp}: expected a dcp_size of 1 or {pcp}")]
    Parallel {
        /// Prefill context parallel size.
        pcp: u32,
        /// Decode context parallel size.
        dcp: u32,
    },
    /// Something follows the value.
    #[error("{bytes} bytes follow the message")]
    Trailing {
        /// How many.
        bytes: usize,
    },
}

impl Error for CodecError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}
