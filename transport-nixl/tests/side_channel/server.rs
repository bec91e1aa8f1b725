//! P's side against all kinds of peers.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lease_proto::topology::Ranks;
use transport_nixl::side_channel::{
    Clock, Count, Counters, Payloads, Server, ServerConfig, decode_stamp, encode_request, encode_stamp, perf_counter, serve,
};

use crate::peer::{PATIENCE, Peer, RANK, greeting, message, payload, ready, server};

fn ask(peer: &mut Peer, rank: Ranks) {
    peer.write(&message(&[b"", &encode_request(rank)]));
}

/// Asks for (0, 0) and checks the answer.
fn is_answered(peer: &mut Peer) {
    ask(peer, RANK);
    let frames = peer.receive();
    assert_eq!(frames[..2], [vec![], payload("P", "hash")]);
    assert_eq!(frames.len(), 3);
}

fn serves(server: &Server) {
    is_answered(&mut Peer::req(server.address()));
}

/// Waits until that many were counted: what a peer sees, it sees before.
fn counts(server: &Server, kind: Count, at_least: u64) {
    let start = Instant::now();
    while server.counters().get(kind) < at_least {
        assert!(start.elapsed() < PATIENCE, "{kind:?} is {}, not {at_least}", server.counters().get(kind));
        thread::yield_now();
    }
}

/// What a REQ socket of libzmq 4.3.5 sent for vLLM's request, as it was recorded.
#[test]
fn a_req_socket_of_libzmq_is_answered() {
    let (server, _payloads) = server(ServerConfig::default());
    let mut peer = Peer::connect(server.address());
    peer.write(b"\xFF\0\0\0\0\0\0\0\x01\x7F");
    peer.read(64);
    peer.write(&greeting()[10..]);
    let ready = peer.frame();
    assert_eq!(ready, (4, b"\x05READY\x0BSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0".to_vec()));
    peer.write(b"\x04\x26\x05READY\x0BSocket-Type\0\0\0\x03REQ\x08Identity\0\0\0\0");
    let before = perf_counter();
    peer.write(b"\x01\0\0\x11\x93\xC4\x0Cget_meta_msg\0\0");
    let frames = peer.receive();
    let after = perf_counter();
    assert_eq!(frames[..2], [vec![], payload("P", "hash")]);
    assert_eq!((frames[2].len(), frames[2][0]), (9, 0xCB));
    let stamp = decode_stamp(&frames[2]).unwrap();
    let at = |seconds| decode_stamp(&encode_stamp(seconds)).unwrap();
    assert!(at(before) <= stamp && stamp <= at(after), "{before} {stamp} {after}");
}

#[test]
fn answers_are_stamped_by_the_callers_clock() {
    let config = ServerConfig { clock: Clock::new(|| 1234.5), ..ServerConfig::default() };
    let (server, _payloads) = server(config);
    let mut peer = Peer::req(server.address());
    ask(&mut peer, RANK);
    assert_eq!(peer.receive()[2], encode_stamp(1234.5));
}

#[test]
fn what_is_no_request_is_dropped_by_kind_and_the_next_one_answered() {
    let (server, _payloads) = server(ServerConfig::default());
    let mut peer = Peer::req(server.address());
    let request = encode_request(RANK);
    let other_rank = encode_request(Ranks { pp: 0, tp: 1 });
    for (kind, frames) in [
        (Count::Malformed, &[&b""[..], b"get_meta_msg"][..]),
        (Count::Malformed, &[b"", b""]),
        (Count::Malformed, &[b"", &request[..request.len() - 1]]),
        (Count::Malformed, &[b"", &[0xC1; 256]]),
        (Count::UnknownRank, &[b"", &other_rank]),
        (Count::WrongFrames, &[&request]),
        (Count::WrongFrames, &[b"x", &request]),
        (Count::WrongFrames, &[b"", &request, b""]),
        (Count::WrongFrames, &[b"", b"", &request]),
    ] {
        let before = server.counters().get(kind);
        peer.write(&message(frames));
        is_answered(&mut peer);
        assert_eq!(server.counters().get(kind), before + 1, "{kind:?} {frames:?}");
    }
    counts(&server, Count::Answered, 9);
}

/// ZeroMQ's own commands, such as PING, may come at any time.
#[test]
fn commands_are_read_over() {
    let (server, _payloads) = server(ServerConfig::default());
    let mut peer = Peer::req(server.address());
    peer.write(b"\x04\x07\x04PING\0\0");
    is_answered(&mut peer);
    assert_eq!(server.counters().get(Count::WrongFrames), 0);
}

#[test]
fn strangers_are_turned_away_and_the_listener_lives() {
    let (server, _payloads) = server(ServerConfig::default());
    let mut http = b"GET /metrics HTTP/1.1\r\nHost: p\r\nUser-Agent: something-long-enough/1.0\r\n\r\n".to_vec();
    http.resize(200, b'\n');
    let patched = |at: usize, byte: u8| {
        let mut greeting = greeting();
        greeting[at] = byte;
        greeting
    };
    let greeted = |then: &[u8]| [&greeting()[..], then].concat();
    let after_ready = |then: &[u8]| [&greeting()[..], &ready("REQ"), then].concat();
    let claim = |flags: u8, claim: u64| [&[flags][..], &claim.to_be_bytes()].concat();
    for (kind, bytes) in [
        (Count::NotZeroMq, http),
        (Count::NotZeroMq, patched(10, 1)),
        (Count::NotZeroMq, patched(12, b'C')),
        (Count::NotZeroMq, greeted(&ready("PUB"))),
        (Count::NotZeroMq, greeted(b"\x04\x06\x05READY")),
        (Count::NotZeroMq, greeted(b"\x04\x08\x05READY\xFFa")),
        (Count::NotZeroMq, greeted(b"\x04\x0F\x05READY\x01a\xFF\xFF\xFF\xFFaaa")),
        (Count::NotZeroMq, greeted(b"\0\0")),
        (Count::Oversized, greeted(&claim(6, u64::MAX))),
        (Count::Oversized, greeted(&claim(2, 1 << 40))),
        (Count::Oversized, after_ready(&claim(2, u64::MAX))),
        (Count::Oversized, after_ready(&claim(2, 1 << 63))),
        (Count::Oversized, after_ready(&claim(6, 1 << 40))),
        (Count::Oversized, after_ready(&claim(2, 1025))),
        (Count::Oversized, after_ready(&message(&[b"", &[0; 257]]))),
        (Count::Oversized, after_ready(&[1, 0].repeat(8))),
        (Count::Closed, Vec::new()),
        (Count::Closed, greeting()[..20].to_vec()),
        (Count::Closed, after_ready(b"\0\xFFcut off")),
    ] {
        let before = server.counters().get(kind);
        let mut peer = Peer::connect(server.address());
        peer.write(&bytes);
        if kind == Count::Closed {
            peer.finish();
        }
        peer.closed();
        serves(&server);
        counts(&server, kind, before + 1);
    }
}

#[test]
fn who_does_nothing_is_turned_away_in_time() {
    let soon = Duration::from_millis(30);
    let (hasty, _payloads) = server(ServerConfig { deadline: soon, ..ServerConfig::default() });
    Peer::connect(hasty.address()).closed();
    let mut half = Peer::connect(hasty.address());
    half.write(&greeting());
    half.closed();
    let (idle, _payloads) = server(ServerConfig { idle: soon, ..ServerConfig::default() });
    Peer::req(idle.address()).closed();
}

#[test]
fn who_does_not_take_its_answer_is_turned_away_and_delays_nobody() {
    let (server, payloads) = server(ServerConfig { deadline: Duration::from_secs(1), ..ServerConfig::default() });
    // Far more than the system's buffers take.
    payloads.publish(Ranks { pp: 0, tp: 1 }, vec![0; 16 << 20]).unwrap();
    let mut deaf = Peer::req(server.address());
    ask(&mut deaf, Ranks { pp: 0, tp: 1 });
    let mut other = Peer::req(server.address());
    while server.counters().get(Count::Stalled) == 0 {
        is_answered(&mut other);
    }
    deaf.closed();
}

#[test]
fn who_waits_makes_room_and_who_asks_stays() {
    let config = ServerConfig { max_connections: 8, deadline: PATIENCE, idle: PATIENCE, ..ServerConfig::default() };
    let (server, payloads) = server(config);
    payloads.publish(Ranks { pp: 0, tp: 1 }, vec![0; 16 << 20]).unwrap();
    let silent: Vec<_> = (0..4).map(|_| Peer::connect(server.address())).collect();
    let mut half = Peer::connect(server.address());
    half.write(&greeting());
    let mut deaf = Peer::req(server.address());
    ask(&mut deaf, Ranks { pp: 0, tp: 1 });
    let mut busy = Peer::req(server.address());
    let mut others = Vec::new();
    for _ in 0..7 {
        is_answered(&mut busy);
        let mut other = Peer::req(server.address());
        is_answered(&mut other);
        others.push(other);
    }
    is_answered(&mut busy);
    others.iter_mut().for_each(is_answered);
    assert_eq!(server.counters().get(Count::Evicted), 6);
    silent.into_iter().for_each(Peer::closed);
    half.closed();
    deaf.closed();
}

#[test]
fn many_are_answered_at_once() {
    let (server, _payloads) = server(ServerConfig::default());
    let mut peers: Vec<_> = (0..100).map(|_| Peer::req(server.address())).collect();
    for peer in &mut peers {
        ask(peer, RANK);
    }
    for peer in &mut peers {
        assert_eq!(peer.receive()[1], payload("P", "hash"));
    }
    counts(&server, Count::Answered, 100);
    assert_eq!(server.counters().get(Count::Connections), 100);
}

#[test]
fn payloads_change_while_it_serves() {
    let (server, payloads) = server(ServerConfig::default());
    let mut peer = Peer::req(server.address());
    is_answered(&mut peer);
    payloads.publish(RANK, payload("restarted", "hash")).unwrap();
    ask(&mut peer, RANK);
    assert_eq!(peer.receive()[1], payload("restarted", "hash"));
    assert!(payloads.withdraw(RANK));
    assert!(!payloads.withdraw(RANK));
    ask(&mut peer, RANK);
    payloads.publish(Ranks { pp: 3, tp: 1 }, payload("P", "hash")).unwrap();
    ask(&mut peer, Ranks { pp: 3, tp: 1 });
    assert_eq!(peer.receive()[1], payload("P", "hash"), "the one before was dropped");
    assert_eq!(server.counters().get(Count::UnknownRank), 1);
}

#[test]
fn a_payload_that_nobody_would_take_is_not_published() {
    assert!(Payloads::new().publish(RANK, vec![0; (16 << 20) + 1]).is_err());
}

#[test]
fn dropping_it_closes_everything() {
    let (server, _payloads) = server(ServerConfig::default());
    let address = server.address();
    let (silent, mut asking) = (Peer::connect(address), Peer::req(address));
    is_answered(&mut asking);
    drop(server);
    silent.closed();
    asking.closed();
    TcpListener::bind(address).unwrap();
}

#[test]
fn hosts_are_names_or_addresses() {
    for (host, expected) in [("localhost", Some("127.0.0.1:0")), ("[::1]", None), ("::1", None)] {
        match Server::bind(host, 0, Payloads::new(), ServerConfig::default()) {
            Ok(server) => {
                let expected = expected.map(|address| address.parse::<SocketAddr>().unwrap().ip());
                assert_eq!(server.address().ip(), expected.unwrap_or("::1".parse().unwrap()));
                assert_ne!(server.address().port(), 0);
            }
            // Not every machine has IPv6.
            Err(error) => assert!(expected.is_none(), "{host}: {error}"),
        }
    }
    assert!(Server::bind("no such host", 1, Payloads::new(), ServerConfig::default()).is_err());
}

#[test]
fn a_taken_port_is_told_at_once() {
    let (server, _payloads) = server(ServerConfig::default());
    let again = Server::bind("127.0.0.1", server.address().port(), Payloads::new(), ServerConfig::default());
    assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn it_serves_on_the_callers_runtime() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let payloads = Payloads::new();
    payloads.publish(RANK, payload("P", "hash")).unwrap();
    let counters = Arc::new(Counters::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let serving = Arc::clone(&counters);
    let peer = runtime.block_on(async move {
        let task = tokio::spawn(serve(listener, payloads, ServerConfig::default(), serving));
        let asking = tokio::task::spawn_blocking(move || {
            let mut peer = Peer::req(address);
            is_answered(&mut peer);
            peer
        });
        let peer = asking.await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        peer
    });
    peer.closed();
    assert_eq!(counters.get(Count::Connections), 1);
}
