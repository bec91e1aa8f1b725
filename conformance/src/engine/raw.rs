//! Commands that use the transport without the protocol, for the cases about the transport alone.

use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Control, Error as _, ErrorKind, Incoming, PeerId},
};
use serde_json::{Value, json};

use super::{Engine, EngineError, Filling, hex, transport_error, unhex};

/// Turns of the transport that a command may take before it gives up. The transport moves in each, or waits in `flush`.
const PATIENCE: usize = 200_000;

impl<T: Control> Engine<T> {
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

    pub(super) fn raw_notify_many(&mut self, peer: u64, count: u32) -> Result<Value, EngineError> {
        for number in 0..count {
            let mut left = PATIENCE;
            while let Err(error) = self.transport.notify(PeerId(peer), &number.to_le_bytes()) {
                if error.kind() != ErrorKind::WouldBlock || left == 0 {
                    return Ok(json!({"result": error.kind().name(), "sent": number}));
                }
                left -= 1;
                self.transport.flush(super::FLUSH).map_err(transport_error)?;
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
