//! Tables that are full.

mod common;

use common::{
    lone::{LoneHolder, LoneReader},
    secs,
};
use lease_proto::{config::Config, event::Refused, id::ReaderRank, reader::ReadOutcome, wire::Wire};

const WIRES: [Wire; 2] = [Wire::Native, Wire::Vllm];

/// Tables of peers that are full: who is idle makes room, who is in use does not.
#[test]
fn a_full_table_of_peers_makes_room_by_silence() {
    let mut reader = LoneReader::new(Wire::Native); // four peers
    let handles: Vec<_> = (0..4).map(|n| reader.track_on("p", n, &[0], "a", n, ReaderRank::ONLY).unwrap()).collect();
    assert_eq!(reader.track_on("p", 9, &[0], "b", 9, ReaderRank::ONLY), Err(Refused::Full));
    reader.poll("0");
    reader.act(|at, cx| at.finish(cx, handles[3])).unwrap();
    for second in 1..60 {
        reader.poll(&second.to_string());
    }
    assert!(reader.track_on("p", 9, &[0], "b", 9, ReaderRank::ONLY).is_ok());
    let mut holder = LoneHolder::new(Wire::Native);
    let token = holder.grant_with("a", None, Some(secs("480"))).unwrap();
    let sessions: Vec<_> = (0..4u64)
        .map(|n| {
            holder.go(&n.to_string());
            holder.greet(&format!("d{n}"), 10 + n, token).unwrap()
        })
        .collect();
    holder.go("10");
    holder.renew(sessions[0], ReaderRank::ONLY, token).unwrap();
    assert_eq!((holder.greet("d9", 99, token), holder.refused(Refused::Full)), (None, 1), "all of them may beat again");
    holder.go("22");
    assert!(holder.greet("d9", 99, token).is_some());
    assert_eq!(holder.renew(sessions[0], ReaderRank::ONLY, token), Ok(secs("458")), "it spoke last");
    assert_eq!(holder.say(sessions[1], lease_proto::wire::native::Body::Time), None, "it was silent for longest");
    holder.lawful();
    reader.lawful();
}

#[test]
fn full_tables_of_leases_and_requests_refuse_and_recover() {
    for wire in WIRES {
        let mut holder = LoneHolder::with(wire, Config::default(), 2);
        for request in ["a", "b"] {
            holder.grant(request);
        }
        assert_eq!(holder.grant_with("c", None, None), Err(Refused::Full));
        assert_eq!(holder.holder.live(), 2);
        holder.poll("30");
        assert!(holder.grant_with("c", None, None).is_ok());
        holder.lawful();
        let mut reader = LoneReader::with(wire, Config::default(), 2);
        let first = reader.track("a", 1);
        assert_eq!(reader.track_on("p", 1, &[0, 1], "b", 2, ReaderRank::ONLY), Err(Refused::Full), "one leg too many");
        reader.track("c", 3);
        assert_eq!(reader.track_on("p", 1, &[0], "d", 4, ReaderRank::ONLY), Err(Refused::Full));
        reader.poll("0");
        reader.begin(first);
        reader.end(first, ReadOutcome::Served);
        for second in 1..60 {
            reader.poll(&second.to_string());
        }
        assert!(reader.track_on("p", 1, &[0], "d", 4, ReaderRank::ONLY).is_ok(), "{wire}");
        reader.lawful();
    }
}
