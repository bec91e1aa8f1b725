//! Commands that use the transport without the protocol, for the cases about the transport alone.

mod memory;

pub(super) use memory::Regions;

use gpu_mem::Memory;
use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Data, DeadPeer, Error, ErrorKind, Incoming, Landed, PeerId, Reads, Ticket},
};
use serde_json::{Value, json};

use super::{Command, Engine, EngineError, Filling, hex, numbered, rank::FLUSH, transport_error, unhex};

/// How long a message may be refused because too many are in flight: an end to hanging, by the machine's own clock.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
/// Flushes after which a message that is still refused is held back by its receiver.
const FLUSHES: usize = 1000;

impl<T: Data<Memory = Memory>> Engine<T> {
    /// Commands that are not the protocol's.
    pub(super) fn raw_command(&mut self, command: Command) -> Result<Value, EngineError> {
        match command {
            Command::Metadata => Ok(self.raw_metadata()),
            Command::Connect { metadata } => self.raw_connect(&metadata),
            Command::Cancel { ticket } => {
                self.rank.transport.cancel(Ticket(ticket));
                Ok(json!({}))
            }
            Command::Disconnect { peer } => {
                self.rank.transport.disconnect(PeerId(peer));
                Ok(json!({}))
            }
            Command::Notify { peer, filling } => self.raw_notify(peer, &filling),
            Command::NotifyMany { peer, count, lengths } => self.raw_notify_many(peer, count, &lengths),
            Command::NotifyUntilHeld { peer, length, most } => self.raw_notify_until_held(peer, length, most),
            other => self.raw_memory(other),
        }
    }

    /// How to connect here, and what the transport states about itself.
    fn raw_metadata(&self) -> Value {
        let states = self.rank.transport.capabilities();
        let dead_peer = match states.dead_peer {
            DeadPeer::Never => "never".to_owned(),
            DeadPeer::Within(time) => time.to_string(),
        };
        let reads = match states.reads {
            Reads::None => "none",
            Reads::OneSided => "one_sided",
            Reads::OwnerServed => "served",
        };
        json!({
            "metadata": hex(&self.rank.frame),
            "max": states.max_notification,
            "ordered": states.ordered,
            "dead_peer": dead_peer,
            "reads": reads,
            "fence": states.fence,
            "cuda": states.cuda,
            "answered": states.answered,
            "holds_back": states.holds_back,
            "reads_need_owner": states.reads_need_owner,
            "late_read_is_safe": states.late_read_is_safe,
        })
    }

    fn raw_connect(&mut self, metadata: &str) -> Result<Value, EngineError> {
        let bytes = unhex(metadata).ok_or_else(|| EngineError::Invalid("expected hex".into()))?;
        let frame = match Frame::decode(&bytes) {
            Ok(frame) => frame,
            Err(error) => return Ok(json!({"result": "invalid", "detail": error.to_string()})),
        };
        match self.rank.transport.connect(frame) {
            Ok(ticket) => Ok(json!({"result": "ok", "ticket": ticket.0})),
            Err(error) => Ok(refused(&error)),
        }
    }

    fn raw_notify(&mut self, peer: u64, filling: &Filling) -> Result<Value, EngineError> {
        let bytes = match filling {
            Filling::Hex(text) => unhex(text).ok_or_else(|| EngineError::Invalid("expected hex".into()))?,
            Filling::Counting(length) => (0..*length).map(|at| at as u8).collect(),
        };
        let result = self.rank.transport.notify(PeerId(peer), &bytes).map_err(|error| error.kind().name());
        self.rank.transport.flush(FLUSH).map_err(transport_error)?;
        Ok(json!({"result": result.err().unwrap_or("ok")}))
    }

    fn raw_notify_many(&mut self, peer: u64, count: u32, lengths: &[usize]) -> Result<Value, EngineError> {
        for (number, length) in (0..count).zip(lengths.iter().cycle()) {
            let (bytes, start) = (numbered(number, *length), std::time::Instant::now());
            while let Err(error) = self.rank.transport.notify(PeerId(peer), &bytes) {
                if error.kind() != ErrorKind::WouldBlock || start.elapsed() > PATIENCE {
                    return Ok(json!({"result": error.kind().name(), "sent": number}));
                }
                self.rank.transport.flush(FLUSH).map_err(transport_error)?;
                std::thread::yield_now(); // to who takes them in
            }
        }
        self.rank.transport.flush(FLUSH).map_err(transport_error)?;
        Ok(json!({"result": "ok", "sent": count}))
    }

    fn raw_notify_until_held(&mut self, peer: u64, length: usize, most: usize) -> Result<Value, EngineError> {
        let (mut sent, mut flushes) = (0, 0);
        let result = loop {
            match self.rank.transport.notify(PeerId(peer), &numbered(sent, length)) {
                Ok(()) if (sent as usize + 1) * length > most => break "ok",
                Ok(()) => (sent, flushes) = (sent + 1, 0),
                Err(error) if error.kind() == ErrorKind::WouldBlock && flushes < FLUSHES => flushes += 1,
                Err(error) => break error.kind().name(),
            }
            self.rank.transport.flush(FLUSH).map_err(transport_error)?;
        };
        Ok(json!({"result": result, "sent": sent}))
    }

    /// Tells what comes in, as it is.
    pub(super) fn raw_turn(&mut self) -> Result<Option<Duration>, EngineError> {
        loop {
            let (event, more) = match self.rank.transport.poll().map_err(transport_error)? {
                None => break,
                Some(Incoming::Notification { bytes, .. }) => ("received", json!({"length": bytes.len(), "hex": hex(bytes)})),
                Some(Incoming::Connected { ticket, peer }) => ("linked", json!({"ticket": ticket.0, "peer": peer.0})),
                Some(Incoming::ConnectFailed { ticket, kind }) => {
                    ("link_failed", json!({"ticket": ticket.0, "kind": kind.name()}))
                }
                Some(Incoming::PeerLost { peer }) => ("link_lost", json!({"peer": peer.0})),
                Some(Incoming::ReadDone { read, result }) => ("landed", json!({"read": read.0, "result": landed(result)})),
                Some(_) => continue,
            };
            self.rank.tell(event, more);
        }
        self.rank.transport.flush(FLUSH).map_err(transport_error)?;
        Ok(self.rank.transport.next_timeout())
    }
}

fn landed(result: Result<Landed, ErrorKind>) -> &'static str {
    match result {
        Ok(Landed::OneSided) => "one_sided",
        Ok(Landed::Served) => "served",
        Ok(Landed::Fenced) => "fenced",
        Err(kind) => kind.name(),
    }
}

fn refused(error: &impl Error) -> Value {
    json!({"result": error.kind().name(), "detail": error.to_string()})
}
