//! vLLM's peers: reached by their side channel, read by the addresses that it names.

use std::{collections::BTreeMap, sync::Arc};

use lease_proto::{
    frame::Frame,
    id::Incarnation,
    transport::{ErrorKind, PeerId, Ticket},
};

use crate::{
    NixlError, NixlTransport,
    metadata::{Channel, RemoteRegion, Segment, agent_name},
    peers::Attempt,
    side_channel::{AgentMetadata, Client, Handshake, HandshakeError, Target},
    transport::Arrival,
};

/// The side channel of a transport.
#[derive(Default)]
pub(crate) struct SideChannel {
    pub(crate) client: Option<Client>,
    /// Attempts that wait for their handshake.
    asking: BTreeMap<u64, Incarnation>,
    /// Why the last one failed, until the caller has heard it.
    failed: Option<HandshakeError>,
}

impl SideChannel {
    pub(crate) fn asking(&self) -> usize {
        self.asking.len()
    }
}

impl NixlTransport {
    /// Reaches peers by vLLM's side channel from now on. One client at the start is enough: handshakes of another one before it fail, and
    /// its thread is waited for. It is used where their metadata is of [`NixlTransport::side_channel_metadata`].
    pub fn set_side_channel(&mut self, client: Client) {
        let replaced = self.side.client.replace(client);
        drop(replaced);
        let asking = std::mem::take(&mut self.side.asking);
        self.inbox.extend(asking.into_keys().map(|number| Arrival::ConnectFailed(number, ErrorKind::Unavailable)));
    }

    /// Metadata that [`connect`](lease_proto::transport::Control::connect) takes, in a frame, to reach a peer by its side channel. The
    /// frame's incarnation is the caller's name for the peer's life: the same for all that is asked of one engine.
    ///
    /// # Errors
    /// `Invalid` if it is too long.
    pub fn side_channel_metadata(target: &Target) -> Result<Vec<u8>, NixlError> {
        let Target { host, port, engine_id, rank } = target;
        Channel { host, port: *port, engine_id, pp: rank.pp, tp: rank.tp }.encode()
    }

    /// What a peer has answered on its side channel: its blocks' layout and a sample of its clock. `None` for one that was connected to
    /// otherwise, or is not connected.
    pub fn handshake(&self, peer: PeerId) -> Option<&Arc<Handshake>> {
        self.peers.remotes.get(&self.peers.peers.get(&peer.0)?.agent)?.answer.as_ref()
    }

    /// Why the last handshake failed, once: more than [`ConnectFailed`](lease_proto::transport::Incoming::ConnectFailed) tells.
    pub fn handshake_error(&mut self) -> Option<HandshakeError> {
        self.side.failed.take()
    }

    /// Writes the frame of one region of a peer, as its handshake lays it out, for [`read`](lease_proto::transport::Data::read), and
    /// returns its length. Block `id` begins at `id * block_strides[region]` in it. Regions are the host's (`DRAM`) or a device's (`VRAM`);
    /// a device's are registered there under `device_id`, the number that torch has for the peer's GPU in the peer's process, and the
    /// host's under 0, whatever the GPU.
    ///
    /// # Errors
    /// `Unsupported` for a region in memory of another name, `NotConnected` without a handshake, `Invalid` if it has no such region,
    /// `TooLarge` if `out` is too small.
    pub fn vllm_region(&self, peer: PeerId, region: usize, out: &mut [u8]) -> Result<usize, NixlError> {
        let handshake = self.handshake(peer).ok_or(NixlError::NotConnected)?;
        let known = self.peers.peers.get(&peer.0).ok_or(NixlError::NotConnected)?;
        let remote = self.peers.remotes.get(&known.agent).ok_or(NixlError::NotConnected)?;
        let metadata = &handshake.metadata;
        let segment = segment(metadata, region)?;
        let layout = metadata.layout(region).map_err(|_| NixlError::Region("no region of the handshake"))?;
        let exported = RemoteRegion {
            agent: &known.agent,
            address: layout.base(),
            length: layout.size(),
            device: device(metadata, segment),
            segment,
            metadata: &[],
        };
        exported.frame(remote.incarnation, out)
    }

    /// Begins a handshake, if these bytes ask for one.
    pub(crate) fn ask(&mut self, frame: Frame<'_>) -> Result<Option<Ticket>, NixlError> {
        let Some(channel) = Channel::decode(frame)? else { return Ok(None) };
        self.admit()?;
        let number = self.peers.number();
        let rank = lease_proto::topology::Ranks { pp: channel.pp, tp: channel.tp };
        let (host, engine_id) = (channel.host.to_owned(), channel.engine_id.to_owned());
        let client = self.side.client.as_mut().ok_or(NixlError::NoSideChannel)?;
        client.start(number, Target { host, port: channel.port, engine_id, rank })?;
        self.side.asking.insert(number, frame.incarnation());
        Ok(Some(Ticket(number)))
    }

    /// Gives a handshake up, if this is one.
    pub(crate) fn ask_no_more(&mut self, ticket: Ticket) -> bool {
        if let Some(client) = &mut self.side.client {
            client.cancel(ticket.0);
        }
        self.side.asking.remove(&ticket.0).is_some()
    }

    /// Goes on with those that have an answer.
    pub(crate) fn hear_answers(&mut self) {
        while let Some((number, outcome)) = self.side.client.as_mut().and_then(Client::poll) {
            let Some(incarnation) = self.side.asking.remove(&number) else { continue };
            let answer = outcome.map_err(|error| {
                tracing::debug!(%error, "no handshake");
                let kind = lease_proto::transport::Error::kind(&error);
                self.side.failed = Some(error);
                kind
            });
            let named = answer.and_then(|handshake| {
                // NIXL would notice damage late, and nixl-sys not survive every name.
                let agent = agent_name(&handshake.metadata.agent_metadata).ok_or(ErrorKind::Invalid)?;
                Ok((Arc::from(agent), handshake))
            });
            match named {
                Ok((agent, handshake)) => {
                    let metadata = Arc::from(handshake.metadata.agent_metadata.as_slice());
                    let answer = Some(Arc::new(handshake));
                    self.peers.attempts.insert(number, Attempt { agent, incarnation, metadata, answer });
                }
                Err(kind) => self.inbox.push_back(Arrival::ConnectFailed(number, kind)),
            }
        }
    }
}

/// In whose memory a region is. Older instances do not say: theirs is taken for the host's, and NIXL refuses a read of another kind.
fn segment(metadata: &AgentMetadata, region: usize) -> Result<Segment, NixlError> {
    match metadata.region_mem_types.as_ref().and_then(|kinds| kinds.get(region)).map(String::as_str) {
        None | Some("DRAM") => Ok(Segment::Dram),
        Some("VRAM") => Ok(Segment::Vram),
        Some(got) => Err(NixlError::MemoryType { got: got.to_owned() }),
    }
}

/// Under which number vLLM has registered its regions there: the host's never under the GPU's.
fn device(metadata: &AgentMetadata, segment: Segment) -> u64 {
    match segment {
        Segment::Dram => 0,
        Segment::Vram => u64::from(metadata.device_id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_where_its_instance_says_and_on_the_host_where_it_says_nothing() {
        let says = |kinds: &[&str]| AgentMetadata {
            region_mem_types: Some(kinds.iter().map(|kind| (*kind).to_owned()).collect()),
            device_id: 3,
            ..AgentMetadata::default()
        };
        let mixed = says(&["VRAM", "DRAM", "FILE"]);
        assert_eq!((segment(&mixed, 0), segment(&mixed, 1)), (Ok(Segment::Vram), Ok(Segment::Dram)));
        assert_eq!((device(&mixed, Segment::Vram), device(&mixed, Segment::Dram)), (3, 0));
        assert_eq!(segment(&mixed, 2), Err(NixlError::MemoryType { got: "FILE".to_owned() }));
        assert_eq!(segment(&AgentMetadata::default(), 0), Ok(Segment::Dram));
    }
}
