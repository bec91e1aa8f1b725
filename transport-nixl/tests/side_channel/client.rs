//! D's side against all kinds of peers.

use std::{
    collections::BTreeSet,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Wake, Waker},
    thread,
    time::Duration,
};

use lease_proto::{
    clock::VllmOffset,
    time::{Instant, PeerInstant},
    topology::Ranks,
    transport::{Error, ErrorKind},
};
use transport_nixl::side_channel::{
    Client, ClientConfig, Clock, CodecError, Compatibility, HandshakeError, Payload, Server, ServerConfig, StartError, Target,
    decode_request, encode_stamp,
};

use crate::peer::{
    PATIENCE, Peer, RANK, answering, greeting, holder, metadata, next, payload, server, shake_hands, target, waker,
};

/// Deadlines that are never the reason.
fn patient() -> ClientConfig {
    ClientConfig { connect_deadline: PATIENCE, receive_deadline: PATIENCE, ..ClientConfig::default() }
}

fn answer(payload: &[u8]) -> Vec<Vec<u8>> {
    vec![vec![], payload.to_vec(), encode_stamp(100.0)]
}

fn error(config: ClientConfig, (port, holder): (u16, thread::JoinHandle<()>)) -> HandshakeError {
    let error = shake_hands(config, target(port)).unwrap_err();
    holder.join().unwrap();
    error
}

#[test]
fn our_client_and_our_server_shake_hands() {
    let (server, _payloads) = server(ServerConfig { clock: Clock::new(|| 77.5), ..ServerConfig::default() });
    let clock = Clock::new({
        let now = std::sync::atomic::AtomicU64::new(1000);
        move || Instant::from_nanos(now.fetch_add(500, std::sync::atomic::Ordering::Relaxed))
    });
    let handshake = shake_hands(ClientConfig { clock, ..patient() }, target(server.address().port())).unwrap();
    assert_eq!(handshake.metadata, metadata("P"));
    assert_eq!(handshake.compatibility_hash, "hash");
    assert_eq!((handshake.offset.sent, handshake.offset.received), (Instant::from_nanos(1000), Instant::from_nanos(1500)));
    assert_eq!(handshake.offset.stamped, PeerInstant::from_nanos(77_500_000_000));
    let mut offset = VllmOffset::new();
    handshake.offset.add_to(&mut offset);
    assert_eq!(offset.nanos(), Some(77_500_000_000 - 1250));
}

/// What a ROUTER socket of libzmq 4.3.5 said, as it was recorded; it waits for the greeting's first half before it sends more.
#[test]
fn a_router_socket_of_libzmq_is_understood() {
    let wanted = Ranks { pp: 2, tp: 5 };
    let (port, holder) = holder(move |mut peer| {
        peer.write(b"\xFF\0\0\0\0\0\0\0\x01\x7F");
        peer.read(64);
        peer.write(&greeting()[10..]);
        assert_eq!(peer.frame(), (4, b"\x05READY\x0BSocket-Type\0\0\0\x03REQ\x08Identity\0\0\0\0".to_vec()));
        peer.write(b"\x04\x29\x05READY\x0BSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0");
        let request = peer.receive();
        assert_eq!((request.len(), &request[0][..]), (2, &b""[..]));
        assert_eq!(decode_request(&request[1]), Ok(wanted));
        let payload = payload("P", "hash");
        peer.write(b"\x01\0\x03");
        peer.write(&(payload.len() as u64).to_be_bytes());
        // In pieces, as a network may bring it.
        for piece in payload.chunks(700) {
            peer.write(piece);
        }
        peer.write(b"\0\x09\xCB\x3F\xF8\0\0\0\0\0\0");
        peer.closed();
    });
    let handshake = shake_hands(patient(), Target { rank: wanted, ..target(port) }).unwrap();
    assert_eq!(handshake.metadata, metadata("P"));
    assert_eq!(handshake.offset.stamped, PeerInstant::from_nanos(1_500_000_000));
    assert!(handshake.offset.sent <= handshake.offset.received);
    holder.join().unwrap();
}

#[test]
fn a_peer_that_is_not_there_is_told() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = shake_hands(patient(), target(free)).unwrap_err();
    assert!(matches!(error, HandshakeError::Connect { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    let nameless = Target { host: "no such host".into(), ..target(1) };
    let error = shake_hands(patient(), nameless).unwrap_err();
    assert!(matches!(error, HandshakeError::Resolve { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::NotConnected);
}

#[test]
fn a_silent_peer_is_given_up() {
    let soon = Duration::from_millis(40);
    let accepts_only = error(ClientConfig { connect_deadline: soon, ..patient() }, holder(Peer::closed));
    let greets_only = error(
        ClientConfig { receive_deadline: soon, ..patient() },
        holder(|mut peer| {
            peer.greet("ROUTER");
            peer.closed();
        }),
    );
    for error in [accepts_only, greets_only] {
        assert_eq!(error, HandshakeError::Silent);
        assert_eq!(error.kind(), ErrorKind::PeerLost);
    }
}

#[test]
fn a_peer_that_closes_is_told_at_once() {
    for greet in [false, true] {
        let error = error(
            patient(),
            holder(move |mut peer| {
                if greet {
                    peer.greet("ROUTER");
                    peer.receive();
                }
            }),
        );
        assert!(matches!(error, HandshakeError::Closed { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::PeerLost);
    }
}

#[test]
fn something_else_on_the_port_is_told() {
    let http = holder(|mut peer| {
        peer.read(64);
        peer.write(format!("{:200}", "HTTP/1.1 400 Bad Request\r\n").as_bytes());
        peer.closed();
    });
    let publisher = holder(|mut peer| {
        peer.greet("PUB");
        peer.closed();
    });
    for peer in [http, publisher] {
        let error = error(patient(), peer);
        assert!(matches!(error, HandshakeError::NotZeroMq { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

#[test]
fn answers_of_other_frames_or_sizes_are_refused() {
    let stamp = encode_stamp(1.0);
    for frames in [vec![vec![]], vec![vec![], payload("P", "hash")], vec![vec![1], payload("P", "hash"), stamp.clone()]] {
        let got = frames.len();
        assert_eq!(error(patient(), answering(frames)), HandshakeError::Frames { got });
    }
    let one_more = vec![vec![], payload("P", "hash"), stamp.clone(), vec![]];
    assert!(matches!(error(patient(), answering(one_more)), HandshakeError::TooLarge { max: 3 }));
    let small = ClientConfig { max_payload: 2000, ..patient() };
    assert!(matches!(error(small, answering(answer(&payload("P", "hash")))), HandshakeError::TooLarge { .. }));
    let claims = holder(|mut peer| {
        peer.greet("ROUTER");
        peer.receive();
        peer.write(b"\x01\0\x03\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF");
        peer.closed();
    });
    assert!(matches!(error(patient(), claims), HandshakeError::TooLarge { .. }));
}

#[test]
fn garbage_is_told_by_key() {
    let key = |payload: &[u8]| match error(patient(), answering(answer(payload))) {
        HandshakeError::Codec(CodecError::Type { key, .. } | CodecError::Missing { key } | CodecError::Truncated { key }) => key,
        other => panic!("{other}"),
    };
    assert_eq!(key(b"not msgpack"), "payload");
    assert_eq!(key(b""), "payload");
    assert_eq!(key(b"\x80"), "compatibility_hash");
    let broken = Payload { compatibility_hash: "hash".into(), agent_metadata_bytes: b"\x81\xA9engine_id\x01".to_vec() };
    assert_eq!(key(&broken.encode().unwrap()), "engine_id");
    let no_stamp = vec![vec![], payload("P", "hash"), b"\x01".to_vec()];
    assert!(matches!(error(patient(), answering(no_stamp)), HandshakeError::Codec(CodecError::Type { key: "ts", .. })));
}

#[test]
fn checks_come_in_vllms_order() {
    let expecting = || ClientConfig { compatibility: Compatibility::Expected("hash".into()), ..patient() };
    // The hash before the metadata, which a peer of another version may write in another way.
    let broken = |hash: &str| Payload { compatibility_hash: hash.into(), agent_metadata_bytes: vec![0xC1] }.encode().unwrap();
    let other_hash = error(expecting(), answering(answer(&broken("other"))));
    assert_eq!(other_hash, HandshakeError::Incompatible { ours: "hash".into(), theirs: "other".into() });
    assert_eq!(other_hash.kind(), ErrorKind::Rejected);
    assert!(matches!(error(expecting(), answering(answer(&broken("hash")))), HandshakeError::Codec(_)));
    // Sizes before the engine's name.
    let mut uneven = metadata("Q").encode().unwrap();
    let at = uneven.windows(11).position(|window| window == b"\xAAblock_lens").unwrap() + 11;
    uneven.splice(at..at + 7, *b"\x91\x01");
    let uneven = Payload { compatibility_hash: "hash".into(), agent_metadata_bytes: uneven }.encode().unwrap();
    assert!(matches!(
        error(expecting(), answering(answer(&uneven))),
        HandshakeError::Codec(CodecError::Lengths { key: "block_lens", .. })
    ));
    let other_engine = error(expecting(), answering(answer(&payload("Q", "hash"))));
    assert_eq!(other_engine, HandshakeError::OtherEngine { expected: "P".into(), got: "Q".into() });
    assert_eq!(other_engine.kind(), ErrorKind::Rejected);
}

#[test]
fn another_hash_is_taken_where_it_is_not_enforced() {
    for compatibility in
        [Compatibility::Learn, Compatibility::NotEnforced("ours".into()), Compatibility::Expected("theirs".into())]
    {
        let (port, holder) = answering(answer(&payload("P", "theirs")));
        let handshake = shake_hands(ClientConfig { compatibility, ..patient() }, target(port)).unwrap();
        assert_eq!(handshake.compatibility_hash, "theirs");
        holder.join().unwrap();
    }
}

/// The one that hangs is still in flight when all others are done.
#[test]
fn one_dead_peer_among_a_hundred_delays_none() {
    let (server, _payloads) = server(ServerConfig::default());
    let dead = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Client::spawn(patient()).unwrap();
    for id in 0..100 {
        let port = if id == 42 { dead.local_addr().unwrap().port() } else { server.address().port() };
        client.start(id, target(port)).unwrap();
    }
    let mut done = BTreeSet::new();
    for _ in 0..99 {
        let (id, outcome) = next(&mut client);
        assert!(outcome.is_ok(), "{id}: {outcome:?}");
        assert!(done.insert(id), "{id} twice");
    }
    assert!(!done.contains(&42));
    assert_eq!(client.in_flight(), 1);
    assert!(client.cancel(42));
}

#[test]
fn a_cancelled_handshake_is_closed_and_never_reported() {
    let (asked, was_asked) = std::sync::mpsc::channel();
    let (port, holder) = holder(move |mut peer| {
        peer.greet("ROUTER");
        peer.receive();
        asked.send(()).unwrap();
        peer.closed();
    });
    let mut client = Client::spawn(ClientConfig { in_flight: 2, ..patient() }).unwrap();
    client.start(7, target(port)).unwrap();
    was_asked.recv().unwrap();
    assert!(client.cancel(7));
    assert!(!client.cancel(7));
    assert_eq!(client.in_flight(), 0);
    holder.join().unwrap();
    // The id is free at once, and what comes under it is the second handshake's.
    let (server, _payloads) = server(ServerConfig::default());
    client.start(7, target(server.address().port())).unwrap();
    let (id, outcome) = next(&mut client);
    assert_eq!((id, outcome.unwrap().metadata), (7, metadata("P")));
    assert_eq!(client.poll(), None);
}

/// Arming after the outcome came must not lose it.
#[test]
fn a_waker_is_called_at_once_for_what_is_there_already() {
    struct Called(AtomicBool);
    impl Wake for Called {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Relaxed);
        }
    }
    let (server, _payloads) = server(ServerConfig::default());
    let mut client = Client::spawn(patient()).unwrap();
    client.start(1, target(server.address().port())).unwrap();
    let first = Arc::new(Called(AtomicBool::new(false)));
    client.register_waker(&Waker::from(Arc::clone(&first)));
    let start = std::time::Instant::now();
    while !first.0.load(Relaxed) {
        assert!(start.elapsed() < PATIENCE, "not woken");
        thread::yield_now();
    }
    let second = Arc::new(Called(AtomicBool::new(false)));
    client.register_waker(&Waker::from(Arc::clone(&second)));
    assert!(second.0.load(Relaxed));
    assert!(client.poll().is_some_and(|(id, outcome)| id == 1 && outcome.is_ok()));
}

#[test]
fn one_that_is_done_can_still_be_cancelled() {
    let (server, _payloads) = server(ServerConfig::default());
    let mut client = Client::spawn(patient()).unwrap();
    client.start(1, target(server.address().port())).unwrap();
    client.register_waker(&waker());
    thread::park_timeout(PATIENCE);
    assert!(client.cancel(1));
    assert_eq!(client.poll(), None);
}

#[test]
fn what_is_in_flight_is_bounded() {
    let dead = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = dead.local_addr().unwrap().port();
    let mut client = Client::spawn(ClientConfig { in_flight: 2, ..patient() }).unwrap();
    client.start(1, target(port)).unwrap();
    assert_eq!(client.start(1, target(port)), Err(StartError::InUse { id: 1 }));
    client.start(2, target(port)).unwrap();
    let full = client.start(3, target(port)).unwrap_err();
    assert_eq!(full, StartError::WouldBlock { in_flight: 2 });
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    // The place of a cancelled one is free once its end was polled.
    assert!(client.cancel(1));
    let waker = waker();
    while client.start(3, target(port)).is_err() {
        client.register_waker(&waker);
        thread::park_timeout(PATIENCE);
        assert_eq!(client.poll(), None);
    }
    assert_eq!(client.in_flight(), 2);
}

#[test]
fn targets_that_cannot_be_are_refused() {
    let mut client = Client::spawn(patient()).unwrap();
    for wrong in [Target { host: String::new(), ..target(1) }, Target { host: "h".repeat(256), ..target(1) }, target(0)] {
        let error = client.start(1, wrong).unwrap_err();
        assert!(matches!(error, StartError::Target { .. }));
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    assert_eq!(client.in_flight(), 0);
}

#[test]
fn dropping_it_closes_everything() {
    let (port, holder) = holder(Peer::closed);
    let mut client = Client::spawn(patient()).unwrap();
    client.start(1, target(port)).unwrap();
    drop(client);
    // Cancelled before it connected, or closed after.
    let _ = std::net::TcpStream::connect(("127.0.0.1", port));
    holder.join().unwrap();
}

#[test]
fn hosts_are_names_or_addresses() {
    for (bind, host) in [("127.0.0.1", "localhost"), ("::1", "[::1]"), ("::1", "::1")] {
        let payloads = transport_nixl::side_channel::Payloads::new();
        payloads.publish(RANK, payload("P", "hash")).unwrap();
        // Not every machine has IPv6.
        let Ok(server) = Server::bind(bind, 0, payloads, ServerConfig::default()) else { continue };
        let target = Target { host: host.into(), ..target(server.address().port()) };
        assert!(shake_hands(patient(), target).is_ok(), "{host}");
    }
}
