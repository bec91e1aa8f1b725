//! What an engine can be told to do: one JSON object a line on the control line of a certification.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One thing to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Command {
    /// Say how to connect here.
    Metadata,
    /// Hold blocks for a request.
    Grant(Lease),
    /// Take a lease back.
    Abort {
        /// The request.
        request: String,
        /// The blocks could not be produced.
        #[serde(default)]
        failed: bool,
    },
    /// Shut down within this time, in seconds.
    Drain {
        /// How long renewals are honoured.
        within: String,
    },
    /// Keep a lease that somebody granted.
    Track {
        /// The transfer parameters.
        params: Value,
        /// Which rank of its readers this is.
        #[serde(default)]
        reader: u16,
        /// How many there are.
        #[serde(default = "one")]
        of: u16,
    },
    /// Read a request's blocks, and verify them.
    Read {
        /// The request.
        request: String,
    },
    /// The request will not be read.
    Finish {
        /// The request.
        request: String,
    },
    /// Say what was counted.
    Counters,
    /// Connect without the protocol.
    Connect {
        /// A frame, as hex.
        metadata: String,
    },
    /// Give an attempt to connect up.
    Cancel {
        /// The attempt's number.
        ticket: u64,
    },
    /// Forget a peer.
    Disconnect {
        /// The peer's number.
        peer: u64,
    },
    /// Send bytes without the protocol.
    Notify {
        /// The peer's number.
        peer: u64,
        /// What to send.
        filling: Filling,
    },
    /// Send numbered messages without the protocol, waiting where the transport would block.
    NotifyMany {
        /// The peer's number.
        peer: u64,
        /// How many.
        count: u32,
        /// Their lengths, over and over.
        lengths: Vec<usize>,
    },
    /// Send numbered messages without the protocol until the transport holds them back.
    NotifyUntilHeld {
        /// The peer's number.
        peer: u64,
        /// Their length.
        length: usize,
        /// Bytes after which it is given up.
        most: usize,
    },
    /// Register memory that holds a pattern.
    Register {
        /// How much.
        bytes: usize,
        /// The number of the pattern.
        pattern: u64,
        /// What it is for.
        #[serde(default)]
        purpose: Purpose,
        /// To be fenced at a lease's end.
        #[serde(default)]
        one_lease: bool,
        /// On a fresh thread, where the transport lets any register; it is filled on one in any case.
        #[serde(default)]
        elsewhere: bool,
    },
    /// Write another pattern over a region.
    Fill {
        /// The region's number.
        region: u64,
        /// The number of the pattern.
        pattern: u64,
    },
    /// Say what a peer needs to read a region.
    Export {
        /// The region's number.
        region: u64,
    },
    /// Let who has this token read, or not any more.
    Permit {
        /// The token's number and its nonce.
        token: (u64, u64),
        /// Whether it may.
        allowed: bool,
    },
    /// Invalidate a region for good.
    Fence {
        /// The region's number.
        region: u64,
    },
    /// End a region.
    Deregister {
        /// The region's number.
        region: u64,
        /// On a fresh thread, where the transport lets any do so.
        #[serde(default)]
        elsewhere: bool,
    },
    /// Keep no memory of a region, and say whether nobody else does either: it has been given back.
    GivenBack {
        /// The region's number.
        region: u64,
    },
    /// Read without the protocol.
    Fetch {
        /// The peer's number.
        peer: u64,
        /// The token's number and its nonce.
        token: (u64, u64),
        /// The exported region, as hex.
        from: String,
        /// Offsets and lengths.
        ranges: Vec<(u64, u64)>,
        /// The number of the region to read into.
        into: u64,
        /// From which byte on.
        at: u64,
    },
    /// Say where a region is first another than these ranges of a pattern, one after the other.
    Compare {
        /// The region's number.
        region: u64,
        /// From which byte on.
        at: usize,
        /// The number of the pattern.
        pattern: u64,
        /// Offsets and lengths.
        ranges: Vec<(u64, u64)>,
        /// On a fresh thread.
        #[serde(default)]
        elsewhere: bool,
    },
    /// Allocate memory and take a part of it, over and over, and say how the last time ended and what is left of them all.
    Allocate {
        /// Its kind by name.
        kind: String,
        /// How much.
        bytes: usize,
        /// Offset and length of the part.
        part: (usize, usize),
        /// How often.
        times: usize,
    },
}

/// What memory is for, which decides its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// To be read by peers.
    #[default]
    Blocks,
    /// To be read into.
    Landing,
}

/// The message of this number: the number itself in four bytes, then bytes that count up from zero.
pub fn numbered(number: u32, length: usize) -> Vec<u8> {
    let rest = (0..length.saturating_sub(4)).map(|at| at as u8);
    number.to_le_bytes().into_iter().chain(rest).collect()
}

/// A lease to grant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Lease {
    /// The request.
    pub request: String,
    /// How many ranks will read.
    #[serde(default)]
    pub consumers: Option<u16>,
    /// A fixed time to live in seconds.
    #[serde(default)]
    pub ttl: Option<String>,
    /// Its blocks are registered for it alone and fenced at its end.
    #[serde(default)]
    pub one_lease: bool,
}

/// Bytes to send.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filling {
    /// These, as hex.
    Hex(String),
    /// So many, counting up from zero.
    Counting(usize),
}

fn one() -> u16 {
    1
}
