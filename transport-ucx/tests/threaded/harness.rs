//! Handles, and peer processes: this binary, run again.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    time::Instant,
};

use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Control as _, Error as _, ErrorKind, Incoming, PeerId, Ticket},
};
use rustix::process::{Pid, Signal, WaitOptions};
use transport_ucx::UcxThread;

use crate::common::{Got, PATIENCE, config, framed, until};

/// Tells the peer process, which runs only [`a_peer_for_the_others`], its lane.
const LANE: &str = "KVLEASE_UCX_TEST_PEER";

/// Not a test of its own: answers every notification with the same, until its peer is gone.
#[test]
fn a_peer_for_the_others() {
    let Ok(lane) = std::env::var(LANE) else { return };
    let mut handle = spawn(&lane);
    println!("\nmetadata {}", hex(handle.local_metadata()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let metadata = framed(&unhex(line.trim()));
    handle.connect(Frame::decode(&metadata).unwrap()).unwrap();
    let (mut back, mut early) = (None, Vec::new());
    loop {
        match next(&mut handle) {
            Got::Connected(_, peer) => back = Some(peer),
            // Before the connection back has been answered, some may be here already.
            Got::Message(bytes) => early.push(bytes),
            _ => return,
        }
        let Some(back) = back else { continue };
        for bytes in early.drain(..) {
            until("room", || offer(&mut handle, back, &bytes).ok());
        }
    }
}

pub(crate) fn spawn(lane: &str) -> UcxThread {
    UcxThread::spawn(config(lane)).unwrap()
}

pub(crate) fn pair(lane: &str) -> (UcxThread, UcxThread, PeerId) {
    let (mut from, mut to) = (spawn(lane), spawn(lane));
    let peer = connect(&mut from, &mut to);
    (from, to, peer)
}

pub(crate) fn dial(from: &mut UcxThread, to: &UcxThread) -> Ticket {
    let metadata = framed(to.local_metadata());
    from.connect(Frame::decode(&metadata).unwrap()).unwrap()
}

pub(crate) fn connect(from: &mut UcxThread, to: &mut UcxThread) -> PeerId {
    let ticket = dial(from, to);
    match next(from) {
        Got::Connected(resolved, peer) if resolved == ticket => peer,
        other => panic!("expected the connection, got {other:?}"),
    }
}

pub(crate) fn poll(handle: &mut UcxThread) -> Option<Got> {
    Some(match handle.poll().unwrap()? {
        Incoming::Notification { bytes, .. } => Got::Message(bytes.to_vec()),
        Incoming::Connected { ticket, peer } => Got::Connected(ticket, peer),
        Incoming::ConnectFailed { ticket, kind } => Got::ConnectFailed(ticket, kind),
        Incoming::PeerLost { peer } => Got::Lost(peer),
        Incoming::ReadDone { read, result } => Got::Read(read, result),
        other => panic!("expected what a transport gives, got {other:?}"),
    })
}

/// The next thing that comes in, sleeping meanwhile.
pub(crate) fn next(handle: &mut UcxThread) -> Got {
    until("something to come in", || {
        let got = poll(handle);
        if got.is_none() {
            handle.wait(Duration::from_secs(1)).unwrap();
        }
        got
    })
}

pub(crate) fn offer(handle: &mut UcxThread, peer: PeerId, bytes: &[u8]) -> Result<(), ()> {
    handle.notify(peer, bytes).map_err(|error| assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"))
}

/// Sends until the bound of what is in flight is reached for good, and says how many went.
pub(crate) fn fill(handle: &mut UcxThread, peer: PeerId) -> usize {
    let (started, mut since, mut sent) = (Instant::now(), Instant::now(), 0);
    while since.elapsed().as_millis() < 200 {
        if offer(handle, peer, &[sent as u8; 10_000]).is_ok() {
            sent += 1;
            since = Instant::now();
        }
        assert!(started.elapsed() < PATIENCE, "{sent} were taken");
    }
    sent
}

/// A peer process; killed at the end.
pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    pub(crate) metadata: Vec<u8>,
}

impl Process {
    pub(crate) fn start(lane: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["harness::a_peer_for_the_others", "--exact", "--nocapture", "--test-threads=1"])
            .env(LANE, lane)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut lines = BufReader::new(stdout).lines().map(Result::unwrap);
        let metadata = lines.find_map(|line| line.strip_prefix("metadata ").map(unhex)).unwrap();
        Self { child, stdin, metadata }
    }

    /// A peer that is connected in both directions.
    pub(crate) fn connected(lane: &str, handle: &mut UcxThread) -> (Self, PeerId) {
        let mut process = Self::start(lane);
        writeln!(process.stdin, "{}", hex(handle.local_metadata())).unwrap();
        let metadata = framed(&process.metadata);
        let ticket = handle.connect(Frame::decode(&metadata).unwrap()).unwrap();
        match next(handle) {
            Got::Connected(resolved, peer) if resolved == ticket => (process, peer),
            got => panic!("expected the connection, got {got:?}"),
        }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns once it has stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        rustix::process::waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
