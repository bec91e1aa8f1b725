//! The bytes that peers need: how to reach an agent, and what to learn to read a region of it.
//!
//! ```text
//! offset  size  field
//!      0     4  "nixl"
//!      4     1  version of what follows, 1
//!      5     1  0 for an agent, 1 for a region of the host's memory, 2 for a side channel, 3 for a region of a device's memory
//!      6        postcard body
//! ```
//!
//! The frame around these bytes guards NIXL, which notices little damage: of 24 flipped bits it took 8 without a word, and UCX reads an
//! address without knowing its length. The name of the agent is checked here too, since nixl-sys panics on one that is no UTF-8.

use gpu_mem::{Kind, Memory};
use lease_proto::{
    frame::{Frame, HEADER},
    id::Incarnation,
};
use serde::{Deserialize, Serialize};

use crate::NixlError;

const MAGIC: [u8; 4] = *b"nixl";
const VERSION: u8 = 1;
const AGENT: u8 = 0;
const REGION: u8 = 1;
#[cfg(feature = "side-channel")]
const SIDE_CHANNEL: u8 = 2;
const DEVICE_REGION: u8 = 3;
/// Bytes of an agent's name: more than anybody uses.
const LONGEST_NAME: usize = 255;

/// How to reach an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Address<'a> {
    /// The backend that carries its notifications.
    pub(crate) backend: &'a str,
    /// NIXL's own metadata.
    pub(crate) metadata: &'a [u8],
}

/// Where an agent's metadata is to be asked for.
#[cfg(feature = "side-channel")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Channel<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) engine_id: &'a str,
    pub(crate) pp: u32,
    pub(crate) tp: u32,
}

/// What NIXL takes memory for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Segment {
    /// The host's.
    #[default]
    Dram,
    /// A device's.
    Vram,
}

/// Which memory an address is of, as NIXL tells it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: Segment,
    /// NIXL's number of the device, which is CUDA's in the process that registers it.
    pub(crate) device: u64,
}

impl Place {
    /// Nothing for a kind that this transport does not know.
    pub(crate) fn of(memory: &Memory) -> Option<Self> {
        Self::named(memory.kind())
    }

    fn named(kind: Kind) -> Option<Self> {
        match kind {
            // What CUDA has page-locked is the host's all the same.
            Kind::Host | Kind::Pinned => Some(Self { segment: Segment::Dram, device: 0 }),
            Kind::Cuda { device } => Some(Self { segment: Segment::Vram, device: device.into() }),
            _ => None,
        }
    }
}

/// A region of an agent's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemoteRegion<'a> {
    /// Whose it is.
    pub(crate) agent: &'a str,
    /// Where it begins in that process.
    pub(crate) address: u64,
    /// Its bytes.
    pub(crate) length: u64,
    /// NIXL's number of the device.
    pub(crate) device: u64,
    /// In whose memory; said by the byte before the body.
    #[serde(skip)]
    pub(crate) segment: Segment,
    /// NIXL's own metadata about it; empty where it came with the agent's.
    pub(crate) metadata: &'a [u8],
}

const OTHER_KIND: &str = "of another kind";

fn encode(kind: u8, body: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    let [m0, m1, m2, m3] = MAGIC;
    postcard::to_extend(body, vec![m0, m1, m2, m3, VERSION, kind])
}

fn decode<'a, T: Deserialize<'a>>(kind: u8, bytes: &'a [u8]) -> Result<T, &'static str> {
    let (head, body) = bytes.split_first_chunk().ok_or("cut short or too long")?;
    let [magic @ .., version, is]: [u8; 6] = *head;
    if magic != MAGIC {
        return Err("another transport's");
    }
    if version != VERSION {
        return Err("another version of this transport");
    }
    if is != kind {
        return Err(OTHER_KIND);
    }
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err("cut short or too long"),
    }
}

impl<'a> Address<'a> {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, NixlError> {
        encode(AGENT, self).map_err(|_| NixlError::Metadata("too long"))
    }

    pub(crate) fn decode(frame: Frame<'a>) -> Result<Self, NixlError> {
        decode(AGENT, frame.payload()).map_err(NixlError::Metadata)
    }

    /// The agent's name.
    pub(crate) fn agent(&self) -> Result<&'a str, NixlError> {
        agent_name(self.metadata).ok_or(NixlError::Metadata("nixl's part of it names no agent"))
    }
}

#[cfg(feature = "side-channel")]
impl<'a> Channel<'a> {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, NixlError> {
        encode(SIDE_CHANNEL, self).map_err(|_| NixlError::Metadata("too long"))
    }

    /// Nothing where the bytes are of another kind.
    pub(crate) fn decode(frame: Frame<'a>) -> Result<Option<Self>, NixlError> {
        match decode(SIDE_CHANNEL, frame.payload()) {
            Err(OTHER_KIND) => Ok(None),
            decoded => decoded.map(Some).map_err(NixlError::Metadata),
        }
    }
}

impl<'a> RemoteRegion<'a> {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, NixlError> {
        let kind = match self.segment {
            Segment::Dram => REGION,
            Segment::Vram => DEVICE_REGION,
        };
        encode(kind, self).map_err(|_| NixlError::Region("too long"))
    }

    /// Writes its frame, and returns the length.
    pub(crate) fn frame(&self, incarnation: Incarnation, out: &mut [u8]) -> Result<usize, NixlError> {
        let payload = self.encode()?;
        let (got, needed) = (out.len(), payload.len().saturating_add(HEADER));
        Frame::encode(incarnation, &payload, out).map_err(|_| NixlError::Room { got, needed })
    }

    pub(crate) fn decode(frame: Frame<'a>) -> Result<Self, NixlError> {
        let (segment, region) = match decode::<Self>(REGION, frame.payload()) {
            Err(OTHER_KIND) => (Segment::Vram, decode(DEVICE_REGION, frame.payload())),
            region => (Segment::Dram, region),
        };
        let region = Self { segment, ..region.map_err(NixlError::Region)? };
        let ends = region.address.checked_add(region.length).is_some() && region.length > 0;
        let named = region.metadata.is_empty() || agent_name(region.metadata) == Some(region.agent);
        if ends && named { Ok(region) } else { Err(NixlError::Region("malformed")) }
    }
}

impl RemoteRegion<'_> {
    /// Which memory it is of.
    pub(crate) fn place(&self) -> Place {
        Place { segment: self.segment, device: self.device }
    }
}

/// The agent that NIXL's metadata is of: the first field in it.
pub(crate) fn agent_name(metadata: &[u8]) -> Option<&str> {
    let rest = metadata.strip_prefix(b"nixlSerDes|Agent")?;
    let (length, rest) = rest.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let name = rest.get(..length).filter(|name| (1..=LONGEST_NAME).contains(&name.len()) && !name.contains(&0))?;
    std::str::from_utf8(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nixls(name: &[u8]) -> Vec<u8> {
        [b"nixlSerDes|Agent".as_slice(), &(name.len() as u64).to_le_bytes(), name, b"|Conns"].concat()
    }

    fn framed(payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; payload.len() + HEADER];
        Frame::encode(Incarnation(1), payload, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn an_address_and_a_region_come_back_unchanged() {
        let metadata = nixls(b"agent-1");
        let address = Address { backend: "UCX", metadata: &metadata };
        let bytes = framed(&address.encode().unwrap());
        let back = Address::decode(Frame::decode(&bytes).unwrap()).unwrap();
        assert_eq!((back, back.agent().unwrap()), (address, "agent-1"));
        for (metadata, segment) in [
            (metadata.as_slice(), Segment::Dram),
            (b"", Segment::Dram),
            (metadata.as_slice(), Segment::Vram),
            (b"", Segment::Vram),
        ] {
            let region = RemoteRegion { agent: "agent-1", address: 4096, length: 100, device: 3, segment, metadata };
            let bytes = framed(&region.encode().unwrap());
            let back = RemoteRegion::decode(Frame::decode(&bytes).unwrap()).unwrap();
            assert_eq!((back, back.place()), (region, Place { segment, device: 3 }));
        }
    }

    #[test]
    fn each_kind_of_memory_has_its_place() {
        let place = |segment, device| Some(Place { segment, device });
        assert_eq!((Place::named(Kind::Host), Place::named(Kind::Pinned)), (place(Segment::Dram, 0), place(Segment::Dram, 0)));
        assert_eq!(Place::named(Kind::Cuda { device: 5 }), place(Segment::Vram, 5));
    }

    #[test]
    fn a_region_of_a_device_is_the_same_bytes_under_another_number() {
        let metadata = nixls(b"a");
        let region = RemoteRegion { agent: "a", address: 9, length: 1, device: 2, segment: Segment::Vram, metadata: &metadata };
        let (device, host) = (region.encode().unwrap(), RemoteRegion { segment: Segment::Dram, ..region }.encode().unwrap());
        // As it was before there were others: who knows only that one refuses the rest by its kind, and reads nothing wrong.
        assert_eq!(host[..6], *b"nixl\x01\x01");
        assert_eq!((&device[..5], device[5], &device[6..]), (&host[..5], 3, &host[6..]));
        assert_eq!(decode::<RemoteRegion<'_>>(REGION, &device), Err(OTHER_KIND));
        let decode = |payload: &[u8]| RemoteRegion::decode(Frame::decode(&framed(payload)).unwrap()).map(|region| region.segment);
        assert!((0..device.len()).all(|cut| decode(&device[..cut]).is_err()));
        assert!(decode(&[&device[..], b"!"].concat()).is_err());
        for kind in (0..=u8::MAX).filter(|kind| ![REGION, DEVICE_REGION].contains(kind)) {
            let mut other = device.clone();
            other[5] = kind;
            assert_eq!(decode(&other), Err(NixlError::Region(OTHER_KIND)), "{kind}");
        }
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let metadata = nixls(b"a");
        let address = Address { backend: "UCX", metadata: &metadata }.encode().unwrap();
        let refused = |payload: &[u8]| Address::decode(Frame::decode(&framed(payload)).unwrap()).is_err();
        for at in 0..6 {
            let mut other = address.clone();
            other[at] ^= 0x20;
            assert!(refused(&other), "byte {at}");
        }
        assert!((0..address.len()).all(|cut| refused(&address[..cut])));
        assert!(refused(&[&address[..], b"!"].concat()));
    }

    #[test]
    fn a_region_that_cannot_be_is_refused() {
        let metadata = nixls(b"a");
        let good = RemoteRegion { agent: "a", address: 1, length: 1, device: 0, segment: Segment::Dram, metadata: &metadata };
        let bad = [
            RemoteRegion { length: 0, ..good },
            RemoteRegion { address: u64::MAX, ..good },
            RemoteRegion { agent: "b", ..good },
            RemoteRegion { metadata: b"junk", ..good },
            RemoteRegion { length: 0, segment: Segment::Vram, ..good },
            RemoteRegion { metadata: b"junk", segment: Segment::Vram, ..good },
        ];
        for region in bad {
            let bytes = framed(&region.encode().unwrap());
            assert!(RemoteRegion::decode(Frame::decode(&bytes).unwrap()).is_err(), "{region:?}");
        }
    }

    #[test]
    fn names_that_nixl_sys_would_panic_on_are_none() {
        assert_eq!(agent_name(&nixls("ä-1".as_bytes())), Some("ä-1"));
        for name in [b"".as_slice(), b"\xff\xfe", b"a\0b", &[b'x'; 256]] {
            assert_eq!(agent_name(&nixls(name)), None);
        }
        let whole = nixls(b"agent");
        let cuts = whole.len() - "|Conns".len();
        assert!((0..cuts).all(|cut| agent_name(&whole[..cut]).is_none()));
        let mut huge = whole;
        huge[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(agent_name(&huge), None);
    }
}
