//! One handshake, in vLLM's order.

use tokio::net::TcpStream;

use super::{ClientConfig, Compatibility, Handshake, HandshakeError, OffsetSample, Target, resolver::Resolver};
use crate::side_channel::{
    AgentMetadata, Payload, decode_stamp, encode_request,
    payload::MAX_PAYLOAD,
    zmtp::{Bounds, Connection, Role, ZmtpError, within},
};

/// The empty frame of a REQ socket, the payload, the stamp.
const FRAMES: usize = 3;

/// A stamp's bytes.
const STAMP: usize = 9;

pub(super) async fn shake_hands(
    target: &Target,
    config: &ClientConfig,
    resolver: &Resolver,
) -> Result<Handshake, HandshakeError> {
    let mut connection = within(config.connect_deadline, connect(target, resolver)).await?;
    let request = encode_request(target.rank);
    let bounds = Bounds { frames: FRAMES, bytes: config.max_payload.min(MAX_PAYLOAD).saturating_add(STAMP) };
    let sent = config.clock.now();
    let frames = within(config.receive_deadline, async {
        connection.send(&[b"", &request]).await?;
        connection.receive(bounds).await
    })
    .await?;
    let received = config.clock.now();
    drop(connection);
    let [delimiter, payload, stamp] = &*frames else { return Err(HandshakeError::Frames { got: frames.len() }) };
    if !delimiter.is_empty() {
        return Err(HandshakeError::Frames { got: frames.len() });
    }
    let stamped = decode_stamp(stamp)?;
    let (metadata, compatibility_hash) = check(payload, target, &config.compatibility)?;
    Ok(Handshake { metadata, compatibility_hash, offset: OffsetSample { sent, stamped, received } })
}

async fn connect(target: &Target, resolver: &Resolver) -> Result<Connection, HandshakeError> {
    let addresses = resolver
        .look_up(&target.host, target.port)
        .await
        .map_err(|error| HandshakeError::Resolve { host: target.host.clone(), reason: error.to_string() })?;
    let stream = TcpStream::connect(&*addresses).await.map_err(|error| HandshakeError::Connect {
        host: target.host.clone(),
        port: target.port,
        reason: error.to_string(),
    })?;
    Ok(Connection::greet(stream, Role::Req).await?)
}

fn check(payload: &[u8], target: &Target, compatibility: &Compatibility) -> Result<(AgentMetadata, String), HandshakeError> {
    let Payload { compatibility_hash: theirs, agent_metadata_bytes } = Payload::decode(payload)?;
    match compatibility {
        Compatibility::Expected(ours) if *ours != theirs => {
            return Err(HandshakeError::Incompatible { ours: ours.clone(), theirs });
        }
        Compatibility::NotEnforced(ours) if *ours != theirs => {
            tracing::warn!(engine = target.engine_id, ours, theirs, "the engines differ, which is not enforced");
        }
        Compatibility::Expected(_) | Compatibility::NotEnforced(_) | Compatibility::Learn => {}
    }
    let metadata = AgentMetadata::decode(&agent_metadata_bytes)?;
    if metadata.engine_id != target.engine_id {
        return Err(HandshakeError::OtherEngine { expected: target.engine_id.clone(), got: metadata.engine_id });
    }
    Ok((metadata, theirs))
}

impl From<ZmtpError> for HandshakeError {
    fn from(error: ZmtpError) -> Self {
        match error {
            ZmtpError::Io(error) => Self::Closed { reason: error.to_string() },
            ZmtpError::Peer(problem) => Self::NotZeroMq { problem },
            ZmtpError::TooLarge(max) => Self::TooLarge { max },
            ZmtpError::Stalled => Self::Silent,
        }
    }
}
