//! Reads, one after the other, of a peer's whole region.

use lease_proto::{
    frame::Frame,
    id::{Incarnation, Token},
    transport::{Data, Range},
};

use super::traffic::{Came, Traffic, text};

/// Room for what a peer needs to read a region.
const LARGEST: usize = 64 << 10;

/// What is read, and into what.
pub(super) struct Source<'a, T: Data> {
    pub(super) region: &'a [u8],
    pub(super) token: Token,
    pub(super) bytes: usize,
    pub(super) into: &'a T::Registration,
}

/// What a peer needs to read `region`.
pub(super) fn export<T: Data>(transport: &mut T, region: &T::Registration, incarnation: Incarnation) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; LARGEST];
    let length = transport.export(region, incarnation, &mut bytes).map_err(text)?;
    bytes.truncate(length);
    Ok(bytes)
}

impl<T: Data> Traffic<T> {
    /// Reads so many times. One that fails is an error.
    pub(super) fn read(&mut self, source: &Source<'_, T>, times: u64) -> Result<(), String> {
        let region = Frame::decode(source.region).map_err(text)?;
        let whole = [Range { offset: 0, length: source.bytes as u64 }];
        let peer = self.peer();
        for _ in 0..times {
            let asked = self.transport().read(peer, source.token, region, &whole, source.into, 0).map_err(text)?;
            match self.next()? {
                Came::Read(read) if read == asked => {}
                _ => return Err("expected the end of a read, and something else came in".into()),
            }
        }
        Ok(())
    }
}
