//! Commands that use the transport without the protocol, for the cases about the transport alone.

use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Control, DeadPeer, Error as _, ErrorKind, Incoming, PeerId},
};
use serde_json::{Value, json};

use super::{Engine, EngineError, Filling, hex, numbered, transport_error, unhex};

/// How long a message may be refused because too many are in flight: an end to hanging, by the machine's own clock.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

impl<T: Control> Engine<T> {
    /// How to connect here, and what the transport states about itself.
    pub(super) fn raw_metadata(&self) -> Value {
        let states = self.transport.capabilities();
        let dead_peer = match states.dead_peer {
            DeadPeer::Never => "never".to_owned(),
            DeadPeer::Within(time) => time.to_string(),
        };
        json!({
            "metadata": hex(&self.frame),
            "max": states.max_notification,
            "ordered": states.ordered,
            "dead_peer": dead_peer,
        })
    }

    pub(super) fn raw_connect(&mut self, metadata: &str) -> Result<Value, EngineError> {
        let bytes = unhex(metadata).ok_or_else(|| EngineError::Invalid("expected hex".into()))?;
        let frame = match Frame::decode(&bytes) {
            Ok(frame) => frame,
            Err(error) => return Ok(json!({"result": "invalid", "detail": error.to_string()})),
        };
        match self.transport.connect(frame) {
            Ok(ticket) => Ok(json!({"result": "ok", "ticket": ticket.0})),
            Err(error) => Ok(json!({"result": error.kind().name(), "detail": error.to_string()})),
        }
    }

    pub(super) fn raw_notify(&mut self, peer: u64, filling: &Filling) -> Result<Value, EngineError> {
        let bytes = match filling {
            Filling::Hex(text) => unhex(text).ok_or_else(|| EngineError::Invalid("expected hex".into()))?,
            Filling::Counting(length) => (0..*length).map(|at| at as u8).collect(),
        };
        let result = self.transport.notify(PeerId(peer), &bytes).map_err(|error| error.kind().name());
        self.transport.flush(super::FLUSH).map_err(transport_error)?;
        Ok(json!({"result": result.err().unwrap_or("ok")}))
    }

    pub(super) fn raw_notify_many(&mut self, peer: u64, count: u32, lengths: &[usize]) -> Result<Value, EngineError> {
        for (number, length) in (0..count).zip(lengths.iter().cycle()) {
            let (bytes, start) = (numbered(number, *length), std::time::Instant::now());
            while let Err(error) = self.transport.notify(PeerId(peer), &bytes) {
                if error.kind() != ErrorKind::WouldBlock || start.elapsed() > PATIENCE {
                    return Ok(json!({"result": error.kind().name(), "sent": number}));
                }
                self.transport.flush(super::FLUSH).map_err(transport_error)?;
                std::thread::yield_now(); // to who takes them in
            }
        }
        self.transport.flush(super::FLUSH).map_err(transport_error)?;
        Ok(json!({"result": "ok", "sent": count}))
    }

    /// Tells what comes in, as it is.
    pub(super) fn raw_turn(&mut self) -> Result<Option<Duration>, EngineError> {
        loop {
            let (event, more) = match self.transport.poll().map_err(transport_error)? {
                None => break,
                Some(Incoming::Notification { bytes, .. }) => ("received", json!({"length": bytes.len(), "hex": hex(bytes)})),
                Some(Incoming::Connected { ticket, peer }) => ("linked", json!({"ticket": ticket.0, "peer": peer.0})),
                Some(Incoming::ConnectFailed { ticket, kind }) => {
                    ("link_failed", json!({"ticket": ticket.0, "kind": kind.name()}))
                }
                Some(Incoming::PeerLost { peer }) => ("link_lost", json!({"peer": peer.0})),
                Some(_) => continue,
            };
            self.tell(event, more);
        }
        self.transport.flush(super::FLUSH).map_err(transport_error)?;
        Ok(self.transport.next_timeout())
    }
}
