//! Beats that are lost, late, stalled, refused by the transport or larger than a datagram.

mod common;

use common::{
    Seen, World, at,
    lone::{Heard, LoneHolder, LoneReader, is_complete, is_renew, seq_of},
    secs,
};
use conformance::loopback::Fault;
use lease_proto::{
    config::Config,
    event::{Freed, Lost, Verdict},
    id::ReaderRank,
    reader::ReadOutcome,
    time::{Duration, Instant},
    transport::ErrorKind,
    wire::{Wire, native::Refusal},
};

const WIRES: [Wire; 2] = [Wire::Native, Wire::Vllm];

fn pair(wire: Wire) -> (World, lease_proto::reader::Handle) {
    let mut world = World::new(wire);
    world.start("p", 1_000_000_000_000);
    world.start("d", 12_000_000_000);
    let token = world.grant("p", "a").unwrap();
    let handle = world.track("d", "p", "a", token).unwrap();
    (world, handle)
}

fn beats(world: &World) -> Vec<Instant> {
    let sent = world.nodes["d"].seen.iter().filter(|(_, seen)| matches!(seen, Seen::Heartbeat(..)));
    sent.map(|(at, _)| *at).collect()
}

/// A beat exactly at expiry, and 1 ns to either side, native: messages come before timers.
#[test]
fn a_renew_at_the_instant_of_expiry_rescues() {
    for (time, polled, rescued) in
        [("29.999999999", true, true), ("30", false, true), ("30.000000001", false, true), ("30", true, false)]
    {
        let mut holder = LoneHolder::new(Wire::Native);
        let token = holder.grant("a");
        let session = holder.greet("d", 2, token).unwrap();
        holder.go(time);
        if polled {
            holder.poll(time);
        }
        let answer = holder.renew(session, ReaderRank::ONLY, token);
        assert_eq!(answer, if rescued { Ok(secs("20")) } else { Err(Refusal::Expired) }, "{time} {polled}");
        holder.poll(time);
        assert_eq!(holder.freed("a").is_none(), rescued);
        holder.lawful();
    }
}

/// Three lost beats cost nothing; the proof does not even lapse after two.
#[test]
fn lost_beats_are_survived() {
    for wire in WIRES {
        for lost in [1, 2, 3] {
            let (mut world, _) = pair(wire);
            world.run_to("31");
            world.fabric.drop_next(world.link("d", "p"), lost);
            world.run_to("100");
            assert_eq!(world.freed("p", "a"), None, "{wire} {lost}");
            let lapsed = world.saw("d", &Seen::Unproven("a".into()));
            assert!(!lapsed || lost == 3, "{wire} {lost}");
            world.lawful();
        }
    }
}

#[test]
fn lost_answers_are_survived() {
    for lost in [1, 2] {
        let (mut world, _) = pair(Wire::Native);
        world.run_to("31");
        world.fabric.drop_next(world.link("p", "d"), lost);
        world.run_to("100");
        assert!(!world.saw("d", &Seen::Unproven("a".into())), "{lost}");
        assert_eq!(world.freed("p", "a"), None);
        world.lawful();
    }
}

/// P stalls for 25 s with the beats queued: the queue is drained before anything expires.
#[test]
fn beats_that_waited_in_the_queue_rescue_the_lease() {
    for wire in WIRES {
        for clock in ["55", "56", "60", "66"] {
            let (mut world, _) = pair(wire);
            world.run_to("31");
            world.node("p").stalled_until = at(clock);
            world.run_to("100");
            assert_eq!(world.freed("p", "a"), None, "{wire} {clock}");
            world.lawful();
        }
    }
}

/// The same with beats that are only delivered once P polls again (a link that held them).
#[test]
fn a_stall_without_beats_ends_the_lease() {
    for wire in WIRES {
        let (mut world, _) = pair(wire);
        world.run_to("31");
        world.kill("d");
        world.node("p").stalled_until = at("56");
        world.run_to("100");
        assert_eq!(world.freed("p", "a"), Some((at("56"), Freed::Expired)), "{wire}");
        world.lawful();
    }
}

/// D stalls: 15 s is survived from any moment, since the longest gap is an interval and the stall; 20 s cannot be.
#[test]
fn a_stalled_reader_keeps_its_lease_for_an_extension_less_an_interval() {
    for wire in WIRES {
        for (stall, kept) in [(15_000, true), (17_500, false), (20_000, false)] {
            let (mut world, handle) = pair(wire);
            world.run_to("40");
            let last = *beats(&world).last().unwrap();
            // The worst moment: just before the next beat, which comes an interval after the last one.
            let until = last.saturating_add(secs("4.9")).saturating_add(Duration::from_millis(stall));
            world.node("d").stalled_until = until;
            world.run_to("100");
            assert_eq!(world.freed("p", "a").is_none(), kept, "{wire} {stall}");
            if wire == Wire::Native && !kept {
                assert_eq!(world.lost("d", "a"), Some(Lost::Expired));
                assert!(world.begin_read("d", handle).is_err());
            }
            world.lawful();
        }
    }
}

/// Case 40: a beat that comes with less than an interval to spare is counted.
#[test]
fn a_late_beat_is_counted() {
    for (time, late) in [("26", 0), ("26.2", 1), ("30", 1)] {
        let mut holder = LoneHolder::new(Wire::Native);
        let token = holder.grant("a");
        let session = holder.greet("d", 2, token).unwrap();
        holder.go(time);
        holder.renew(session, ReaderRank::ONLY, token).unwrap();
        assert_eq!(holder.counters.late_heartbeat, late, "{time}");
    }
}

/// Both machines are suspended for 60 s and their clocks count it: the lease is over, and a read across it is not valid.
#[test]
fn a_suspend_of_60_s_is_no_valid_read() {
    for wire in WIRES {
        let (mut world, handle) = pair(wire);
        world.run_to("40");
        world.begin_read("d", handle).unwrap();
        for name in ["p", "d"] {
            world.node(name).stalled_until = at("100");
        }
        world.run_to("100");
        let ended = world.read_ended("d", handle, ReadOutcome::OneSided);
        world.run_to("160");
        if ended.is_ok() {
            assert!(!world.verdict("d", "a").is_some_and(|verdict| verdict == Verdict::ValidByDeadline), "{wire}");
        }
        assert!(world.freed("p", "a").is_some(), "{wire}");
        assert_eq!(world.node("d").reader.open(), 0, "{wire}");
        world.lawful();
    }
}

/// Messages that are delayed and repeated keep the lease, and each end is told once.
#[test]
fn a_bad_link_keeps_the_lease() {
    for wire in WIRES {
        let faults = [Fault { delay: secs("0.4"), ..Fault::default() }, Fault { duplicate: 3, ..Fault::default() }];
        for fault in faults {
            let (mut world, handle) = pair(wire);
            for link in [world.link("d", "p"), world.link("p", "d")] {
                world.fabric.fault(link, fault);
            }
            world.run_to("100");
            assert_eq!(world.freed("p", "a"), None, "{wire} {fault:?}");
            assert!(!world.saw("d", &Seen::Unproven("a".into())));
            world.begin_read("d", handle).unwrap();
            world.read_ended("d", handle, ReadOutcome::OneSided).unwrap();
            world.run_to("200");
            assert!(matches!(world.freed("p", "a"), Some((_, Freed::Completed))), "{wire}");
            assert_eq!((world.node("p").holder.live(), world.node("d").reader.open()), (0, 0));
            world.lawful();
        }
    }
}

/// Cases 27, 49: the verdict is local; the notice is repeated until it is answered, and not for ever.
#[test]
fn a_completion_is_repeated_until_it_is_answered() {
    for lost in [0, 1, 5, 1_000] {
        let (mut world, handle) = pair(Wire::Native);
        world.run_to("31");
        world.begin_read("d", handle).unwrap();
        world.fabric.drop_next(world.link("d", "p"), lost);
        world.read_ended("d", handle, ReadOutcome::OneSided).unwrap();
        assert_eq!(world.verdict("d", "a"), Some(Verdict::ValidByDeadline));
        world.run_to("80");
        let why = if lost == 1_000 { Freed::Expired } else { Freed::Completed };
        assert_eq!(world.freed("p", "a").map(|(_, why)| why), Some(why), "{lost}");
        assert_eq!(world.node("d").reader.open(), 0);
        world.lawful();
    }
}

/// Case 49 on the text wire: accepted for sending is all there is; refused by the transport is tried again, once accepted not.
#[test]
fn a_text_completion_is_sent_once_it_is_taken() {
    let mut reader = LoneReader::new(Wire::Vllm);
    let handle = reader.track("a", 1);
    reader.poll("0");
    reader.act(|at, cx| at.finish(cx, handle)).unwrap();
    reader.taking = Err(ErrorKind::WouldBlock);
    assert_eq!(reader.poll("1"), []);
    reader.taking = Ok(());
    assert_eq!(reader.poll("2"), [(0, Heard::Text("a:1".into()))]);
    assert_eq!(reader.poll("30"), []);
    assert_eq!(reader.reader.open(), 0);
    reader.lawful();
}

/// A beat that was not taken is not spent: it goes out soon, as a new number.
#[test]
fn a_beat_that_was_refused_is_tried_again_soon() {
    let mut reader = LoneReader::new(Wire::Native);
    reader.track("a", 1);
    reader.poll("0");
    reader.taking = Err(ErrorKind::WouldBlock);
    assert_eq!(reader.poll("1"), []);
    reader.taking = Ok(());
    assert!(reader.poll("1.5").iter().any(|(_, heard)| is_renew(heard)));
    assert!(reader.counters.unsent >= 1 && reader.counters.peer_lost == 0);
}

/// A peer that takes nothing in (case 5 of UCX: no back-pressure) finds one beat an interval in its queue when it wakes up, not a
/// pile of them; and nothing stops for good.
#[test]
fn beats_do_not_pile_up_behind_one_that_has_not_left() {
    for (wire, least) in [(Wire::Native, secs("3")), (Wire::Vllm, secs("5"))] {
        let mut reader = LoneReader::new(wire);
        reader.track("a", 1);
        let sent = reader.poll("0");
        reader.grant_all(&sent, "20");
        reader.leaving = false;
        let mut times = Vec::new();
        for tenth in 1..200u32 {
            let now = f64::from(tenth) / 10.0;
            let beats = reader.poll(&now.to_string());
            let is_beat = |(_, heard): &(u16, Heard)| is_renew(heard) || matches!(heard, Heard::Text(_));
            times.extend(beats.iter().any(is_beat).then(|| Instant::ZERO.saturating_add(secs(&now.to_string()))));
        }
        assert!(times.len() >= 3, "{wire}: it stopped");
        let gaps: Vec<Duration> = times.windows(2).map(|pair| pair[1].saturating_since(pair[0])).collect();
        assert!(gaps.iter().all(|gap| *gap >= least), "{wire}: {gaps:?}");
    }
}

/// Unanswered numbers slow beats down and never stop them; on the text wire, where nothing is answered, they do neither.
#[test]
fn silence_slows_beats_and_never_stops_them() {
    for (wire, least, most) in [(Wire::Native, secs("7.7"), secs("7.9")), (Wire::Vllm, secs("5"), secs("5"))] {
        let config = Config { lost_after: Some(secs("1000")), ..Config::default() };
        let mut reader = LoneReader::with(wire, config, 64);
        reader.track("a", 1);
        let (mut sent, mut now) = (Vec::new(), Instant::ZERO);
        for _ in 0..4_000 {
            let beat = |(_, heard): &(u16, Heard)| is_renew(heard) || matches!(heard, Heard::Text(_));
            sent.extend(reader.poll(&now.to_string()).iter().any(beat).then_some(now));
            now = now.saturating_add(Duration::from_millis(100));
        }
        let gaps: Vec<Duration> = sent.windows(2).map(|pair| pair[1].saturating_since(pair[0])).collect();
        let last = &gaps[gaps.len() - 10..];
        assert!(last.iter().all(|gap| (least..=most).contains(gap)), "{wire}: {last:?}");
        assert!(now.saturating_since(*sent.last().unwrap()) < secs("8"), "{wire}: stopped");
        assert_eq!(reader.counters.one_way, 0, "{wire}: it was welcomed");
    }
}

/// The first beats come fast until one is answered, then by the interval less at most an eighth.
#[test]
fn beats_come_fast_until_the_first_answer() {
    let mut reader = LoneReader::new(Wire::Native);
    reader.track("a", 1);
    let (mut beats, mut now) = (Vec::new(), Instant::ZERO);
    while now < at("40") {
        let sent = reader.poll(&now.to_string());
        if sent.iter().any(|(_, heard)| is_renew(heard)) {
            beats.push(now);
        }
        if now >= at("3") {
            reader.grant_all(&sent, "20");
        }
        now = now.saturating_add(Duration::from_millis(10));
    }
    let gaps: Vec<_> = beats.windows(2).map(|pair| pair[1].saturating_since(pair[0])).collect();
    assert_eq!(gaps[..3], [secs("1"); 3]);
    assert!(gaps[4..].iter().all(|gap| *gap <= secs("3.91") && *gap >= secs("3.4")), "{gaps:?}");
}

/// Law 2, whatever the order of grants and however the clock steps back: the clamped clock stands, and no lease ends twice.
#[test]
fn a_clock_that_goes_back_is_clamped_and_counted() {
    let mut holder = LoneHolder::new(Wire::Native);
    holder.go("100");
    let token = holder.grant("a");
    let session = holder.greet("d", 2, token).unwrap();
    holder.go("50");
    assert_eq!(holder.renew(session, ReaderRank::ONLY, token), Ok(secs("20")));
    assert!(holder.counters.clock_backwards > 0);
    holder.poll("50");
    holder.grant("b");
    holder.poll("129.999999999");
    assert_eq!(holder.freed("a"), None, "promised at 100 s of the clamped clock");
    holder.poll("130");
    assert!(holder.freed("a").is_some() && holder.freed("b").is_some());
    holder.poll("0");
    holder.lawful();
}

/// After the last answer the reader gives up within `lost_after`, and a verdict that waits comes before.
#[test]
fn a_silent_holder_is_given_up() {
    let mut reader = LoneReader::new(Wire::Native);
    let handle = reader.track("a", 1);
    reader.track("b", 2);
    let sent = reader.poll("0");
    reader.grant_all(&sent, "20");
    reader.begin(handle);
    for second in 1..40 {
        reader.poll(&second.to_string());
    }
    assert_eq!((reader.lost("a"), reader.lost("b")), (None, None));
    reader.poll("40");
    assert_eq!((reader.lost("a"), reader.lost("b")), (Some(Lost::NoAnswer), Some(Lost::NoAnswer)));
    reader.end(handle, ReadOutcome::OneSided);
    let sent = reader.poll("41");
    assert!(sent.iter().any(|(_, heard)| is_complete(heard)), "it may still answer");
    reader.completed(0, seq_of(&sent, is_complete), 1);
    assert_eq!(reader.verdict("a"), Some(Verdict::ValidByCompletion));
    assert_eq!(reader.reader.open(), 0);
    reader.lawful();
}
