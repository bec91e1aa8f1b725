//! What a caller can choose, and the settings of UCX that follow from it.

use lease_proto::time::Duration;

use crate::UcxError;

/// What a caller can choose. Everything has a default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UcxConfig {
    /// The transports that UCX may use, as in `UCX_TLS`: `tcp`, `shm` (processes of one machine), or a list such as `rc,tcp`.
    /// Nothing outside the list is used, not even as a fallback. `None`, the default: `UCX_TLS` if set, else UCX's own choice.
    ///
    /// Memory of CUDA devices takes `cuda` in the list as well, as in `rc,cuda`; UCX's own choice has it. It is never added to a list:
    /// where no other name of the list is to be had, it would be taken for a fabric. A UCX without CUDA passes over it.
    pub tls: Option<String>,
    /// Largest notification in bytes, 1 to 1 MiB, sent and received; 64 KiB by default. Must be the same on both sides: a longer
    /// one that arrives is dropped and counted in [`UcxTransport::refused`](crate::UcxTransport::refused).
    /// UCX assembles a whole message before it can be refused: a hostile process that has this worker's address can make this process
    /// allocate as much as it sends, so all peers must be of one owner.
    pub max_notification: usize,
    /// Most notifications in flight to one peer, at least 1; 256 by default.
    pub max_in_flight_ops: usize,
    /// Most bytes in flight to one peer; 4 MiB by default. One notification may always be in flight.
    pub max_in_flight_bytes: usize,
    /// Most reads of one peer that are open, at least 1; 256 by default.
    pub max_reads: usize,
    /// Most bytes that are asked for from one peer and have not come; 8 MiB by default. One piece, of up to 1 MiB, may always be
    /// under way.
    pub max_read_bytes: usize,
    /// Most answers to peers' reads under way, at least 1; 4096 by default: so many from where the bytes lie, and so many copies of up
    /// to 64 KiB. One reader has at most 32 of them. Readers that ask for more ask again after a moment.
    pub max_serving: usize,
    /// Most connections that are open, being opened or being closed, 1 to 65536; 1024 by default.
    pub max_peers: usize,
    /// Most notifications that wait to be polled, at least 1; 1024 by default. When they are reached, nothing more is taken from
    /// the fabric until all have been polled, so that the senders are held back and nothing is dropped. What UCX delivers in one
    /// go, some tens of notifications, may come on top.
    pub max_inbox_messages: usize,
    /// Most bytes that wait to be polled; 8 MiB by default. As for `max_inbox_messages`.
    pub max_inbox_bytes: usize,
    /// How often UCX looks whether its peers live, 1 ms to 1 h; 1 s by default. `UCX_KEEPALIVE_INTERVAL` overrides it, and then
    /// no time is stated in the capabilities.
    pub keepalive: Duration,
    /// How long a connection that is being closed may take to send what it has accepted; 500 ms by default. Then it is closed by
    /// force. Dropping the transport takes at most about this long.
    pub close_timeout: Duration,
}

impl Default for UcxConfig {
    fn default() -> Self {
        Self {
            tls: None,
            max_notification: 64 << 10,
            max_in_flight_ops: 256,
            max_in_flight_bytes: 4 << 20,
            max_reads: 256,
            max_read_bytes: 8 << 20,
            max_serving: 4096,
            max_peers: 1024,
            max_inbox_messages: 1024,
            max_inbox_bytes: 8 << 20,
            keepalive: Duration::from_secs(1),
            close_timeout: Duration::from_millis(500),
        }
    }
}

impl UcxConfig {
    pub(crate) fn validate(&self) -> Result<(), UcxError> {
        let in_range = |field, got: usize, ok, expected| {
            if ok { Ok(()) } else { Err(UcxError::Config { field, got: got.to_string(), expected }) }
        };
        let n = self.max_notification;
        in_range("max_notification", n, (1..=1 << 20).contains(&n), "1 to 1048576 bytes")?;
        in_range("max_in_flight_ops", self.max_in_flight_ops, self.max_in_flight_ops > 0, "at least 1")?;
        in_range("max_reads", self.max_reads, self.max_reads > 0, "at least 1")?;
        in_range("max_serving", self.max_serving, self.max_serving > 0, "at least 1")?;
        in_range("max_inbox_messages", self.max_inbox_messages, self.max_inbox_messages > 0, "at least 1")?;
        in_range("max_peers", self.max_peers, (1..=1 << 16).contains(&self.max_peers), "1 to 65536")?;
        if !(Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&self.keepalive) {
            return Err(UcxError::Config { field: "keepalive", got: self.keepalive.to_string(), expected: "0.001 to 3600 s" });
        }
        match &self.tls {
            Some(tls) if tls.is_empty() || tls.contains('\0') => {
                Err(UcxError::Config { field: "tls", got: format!("{tls:?}"), expected: "names such as `tcp`, or nothing" })
            }
            _ => Ok(()),
        }
    }

    /// Whether a notification of `bytes` may go to a peer to which so many, of so many bytes, are in flight. One always may.
    pub(crate) fn admit(&self, (ops, in_flight): (usize, usize), bytes: usize) -> Result<(), UcxError> {
        let too_many_bytes = in_flight.saturating_add(bytes) > self.max_in_flight_bytes;
        if ops >= self.max_in_flight_ops || (ops > 0 && too_many_bytes) {
            return Err(UcxError::InFlight { ops, bytes: in_flight });
        }
        Ok(())
    }

    /// Whether one more read of a peer may begin, of which so many are open.
    pub(crate) fn admit_read(&self, open: usize) -> Result<(), UcxError> {
        if open >= self.max_reads { Err(UcxError::Reads { open }) } else { Ok(()) }
    }

    /// The settings to give UCX, without its `UCX_` prefix. A default is left out where `overridden` says that the operator has
    /// chosen; `tls` is the caller's own word and always counts.
    pub(crate) fn settings(&self, overridden: impl Fn(&str) -> bool) -> Vec<(&'static str, String)> {
        let keepalive = (KEEPALIVE, format!("{}ns", self.keepalive.as_nanos()));
        let defaults = DEFAULTS.iter().map(|&(name, value)| (name, value.to_owned())).chain([keepalive]);
        let mut settings: Vec<_> = defaults.filter(|(name, _)| !overridden(name)).collect();
        // UCX passes over a name with a space before it.
        settings.extend(self.tls.as_ref().map(|tls| ("TLS", tls.replace(' ', ""))));
        settings
    }
}

/// The setting that [`UcxConfig::keepalive`] fills in.
pub(crate) const KEEPALIVE: &str = "KEEPALIVE_INTERVAL";

/// Why each: the table in the crate's documentation.
const DEFAULTS: [(&str, &str); 8] = [
    ("MM_ERROR_HANDLING", "y"),
    ("PROTO_EMULATION_ENABLE", "n"),
    (CACHE, "n"),
    (GLOBAL_ADDRESS, "off"),
    ("MAX_EAGER_RAILS", "1"),
    ("HANDLE_ERRORS", "none"),
    ("WARN_UNUSED_ENV_VARS", "n"),
    ("LOG_LEVEL", "fatal"),
];

/// What only a UCX with verbs knows, and another need not.
pub(crate) const VERBS: [(&str, &str); 3] = [("IB_ASYNC_EVENTS", "n"), ("RC_VERBS_RETRY_COUNT", "3"), ("UD_VERBS_TIMEOUT", "3s")];

/// The setting that decides whether a registration can be fenced.
const CACHE: &str = "RCACHE_ENABLE";

/// As above: one registration of the whole address space.
const GLOBAL_ADDRESS: &str = "GVA_ENABLE";

/// Whether the operator has turned something on, which we turn off, that keeps a registration alive beyond its end.
pub(crate) fn registrations_outlive() -> bool {
    let off = |value: String| ["n", "no", "0", "off"].contains(&value.to_lowercase().as_str());
    let is_on = |name| set_by_operator(name) && !std::env::var(format!("UCX_{name}")).is_ok_and(off);
    is_on(CACHE) || is_on(GLOBAL_ADDRESS)
}

/// What the environment says to UCX, for errors that may come of it.
pub(crate) fn variables() -> String {
    let text = |part: &std::ffi::OsStr| part.to_string_lossy().into_owned();
    let mut set: Vec<String> = std::env::vars_os()
        .filter(|(name, _)| name.as_encoded_bytes().starts_with(b"UCX_"))
        .filter(|(name, _)| !["UCX_DIR", "UCX_DEBUG_SIGNO", "UCX_LOG_LEVEL"].iter().any(|harmless| name == harmless))
        .map(|(name, value)| format!("{}={}", text(&name), text(&value)))
        .collect();
    set.sort_unstable();
    set.join(", ")
}

/// Whether the operator has set `UCX_{name}`.
pub(crate) fn set_by_operator(name: &str) -> bool {
    std::env::var_os(format!("UCX_{name}")).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_overrides_our_defaults_and_nothing_else() {
        let config = UcxConfig { tls: Some("tcp".to_owned()), ..UcxConfig::default() };
        let all = config.settings(|_| false);
        assert!(all.contains(&(KEEPALIVE, "1000000000ns".to_owned())) && all.contains(&("TLS", "tcp".to_owned())));
        assert_eq!(config.settings(|_| true), [("TLS", "tcp".to_owned())]);
        assert_eq!(config.settings(|name| name == "LOG_LEVEL").len(), all.len() - 1);
        assert_eq!(UcxConfig::default().settings(|_| true), []);
    }

    #[test]
    fn numbers_that_cannot_work_are_refused_by_name() {
        type Change = fn(&mut UcxConfig);
        let wrong: [(&str, Change); 11] = [
            ("max_reads", |c| c.max_reads = 0),
            ("max_serving", |c| c.max_serving = 0),
            ("max_notification", |c| c.max_notification = 0),
            ("max_notification", |c| c.max_notification = (1 << 20) + 1),
            ("max_in_flight_ops", |c| c.max_in_flight_ops = 0),
            ("max_inbox_messages", |c| c.max_inbox_messages = 0),
            ("max_peers", |c| c.max_peers = 0),
            ("keepalive", |c| c.keepalive = Duration::ZERO),
            ("keepalive", |c| c.keepalive = Duration::MAX),
            ("tls", |c| c.tls = Some(String::new())),
            ("tls", |c| c.tls = Some("tcp\0".to_owned())),
        ];
        for (name, change) in wrong {
            let mut config = UcxConfig::default();
            change(&mut config);
            assert!(matches!(config.validate(), Err(UcxError::Config { field, .. }) if field == name), "{name}");
        }
        assert_eq!(UcxConfig::default().validate(), Ok(()));
    }
}
