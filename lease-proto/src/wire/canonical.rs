//! Reading postcard in its one canonical form. postcard itself would take padded varints.

use postcard::{Error, ser_flavors::Flavor};
use serde::{Deserialize, Serialize};

use super::Rejected;

/// Reads a value that takes up all of `bytes`.
pub(crate) fn whole<'a, T: Serialize + Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Rejected> {
    match prefix(bytes)? {
        (value, []) => Ok(value),
        _ => Err(Rejected::TrailingBytes),
    }
}

/// Reads a value at the start of `bytes`, in its canonical form only.
pub(crate) fn prefix<'a, T: Serialize + Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), Rejected> {
    let (value, rest) = postcard::take_from_bytes::<T>(bytes).map_err(|error| match error {
        Error::DeserializeUnexpectedEnd => Rejected::Truncated,
        Error::SerdeDeCustom => Rejected::BadCount,
        _ => Rejected::NotCanonical,
    })?;
    postcard::serialize_with_flavor(&value, Compare { rest: bytes }).map_err(|_| Rejected::NotCanonical)?;
    Ok((value, rest))
}

/// Writes nothing; fails where the bytes differ from those that were read.
struct Compare<'a> {
    rest: &'a [u8],
}

impl Flavor for Compare<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.rest = self.rest.strip_prefix(bytes).ok_or(Error::SerializeBufferFull)?;
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}
