//! What must be in the environment of a process before UCX is loaded there.

use std::process::Command;

/// Keeps UCX from taking SIGHUP, and from writing to standard output, which is ours, while it reads its settings. What the
/// operator has set stays.
pub(crate) fn quiet(command: &mut Command) -> &mut Command {
    for (name, value) in [("UCX_DEBUG_SIGNO", "0"), ("UCX_LOG_LEVEL", "fatal")] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    command
}
