//! More leases than fit a datagram, and more than end in peace.

mod common;

use std::collections::{HashSet, VecDeque};

use common::{
    Seen, Spec, World,
    lone::{Heard, LoneHolder, LoneReader},
    secs,
};
use lease_proto::{
    config::Config,
    event::{Freed, Lost},
    id::ReaderRank,
    time::Instant,
    wire::Wire,
};

const WIRES: [Wire; 2] = [Wire::Native, Wire::Vllm];

fn beats(world: &World) -> Vec<Instant> {
    let sent = world.nodes["d"].seen.iter().filter(|(_, seen)| matches!(seen, Seen::Heartbeat(..)));
    sent.map(|(at, _)| *at).collect()
}

/// More leases than a datagram names, under each limit that can bind: every one is confirmed and kept.
#[test]
fn beats_larger_than_a_datagram_keep_every_lease() {
    for wire in WIRES {
        for (p, d, leases) in
            [(65_536, 65_536, 300), (512, 65_536, 300), (65_536, 512, 300), (160, 160, 200), (4_096, 4_096, 1_000)]
        {
            let mut world = World::new(wire);
            world.spawn("p", Spec { slots: leases, max_message: p, ..Spec::of("p") });
            world.spawn("d", Spec { slots: leases, max_message: if wire == Wire::Vllm { p.min(d) } else { d }, ..Spec::of("d") });
            for n in 0..leases {
                let request = format!("r{n}");
                let token = world.grant("p", &request).unwrap();
                world.track("d", "p", &request, token).unwrap();
            }
            world.run_to("61");
            let live = world.node("p").holder.live() as usize;
            assert_eq!(live, leases, "{wire} {p} {d}: kept");
            if wire == Wire::Native {
                let confirmed = world.count("d", |seen| matches!(seen, Seen::Confirmed(_)));
                let lapsed = world.count("d", |seen| matches!(seen, Seen::Unproven(_) | Seen::Lost(..)));
                assert_eq!((confirmed, lapsed), (leases, 0), "{p} {d}");
            }
            let largest = world.nodes["d"].seen.iter().filter_map(|(_, seen)| match seen {
                Seen::Heartbeat(_, bytes) => Some(*bytes),
                _ => None,
            });
            assert!(largest.max().unwrap() <= p.min(d) || (wire == Wire::Native && d > p), "{wire} {p} {d}");
            world.lawful();
        }
    }
}

/// Many datagrams a beat are no silence: the interval stays what it is.
#[test]
fn a_beat_of_many_datagrams_is_not_slowed() {
    let mut world = World::new(Wire::Native);
    for name in ["p", "d"] {
        world.spawn(name, Spec { slots: 256, max_message: 160, ..Spec::of(name) });
    }
    for n in 0..200 {
        let token = world.grant("p", &n.to_string()).unwrap();
        world.track("d", "p", &n.to_string(), token).unwrap();
    }
    world.run_to("60");
    let mut starts = beats(&world);
    starts.dedup();
    let gaps = starts.windows(2).map(|pair| pair[1].saturating_since(pair[0]));
    assert!(gaps.max().unwrap() <= secs("4.4"));
    assert!(world.nodes["d"].counters.answers_discarded == 0);
}

/// A transport that sends in the background, where a beat has not left when the flush returns: each lease is named all the same, also
/// those that come after more renews than are remembered at a time.
#[test]
fn beats_that_leave_a_moment_after_the_flush_name_every_lease() {
    const LEASES: u64 = 400;
    for leaving in [true, false] {
        let mut reader = LoneReader::with(Wire::Native, Config::default(), 512);
        (reader.max_message, reader.leaving) = (160, leaving);
        for number in 1..=LEASES {
            reader.track(&format!("r{number}"), number);
        }
        let (mut named, mut under_way) = (HashSet::new(), VecDeque::new());
        for now in (0..40_000).step_by(10) {
            let sent = reader.poll(&format!("{}.{:03}", now / 1000, now % 1000));
            let renews =
                sent.iter().filter_map(|(_, heard)| if let Heard::Renew { tokens, .. } = heard { Some(tokens) } else { None });
            named.extend(renews.flatten().map(|token| token.number));
            under_way.push_back(sent);
            if under_way.len() > 2 {
                reader.grant_all(&under_way.pop_front().unwrap(), "20");
            }
        }
        assert_eq!(named.len() as u64, LEASES, "leaving at once: {leaving}");
        assert!((1..=LEASES).all(|number| reader.lost(&format!("r{number}")).is_none()));
    }
}

/// A holder that takes no message large enough for one token: nothing is sent, nothing spins.
#[test]
fn a_peer_that_takes_nothing_does_not_keep_the_reader_busy() {
    for max_message in [0, 27, 43] {
        let mut reader = LoneReader::new(Wire::Native);
        reader.max_message = max_message;
        reader.track("a", 1);
        for second in 0..5 {
            assert_eq!(reader.poll(&second.to_string()), []);
            let next = lease_proto::drive::Machine::next_timeout(&reader.reader).unwrap();
            assert!(next > reader.now, "{max_message}: due for ever");
        }
        reader.poll("40");
        assert_eq!((reader.lost("a"), reader.reader.open()), (Some(Lost::NoAnswer), 0));
    }
}

/// Case 1: ten thousand leases that expire in one tick, with one that is kept alive among them.
#[test]
fn ten_thousand_leases_expire_in_one_tick() {
    let mut holder = LoneHolder::with(Wire::Native, Config::default(), 10_001);
    let kept = holder.grant("kept");
    for n in 0..10_000 {
        holder.grant(&n.to_string());
    }
    let session = holder.greet("d", 2, kept).unwrap();
    holder.go("20");
    holder.renew(session, ReaderRank::ONLY, kept).unwrap();
    holder.poll("29.999999999");
    assert_eq!(holder.holder.live(), 10_001);
    holder.poll("30");
    assert_eq!(holder.holder.live(), 1);
    assert_eq!(holder.counters.freed(Freed::Expired), 10_000);
    holder.lawful();
}
