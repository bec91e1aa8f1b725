//! What the fuzz targets check, as plain functions: no input panics, and what can be read is written back to the same bytes.
//!
//! `cargo xtask fuzz TARGET` feeds them from libFuzzer; `cargo test -p kvlease-fuzz` replays the seeds on stable Rust and needs
//! no C++ compiler. To fuzz the parsing of heartbeats only, take [`native()`] or [`vllm()`], whichever wire you speak.

use lease_proto::{
    frame::{self, Frame},
    wire::{
        self, Message, Wire,
        native::{self, Body},
        vllm::{self, HeartbeatWriter},
    },
};

/// The frame around foreign blobs: one byte string, one frame, and never a byte beyond it.
pub fn frame(bytes: &[u8]) {
    if let Ok((frame, rest)) = Frame::decode_prefix(bytes) {
        let whole = &bytes[..bytes.len() - rest.len()];
        assert_eq!(whole.len(), frame::HEADER + frame.payload().len());
        assert_eq!(Frame::decode(whole), Ok(frame));
        assert_eq!(Frame::decode(bytes).is_ok(), rest.is_empty());
        let mut out = vec![0; whole.len()];
        assert_eq!(Frame::encode(frame.incarnation(), frame.payload(), &mut out), Ok(whole.len()));
        assert_eq!(out, whole);
        assert!(Frame::encode(frame.incarnation(), frame.payload(), &mut out[1..]).is_err());
    }
}

/// kvlease's own wire: an accepted message is the one canonical form of what it says, and fits no smaller buffer.
pub fn native(bytes: &[u8]) {
    match wire::decode(Wire::Native, bytes) {
        Ok(Message::Native { session, seq, body }) => {
            let mut out = vec![0; bytes.len()];
            assert_eq!(native::encode(session, seq, &body, &mut out), Ok(bytes.len()));
            assert_eq!(out, bytes);
            assert!(native::encode(session, seq, &body, &mut out[1..]).is_err());
            match body {
                Body::Renew(renew) => assert_eq!(renew.tokens.iter().count(), usize::from(renew.tokens.len())),
                Body::Renewed(renewed) => assert!(renewed.exceptions.iter().all(|(index, _)| index < renewed.count)),
                _ => {}
            }
        }
        Ok(Message::Foreign(same)) => assert!(same == bytes && !native::is_native(bytes)),
        Ok(Message::Vllm(_)) => panic!("no vllm message on the native wire"),
        Err(_) => assert!(native::is_native(bytes), "what is not ours is handed back, not rejected"),
    }
}

/// vLLM's wire: what can be written reads back as the same, whichever way it was spelled.
pub fn vllm(bytes: &[u8]) {
    match wire::decode(Wire::Vllm, bytes) {
        Ok(Message::Vllm(vllm::Message::Heartbeat(ids))) => {
            assert!(ids.iter().all(|id| !id.is_empty() && !id.contains(&b',')));
            let ours: Vec<_> = ids.iter().filter(|id| vllm::check_id(id).is_ok()).collect();
            heartbeat(&ours, bytes.len());
        }
        Ok(Message::Vllm(vllm::Message::Completion { id, consumers })) => {
            assert!(consumers > 0 && bytes.starts_with(id));
            if vllm::check_id(id).is_ok() {
                completion(id, consumers);
            }
        }
        Ok(Message::Foreign(same)) => assert_eq!(same, bytes),
        Ok(other) => panic!("{other:?} on vllm's wire"),
        Err(_) => {}
    }
    // The same bytes as an id.
    if vllm::check_id(bytes).is_ok() {
        heartbeat(&[bytes, b"r", bytes], usize::MAX);
        completion(bytes, u32::MAX);
    }
}

fn heartbeat(ids: &[&[u8]], longest: usize) {
    let mut out = vec![0; 3 + ids.iter().map(|id| id.len() + 1).sum::<usize>()];
    let mut writer = HeartbeatWriter::new(&mut out);
    assert!(ids.iter().all(|id| writer.push(id) == Ok(true)));
    match writer.finish() {
        None => assert!(ids.is_empty()),
        Some(len) => {
            assert!(len <= longest, "nothing is added");
            let Ok(vllm::Message::Heartbeat(read)) = vllm::decode(&out[..len]) else { panic!("it is a heartbeat") };
            assert!(read.iter().eq(ids.iter().copied()));
        }
    }
}

fn completion(id: &[u8], consumers: u32) {
    let mut out = vec![0; id.len() + 11];
    let len = vllm::encode_completion(id, consumers, &mut out).expect("a colon and ten digits fit");
    assert_eq!(vllm::decode(&out[..len]), Ok(vllm::Message::Completion { id, consumers }));
}
