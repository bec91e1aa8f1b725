//! Frames and messages that were changed on their way, or made up: refused or harmless. Over a million of them.

mod common;

use common::{Dice, Got, LANE, Process, TOKEN, bytes_of, expected, framed, next, obey, poll, range, transport, zeroed};
use lease_proto::{
    frame::{Frame, HEADER},
    id::Incarnation,
    transport::{Control as _, Data as _, Error as _, ErrorKind, Landed, PeerId, Range},
};
use transport_ucx::{Region, UcxTransport};

on_every_lane!(frames_that_were_changed_are_refused_or_harmless);

/// Not a test of its own.
#[test]
fn a_peer_for_the_others() {
    if let Ok(lane) = std::env::var(LANE) {
        obey(&lane);
    }
}

/// Frames with damage, on each lane.
const DAMAGED: usize = 500_000;
/// Frames that were changed and sealed again, on each lane.
const FORGED: usize = 20_000;
const LENGTH: usize = 1 << 20;
const ALL: [Range; 1] = [Range { offset: 0, length: LENGTH as u64 }];

/// A reader of an owner in another process, and what that has told it.
struct World {
    owner: Process,
    metadata: Vec<u8>,
    exported: Vec<u8>,
    reader: UcxTransport,
    peer: PeerId,
    into: Region,
}

fn frames_that_were_changed_are_refused_or_harmless(lane: &str) {
    let (mut owner, mut reader) = (Process::start(lane), transport(lane));
    let exported = owner.own(LENGTH);
    owner.tell("run");
    let metadata = framed(&owner.metadata);
    let peer = connect(&mut reader, &metadata);
    let into = reader.register(zeroed(LENGTH)).unwrap();
    let mut world = World { owner, metadata, exported, reader, peer, into };
    let mut dice = Dice::new(1);

    let originals = [world.metadata.clone(), world.exported.clone()];
    for n in 0..DAMAGED {
        let (original, other) = (&originals[n % 2], &originals[(n + 1) % 2]);
        let damaged = damaged(original, other, &mut dice);
        match Frame::decode(&damaged) {
            Err(_) => {}
            // The damage was none, or made the one into the other.
            Ok(_) if originals.contains(&damaged) => {}
            Ok(_) => panic!("a frame with damage is whole"),
        }
    }

    let mut harmless = 0;
    for _ in 0..FORGED {
        harmless += usize::from(world.offer_metadata(&mut dice)) + usize::from(world.offer_region(&mut dice));
    }
    assert!(harmless > FORGED / 10, "{harmless}");

    // Both are alive, and the connections from before and from now read what is there.
    let read = world.reader.read(world.peer, TOKEN, Frame::decode(&world.exported).unwrap(), &ALL, &world.into, 0).unwrap();
    assert_eq!(next(&mut world.reader), Got::Read(read, Ok(Landed::Served)));
    world.peer = connect(&mut world.reader, &world.metadata);
    world.into.memory().copy_in(0, &vec![0; LENGTH]).unwrap();
    let read = world.reader.read(world.peer, TOKEN, Frame::decode(&world.exported).unwrap(), &ALL, &world.into, 0).unwrap();
    assert_eq!(next(&mut world.reader), Got::Read(read, Ok(Landed::Served)));
    assert!(bytes_of(world.into.memory(), 0, LENGTH) == expected(&ALL));
    world.owner.kill();
}

fn connect(reader: &mut UcxTransport, metadata: &[u8]) -> PeerId {
    let ticket = reader.connect(Frame::decode(metadata).unwrap()).unwrap();
    match next(reader) {
        Got::Connected(connected, peer) if connected == ticket => peer,
        got => panic!("expected the connection, got {got:?}"),
    }
}

/// Bits turned, bytes changed, lost, doubled or put in, lengths that are not true, ends of another frame.
fn damaged(original: &[u8], other: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for _ in 0..=dice.roll(3) {
        let at = dice.below(bytes.len().max(1));
        match dice.roll(8) {
            _ if bytes.is_empty() => bytes.push(dice.roll(256) as u8),
            0..3 => bytes[at] ^= 1 << dice.roll(8),
            3 => bytes[at] = dice.roll(256) as u8,
            4 => bytes.truncate(at),
            5 => bytes.insert(at, dice.roll(256) as u8),
            6 => drop(bytes.splice(at..at, bytes[at..(at + 9).min(bytes.len())].to_vec())),
            _ => {
                let from = dice.below(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
        // The frame's length, now and then.
        if dice.roll(8) == 0
            && let Some(length) = bytes.get_mut(12..16)
        {
            length.copy_from_slice(&(dice.roll(2000) as u32).to_le_bytes());
        }
    }
    bytes
}

/// A change of a field, sealed as its sender would.
fn forged(original: &[u8], own: usize, dice: &mut Dice) -> Vec<u8> {
    let frame = Frame::decode(original).unwrap();
    let (mut payload, mut incarnation) = (frame.payload().to_vec(), frame.incarnation());
    for _ in 0..=dice.roll(2) {
        let at = dice.below(own);
        match dice.roll(6) {
            0..3 => payload[at] ^= 1 << dice.roll(8),
            3 => payload[at] = dice.roll(256) as u8,
            4 => {
                // Numbers at the ends of their types.
                let ends = [0, 1, u64::MAX, u64::MAX >> 1, 1 << 32, LENGTH as u64 + 1];
                let end = ends[dice.below(ends.len())].to_le_bytes();
                let room = (own - at).min(8);
                payload[at..at + room].copy_from_slice(&end[..room]);
            }
            _ => incarnation = Incarnation(dice.roll(9)),
        }
    }
    let mut bytes = vec![0; payload.len() + HEADER];
    Frame::encode(incarnation, &payload, &mut bytes).unwrap();
    bytes
}

impl World {
    /// Connects with metadata whose header, and nothing of UCX's address, was forged. Whether it was taken.
    fn offer_metadata(&mut self, dice: &mut Dice) -> bool {
        // Another length only: an address that is cut is UCX's to read, and it does not check.
        let forged = forged(&self.metadata, 12, dice);
        match self.reader.connect(Frame::decode(&forged).unwrap()) {
            Ok(ticket) => {
                for _ in 0..dice.roll(4) {
                    match poll(&mut self.reader) {
                        None | Some(Got::Connected(..)) => {}
                        got => panic!("expected a connection at most, got {got:?}"),
                    }
                }
                self.reader.cancel(ticket);
                self.reader.disconnect(PeerId(ticket.0));
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Invalid);
                false
            }
        }
    }

    /// Reads a region whose description was forged. Whether it was tried.
    fn offer_region(&mut self, dice: &mut Dice) -> bool {
        let forged = forged(&self.exported, 29, dice);
        let ranges = [range(dice.roll(LENGTH as u64 - 100), 1 + dice.roll(99)), range(dice.roll(1 << 21), 1 + dice.roll(1000))];
        let read = match self.reader.read(self.peer, TOKEN, Frame::decode(&forged).unwrap(), &ranges, &self.into, 5) {
            Ok(read) => read,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Invalid);
                return false;
            }
        };
        let (id, true_id) = (&forged[HEADER..][5..13], &self.exported[HEADER..][5..13]);
        let inside = ranges.iter().all(|range| range.offset + range.length <= LENGTH as u64);
        match next(&mut self.reader) {
            Got::Read(done, result) if done == read => match result {
                Ok(Landed::Served) => {
                    assert!(id == true_id && inside);
                    let wanted = expected(&ranges);
                    assert!(bytes_of(self.into.memory(), 5, wanted.len()) == wanted);
                }
                Err(ErrorKind::Rejected) => assert!(id != true_id),
                Err(ErrorKind::Invalid) => assert!(!inside),
                other => panic!("expected a read that is served or refused, got {other:?}"),
            },
            got => panic!("expected the end of the read, got {got:?}"),
        }
        true
    }
}

#[cfg(feature = "borrowed-worker")]
mod messages {
    //! Messages that no transport sends, from a bare UCX.

    use std::{ffi::c_void, mem, ptr};

    use transport_ucx::{EngineWorker, UcxConfig, ucx_sys::sys as ucx};

    use super::*;
    use common::{config, exported, patterned, until};

    on_every_lane!(messages_that_no_transport_sends_are_dropped);

    const MESSAGES: usize = 20_000;

    /// A connection of a bare UCX to a transport.
    struct Stranger {
        endpoint: ucx::ucp_ep_h,
        engine: EngineWorker,
    }

    impl Stranger {
        fn new(lane: &str, victim: &UcxTransport) -> Self {
            let engine = EngineWorker::new(lane).unwrap();
            let address = &victim.local_metadata()[12..];
            // SAFETY: all zero bytes are a valid value of these parameters.
            let mut params: ucx::ucp_ep_params_t = unsafe { mem::zeroed() };
            params.field_mask = u64::from(
                ucx::ucp_ep_params_field_UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
                    | ucx::ucp_ep_params_field_UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                    | ucx::ucp_ep_params_field_UCP_EP_PARAM_FIELD_ERR_HANDLER,
            );
            params.address = address.as_ptr().cast();
            params.err_mode = ucx::ucp_err_handling_mode_t_UCP_ERR_HANDLING_MODE_PEER;
            params.err_handler = ucx::ucp_err_handler_t { cb: Some(on_failure), arg: ptr::null_mut() };
            let mut endpoint = ptr::null_mut();
            // SAFETY: the worker lives, the address is a transport's own, and UCX copies the parameters.
            let status = unsafe { ucx::ucp_ep_create(engine.worker(), &raw const params, &raw mut endpoint) };
            assert_eq!(status, ucx::ucs_status_t_UCS_OK);
            Self { endpoint, engine }
        }

        /// Sends it, and helps until it is sent.
        fn send(&self, victim: &mut UcxTransport, id: u16, flags: u32, header: &[u8], payload: &[u8]) {
            // SAFETY: all zero bytes are a valid value of these parameters.
            let mut param: ucx::ucp_request_param_t = unsafe { mem::zeroed() };
            param.op_attr_mask = ucx::ucp_op_attr_t_UCP_OP_ATTR_FIELD_FLAGS;
            param.flags = flags;
            let (header, header_length): (*const c_void, _) = (header.as_ptr().cast(), header.len());
            // SAFETY: the endpoint is open, and header and payload live until it is sent, below.
            let request = unsafe {
                let (payload, length) = (payload.as_ptr().cast(), payload.len());
                ucx::ucp_am_send_nbx(self.endpoint, u32::from(id), header, header_length, payload, length, &raw const param)
            };
            let Some(request) = transport_ucx::ucx_sys::decode_status_ptr(request).unwrap() else { return };
            until("a message to be sent", || {
                self.engine.progress();
                assert!(matches!(poll(victim), None | Some(Got::Message(_))));
                // SAFETY: not released yet.
                (unsafe { ucx::ucp_request_check_status(request) } != ucx::ucs_status_t_UCS_INPROGRESS).then_some(())
            });
            // SAFETY: complete, and released once.
            unsafe { ucx::ucp_request_free(request) };
        }
    }

    impl Drop for Stranger {
        fn drop(&mut self) {
            // SAFETY: all zero bytes are a valid value of these parameters.
            let mut param: ucx::ucp_request_param_t = unsafe { mem::zeroed() };
            param.op_attr_mask = ucx::ucp_op_attr_t_UCP_OP_ATTR_FIELD_FLAGS;
            param.flags = ucx::ucp_ep_close_flags_t_UCP_EP_CLOSE_FLAG_FORCE;
            // SAFETY: open, closed once.
            unsafe { ucx::ucp_ep_close_nbx(self.endpoint, &raw const param) };
            while self.engine.progress() {}
        }
    }

    unsafe extern "C" fn on_failure(_: *mut c_void, _: ucx::ucp_ep_h, _: ucx::ucs_status_t) {}

    fn messages_that_no_transport_sends_are_dropped(lane: &str) {
        let config = UcxConfig { max_serving: 64, ..config(lane) };
        let (mut owner, mut reader) = (UcxTransport::new(config).unwrap(), transport(lane));
        let region = owner.register(patterned(LENGTH)).unwrap();
        let exported = exported(&mut owner, &region);
        owner.permits().permit(TOKEN);
        let peer = common::connect(&mut reader, &mut owner);
        let into = reader.register(zeroed(LENGTH)).unwrap();
        let region_id: [u8; 8] = exported[HEADER..][5..13].try_into().unwrap();
        let mut dice = Dice::new(7);
        let mut check = |owner: &mut UcxTransport| {
            into.memory().copy_in(0, &vec![0; LENGTH]).unwrap();
            let read = reader.read(peer, TOKEN, Frame::decode(&exported).unwrap(), &ALL, &into, 0).unwrap();
            let got = until("the read", || {
                assert!(matches!(poll(owner), None | Some(Got::Message(_))));
                poll(&mut reader)
            });
            assert_eq!(got, Got::Read(read, Ok(Landed::Served)));
            assert!(bytes_of(into.memory(), 0, LENGTH) == expected(&ALL));
        };
        for n in 0..4 {
            let stranger = Stranger::new(lane, &owner);
            for m in 0..MESSAGES / 4 {
                let (header, payload) = message(&region_id, &mut dice);
                // Its own kind, more often than not; and what UCX does with it.
                let id = if dice.roll(8) == 0 { dice.roll(9) as u16 } else { payload.0 };
                let reply = if dice.roll(4) == 0 { 0 } else { ucx::ucp_send_am_flags_UCP_AM_SEND_FLAG_REPLY };
                let how = [0, ucx::ucp_send_am_flags_UCP_AM_SEND_FLAG_EAGER, ucx::ucp_send_am_flags_UCP_AM_SEND_FLAG_RNDV];
                // To be fetched: rare, and never what is empty.
                let how = if dice.roll(50) == 0 && !payload.1.is_empty() { how[2] } else { how[dice.below(2)] };
                stranger.send(&mut owner, id, reply | how, &header, &payload.1);
                if m % 500 == n {
                    check(&mut owner);
                }
            }
            drop(stranger);
            check(&mut owner);
        }
        assert!(owner.refused() > MESSAGES / 4, "{}", owner.refused());
        let memory = region.memory().clone();
        drop(region);
        common::given_back(memory, || assert!(matches!(poll(&mut owner), None | Some(Got::Message(_)))));
    }

    /// A header, and a message of this kind with numbers that are random, at their ends, or true.
    fn message(region: &[u8; 8], dice: &mut Dice) -> (Vec<u8>, (u16, Vec<u8>)) {
        let mut number = |bytes: usize| {
            let n = match dice.roll(4) {
                0 => 0,
                1 => u64::MAX,
                2 => dice.roll(1 << 21),
                _ => dice.roll(u64::MAX),
            };
            n.to_le_bytes()[..bytes].to_vec()
        };
        let landing = [number(4), number(8)].concat();
        let mut messages = [
            number(8),
            [number(8), number(8), number(2)].concat(),
            [number(8), number(8)].concat(),
            [landing.clone(), number(2), number(8), number(8), number(8), number(8), number(4)].concat(),
            vec![7; 5000],
            [landing.clone(), number(1)].concat(),
        ];
        let mut header = [landing, vec![number(1)[0] & 1]].concat();
        let kind = dice.below(6);
        if kind == 3 {
            let ask = &mut messages[3];
            // A lease that holds or not, a region that is there or not, and ranges that are small or as they come.
            if dice.roll(2) == 0 {
                ask[14..30].copy_from_slice(&TOKEN.to_bytes());
            }
            if dice.roll(4) != 0 {
                ask[30..38].copy_from_slice(region);
            }
            ask.truncate(38);
            for _ in 0..dice.roll(140) {
                let length = if dice.roll(20) == 0 { dice.roll(1 << 32) } else { 1 + dice.roll(100) };
                ask.extend_from_slice(&dice.roll(LENGTH as u64 + 10).to_le_bytes());
                ask.extend_from_slice(&(length as u32).to_le_bytes());
            }
        }
        if kind != 4 && dice.roll(3) == 0 {
            header.clear();
        }
        let mut message = mem::take(&mut messages[kind]);
        match dice.roll(6) {
            0 => message.truncate(dice.below(message.len() + 1)),
            1 => message.extend((0..dice.roll(20_000)).map(|n| n as u8)),
            2 => header.extend(0..dice.roll(20) as u8),
            _ => {}
        }
        (header, (kind as u16, message))
    }
}
