//! The little of ZeroMQ that the side channel needs: ZMTP 3.0 over TCP, mechanism NULL, REQ on one side and ROUTER on the other.
//!
//! By hand, because of what a stranger may send. The crate `zeromq` 0.7 allocates what a frame claims: 94 bytes (a greeting and a frame
//! that claims 2^40 bytes) abort the process. Here a claim above the bound ends the connection, below it memory grows as bytes come, a
//! message has a bounded number of frames, and commands, which ZMTP lets a peer send at any time, are read over.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

/// Which end of the exchange this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// D's worker.
    Req,
    /// P's scheduler process.
    Router,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::Req => "REQ",
            Self::Router => "ROUTER",
        }
    }

    /// What the other end may be, by its READY.
    fn talks_to(self, socket_type: &[u8]) -> bool {
        match self {
            Self::Req => matches!(socket_type, b"ROUTER" | b"REP"),
            Self::Router => matches!(socket_type, b"REQ" | b"DEALER"),
        }
    }
}

/// Why a connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum ZmtpError {
    /// The peer's system, or the network.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer is no ZeroMQ socket of the right kind.
    #[error("{0}")]
    Peer(&'static str),
    /// A message above the bounds.
    #[error("sent a message of more than {0} frames or bytes")]
    TooLarge(usize),
    /// The peer did not do its part in time.
    #[error("did nothing in time")]
    Stalled,
}

/// The outcome of something that a peer takes part in, or `Stalled` after `deadline`.
pub(super) async fn within<T, E: From<ZmtpError>>(deadline: Duration, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    match timeout(deadline, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(ZmtpError::Stalled.into()),
    }
}

/// What is read from a peer in one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Frames.
    pub(super) frames: usize,
    /// Bytes of all of them.
    pub(super) bytes: usize,
}

/// A connection on which both sides are ready.
#[derive(Debug)]
pub(super) struct Connection(BufReader<TcpStream>);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A READY with the longest identity and some properties of an application fits.
const MAX_COMMAND: usize = 1024;
/// Parts above it are written from where they lie.
const COPIED: usize = 512;
/// Most replies are read in one go, and a connection costs no more before its peer has said who it is.
const BUFFER: usize = 2048;

const GREETING: usize = 64;
const MECHANISM: &[u8; 20] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

impl Connection {
    /// Greets. Takes as long as the peer likes: give it a deadline.
    pub(super) async fn greet(stream: TcpStream, role: Role) -> Result<Self, ZmtpError> {
        // An answer is written in pieces, none of which should wait for the acknowledgement of the one before.
        stream.set_nodelay(true)?;
        let mut connection = Self(BufReader::with_capacity(BUFFER, stream));
        connection.0.write_all(&greeting()).await?;
        let mut theirs = [0; GREETING];
        connection.0.read_exact(&mut theirs).await?;
        check_greeting(&theirs)?;
        connection.0.write_all(&ready(role)).await?;
        let (flags, command) = connection.frame(MAX_COMMAND).await?;
        if flags & COMMAND == 0 {
            return Err(ZmtpError::Peer("sent a message before its READY"));
        }
        match property(&command, b"socket-type") {
            Ok(Some(kind)) if role.talks_to(kind) => Ok(connection),
            Ok(_) => Err(ZmtpError::Peer("is no socket of the other kind (REQ and ROUTER)")),
            Err(problem) => Err(ZmtpError::Peer(problem)),
        }
    }

    /// The next message, frame by frame. Dropping the future in the midst spoils the connection.
    pub(super) async fn receive(&mut self, bounds: Bounds) -> Result<Vec<Vec<u8>>, ZmtpError> {
        let mut frames = Vec::new();
        let mut left = bounds.bytes;
        loop {
            if frames.len() >= bounds.frames {
                return Err(ZmtpError::TooLarge(bounds.frames));
            }
            // Room for a command is always left.
            let (flags, frame) = self.frame(left.max(MAX_COMMAND)).await?;
            if flags & COMMAND != 0 {
                if frame.starts_with(b"\x05ERROR") {
                    return Err(ZmtpError::Peer("answered with an error"));
                }
                continue;
            }
            left = left.checked_sub(frame.len()).ok_or(ZmtpError::TooLarge(bounds.bytes))?;
            frames.push(frame);
            if flags & MORE == 0 {
                return Ok(frames);
            }
        }
    }

    /// Sends one message of these frames. Large ones are not copied.
    pub(super) async fn send(&mut self, frames: &[&[u8]]) -> Result<(), ZmtpError> {
        let mut pending = Vec::new();
        for (index, frame) in frames.iter().enumerate() {
            let more = index.saturating_add(1) < frames.len();
            frame_head(&mut pending, if more { MORE } else { 0 }, frame.len());
            if frame.len() <= COPIED {
                pending.extend_from_slice(frame);
            } else {
                self.0.write_all(&pending).await?;
                pending.clear();
                self.0.write_all(frame).await?;
            }
        }
        self.0.write_all(&pending).await?;
        Ok(())
    }

    /// Flags and body of the next frame, of `max` bytes at most.
    async fn frame(&mut self, max: usize) -> Result<(u8, Vec<u8>), ZmtpError> {
        let flags = self.0.read_u8().await?;
        let claimed = if flags & LONG == 0 { self.0.read_u8().await?.into() } else { self.0.read_u64().await? };
        let len = usize::try_from(claimed).ok().filter(|len| *len <= max).ok_or(ZmtpError::TooLarge(max))?;
        // Grows with what comes, not with what is claimed.
        let mut body = Vec::new();
        (&mut self.0).take(claimed).read_to_end(&mut body).await?;
        if body.len() == len { Ok((flags, body)) } else { Err(ZmtpError::Io(io::ErrorKind::UnexpectedEof.into())) }
    }
}

fn greeting() -> Vec<u8> {
    let mut greeting = vec![0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0x7F, 3, 0];
    greeting.extend_from_slice(MECHANISM);
    greeting.resize(GREETING, 0);
    greeting
}

fn check_greeting(theirs: &[u8; GREETING]) -> Result<(), ZmtpError> {
    match theirs {
        [0xFF, _, _, _, _, _, _, _, _, signature, major, _, rest @ ..] if signature & 1 == 1 => {
            if *major < 3 {
                Err(ZmtpError::Peer("speaks ZMTP before 3.0, of ZeroMQ before 4.0"))
            } else if !rest.starts_with(MECHANISM) {
                Err(ZmtpError::Peer("wants a security mechanism other than NULL"))
            } else {
                Ok(())
            }
        }
        _ => Err(ZmtpError::Peer("is no ZeroMQ socket")),
    }
}

/// `READY` with our kind of socket and, as libzmq has it, an empty identity.
fn ready(role: Role) -> Vec<u8> {
    let mut body = b"\x05READY".to_vec();
    for (name, value) in [("Socket-Type", role.name()), ("Identity", "")] {
        body.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
        body.extend_from_slice(value.as_bytes());
    }
    let mut frame = Vec::new();
    frame_head(&mut frame, COMMAND, body.len());
    frame.extend_from_slice(&body);
    frame
}

fn frame_head(to: &mut Vec<u8>, flags: u8, len: usize) {
    match u8::try_from(len) {
        Ok(short) => to.extend_from_slice(&[flags, short]),
        Err(_) => {
            to.push(flags | LONG);
            to.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
}

/// The value of a property of a READY command; names are in lower case here and of any case there.
fn property<'a>(command: &'a [u8], wanted: &[u8]) -> Result<Option<&'a [u8]>, &'static str> {
    let mut rest = command.strip_prefix(b"\x05READY").ok_or("refused, or sent no READY")?;
    while let Some((len, after)) = rest.split_first() {
        let cut = "sent a READY that is cut off";
        let (name, after) = after.split_at_checked((*len).into()).ok_or(cut)?;
        let (len, after) = after.split_first_chunk::<4>().ok_or(cut)?;
        let (value, after) =
            after.split_at_checked(usize::try_from(u32::from_be_bytes(*len)).unwrap_or(usize::MAX)).ok_or(cut)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Ok(Some(value));
        }
        rest = after;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_greeting_is_the_one_of_zmtp_3() {
        let greeting: [u8; GREETING] = greeting().try_into().unwrap();
        assert_eq!(greeting[..16], *b"\xFF\0\0\0\0\0\0\0\0\x7F\x03\0NULL");
        assert!(greeting[16..].iter().all(|byte| *byte == 0));
        assert!(check_greeting(&greeting).is_ok());
    }

    #[test]
    fn other_greetings_are_told_apart() {
        let greeting: [u8; GREETING] = greeting().try_into().unwrap();
        let problem = |at: usize, byte| {
            let mut other = greeting;
            other[at] = byte;
            check_greeting(&other).unwrap_err().to_string()
        };
        assert!(problem(0, b'G').contains("no ZeroMQ"));
        assert!(problem(9, 0).contains("no ZeroMQ"));
        assert!(problem(10, 2).contains("ZMTP before"));
        assert!(problem(12, b'C').contains("mechanism"));
    }

    #[test]
    fn a_ready_tells_its_kind_of_socket() {
        let frame = ready(Role::Req);
        assert_eq!(frame, *b"\x04\x26\x05READY\x0BSocket-Type\0\0\0\x03REQ\x08Identity\0\0\0\0");
        assert_eq!(property(&frame[2..], b"socket-type"), Ok(Some(&b"REQ"[..])));
        assert_eq!(property(&frame[2..], b"other"), Ok(None));
        assert!(property(b"\x05ERROR\0", b"socket-type").is_err());
    }

    proptest! {
        #[test]
        fn no_ready_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = property(&bytes, b"socket-type");
            let _ = property(&[b"\x05READY", &bytes[..]].concat(), b"socket-type");
        }
    }
}
