//! Memory and reads, from the handle's side.

use std::sync::Arc;

use lease_proto::{
    frame::Frame,
    id::{Incarnation, Token},
    transport::{Data, PeerId, Range, ReadId},
};

use super::{
    UcxThread,
    control::framed,
    shared::{Command, Wanted},
};
use crate::{Region, UcxError, data};

/// Memory is registered and given back on the caller's thread; reads are the other's.
impl Data for UcxThread {
    type Memory = gpu_mem::Memory;
    type Registration = Region;

    fn register(&mut self, memory: gpu_mem::Memory) -> Result<Region, UcxError> {
        self.up.registrar.register(memory)
    }

    fn register_fenced(&mut self, memory: gpu_mem::Memory) -> Result<Region, UcxError> {
        self.up.registrar.register_fenced(memory)
    }

    fn fence(&mut self, registration: &Region) -> Result<(), UcxError> {
        self.up.registrar.fence(registration)
    }

    fn export(&mut self, region: &Region, incarnation: Incarnation, out: &mut [u8]) -> Result<usize, UcxError> {
        self.up.registrar.export(region, incarnation, out)
    }

    fn read(
        &mut self,
        peer: PeerId,
        token: Token,
        region: Frame<'_>,
        ranges: &[Range],
        into: &Region,
        at: u64,
    ) -> Result<ReadId, UcxError> {
        let (remote, ranges, at) = data::check(&self.up.registrar, region, ranges, into, at)?;
        let open = self.connected(peer).ok_or(UcxError::NotConnected)?;
        if remote.incarnation != open.incarnation {
            return Err(UcxError::OtherLife);
        }
        let load = &open.load;
        load.accept_read(&self.config)?;
        let wanted = Wanted { token, region: framed(region), ranges, into: Arc::clone(into.mapped()), at };
        let read = self.next_read;
        self.commands.push(Command::Read { number: peer.0, read, wanted }, 0).map_err(|refused| {
            load.settle_read();
            self.refusal(&refused)
        })?;
        self.next_read += 1;
        Ok(ReadId(read))
    }
}
