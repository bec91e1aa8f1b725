//! A peer in a process of its own, which does what the test says.

use std::{
    io::{BufRead as _, BufReader, Lines, Write as _},
    process::{Child, ChildStdin, ChildStdout, Stdio},
    sync::mpsc::{TryRecvError, channel},
};

use lease_proto::transport::{Control as _, Data as _};
use rustix::process::{Pid, Signal, WaitOptions};

use super::{Got, PEER, again, connect, exported, hex, patterned, poll, transport, unhex, until};

/// A peer process, killed at the end. Each test binary that uses it has a test `a_peer_for_the_others`, which calls [`obey`].
pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    pub(crate) metadata: Vec<u8>,
}

impl Process {
    pub(crate) fn start() -> Self {
        let mut command = again("a_peer_for_the_others");
        let mut child = command.env(PEER, "yes").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut process = Self { child, stdin, lines: BufReader::new(stdout).lines(), metadata: Vec::new() };
        process.metadata = unhex(&process.hear("metadata"));
        process
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.stdin, "{order}").unwrap();
    }

    /// What the peer's next line of this kind says.
    fn hear(&mut self, kind: &str) -> String {
        let said = |line: String| line.strip_prefix(kind).map(|said| said.trim().to_owned());
        self.lines.by_ref().map(Result::unwrap).find_map(said).expect("the peer lives")
    }

    /// Owns a patterned region from now on, and describes it.
    pub(crate) fn own(&mut self, length: usize) -> Vec<u8> {
        self.tell(&format!("own {length}"));
        unhex(&self.hear("region"))
    }

    /// Connects to another, and sends it this.
    pub(crate) fn send(&mut self, metadata: &[u8], message: &[u8]) {
        self.tell(&format!("send {} {}", hex(metadata), hex(message)));
        self.hear("sent");
    }

    /// Polls no more from now on.
    pub(crate) fn rest(&mut self) {
        self.tell("rest");
        self.hear("rests");
    }

    /// All that it has heard, once it is as many.
    pub(crate) fn heard(&mut self, count: usize) -> Vec<Vec<u8>> {
        self.tell(&format!("heard {count}"));
        let heard = self.hear("heard");
        heard.split(',').skip(1).map(unhex).collect()
    }

    /// The same, while this side moves.
    pub(crate) fn heard_while(&mut self, count: usize, mut step: impl FnMut()) -> Vec<Vec<u8>> {
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| self.heard(count));
            until("it to be heard", || {
                step();
                heard.is_finished().then_some(())
            });
            heard.join().unwrap()
        })
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

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
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

/// The life of a peer process, until there is nobody to say anything any more.
pub(crate) fn obey() {
    if std::env::var_os(PEER).is_none() {
        return;
    }
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let mut transport = transport();
    println!("\nmetadata {}", hex(transport.local_metadata()));
    let (say, orders) = channel();
    std::thread::spawn(move || std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
    let (mut regions, mut heard, mut wanted, mut is_awake) = (Vec::new(), Vec::new(), None, true);
    loop {
        if is_awake {
            match poll(&mut transport) {
                Some(Got::Message(bytes)) => heard.push(hex(&bytes)),
                Some(other) => panic!("expected messages, got {other:?}"),
                None => std::thread::yield_now(),
            }
        }
        if wanted.is_some_and(|count| heard.len() >= count) {
            println!("heard ,{}", heard.join(","));
            wanted = None;
        }
        let order = match orders.try_recv() {
            Ok(order) => order,
            Err(TryRecvError::Empty) => continue,
            Err(TryRecvError::Disconnected) => return,
        };
        match order.split(' ').collect::<Vec<_>>()[..] {
            ["own", length] => {
                let region = transport.register(patterned(length.parse().unwrap())).unwrap();
                println!("region {}", hex(&exported(&mut transport, &region)));
                regions.push(region);
            }
            ["send", metadata, message] => {
                let peer = connect(&mut transport, &unhex(metadata));
                transport.notify(peer, &unhex(message)).unwrap();
                println!("sent");
            }
            ["heard", count] => wanted = Some(count.parse().unwrap()),
            ["rest"] => {
                is_awake = false;
                println!("rests");
            }
            ref other => panic!("expected an order, got {other:?}"),
        }
    }
}
