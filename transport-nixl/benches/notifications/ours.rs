//! This transport, as an engine's loop uses it.

use std::hint::black_box;

use lease_proto::{
    frame::{Frame, HEADER},
    id::Incarnation,
    transport::{Control as _, Incoming, PeerId, Ticket},
};
use transport_nixl::{NixlConfig, NixlTransport};

use crate::traffic::{End, Pair};

pub(crate) struct Ours {
    ends: [(NixlTransport, PeerId); 2],
}

impl Ours {
    pub(crate) fn new() -> Result<Self, String> {
        let mut here = NixlTransport::new(NixlConfig::default()).map_err(text)?;
        let mut there = NixlTransport::new(NixlConfig::default()).map_err(text)?;
        let peers = [connect(&mut here, &there)?, connect(&mut there, &here)?];
        let [first, second] = peers;
        Ok(Self { ends: [(here, first), (there, second)] })
    }
}

fn connect(from: &mut NixlTransport, to: &NixlTransport) -> Result<PeerId, String> {
    let mut bytes = vec![0; to.local_metadata().len() + HEADER];
    Frame::encode(Incarnation(1), to.local_metadata(), &mut bytes).map_err(text)?;
    let ticket: Ticket = from.connect(Frame::decode(&bytes).map_err(text)?).map_err(text)?;
    loop {
        match from.poll().map_err(text)? {
            Some(Incoming::Connected { ticket: of, peer }) if of == ticket => return Ok(peer),
            Some(other) => return Err(format!("expected a connection, got {other:?}")),
            None => std::thread::yield_now(), // its thread learns of the peer
        }
    }
}

impl Pair for Ours {
    fn send(&mut self, from: End, bytes: &[u8]) -> Result<(), String> {
        let (transport, peer) = &mut self.ends[from as usize];
        transport.notify(*peer, bytes).map_err(text)
    }

    fn poll(&mut self, at: End) -> Result<usize, String> {
        let (transport, _) = &mut self.ends[at as usize];
        match transport.poll().map_err(text)? {
            None => Ok(0),
            Some(Incoming::Notification { bytes, .. }) => {
                black_box(bytes);
                Ok(1)
            }
            Some(other) => Err(format!("expected notifications, got {other:?}")),
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
