//! The loop of a live process: it sleeps until the transport, the control line or the protocol's own timers have something.

use std::{
    io::{self, Write as _},
    os::fd::{AsFd, BorrowedFd},
};

use gpu_mem::Memory;
use lease_proto::{
    time::Duration,
    transport::{Control, Data},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use serde_json::{Value, json};

use super::{Command, Engine, EngineError};

/// How a process sleeps on its transport: gives a descriptor that becomes readable when something comes in, or `None` if something is
/// there already. A function and not a trait, so that no library between a transport and its peer executable links the transport.
pub type Arm<T> = for<'a> fn(&'a mut T) -> Result<Option<BorrowedFd<'a>>, <T as Control>::Error>;

/// Lines of standard input, read only when there is something.
#[derive(Debug, Default)]
struct Lines {
    partial: Vec<u8>,
    closed: bool,
}

/// What came on the control line.
#[derive(Debug)]
enum Line {
    /// One line.
    Text(String),
    /// Its other end is closed: whoever started this process is gone or done.
    Closed,
}

/// A process that nothing is due for wakes up all the same now and then.
pub const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// Longest line that is taken; a longer one closes the line.
const LONGEST: usize = 16 << 20;

impl Lines {
    /// The next whole line. Waits only for its end once its first bytes are there.
    fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                let line = self.partial.drain(..=end).collect::<Vec<u8>>();
                return Ok(Some(Line::Text(String::from_utf8_lossy(&line).trim_end().to_owned())));
            }
            if self.closed {
                return Ok(Some(Line::Closed));
            }
            let stdin = io::stdin();
            if !readable(stdin.as_fd())? {
                return Ok(None);
            }
            let mut room = vec![0; 65_536];
            let count = rustix::io::read(stdin.as_fd(), &mut room)?;
            self.closed = count == 0 || self.partial.len() > LONGEST;
            self.partial.extend_from_slice(&room[..count]);
        }
    }
}

fn readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
}

impl<T: Data<Memory = Memory>> Engine<T> {
    /// Takes the last turns of a process that is done, so that its last answers leave.
    ///
    /// # Errors
    /// What the transport as a whole reports.
    pub fn linger(&mut self) -> Result<(), EngineError> {
        self.turn().map(|_| ())
    }

    /// Sleeps until something comes in, `stdin` becomes readable if `watch` is set, or `within` is over.
    ///
    /// # Errors
    /// What the transport as a whole reports.
    pub fn sleep(&mut self, arm: Arm<T>, within: Duration, watch: bool) -> Result<(), EngineError> {
        let Some(fd) = arm(&mut self.rank.transport).map_err(super::transport_error)? else { return Ok(()) };
        let stdin = io::stdin();
        match watch {
            true => sleep_on(&[fd, stdin.as_fd()], within),
            false => sleep_on(&[fd], within),
        }
    }
}

/// Sleeps until one of these becomes readable, or `within` is over.
pub(crate) fn sleep_on(fds: &[BorrowedFd<'_>], within: Duration) -> Result<(), EngineError> {
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let nanos = within.as_nanos();
    let timeout = Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as _ };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(EngineError::Invalid(format!("cannot wait for the transport: {error}"))),
    }
}

/// What a role says whose standard output cannot be written to.
pub(crate) fn closed(error: io::Error) -> EngineError {
    EngineError::Invalid(format!("cannot write to standard output: {error}"))
}

/// Serves a certification: commands from standard input, answers and events to standard output, until the line is closed.
///
/// # Errors
/// What the transport as a whole reports, or a control line that cannot be read or written.
pub fn serve<T: Data<Memory = Memory>>(mut engine: Engine<T>, arm: Arm<T>) -> Result<(), EngineError> {
    let broken = |error: io::Error| EngineError::Invalid(format!("the control line is broken: {error}"));
    let mut lines = Lines::default();
    loop {
        while let Some(line) = lines.next().map_err(broken)? {
            let Line::Text(text) = line else { return Ok(()) };
            let answer = match serde_json::from_str::<Command>(&text) {
                Ok(command) => engine.execute(command),
                Err(error) => Err(EngineError::Invalid(error.to_string())),
            };
            say(&match answer {
                Ok(value) => json!({"answer": value}),
                Err(error) => json!({"error": error.to_string()}),
            })
            .map_err(broken)?;
        }
        let next = engine.turn()?;
        while let Some(event) = engine.next_event() {
            say(&event).map_err(broken)?;
        }
        engine.sleep(arm, next.unwrap_or(LONGEST_SLEEP), true)?;
    }
}

/// One line of JSON to standard output, at once.
///
/// # Errors
/// What writing it gives, such as a closed pipe.
pub fn say(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")?;
    out.flush()
}
