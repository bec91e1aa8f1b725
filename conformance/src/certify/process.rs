//! The lab of real processes: each node is a child with a control line, and every child is awaited.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command as Process, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::Instant,
};

use lease_proto::time::Duration;
use rustix::process::{Pid, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::{Value, json};

use super::{
    lab::{LEASE, Lab, NodeId, PATIENCE, Side, Signal, Spec, Trouble},
    network::Network,
};
use crate::{
    engine::{Command, Kinds},
    launch::{prepare, tls},
};

/// Lines that a node may tell in its life, and their bytes: more than any case asks for.
const MOST_LINES: usize = 100_000;
/// See [`MOST_LINES`].
const MOST_BYTES: u64 = 256 << 20;
/// Bytes of one of them.
const LONGEST_LINE: u64 = 4 << 20;

/// Nodes that are processes of one peer executable.
pub struct ProcessLab {
    executable: PathBuf,
    transport: &'static str,
    lane: String,
    memory: Kinds,
    nodes: Vec<Node>,
    /// After the nodes, which are in it.
    network: Option<Network>,
}

struct Node {
    child: Child,
    /// How it said that its transport is driven.
    way: Option<String>,
    stdin: Option<ChildStdin>,
    lines: Receiver<Result<Value, Trouble>>,
    /// Events that came before an answer did.
    events: std::collections::VecDeque<Value>,
    threads: Vec<JoinHandle<()>>,
    complaints: Receiver<String>,
}

impl ProcessLab {
    /// A lab that starts this executable with this lane of its transport and these kinds of memory.
    pub fn new(executable: PathBuf, transport: &'static str, lane: &str, memory: Kinds) -> Self {
        Self { executable, transport, lane: lane.to_owned(), memory, nodes: Vec::new(), network: None }
    }

    /// What starts the executable, on a side of a link that can be cut if it is to be on one.
    fn process(&mut self, side: Option<Side>) -> Result<Process, Trouble> {
        let Some(side) = side else { return Ok(Process::new(&self.executable)) };
        if self.lane.ends_with("shm") {
            return Err(Trouble::Skip("no network to cut".into()));
        }
        let network = match self.network.take() {
            Some(network) => network,
            None => Network::new()?,
        };
        let mut process = self.network.insert(network).inside(side);
        process.arg(&self.executable);
        Ok(process)
    }

    fn node(&mut self, node: NodeId) -> Result<&mut Node, Trouble> {
        self.nodes.get_mut(node.0).ok_or_else(|| Trouble::Harness("no such node".into()))
    }
}

impl Lab for ProcessLab {
    fn start(&mut self, spec: &Spec) -> Result<NodeId, Trouble> {
        let mut process = self.process(spec.side)?;
        // NIXL's way is in its environment.
        let lane = if self.transport == "ucx" { tls(&self.lane, self.memory) } else { self.lane.clone() };
        process.args(["agent", "--name", spec.name, "--wire", &spec.wire.to_string(), "--lease", LEASE, "--lane", &lane]);
        process.args(["--blocks", &self.memory.blocks.to_string(), "--landing", &self.memory.landing.to_string()]);
        if spec.raw {
            process.arg("--raw");
        }
        if let Some(way) = spec.way {
            process.args(["--way", way]);
        }
        prepare(&mut process, self.transport, Some(&self.lane), self.memory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let cannot = |error: std::io::Error| Trouble::Harness(format!("cannot start {}: {error}", self.executable.display()));
        let mut node = Node::new(process.spawn().map_err(cannot)?);
        let deadline = patience_from_now();
        let mut first = node.line_before(deadline);
        while matches!(&first, Ok(Some(line)) if line["event"] == "noise") {
            first = node.line_before(deadline); // what follows says more: an answer, or its end
        }
        node.way = first.as_ref().ok().and_then(|line| line.as_ref()?["way"].as_str().map(str::to_owned));
        self.nodes.push(node); // also where it is of no use: it is awaited with the others
        // Nothing was tried yet, so this says nothing about the transport.
        let first = first.map_err(|trouble| match trouble {
            Trouble::Failed(why) | Trouble::Skip(why) | Trouble::Harness(why) => {
                Trouble::Harness(format!("{} did not become ready: {why}", self.executable.display()))
            }
        })?;
        match first.as_ref().and_then(|first| first.get("unavailable")) {
            _ if first.as_ref().is_some_and(|first| first.get("ready").is_some()) => Ok(NodeId(self.nodes.len() - 1)),
            Some(why) => Err(Trouble::Skip(why.as_str().unwrap_or("not on this machine").to_owned())),
            None => Err(Trouble::Harness(format!("{} did not become ready", self.executable.display()))),
        }
    }

    fn memory(&self) -> Kinds {
        self.memory
    }

    fn way(&self, node: NodeId) -> Option<&str> {
        self.nodes.get(node.0)?.way.as_deref()
    }

    fn ask(&mut self, node: NodeId, command: Command) -> Result<Result<Value, String>, Trouble> {
        let node = self.node(node)?;
        let text = serde_json::to_string(&command).map_err(|error| Trouble::Harness(error.to_string()))?;
        let written = node.stdin.as_mut().map(|stdin| writeln!(stdin, "{text}").and_then(|()| stdin.flush()));
        if !matches!(written, Some(Ok(()))) {
            return Err(node.ended());
        }
        let deadline = patience_from_now();
        loop {
            match node.line_before(deadline)? {
                Some(line) if line.get("answer").is_some() => return Ok(Ok(line["answer"].clone())),
                Some(line) if line.get("error").is_some() => {
                    return Ok(Err(line["error"].as_str().unwrap_or_default().to_owned()));
                }
                Some(event) => node.events.push_back(event),
                None => return Err(Trouble::Failed("the node does not answer".into())),
            }
        }
    }

    fn next_event(&mut self, node: NodeId, within: Duration) -> Result<Option<Value>, Trouble> {
        let node = self.node(node)?;
        match node.events.pop_front() {
            Some(event) => Ok(Some(event)),
            None => node.line(within.into()),
        }
    }

    fn signal(&mut self, node: NodeId, signal: Signal) -> Result<(), Trouble> {
        let node = self.node(node)?;
        let broken = |error: std::io::Error| Trouble::Harness(format!("cannot signal a node: {error}"));
        let send = |signal| {
            let pid = i32::try_from(node.child.id()).ok().and_then(Pid::from_raw);
            pid.map_or(Ok(()), |pid| kill_process(pid, signal)).map_err(|error| broken(error.into()))
        };
        match signal {
            Signal::Stop => {
                send(rustix::process::Signal::STOP)?;
                // It is left to be awaited: only that it stands, or is gone, is of interest.
                let what = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                let pid = i32::try_from(node.child.id()).ok().and_then(Pid::from_raw);
                pid.map_or(Ok(None), |pid| waitid(WaitId::Pid(pid), what)).map(|_| ()).map_err(|error| broken(error.into()))
            }
            Signal::Continue => send(rustix::process::Signal::CONT),
            Signal::Kill => {
                node.child.kill().map_err(broken)?;
                node.child.wait().map(|_| ()).map_err(broken)
            }
        }
    }

    fn cut(&mut self, cut: bool) -> Result<(), Trouble> {
        self.network.as_ref().ok_or_else(|| Trouble::Harness("no node is on a side of a link".into()))?.cut(cut)
    }
}

fn patience_from_now() -> Instant {
    Instant::now() + PATIENCE.into()
}

/// Passes on what a node tells, as long as somebody listens and it is not too much.
fn listen(stdout: ChildStdout, lines: &Sender<Result<Value, Trouble>>) {
    let (mut stdout, mut line, mut bytes) = (BufReader::new(stdout), Vec::new(), 0);
    for count in 0.. {
        line.clear();
        let read = stdout.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line).unwrap_or(0);
        bytes += read as u64;
        let told = match read {
            0 => return,
            _ if count >= MOST_LINES || bytes > MOST_BYTES || (read as u64 == LONGEST_LINE && !line.ends_with(b"\n")) => {
                Err(Trouble::Failed("the node tells without end".into()))
            }
            // Anything that is no JSON would be a library writing to standard output; it is shown as what came last.
            _ => Ok(serde_json::from_slice(&line)
                .unwrap_or_else(|_| json!({"event": "noise", "text": String::from_utf8_lossy(&line).trim_end()}))),
        };
        let is_too_much = told.is_err();
        if lines.send(told).is_err() || is_too_much {
            break;
        }
    }
    let _ = std::io::copy(&mut stdout, &mut std::io::sink()); // so that what ends it is not a closed pipe
}

impl Node {
    fn new(mut child: Child) -> Self {
        let (lines_in, lines) = channel();
        let (complaints_in, complaints) = channel();
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut threads = Vec::new();
        if let Some(stdout) = stdout {
            threads.push(std::thread::spawn(move || listen(stdout, &lines_in)));
        }
        if let Some(mut stderr) = stderr {
            threads.push(std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = stderr.by_ref().take(1 << 20).read_to_end(&mut text); // what was read so far is what there is
                let _ = std::io::copy(&mut stderr, &mut std::io::sink());
                let _ = complaints_in.send(String::from_utf8_lossy(&text).into_owned());
            }));
        }
        Self { child, way: None, stdin, lines, events: std::collections::VecDeque::new(), threads, complaints }
    }

    /// The next line, unless it is too late for it, however many came before.
    fn line_before(&mut self, deadline: Instant) -> Result<Option<Value>, Trouble> {
        match deadline.checked_duration_since(Instant::now()) {
            Some(left) => self.line(left),
            None => Ok(None),
        }
    }

    fn line(&mut self, within: std::time::Duration) -> Result<Option<Value>, Trouble> {
        match self.lines.recv_timeout(within) {
            Ok(line) => line.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    /// How it ended, with its last words.
    fn ended(&mut self) -> Trouble {
        // Who says nothing any more and lives on is ended.
        let words = self.complaints.recv_timeout(PATIENCE.into()).unwrap_or_else(|_| {
            let _ = self.child.kill(); // it may be gone by now
            String::new()
        });
        let status = self.child.wait().map_or("an unknown status".to_owned(), |status| status.to_string());
        Trouble::Failed(format!("the node ended with {status}: {}", words.lines().last().unwrap_or("it said nothing")))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Killed and not asked: it may be stopped. Both fail only where it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.stdin = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
