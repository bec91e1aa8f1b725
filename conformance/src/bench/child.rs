//! A process that is started for one measurement: its lines as they come, and an end within a time, whatever happens.

use std::{
    collections::VecDeque,
    ffi::OsStr,
    io::{BufRead as _, BufReader, Read, Write as _},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{Child as Process, Command, ExitStatus, Stdio},
    sync::{
        LazyLock,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// A running process. Dropping it kills it, with all that it started in turn, and awaits it.
pub(super) struct Child {
    /// Awaited by the drop alone, so that its id, which is also that of its group, is nobody else's until then.
    process: Process,
    /// What it writes, line by line; both of its outputs, since UCX complains on either.
    lines: Receiver<Line>,
}

enum Line {
    Out(String),
    Complaint(String),
}

/// How a process ended that was waited for.
pub(super) enum End {
    /// By itself, and well; its last lines.
    Well(Vec<String>),
    /// By itself, and not well; why, and the last that it wrote.
    Badly(String),
    /// Not at all.
    TooLate,
}

/// How often an end is looked for; the wait is over as soon as both outputs are closed, so this is rarely slept.
const LOOK: Duration = Duration::from_millis(2);
/// Lines that wait to be taken; a process that writes more waits, too.
const WAITING: usize = 256;
/// Bytes of a line; a longer one comes in pieces.
const LONGEST: u64 = 256 << 10;
/// Bytes that are kept of each output, the last ones.
const KEPT: usize = 64 << 10;

/// The program that has another one killed when this process ends, whatever ends it.
const SETPRIV: &str = "setpriv";
const WITH_PARENT: [&str; 2] = ["--pdeathsig", "KILL"];
/// Whether it is here and can do that; busybox has a lesser one.
static CAN_END_WITH_PARENT: LazyLock<bool> = LazyLock::new(|| {
    let mut command = Command::new(SETPRIV);
    command.args(WITH_PARENT).arg("true").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
});

/// Starts `program`, which does not outlive this process where the system can see to that.
pub(super) fn bound(program: impl AsRef<OsStr>) -> Command {
    if !*CAN_END_WITH_PARENT {
        return Command::new(program);
    }
    let mut command = Command::new(SETPRIV);
    command.args(WITH_PARENT).arg(program);
    command
}

impl Child {
    pub(super) fn spawn(command: &mut Command) -> Result<Self, String> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let started = command.spawn();
        let cannot = |error| format!("cannot start {}: {error}", command.get_program().to_string_lossy());
        let mut process = started.map_err(cannot)?;
        let (sender, lines) = sync_channel(WAITING);
        listen(process.stdout.take(), Line::Out, sender.clone());
        listen(process.stderr.take(), Line::Complaint, sender);
        Ok(Self { process, lines })
    }

    /// Writes a line to its input.
    pub(super) fn tell(&mut self, line: &str) -> Result<(), String> {
        let written = self.process.stdin.as_mut().map(|input| writeln!(input, "{line}").and_then(|()| input.flush()));
        match written {
            Some(Ok(())) => Ok(()),
            _ => Err("a process closed its input".into()),
        }
    }

    /// The next line of its output; nothing if it does not come in time.
    pub(super) fn line(&mut self, until: Instant) -> Result<Option<String>, String> {
        let mut complaint = "it said nothing".to_owned();
        loop {
            match self.next(until) {
                Ok(Line::Out(line)) => return Ok(Some(line)),
                Ok(Line::Complaint(line)) => complaint = line,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(format!("a process ended early: {complaint}")),
            }
        }
    }

    /// Whether it is over already.
    pub(super) fn has_ended(&self) -> Result<bool, String> {
        self.status().map(|status| status.is_some())
    }

    /// Waits for its end.
    pub(super) fn end(self, until: Instant) -> Result<End, String> {
        let (mut lines, mut all) = (Tail::default(), Tail::default());
        loop {
            match self.next(until) {
                Ok(Line::Out(line)) => {
                    all.push(line.clone());
                    lines.push(line);
                }
                Ok(Line::Complaint(line)) => all.push(line),
                Err(RecvTimeoutError::Timeout) => return Ok(End::TooLate),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        loop {
            match self.status()? {
                Some(status) if status.success() => return Ok(End::Well(lines.into())),
                Some(status) => return Ok(End::Badly(format!("{status}: {}", Vec::from(all).join(" | ")))),
                None if Instant::now() >= until => return Ok(End::TooLate),
                None => thread::sleep(LOOK),
            }
        }
    }

    /// The next line of either output. Late is late, even if one waits: some write without pause.
    fn next(&self, until: Instant) -> Result<Line, RecvTimeoutError> {
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(RecvTimeoutError::Timeout),
            left => self.lines.recv_timeout(left),
        }
    }

    /// How it ended, if it has; it stays to be awaited.
    fn status(&self) -> Result<Option<ExitStatus>, String> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(Pid::from_child(&self.process)), options);
        let status = status.map_err(|error| format!("cannot wait for a process: {error}"))?;
        Ok(status.map(|status| {
            let signal = status.terminating_signal().unwrap_or_default();
            ExitStatus::from_raw(status.exit_status().map_or(signal, |code| code << 8))
        }))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only where it is gone already.
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let _ = self.process.wait();
    }
}

/// Passes on what is written, line by line. Nobody joins this thread: it ends when the output does, or with the next line when
/// nobody listens.
fn listen(output: Option<impl Read + Send + 'static>, line: fn(String) -> Line, sender: SyncSender<Line>) {
    let Some(output) = output else { return };
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            let mut text = Vec::new();
            if !output.by_ref().take(LONGEST).read_until(b'\n', &mut text).is_ok_and(|read| read > 0) {
                return;
            }
            text.pop_if(|byte| *byte == b'\n');
            if sender.send(line(String::from_utf8_lossy(&text).into_owned())).is_err() {
                return;
            }
        }
    });
}

/// The last lines that were written.
#[derive(Default)]
struct Tail {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Tail {
    fn push(&mut self, line: String) {
        let cost = |line: &String| line.len() + size_of::<String>(); // empty lines take room, too
        self.bytes += cost(&line);
        self.lines.push_back(line);
        while self.bytes > KEPT && self.lines.len() > 1 {
            self.bytes -= self.lines.pop_front().as_ref().map_or(0, cost);
        }
    }
}

impl From<Tail> for Vec<String> {
    fn from(tail: Tail) -> Self {
        tail.lines.into()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// Longer than any of these takes.
    const LONG: Duration = Duration::from_secs(600);

    fn shell(script: &str) -> Child {
        Child::spawn(bound("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn of_what_is_written_the_end_is_kept() {
        for flood in ["yes | head -c 900000", "yes '' | head -c 900000", "head -c 9000000 /dev/zero"] {
            for (exit, to) in [(0, ""), (3, " >&2")] {
                let script = format!("{{ {flood}; echo; echo last; }}{to}; exit {exit}");
                let (bytes, last) = match shell(&script).end(Instant::now() + LONG).unwrap() {
                    End::Well(lines) => (lines.iter().map(String::len).sum(), lines.last().cloned().unwrap()),
                    End::Badly(text) => (text.len(), text.rsplit(' ').next().unwrap().to_owned()),
                    End::TooLate => panic!("{script} ends"),
                };
                assert!(last == "last" && bytes < 10 * KEPT, "{script}: {bytes} bytes and {last:?}");
            }
        }
    }

    #[test]
    fn one_that_writes_without_pause_is_late_all_the_same() {
        let mut child = shell("exec yes");
        assert_eq!(child.line(Instant::now() + LONG), Ok(Some("y".into())));
        assert_eq!(child.line(Instant::now()), Ok(None));
        assert!(matches!(child.end(Instant::now()), Ok(End::TooLate)));
    }

    #[test]
    fn what_it_started_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let mut child = shell(&format!("tail -f /dev/null > '{}' & echo gone", fifo.display()));
        assert_eq!(child.line(Instant::now() + LONG), Ok(Some("gone".into())));
        let mut held = File::open(fifo).unwrap();
        drop(child);
        assert_eq!(held.read_to_end(&mut Vec::new()).unwrap(), 0, "comes to its end only when nobody can write any more");
    }

    #[test]
    fn an_end_tells_how() {
        for (script, expected) in [("echo a; echo b >&2; exit 7", "exit status: 7: "), ("kill -TERM $$", "signal: 15")] {
            let Ok(End::Badly(text)) = shell(script).end(Instant::now() + LONG) else { panic!("{script} fails") };
            assert!(text.starts_with(expected), "{text}");
        }
    }
}
