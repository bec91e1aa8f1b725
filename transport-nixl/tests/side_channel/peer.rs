//! The other end of a connection, byte by byte. Nothing here waits longer than a minute: then the test fails.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    task::{Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use lease_proto::topology::Ranks;
use transport_nixl::side_channel::{
    AgentMetadata, Client, ClientConfig, Handshake, HandshakeError, Payload, Payloads, Server, ServerConfig, Target,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const RANK: Ranks = Ranks { pp: 0, tp: 0 };

/// As libzmq 4.3.5 greets: ZMTP 3.1, NULL.
pub(crate) fn greeting() -> Vec<u8> {
    let mut greeting = b"\xFF\0\0\0\0\0\0\0\x01\x7F\x03\x01NULL".to_vec();
    greeting.resize(64, 0);
    greeting
}

/// As libzmq 4.3.5 says what it is.
pub(crate) fn ready(socket_type: &str) -> Vec<u8> {
    let properties = [("Socket-Type", socket_type), ("Identity", "")];
    let mut body = b"\x05READY".to_vec();
    for (name, value) in properties {
        body.push(name.len() as u8);
        body.extend(name.as_bytes());
        body.extend((value.len() as u32).to_be_bytes());
        body.extend(value.as_bytes());
    }
    [&[4, body.len() as u8], &body[..]].concat()
}

pub(crate) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let more = u8::from(index + 1 < frames.len());
        match u8::try_from(frame.len()) {
            Ok(len) => bytes.extend([more, len]),
            Err(_) => {
                bytes.push(more | 2);
                bytes.extend((frame.len() as u64).to_be_bytes());
            }
        }
        bytes.extend(*frame);
    }
    bytes
}

/// One connection.
pub(crate) struct Peer(TcpStream);

impl Peer {
    pub(crate) fn connect(to: SocketAddr) -> Self {
        Self::of(TcpStream::connect(to).unwrap())
    }

    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    /// A REQ socket after its greeting.
    pub(crate) fn req(to: SocketAddr) -> Self {
        let mut peer = Self::connect(to);
        peer.greet("REQ");
        peer
    }

    pub(crate) fn greet(&mut self, socket_type: &str) {
        self.write(&greeting());
        assert_eq!(self.read(64)[..11], *b"\xFF\0\0\0\0\0\0\0\0\x7F\x03");
        self.write(&ready(socket_type));
        let (flags, body) = self.frame();
        assert_eq!(flags, 4);
        assert!(body.starts_with(b"\x05READY"));
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub(crate) fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn frame(&mut self) -> (u8, Vec<u8>) {
        let flags = self.read(1)[0];
        let len =
            if flags & 2 == 0 { self.read(1)[0].into() } else { u64::from_be_bytes(self.read(8).try_into().unwrap()) as usize };
        (flags, self.read(len))
    }

    pub(crate) fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.frame();
            assert_eq!(flags & 4, 0, "a command");
            frames.push(body);
            if flags & 1 == 0 {
                return frames;
            }
        }
    }

    /// Says that nothing more comes.
    pub(crate) fn finish(&self) {
        self.0.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Waits until the other side has closed. What it sent before is read over.
    pub(crate) fn closed(mut self) {
        let mut bytes = vec![0; 1 << 16];
        loop {
            match self.0.read(&mut bytes) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
                Err(error) => panic!("still open: {error}"),
            }
        }
    }
}

pub(crate) fn metadata(engine_id: &str) -> AgentMetadata {
    AgentMetadata {
        engine_id: engine_id.into(),
        agent_metadata: vec![7; 3000],
        kv_caches_base_addr: vec![1 << 40, 1 << 41],
        num_blocks: 100,
        block_lens: vec![4096; 2],
        block_strides: vec![4096; 2],
        kv_cache_layout: "LBHNC".into(),
        block_size: 16,
        attn_backend_name: "FLASH_ATTN".into(),
        ..AgentMetadata::default()
    }
}

pub(crate) fn payload(engine_id: &str, hash: &str) -> Vec<u8> {
    let agent_metadata_bytes = metadata(engine_id).encode().unwrap();
    Payload { compatibility_hash: hash.into(), agent_metadata_bytes }.encode().unwrap()
}

/// A server on a free port that has rank (0, 0) of engine `P`.
pub(crate) fn server(config: ServerConfig) -> (Server, Payloads) {
    let payloads = Payloads::new();
    payloads.publish(RANK, payload("P", "hash")).unwrap();
    (Server::bind("127.0.0.1", 0, payloads.clone(), config).unwrap(), payloads)
}

/// A holder that accepts one connection and does what `script` says with it.
pub(crate) fn holder(script: impl FnOnce(Peer) + Send + 'static) -> (u16, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (port, thread::spawn(move || script(Peer::of(listener.accept().unwrap().0))))
}

/// A holder that answers one request with these frames.
pub(crate) fn answering(frames: Vec<Vec<u8>>) -> (u16, thread::JoinHandle<()>) {
    holder(move |mut peer| {
        peer.greet("ROUTER");
        peer.receive();
        let frames: Vec<_> = frames.iter().map(|frame| &frame[..]).collect();
        peer.write(&message(&frames));
        peer.closed();
    })
}

pub(crate) fn target(port: u16) -> Target {
    Target { host: "127.0.0.1".into(), port, engine_id: "P".into(), rank: RANK }
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn waker() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

/// Waits for the next outcome.
pub(crate) fn next(client: &mut Client) -> (u64, Result<Handshake, HandshakeError>) {
    let (waker, start) = (waker(), Instant::now());
    loop {
        if let Some(outcome) = client.poll() {
            return outcome;
        }
        assert!(start.elapsed() < PATIENCE, "no outcome");
        client.register_waker(&waker);
        thread::park_timeout(PATIENCE);
    }
}

/// One handshake with a client of its own.
pub(crate) fn shake_hands(config: ClientConfig, target: Target) -> Result<Handshake, HandshakeError> {
    let mut client = Client::spawn(config).unwrap();
    client.start(1, target).unwrap();
    let (id, outcome) = next(&mut client);
    assert_eq!(id, 1);
    assert_eq!(client.poll(), None);
    assert_eq!(client.in_flight(), 0);
    outcome
}
