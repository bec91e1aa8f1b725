//! Connections and notifications.

use std::{sync::Arc, task::Waker, time::Instant};

use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Capabilities, Control, ErrorKind, Incoming, PeerId, Ticket},
};

use crate::{NixlError, NixlTransport, metadata::Address, peers::Attempt, transport::Arrival};

impl Control for NixlTransport {
    type Error = NixlError;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_metadata(&self) -> &[u8] {
        &self.metadata
    }

    fn connect(&mut self, metadata: Frame<'_>) -> Result<Ticket, NixlError> {
        #[cfg(feature = "side-channel")]
        if let Some(ticket) = self.ask(metadata)? {
            return Ok(ticket);
        }
        let address = Address::decode(metadata)?;
        if address.backend != self.config.backend.name() {
            return Err(NixlError::OtherBackend {
                theirs: address.backend.to_owned(),
                ours: self.config.backend.name().to_owned(),
            });
        }
        let agent = Arc::from(address.agent()?);
        self.admit()?;
        let number = self.peers.number();
        let attempt = Attempt {
            agent,
            incarnation: metadata.incarnation(),
            metadata: Arc::from(address.metadata),
            #[cfg(feature = "side-channel")]
            answer: None,
        };
        self.peers.attempts.insert(number, attempt);
        self.last = Instant::now();
        Ok(Ticket(number))
    }

    fn cancel(&mut self, ticket: Ticket) {
        #[cfg(feature = "side-channel")]
        if self.ask_no_more(ticket) {
            return;
        }
        if let Some(attempt) = self.peers.attempts.remove(&ticket.0) {
            self.peers.idle.push(attempt.agent);
            return;
        }
        // It has succeeded or failed, and was not polled yet.
        let at = self.inbox.iter().position(|arrival| match arrival {
            Arrival::Connected(number, _) | Arrival::ConnectFailed(number, _) => *number == ticket.0,
            _ => false,
        });
        if let Some(Arrival::Connected(_, peer)) = at.and_then(|at| self.inbox.remove(at)) {
            self.disconnect(PeerId(peer));
        }
    }

    fn notify(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), NixlError> {
        if bytes.len() > self.config.max_notification {
            return Err(NixlError::TooLarge { got: bytes.len(), max: self.config.max_notification });
        }
        let known = self.peers.peers.get_mut(&peer.0).ok_or(NixlError::NotConnected)?;
        let Some(agent) = self.desk.agent().filter(|_| known.queued.is_empty()) else {
            let (count, queued) = (known.queued.len(), known.queued_bytes);
            let more = queued.saturating_add(bytes.len());
            if count > 0 && (count >= self.config.max_queued || more > self.config.max_queued_bytes) {
                return Err(NixlError::Queued { count, bytes: queued });
            }
            known.queued.push_back(bytes.to_vec());
            known.queued_bytes = more;
            self.peers.waiting.insert(peer.0);
            return Ok(());
        };
        self.sent = true;
        if agent.notify(&known.agent, bytes).is_ok() {
            return Ok(());
        }
        // All errors of one agent stay until it was forgotten: that it died, or that the engine has made it forgotten.
        let agent = Arc::clone(&known.agent);
        self.lose(&agent);
        Err(NixlError::PeerLost)
    }

    fn poll(&mut self) -> Result<Option<Incoming<'_>>, NixlError> {
        if self.inbox.is_empty() {
            self.turn()?;
        }
        Ok(self.inbox.pop_front().map(|arrival| match arrival {
            Arrival::Message(bytes) => {
                self.messages = self.messages.saturating_sub(1);
                self.current = bytes;
                // The name that the sender gave itself proves nothing.
                Incoming::Notification { from: None, bytes: &self.current }
            }
            Arrival::Connected(ticket, peer) => Incoming::Connected { ticket: Ticket(ticket), peer: PeerId(peer) },
            Arrival::ConnectFailed(ticket, kind) => Incoming::ConnectFailed { ticket: Ticket(ticket), kind },
            Arrival::Lost(peer) => Incoming::PeerLost { peer: PeerId(peer) },
            Arrival::Read(read, result) => Incoming::ReadDone { read, result },
        }))
    }

    fn flush(&mut self, _budget: Duration) -> Result<(), NixlError> {
        // NIXL sends as it is asked to, or as it moves; it does not tell what has left.
        if let Some(done) = self.desk.come_back()? {
            self.done(done);
        }
        self.send_queued();
        self.take_in()
    }

    fn in_flight(&self, peer: PeerId) -> usize {
        self.peers.peers.get(&peer.0).map_or(0, |peer| peer.queued.len())
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.inbox.retain(|arrival| !matches!(arrival, Arrival::Lost(lost) if *lost == peer.0));
        if !self.peers.remove(peer.0) {
            return;
        }
        let mut told = Vec::new();
        self.reads.fail(|of| of == peer.0, ErrorKind::NotConnected, &mut told);
        self.hear(told);
    }

    fn register_waker(&mut self, _waker: &Waker) -> Result<(), NixlError> {
        Err(NixlError::Waker)
    }

    fn next_timeout(&self) -> Option<Duration> {
        if self.inbox.is_empty() { Some(Duration::from_nanos(self.soon().as_nanos() as u64)) } else { Some(Duration::ZERO) }
    }
}
