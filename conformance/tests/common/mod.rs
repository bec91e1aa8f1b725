//! Processes of a test: each is awaited, also when the test fails.
#![allow(dead_code)] // every test file takes its part

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread::JoinHandle,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// An end to hanging, not a statement about speed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process under test.
pub(crate) struct Run {
    child: Child,
    said: Vec<Value>,
    lines: Receiver<String>,
    complaints: Receiver<String>,
    threads: Vec<JoinHandle<()>>,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) code: Option<i32>,
    /// Every line of standard output, as JSON where it is that.
    pub(crate) said: Vec<Value>,
    pub(crate) stderr: String,
}

pub(crate) fn kvlease<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvlease"));
    command.args(args).env("RUST_BACKTRACE", "1").stdin(Stdio::null());
    command
}

impl Run {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (lines_in, lines) = channel();
        let (complaints_in, complaints) = channel();
        let threads = vec![
            std::thread::spawn(move || {
                BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| lines_in.send(line).unwrap_or(()));
            }),
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = stderr.read_to_end(&mut text); // what was read so far is what there is
                let _ = complaints_in.send(String::from_utf8_lossy(&text).into_owned());
            }),
        ];
        Self { child, said: Vec::new(), lines, complaints, threads }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    /// The next line, or nothing once it has closed its output.
    pub(crate) fn line(&mut self) -> Option<Value> {
        use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                self.said.push(serde_json::from_str(&line).unwrap_or(Value::String(line)));
                self.said.last().cloned()
            }
            Err(Disconnected) => None,
            Err(Timeout) => panic!("it says nothing any more, after {:?}", self.said.last()),
        }
    }

    /// The next event of this name about this request.
    pub(crate) fn event(&mut self, event: &str, request: &str) -> Value {
        while let Some(line) = self.line() {
            if line["event"] == event && line["request"] == request {
                return line;
            }
        }
        panic!("no {event}: {:?}", self.end_mut());
    }

    /// The transfer parameters that a prefill instance prints before anything else, as lines of a file.
    pub(crate) fn params(&mut self, count: usize) -> String {
        (0..count)
            .map(|_| {
                let line = self.line().unwrap_or_else(|| panic!("no parameters: {:?}", self.end_mut()));
                assert!(line["kv_transfer_params"].is_object(), "parameters come first: {line}");
                format!("{line}\n")
            })
            .collect()
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> End {
        self.end_mut()
    }

    fn end_mut(&mut self) -> End {
        while self.line().is_some() {}
        let stderr = self.complaints.recv_timeout(PATIENCE).expect("it closes its output when it ends");
        let code = self.child.wait().expect("it is ours").code();
        End { code, said: std::mem::take(&mut self.said), stderr }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Killed and not asked: it may be stopped. Both fail only where it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl End {
    /// All events of this name.
    pub(crate) fn events(&self, event: &str) -> Vec<&Value> {
        self.said.iter().filter(|line| line["event"] == event).collect()
    }
}
