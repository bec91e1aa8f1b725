//! Connections and notifications.

use std::time::Instant;

use lease_proto::{
    frame::Frame,
    time::Duration,
    transport::{Capabilities, Control, ErrorKind, Incoming, PeerId, Ticket},
};

use crate::{
    UcxError, UcxTransport,
    metadata::Address,
    peers::{Peer, State},
    reads::Lane,
    sys::{Endpoint, Status},
    transport::Arrival,
    wait::CALLS_PER_LOOK,
};

impl Control for UcxTransport {
    type Error = UcxError;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_metadata(&self) -> &[u8] {
        &self.metadata
    }

    fn connect(&mut self, metadata: Frame<'_>) -> Result<Ticket, UcxError> {
        let address = Address::decode(metadata)?;
        let full = UcxError::TooManyPeers { max: self.config.max_peers };
        // Attempts that failed count until the caller has heard of it.
        let failed = self.inbox.iter().filter(|arrival| matches!(arrival, Arrival::ConnectFailed(..))).count();
        if failed >= self.config.max_peers {
            return Err(full);
        }
        let worker = &self.worker;
        let opened = self.peers.insert(|key| {
            let nonce = worker.secret();
            let endpoint = Endpoint::create(worker, address, key)?;
            endpoint.ping(nonce)?;
            let (state, incarnation) = (State::Connecting { nonce }, address.incarnation());
            Ok(Peer { endpoint, state, incarnation, lane: Lane::default() })
        });
        let (key, result) = opened.ok_or(full)?;
        if let Err(status) = result {
            let status: Status = status;
            tracing::debug!(ticket = key, status = status.text(), "connection failed");
            self.inbox.push_back(Arrival::ConnectFailed(key, status.kind()));
        }
        Ok(Ticket(key))
    }

    fn cancel(&mut self, Ticket(ticket): Ticket) {
        if self.peers.get(ticket).is_some_and(|peer| matches!(peer.state, State::Connecting { .. })) {
            self.peers.remove(ticket);
        } else if self
            .forget(|arrival| matches!(arrival, Arrival::Connected(key) | Arrival::ConnectFailed(key, _) if *key == ticket))
        {
            self.disconnect(PeerId(ticket));
        }
    }

    fn notify(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), UcxError> {
        let max = self.config.max_notification;
        if bytes.len() > max {
            return Err(UcxError::TooLarge { got: bytes.len(), max });
        }
        let endpoint = &self.connected(peer).ok_or(UcxError::NotConnected)?.endpoint;
        self.config.admit(endpoint.in_flight(), bytes.len())?;
        endpoint.notify(bytes).map_err(|status| {
            if status.kind() == ErrorKind::BackendFailed {
                return UcxError::Backend { call: "ucp_am_send_nbx", status: status.text() };
            }
            self.failed(peer.0, status);
            UcxError::PeerLost { status: status.text() }
        })
    }

    fn poll(&mut self) -> Result<Option<Incoming<'_>>, UcxError> {
        // What is here is handed over before more is taken: the bound of the inbox, and the peers are held back.
        if self.inbox.is_empty() {
            self.progress();
            if self.inbox.is_empty() {
                return Ok(None);
            }
        }
        Ok(self.next_arrival())
    }

    fn flush(&mut self, budget: Duration) -> Result<(), UcxError> {
        let (started, budget) = (Instant::now(), budget.into());
        // As soon as nothing moves, only a peer could help.
        while self.worker.outstanding() > 0 && !self.inbox_is_full() && self.progress() && started.elapsed() < budget {}
        // Also where nothing may be taken in.
        self.tend();
        Ok(())
    }

    fn in_flight(&self, peer: PeerId) -> usize {
        self.connected(peer).map_or(0, |peer| peer.endpoint.in_flight().0)
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.forget(|arrival| matches!(arrival, Arrival::Lost(key) if *key == peer.0));
        if self.connected(peer).is_some() {
            self.close(peer.0);
        }
    }

    /// # Errors
    /// Always `Unsupported`: UCX wakes by a file descriptor. See [`UcxTransport::arm`] and [`UcxTransport::wait`].
    fn register_waker(&mut self, _waker: &std::task::Waker) -> Result<(), UcxError> {
        Err(UcxError::Waker)
    }

    fn next_timeout(&self) -> Option<Duration> {
        let arrived = (!self.inbox.is_empty()).then_some(Duration::ZERO);
        let keepalive = (!self.peers.is_empty()).then(|| self.config.keepalive.scale(1, CALLS_PER_LOOK));
        arrived.into_iter().chain(keepalive).chain([self.own_work()]).min()
    }
}

impl UcxTransport {
    fn next_arrival(&mut self) -> Option<Incoming<'_>> {
        Some(match self.inbox.pop_front()? {
            Arrival::Message(bytes) => {
                self.inbox_messages -= 1;
                self.inbox_bytes -= bytes.len();
                self.worker.recycle(std::mem::replace(&mut self.current, bytes));
                // UCX can tell the endpoint to answer on only from a number that the sender writes, so it does not count.
                Incoming::Notification { from: None, bytes: &self.current }
            }
            Arrival::Connected(key) => Incoming::Connected { ticket: Ticket(key), peer: PeerId(key) },
            Arrival::ConnectFailed(key, kind) => Incoming::ConnectFailed { ticket: Ticket(key), kind },
            Arrival::Lost(key) => Incoming::PeerLost { peer: PeerId(key) },
            Arrival::Read(read, result) => Incoming::ReadDone { read, result },
        })
    }
}
