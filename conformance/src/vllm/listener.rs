//! Where a prefill instance answers for its ranks, and what it had to refuse.

use lease_proto::{
    time::{Duration, Instant},
    topology::Ranks,
};
use serde_json::{Map, Value};
use transport_nixl::side_channel::{AgentMetadata, Count, Payload, Payloads, Server, ServerConfig};

use crate::engine::EngineError;

/// Announced where no hash is given.
const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// How often it is told at most what was refused: anybody may cause it.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// What a side channel refuses, by the names of its events. That a peer closed its connection is as it should be.
const REFUSED: [(Count, &str); 8] = [
    (Count::Malformed, "malformed"),
    (Count::UnknownRank, "unknown_rank"),
    (Count::WrongFrames, "wrong_frames"),
    (Count::Oversized, "oversized"),
    (Count::NotZeroMq, "not_zeromq"),
    (Count::Stalled, "stalled"),
    (Count::Evicted, "evicted"),
    (Count::NotAccepted, "not_accepted"),
];

/// A side channel that listens.
pub(super) struct Listener {
    server: Server,
    payloads: Payloads,
    host: String,
    refused: [u64; REFUSED.len()],
    told: Option<Instant>,
}

impl Listener {
    /// On `HOST:PORT`; nobody is answered yet.
    ///
    /// # Errors
    /// What is wrong with it, or why it is not to be had.
    pub(super) fn bind(listen: &str) -> Result<Self, EngineError> {
        let (host, port) =
            parse(listen).ok_or_else(|| wrong(listen, "expected HOST:PORT, such as 127.0.0.1:5600 or [::1]:5600"))?;
        let payloads = Payloads::new();
        let server = Server::bind(host, port, payloads.clone(), ServerConfig::default());
        let server = server.map_err(|error| wrong(listen, &error.to_string()))?;
        if server.address().ip().to_canonical().is_unspecified() {
            return Err(wrong(listen, "readers connect to what is named here: name one address of this machine"));
        }
        Ok(Self { server, payloads, host: host.to_owned(), refused: [0; REFUSED.len()], told: None })
    }

    /// As the transfer parameters name it.
    pub(super) fn address(&self) -> (String, u16) {
        (self.host.clone(), self.server.address().port())
    }

    /// Answers for a rank from now on.
    ///
    /// # Errors
    /// Metadata that is too large.
    pub(super) fn publish(&self, rank: u16, metadata: &AgentMetadata, hash: Option<&str>) -> Result<(), EngineError> {
        let payload = metadata.encode().and_then(|agent_metadata_bytes| {
            Payload { compatibility_hash: hash.unwrap_or(NO_HASH).to_owned(), agent_metadata_bytes }.encode()
        });
        let published = payload.and_then(|payload| self.payloads.publish(Ranks { pp: 0, tp: rank.into() }, payload));
        published.map_err(|error| EngineError::Invalid(error.to_string()))
    }

    /// What was refused since, at most once a second unless it is the end.
    pub(super) fn news(&mut self, now: Instant, is_the_end: bool) -> Option<Value> {
        let recently = self.told.is_some_and(|told| now < told.saturating_add(TOLD_EVERY));
        let refused = REFUSED.map(|(count, _)| self.server.counters().get(count));
        if refused == self.refused || (recently && !is_the_end) {
            return None;
        }
        (self.refused, self.told) = (refused, Some(now));
        let counts = REFUSED.iter().zip(refused).filter(|(_, count)| *count > 0);
        Some(Value::Object(counts.map(|((_, name), count)| ((*name).to_owned(), count.into())).collect::<Map<_, _>>()))
    }
}

fn wrong(listen: &str, why: &str) -> EngineError {
    EngineError::Invalid(format!("--listen {listen}: {why}"))
}

/// The host, without brackets, and the port.
fn parse(listen: &str) -> Option<(&str, u16)> {
    let (host, port) = listen.rsplit_once(':')?;
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = inside.or_else(|| (!host.contains([':', '[', ']'])).then_some(host))?;
    Some((host, port.parse().ok()?)).filter(|(host, _)| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (listen, expected) in [
            ("127.0.0.1:5600", Some(("127.0.0.1", 5600))),
            ("localhost:0", Some(("localhost", 0))),
            ("[::1]:5600", Some(("::1", 5600))),
            ("::1:5600", None),
            ("127.0.0.1", None),
            (":5600", None),
            ("[]:5600", None),
            ("127.0.0.1:", None),
            ("127.0.0.1:65536", None),
            ("127.0.0.1:-1", None),
            ("", None),
        ] {
            assert_eq!(parse(listen), expected, "{listen}");
        }
    }

    #[test]
    fn what_was_refused_is_told_when_it_changes() {
        let mut listener = Listener::bind("127.0.0.1:0").unwrap();
        assert_ne!(listener.address().1, 0);
        assert_eq!(listener.news(Instant::ZERO, true), None);
        assert!(Listener::bind("0.0.0.0:0").is_err(), "nobody can connect to that");
    }
}
