//! Reads a trace, strictly: what is not understood is refused before anything runs.

mod actions;
mod expectations;
mod json;
mod world;

use std::fmt;

use self::{actions::Lines, json::brief};
use super::Trace;

/// Longest line, in bytes.
const LONGEST: usize = 4 << 20;
/// What some editors put before utf-8.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Why bytes are no trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The line, from 1.
    pub line: usize,
    /// The key in it.
    pub key: Option<String>,
    message: String,
}

impl Trace {
    /// Reads a trace. Blank lines are skipped, and counted.
    ///
    /// # Errors
    /// Which line and key is not what a trace may hold, what was expected there and what came.
    pub fn parse(text: &[u8]) -> Result<Self, TraceError> {
        if text.starts_with(BOM) {
            return Err(TraceError::new(1, None, "expected a world, got a byte order mark (BOM): save it as utf-8 without BOM"));
        }
        let lines = text.split(|&byte| byte == b'\n').zip(1..);
        let mut objects = lines.filter(|(line, _)| !line.trim_ascii().is_empty()).map(|(line, number)| match line.len() {
            ..=LONGEST => json::object(number, line),
            long => Err(TraceError::new(number, None, format!("line is {long} bytes long, expected at most {LONGEST}"))),
        });
        let nothing = || Err(TraceError::new(1, None, "expected a world in the first line, got an empty file"));
        let mut lines = Lines::of(world::read(objects.next().unwrap_or_else(nothing)?)?);
        for fields in objects {
            lines.read(fields?)?;
        }
        Ok(lines.finish())
    }
}

impl TraceError {
    fn new(line: usize, key: Option<&str>, message: impl fmt::Display) -> Self {
        Self { line, key: key.map(str::to_owned), message: message.to_string() }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        if let Some(key) = &self.key {
            write!(f, "key `{}`: ", brief(key))?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for TraceError {}
