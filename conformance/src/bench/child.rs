//! A process that is started for one measurement: its lines as they come, and an end within a time, whatever happens.

use std::{
    io::{BufRead as _, BufReader, Read, Write as _},
    process::{Child as Process, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

/// A running process. Dropping it kills and awaits it.
pub(super) struct Child {
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
    /// By itself, and well; its lines.
    Well(Vec<String>),
    /// By itself, and not well; why, and all that it wrote.
    Badly(String),
    /// Not at all.
    TooLate,
}

/// How often an end is looked for; the wait is over as soon as both outputs are closed, so this is rarely slept.
const LOOK: Duration = Duration::from_millis(2);

impl Child {
    pub(super) fn spawn(command: &mut Command) -> Result<Self, String> {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let cannot = |error| format!("cannot start {}: {error}", command.get_program().to_string_lossy());
        let mut process = started.map_err(cannot)?;
        let (sender, lines) = channel();
        // Not joined: if what it started in turn keeps an output open, nobody need wait for that.
        let listen = |output: Option<Box<dyn Read + Send>>, line: fn(String) -> Line| {
            let sender = sender.clone();
            let Some(output) = output else { return };
            thread::spawn(move || {
                let texts = BufReader::new(output).split(b'\n').map_while(Result::ok);
                texts.map(|text| line(String::from_utf8_lossy(&text).into_owned())).try_for_each(|line| sender.send(line))
            });
        };
        listen(process.stdout.take().map(|output| Box::new(output) as _), Line::Out);
        listen(process.stderr.take().map(|output| Box::new(output) as _), Line::Complaint);
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
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Line::Out(line)) => return Ok(Some(line)),
                Ok(Line::Complaint(line)) => complaint = line,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(format!("a process ended early: {complaint}")),
            }
        }
    }

    /// Whether it is over already.
    pub(super) fn has_ended(&mut self) -> Result<bool, String> {
        self.status(Instant::now()).map(|status| status.is_some())
    }

    /// Waits for its end.
    pub(super) fn end(mut self, until: Instant) -> Result<End, String> {
        let (mut lines, mut all) = (Vec::new(), Vec::new());
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Line::Out(line)) => {
                    all.push(line.clone());
                    lines.push(line);
                }
                Ok(Line::Complaint(line)) => all.push(line),
                Err(RecvTimeoutError::Timeout) => return Ok(End::TooLate),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(match self.status(until)? {
            Some(status) if status.success() => End::Well(lines),
            Some(status) => End::Badly(format!("{status}: {}", all.join(" | "))),
            None => End::TooLate,
        })
    }

    fn status(&mut self, until: Instant) -> Result<Option<ExitStatus>, String> {
        loop {
            let status = self.process.try_wait().map_err(|error| format!("cannot wait for a process: {error}"))?;
            if status.is_some() || Instant::now() >= until {
                return Ok(status);
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only where it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
