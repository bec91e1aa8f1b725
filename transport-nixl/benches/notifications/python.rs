//! NIXL's Python API, in a process of its own that works while this one waits.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use crate::traffic::{BURST, Metric, POLLS};

const SCRIPT: &str = include_str!("../notifications.py");

pub(crate) struct Python {
    child: Child,
    /// Closed, it ends the child.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Python {
    /// Starts that interpreter, which inherits the lane.
    pub(crate) fn new(interpreter: &Path) -> Result<Self, String> {
        let mut command = Command::new(interpreter);
        // Its NIXL brings plugins of its own.
        command.args(["-c", SCRIPT]).env_remove("NIXL_PLUGIN_DIR").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|why| format!("{} does not start: {why}", interpreter.display()))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else { return Err("no pipes".into()) };
        let mut python = Self { child, requests: Some(requests), answers: BufReader::new(answers) };
        match python.answer()?.as_str() {
            "ready" => Ok(python),
            other => Err(format!("{} was to be ready, and said {other:?}", interpreter.display())),
        }
    }

    /// As [`block`](crate::traffic::block).
    pub(crate) fn block(&mut self, metric: Metric, time: Duration) -> Result<f64, String> {
        let (kind, bytes, steps) = match metric {
            Metric::Idle => ("idle", 0, POLLS),
            Metric::Latency(bytes) => ("latency", bytes, 2),
            Metric::Rate(bytes) => ("rate", bytes, BURST),
        };
        let line = format!("{kind} {bytes} {steps} {}\n", time.as_secs_f64());
        let sent = self.requests.as_mut().map(|requests| requests.write_all(line.as_bytes()));
        sent.transpose().map_err(|why| format!("python does not listen: {why}"))?;
        let answer = self.answer()?;
        answer.parse().map_err(|_| format!("python was to give a figure, and said {answer:?}"))
    }

    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|why| format!("python does not answer: {why}"))?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        self.requests = None;
        let _ = self.child.wait(); // how it ended has no part in what it measured
    }
}
