//! `kvlease replay`: runs traces and tells what happened in them.

use std::{
    fs,
    io::{self, Read as _, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use super::{WRONG_INPUT, complain, remark, shown};
use crate::sim::{line::Line, replay, trace::Trace};

/// Largest trace, in bytes.
const LARGEST: u64 = 256 << 20;
/// What the files of a folder that are traces are named like.
const ENDINGS: [&str; 4] = ["jsonl", "ndjson", "json", "trace"];

/// What to replay.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// Traces, folders of traces, or - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print no events: only violations, failed expectations and the summaries
    #[arg(long, short)]
    quiet: bool,
}

/// Runs traces; the exit status is the worst of all files.
pub fn replay(args: &ReplayArgs) -> ExitCode {
    let files = match find(&args.files) {
        Ok(files) => files,
        Err(why) => return complain("kvlease", why),
    };
    let mut out = io::BufWriter::with_capacity(1 << 16, Reader { out: io::stdout().lock(), gone: false });
    let mut worst = 0;
    let mut held = 0;
    for file in &files {
        let status = match one(file, args.quiet, &mut out) {
            Ok(true) => 0,
            Ok(false) => 1,
            Err(Stop::Trace(why)) => {
                remark("kvlease", format_args!("{}: {why}", file.display()));
                WRONG_INPUT
            }
            Err(Stop::Output(error)) => return complain("kvlease", format_args!("cannot write: {error}")),
        };
        held += usize::from(status == 0);
        worst = worst.max(status);
    }
    if let Err(error) = out.flush() {
        return complain("kvlease", format_args!("cannot write: {error}"));
    }
    if files.len() > 1 {
        remark("kvlease", format_args!("{} traces, {held} held", files.len()));
    }
    ExitCode::from(worst)
}

/// Who reads what is printed. Once it has left nothing is printed any more; the exit status is still wanted.
struct Reader<W> {
    out: W,
    gone: bool,
}

impl<W: Write> Reader<W> {
    /// What came of writing, unless nobody reads it.
    fn unless_gone<T>(&mut self, otherwise: T, write: impl FnOnce(&mut W) -> io::Result<T>) -> io::Result<T> {
        if self.gone {
            return Ok(otherwise);
        }
        write(&mut self.out).or_else(|error| {
            self.gone = error.kind() == io::ErrorKind::BrokenPipe;
            if self.gone { Ok(otherwise) } else { Err(error) }
        })
    }
}

impl<W: Write> Write for Reader<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_gone(bytes.len(), |out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_gone((), W::flush)
    }
}

enum Stop {
    /// It is not a trace.
    Trace(String),
    Output(io::Error),
}

/// Runs one trace; whether everything held.
fn one(file: &Path, quiet: bool, out: &mut impl Write) -> Result<bool, Stop> {
    let text = read(file).map_err(|error| Stop::Trace(format!("cannot be read: {error}")))?;
    let trace = Trace::parse(&text).map_err(|error| Stop::Trace(error.to_string()))?;
    drop(text);
    for (line, request) in trace.about_nobody() {
        let why = format_args!("no action names the request {}, so this expectation says nothing", shown(request));
        remark("kvlease", format_args!("{}: line {line}: {why}", file.display()));
    }
    let mut written = Ok(());
    let summary = replay::run(&trace, &mut |line: &Line<'_>| {
        if written.is_ok() && (!quiet || matches!(line.event, "violation" | "failed_expectation")) {
            written = serde_json::to_writer(&mut *out, line).map_err(io::Error::from).and_then(|()| out.write_all(b"\n"));
        }
    });
    written.map_err(Stop::Output)?;
    writeln!(out, "{}", summary.to_json(&file.to_string_lossy())).map_err(Stop::Output)?;
    Ok(summary.held())
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let source: Box<dyn io::Read> = if file == Path::new("-") { Box::new(io::stdin()) } else { Box::new(fs::File::open(file)?) };
    source.take(LARGEST + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LARGEST { Err(io::Error::other(format!("larger than {LARGEST} bytes"))) } else { Ok(text) }
}

/// The files that are meant, those of a folder in the order of their names.
fn find(named: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for path in named {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let unreadable = |error: io::Error| format!("{}: cannot be read: {error}", path.display());
        let mut inside = Vec::new();
        for entry in fs::read_dir(path).map_err(unreadable)? {
            let file = entry.map_err(unreadable)?.path();
            let ending = file.extension().and_then(|ending| ending.to_str());
            // A link that leads nowhere is meant as well, and told to be unreadable.
            if !file.is_dir() && ending.is_some_and(|ending| ENDINGS.contains(&ending)) {
                inside.push(file);
            }
        }
        if inside.is_empty() {
            return Err(format!("{}: no trace in this folder: expected files named *.{}", path.display(), ENDINGS.join(", *.")));
        }
        inside.sort();
        files.extend(inside);
    }
    Ok(files)
}
