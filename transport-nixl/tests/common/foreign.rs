//! Agents that are not of this transport: what others make of NIXL by themselves.

pub(crate) mod raw;

use lease_proto::transport::Control as _;
use nixl_sys::Agent;
use transport_nixl::NixlTransport;

/// An agent of NIXL's with the backend `UCX`. There must have been a transport before it, which finds and loads NIXL.
pub(crate) fn agent(name: &str) -> Agent {
    let agent = Agent::new(name).unwrap();
    let (_, params) = agent.get_plugin_params("UCX").unwrap();
    agent.create_backend("UCX", &params).unwrap();
    agent
}

/// What NIXL calls the metadata, inside that of a transport.
pub(crate) fn nixls_part(metadata: &[u8]) -> &[u8] {
    let at = metadata.windows(10).position(|window| window == b"nixlSerDes").unwrap();
    &metadata[at..]
}

/// Metadata of a transport, made of an agent's.
pub(crate) fn transports(nixls: &[u8]) -> Vec<u8> {
    let mut length = Vec::new();
    let mut left = nixls.len();
    while left >= 0x80 {
        length.push(left as u8 | 0x80);
        left >>= 7;
    }
    length.push(left as u8);
    [b"nixl\x01\x00\x03UCX", &length[..], nixls].concat()
}

/// Sends this to a transport that has never heard of the agent.
pub(crate) fn send(agent: &Agent, to: &NixlTransport, bytes: &[u8]) {
    let name = to.agent_name();
    if !agent.check_remote_metadata(name, None) {
        agent.load_remote_md(nixls_part(to.local_metadata())).unwrap();
    }
    agent.send_notification(name, bytes, None).unwrap();
}

/// Lets an agent move, and returns what came to it.
pub(crate) fn heard(agent: &Agent) -> Vec<Vec<u8>> {
    let mut map = nixl_sys::NotificationMap::new().unwrap();
    agent.get_notifications(&mut map, None).unwrap();
    let senders: Vec<&str> = map.agents().map(Result::unwrap).collect();
    senders.iter().flat_map(|sender| map.get_notifications(sender).unwrap().map(Result::unwrap)).collect()
}
