//! The bytes that a peer needs to connect here: UCX's worker address behind a header of our own.
//!
//! ```text
//! offset  size  field
//!      0     3  "ucx"
//!      3     1  version of this header and of our messages, 2
//!      4     2  UCX's API, major and minor
//!      6     2  the first of the worker's active-message ids that are ours, little-endian
//!      8     4  length of the worker address, little-endian
//!     12        worker address
//! ```
//!
//! UCX reads an address without knowing its length. The frame around these bytes guards against damage, the header against
//! metadata of another transport or cut before it was framed, and [`Address`] can only be made from both.

use lease_proto::{frame::Frame, id::Incarnation};

use crate::{UcxError, messages::id, sys};

const MAGIC: [u8; 3] = *b"ucx";
const VERSION: u8 = 2;
/// Below, not even UCX's own header of an address fits.
const SHORTEST: usize = 8;

/// A worker address that arrived whole from this transport in another process.
#[derive(Clone, Copy)]
pub(crate) struct Address<'a> {
    ids: u16,
    bytes: &'a [u8],
    incarnation: Incarnation,
}

impl<'a> Address<'a> {
    pub(crate) fn decode(frame: Frame<'a>) -> Result<Self, UcxError> {
        let (header, address) = frame.payload().split_first_chunk().ok_or(UcxError::Metadata("cut short or too long"))?;
        let [m0, m1, m2, version, major, _minor, i0, i1, length @ ..]: [u8; 12] = *header;
        if [m0, m1, m2] != MAGIC {
            return Err(UcxError::Metadata("another transport's"));
        }
        if version != VERSION {
            return Err(UcxError::Metadata("another version of this transport"));
        }
        // Minor versions of UCX understand each other's addresses.
        if major != sys::API.0 {
            return Err(UcxError::Metadata("another major version of UCX"));
        }
        if address.len() != u32::from_le_bytes(length) as usize || address.len() < SHORTEST {
            return Err(UcxError::Metadata("cut short or too long"));
        }
        let ids = u16::from_le_bytes([i0, i1]);
        if ids.checked_add(id::COUNT).is_none() {
            return Err(UcxError::Metadata("malformed"));
        }
        Ok(Self { ids, bytes: address, incarnation: frame.incarnation() })
    }

    pub(crate) fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// The first of the worker's active-message ids that are this transport's.
    pub(crate) fn ids(self) -> u16 {
        self.ids
    }

    /// The life of the process that it leads to.
    pub(crate) fn incarnation(self) -> Incarnation {
        self.incarnation
    }
}

/// Our header and `address`.
pub(crate) fn encode(ids: u16, address: &[u8]) -> Vec<u8> {
    let [m0, m1, m2] = MAGIC;
    let mut bytes = vec![m0, m1, m2, VERSION, sys::API.0, sys::API.1];
    bytes.extend_from_slice(&ids.to_le_bytes());
    bytes.extend_from_slice(&(address.len() as u32).to_le_bytes());
    bytes.extend_from_slice(address);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(payload: &[u8]) -> Result<(u16, Vec<u8>), UcxError> {
        let mut buffer = [0; 128];
        let n = Frame::encode(Incarnation(1), payload, &mut buffer).unwrap();
        Address::decode(Frame::decode(&buffer[..n]).unwrap()).map(|address| (address.ids(), address.bytes().to_vec()))
    }

    #[test]
    fn an_address_comes_back_unchanged() {
        assert_eq!(decode(&encode(300, b"an address")).unwrap(), (300, b"an address".to_vec()));
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let ours = encode(0, b"an address");
        for at in 0..5 {
            let mut other = ours.clone();
            other[at] ^= 0x20;
            assert!(matches!(decode(&other), Err(UcxError::Metadata(_))), "byte {at}");
        }
        for length in 0..ours.len() {
            assert_eq!(decode(&ours[..length]), Err(UcxError::Metadata("cut short or too long")), "{length} bytes");
        }
        assert_eq!(decode(&[&ours[..], b"!"].concat()), Err(UcxError::Metadata("cut short or too long")));
        assert_eq!(decode(&encode(u16::MAX - 3, b"an address")), Err(UcxError::Metadata("malformed")));
        assert_eq!(decode(&encode(0, b"brief")), Err(UcxError::Metadata("cut short or too long")));
    }
}
