//! Host names as vLLM writes them.

/// IPv6 addresses come with brackets or without.
pub(super) fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}
