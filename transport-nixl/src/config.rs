//! What a caller can choose.

use lease_proto::time::Duration;

use crate::{Backend, NixlError};

/// What a caller can choose. Everything has a default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NixlConfig {
    /// The backend, `nixl:UCX` by default. One that is known to carry no notifications is refused.
    pub backend: Backend,
    /// Parameters of the backend by name, over its own defaults; none by default. UCX's are `ucx_devices`, `num_workers`,
    /// `ucx_error_handling_mode` and others.
    pub backend_params: Vec<(String, String)>,
    /// A progress thread of NIXL's, and how long it sleeps at most, 1 ms to 1 s; `None`, the default: NIXL moves when this transport is
    /// polled. With it a peer's reads are served and notifications taken in while this engine is busy; on each call NIXL takes locks
    /// more. NIXL's own default, no sleep at all, costs a core and is not offered.
    pub progress: Option<Duration>,
    /// How often an idle transport wants to be polled, 10 us to 1 s; 1 ms by default. NIXL wakes nobody. While something is under way
    /// it wants it every 50 us.
    pub poll_interval: Duration,
    /// Largest notification in bytes, 1 to 1 MiB, sent and received; 64 KiB by default. A longer one that arrives is dropped and
    /// counted in [`NixlTransport::refused`](crate::NixlTransport::refused).
    pub max_notification: usize,
    /// Most peers that are connected, being connected to or waited for, 1 to 65536; 1024 by default.
    pub max_peers: usize,
    /// Most notifications to one peer that wait for NIXL to be free, at least 1; 256 by default. What NIXL has taken is beyond any
    /// bound: it does not tell when it was sent.
    pub max_queued: usize,
    /// Most bytes of them; 4 MiB by default. One notification may always wait.
    pub max_queued_bytes: usize,
    /// Most notifications that wait to be polled, at least 1; 1024 by default. While they are reached NIXL is not asked for more. One
    /// answer of NIXL's may hold any number.
    pub max_inbox: usize,
    /// How long an agent stays known to NIXL once no peer needs it, at most a day; an hour by default, as vLLM's `engine_ttl`. At most
    /// `max_peers` do so. Connecting to it again is at once. NIXL keeps two sockets, or 50 KiB of shared memory, of each that it forgets
    /// while the peer lives.
    pub keep_known: Duration,
    /// Most reads of one peer that are open, at least 1; 256 by default.
    pub max_reads: usize,
    /// Bytes that NIXL is asked to read at once, 4 KiB to 1 GiB; 1 MiB by default. Over shared memory it copies them before the call
    /// returns, about 0.6 ms for 1 MiB.
    pub max_piece: usize,
    /// Pieces of all reads that are under way at once, at least 1; 16 by default.
    pub max_pieces: usize,
    /// Regions that are known of one peer, at least 1; 4096 by default.
    pub max_regions: usize,
    /// How long dropping the transport goes on moving what was accepted, at most 10 s; 500 ms by default: NIXL does not tell when it is sent. It takes so long only if
    /// something was sent or connected, or the transport made, less than that before, or a read is under way; and longer while NIXL loads
    /// a peer's metadata.
    pub close_timeout: Duration,
}

impl Default for NixlConfig {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            backend_params: Vec::new(),
            progress: None,
            poll_interval: Duration::from_millis(1),
            max_notification: 64 << 10,
            max_peers: 1024,
            max_queued: 256,
            max_queued_bytes: 4 << 20,
            max_inbox: 1024,
            keep_known: Duration::from_secs(3600),
            max_reads: 256,
            max_piece: 1 << 20,
            max_pieces: 16,
            max_regions: 4096,
            close_timeout: Duration::from_millis(500),
        }
    }
}

impl NixlConfig {
    pub(crate) fn validate(&self) -> Result<(), NixlError> {
        let milli = Duration::from_millis(1);
        let second = Duration::from_secs(1);
        let wrong = |field, got: String, expected| Err(NixlError::Config { field, got, expected });
        if let Some(delay) = self.progress.filter(|delay| !(milli..=second).contains(delay)) {
            return wrong("progress", delay.to_string(), "none, or 0.001 to 1 s");
        }
        if !(Duration::from_nanos(10_000)..=second).contains(&self.poll_interval) {
            return wrong("poll_interval", self.poll_interval.to_string(), "0.00001 to 1 s");
        }
        if self.close_timeout > Duration::from_secs(10) {
            return wrong("close_timeout", self.close_timeout.to_string(), "at most 10 s");
        }
        if self.keep_known > Duration::from_secs(86_400) {
            return wrong("keep_known", self.keep_known.to_string(), "at most 86400 s");
        }
        const AT_LEAST_ONE: &str = "at least 1";
        for (field, got, range, expected) in [
            ("max_notification", self.max_notification, 1..=1 << 20, "1 to 1048576"),
            ("max_peers", self.max_peers, 1..=65_536, "1 to 65536"),
            ("max_piece", self.max_piece, 4096..=1 << 30, "4096 to 1073741824"),
            ("max_queued", self.max_queued, 1..=usize::MAX, AT_LEAST_ONE),
            ("max_inbox", self.max_inbox, 1..=usize::MAX, AT_LEAST_ONE),
            ("max_reads", self.max_reads, 1..=usize::MAX, AT_LEAST_ONE),
            ("max_pieces", self.max_pieces, 1..=usize::MAX, AT_LEAST_ONE),
            ("max_regions", self.max_regions, 1..=usize::MAX, AT_LEAST_ONE),
        ] {
            if !range.contains(&got) {
                return wrong(field, got.to_string(), expected);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_work_are_refused_by_name() {
        let good = NixlConfig::default();
        assert_eq!(good.validate(), Ok(()));
        type Spoil = fn(&mut NixlConfig);
        let cases: [(&str, Spoil); 12] = [
            ("progress", |config| config.progress = Some(Duration::ZERO)),
            ("poll_interval", |config| config.poll_interval = Duration::ZERO),
            ("close_timeout", |config| config.close_timeout = Duration::from_secs(11)),
            ("keep_known", |config| config.keep_known = Duration::from_secs(86_401)),
            ("max_notification", |config| config.max_notification = 0),
            ("max_peers", |config| config.max_peers = 1 << 20),
            ("max_piece", |config| config.max_piece = 1),
            ("max_queued", |config| config.max_queued = 0),
            ("max_inbox", |config| config.max_inbox = 0),
            ("max_reads", |config| config.max_reads = 0),
            ("max_pieces", |config| config.max_pieces = 0),
            ("max_regions", |config| config.max_regions = 0),
        ];
        for (name, spoil) in cases {
            let mut config = good.clone();
            spoil(&mut config);
            assert!(matches!(config.validate(), Err(NixlError::Config { field, .. }) if field == name), "{name}");
        }
    }
}
