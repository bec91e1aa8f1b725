//! `cargo xtask bench-nixl`: measures transport-nixl against NIXL itself, once per lane.

use std::{path::PathBuf, process::Command};

use serde_json::Value;

use crate::{
    Setup, Stop, connector,
    nixl::{Ready, Use, required},
    setup::Tool,
    steps::{Failed, Step},
};

/// What UCX is told on each lane: shared memory has to notice dead peers, as NIXL wants it.
const LANES: [&[(&str, &str)]; 2] = [&[("UCX_TLS", "tcp")], &[("UCX_TLS", "shm"), ("UCX_MM_ERROR_HANDLING", "y")]];

/// Runs the benchmark in the user's own folder, over tcp and then over shared memory.
pub(crate) fn bench_nixl(setup: &Setup, args: &[String]) -> Result<(), Stop> {
    let measures = wants_python(args);
    let tools: &[Tool] = if measures { &[Tool::Pip, Tool::Venv] } else { &[] };
    let ready = required(setup, tools, Use::Run)?;
    let python = if measures { Some(connector()?.1) } else { None };
    let program = built(&ready)?;
    let lanes = if has_help(args) { &LANES[..1] } else { &LANES[..] };
    for lane in lanes {
        let mut command = Command::new(&program);
        command.args(python.iter().flat_map(|path| ["--python".as_ref(), path.as_os_str()])).args(args);
        command.envs(ready.run.iter().map(|(name, value)| (name, value))).envs(lane.iter().copied());
        let failed = |cause: String| Failed(format!("{} failed ({cause})", program.display()));
        let status = command.status().map_err(|error| failed(error.to_string()))?;
        if !status.success() {
            return Err(failed(status.to_string()).into());
        }
    }
    Ok(())
}

/// Builds the benchmark; where it lies.
fn built(ready: &Ready) -> Result<PathBuf, Failed> {
    let line = "bench --profile release -p transport-nixl --features borrowed-agent --bench notifications --no-run \
                --message-format json-render-diagnostics";
    let step = Step::cargo("building the benchmark", line).with_all(&ready.build);
    executable(&step.output()?).ok_or_else(|| Failed(format!("cargo names no executable; to repeat it:\n{step}")))
}

/// The executable in cargo's messages, one a line. Build scripts are none.
fn executable(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut executables = messages.filter_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
    executables.next_back()
}

/// Whether these arguments measure, and name no Python.
fn wants_python(args: &[String]) -> bool {
    !has_help(args) && !args.iter().any(|arg| arg.starts_with("--python"))
}

fn has_help(args: &[String]) -> bool {
    args.iter().any(|arg| ["-h", "--help"].contains(&arg.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_is_fetched_only_to_measure_with() {
        let wants = |line: &str| wants_python(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert!(wants("") && wants("--only idle --rounds 9"));
        for line in ["--help", "--rounds 9 -h", "--python x", "--python=x --only idle"] {
            assert!(!wants(line), "{line}");
        }
    }

    #[test]
    fn the_executable_is_found_among_cargos_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\nno message\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/target/release/deps/notifications-1\"}\n\
                        {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages), Some("/target/release/deps/notifications-1".into()));
        assert_eq!(executable("{\"reason\":\"build-finished\",\"success\":true}\n"), None);
    }
}
