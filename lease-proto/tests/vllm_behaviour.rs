//! What vLLM's own unit tests of this mechanism ask for, on its wire. The clock rows (rebased deadlines, the turn-2 gate) are
//! unit tests of `clock`. That requests without a remote prefill are not tracked is the engine's choice: it does not call `track`.

mod common;

use common::{
    Seen, World, at,
    lone::{Heard, LoneHolder, LoneReader},
};
use lease_proto::{
    event::{Freed, Refused, Verdict},
    id::ReaderRank,
    reader::ReadOutcome,
    wire::Wire,
};

fn texts(sent: Vec<(u16, Heard)>) -> Vec<String> {
    let text = |(_, heard)| match heard {
        Heard::Text(text) => text,
        other => panic!("{other:?}"),
    };
    sent.into_iter().map(text).collect()
}

/// Ids in a beat, in any order.
fn ids(text: &str) -> Vec<&str> {
    let mut ids: Vec<_> = text.strip_prefix("HB:").expect("a beat").split(',').collect();
    ids.sort_unstable();
    ids
}

fn expires(holder: &LoneHolder, request: &str) -> String {
    let promised = holder.seen.iter().filter_map(|(_, seen)| match seen {
        Seen::Granted(of, expires) | Seen::Renewed(of, expires) if of == request => Some(*expires),
        _ => None,
    });
    promised.max().unwrap().to_string()
}

fn track(reader: &mut LoneReader, engine: &str, request: &str) -> lease_proto::reader::Handle {
    reader.track_on(engine, 1, &[0], request, 1, ReaderRank::ONLY).unwrap()
}

#[test]
fn tracks_and_groups_by_engine() {
    let mut reader = LoneReader::new(Wire::Vllm);
    for (engine, request) in [("p", "a"), ("q", "b"), ("p", "c"), ("q", "d"), ("p", "e")] {
        track(&mut reader, engine, request);
    }
    let beats = texts(reader.poll("0"));
    let mut beats: Vec<_> = beats.iter().map(|text| ids(text)).collect();
    beats.sort_unstable();
    assert_eq!(beats, [vec!["a", "c", "e"], vec!["b", "d"]], "one beat per engine with all its ids");
    reader.lawful();
}

#[test]
fn the_same_id_on_two_engines_is_two_requests() {
    let mut reader = LoneReader::new(Wire::Vllm);
    track(&mut reader, "p", "0");
    track(&mut reader, "q", "0");
    let again = reader.track_on("p", 1, &[0], "0", 1, ReaderRank::ONLY);
    assert_eq!(again, Err(Refused::Duplicate));
    assert_eq!(texts(reader.poll("0")), ["HB:0", "HB:0"]);
    reader.lawful();
}

#[test]
fn beats_go_to_every_rank_that_is_read_from() {
    let mut reader = LoneReader::new(Wire::Vllm);
    reader.track_on("p", 1, &[2, 3], "a", 1, ReaderRank::ONLY).unwrap();
    let mut ranks: Vec<u16> = reader.poll("0").into_iter().map(|(rank, _)| rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [2, 3]);
}

#[test]
fn beats_are_throttled_to_the_interval() {
    let mut reader = LoneReader::new(Wire::Vllm);
    track(&mut reader, "p", "a");
    assert_eq!(texts(reader.poll("0")), ["HB:a"], "the first beat at once");
    for early in ["0.000000001", "1", "4.999999999"] {
        assert_eq!(reader.poll(early), [], "{early}");
    }
    assert_eq!(texts(reader.poll("5")), ["HB:a"]);
    assert_eq!(reader.poll("9.999999999"), []);
    assert_eq!(texts(reader.poll("10")), ["HB:a"]);
}

/// vLLM spends a beat while the handshake is pending, so that a new engine waits for up to an interval: not here.
#[test]
fn a_beat_that_could_not_be_sent_is_not_spent() {
    let mut reader = LoneReader::new(Wire::Vllm);
    reader.reachable = false;
    track(&mut reader, "p", "a");
    assert_eq!(reader.poll("0"), []);
    reader.reachable = true;
    let mut first = None;
    for tenth in 1..200 {
        let now = format!("{}.{}", tenth / 10, tenth % 10);
        if !reader.poll(&now).is_empty() {
            first = Some(tenth);
            break;
        }
    }
    assert!(first.is_some_and(|tenth| tenth <= 150), "attempt given up after 10 s, next one soon, beat with it: {first:?}");
}

#[test]
fn a_new_request_is_beaten_for_at_once_and_alone() {
    let mut reader = LoneReader::new(Wire::Vllm);
    track(&mut reader, "p", "a");
    reader.poll("0");
    reader.go("2");
    track(&mut reader, "p", "b");
    assert_eq!(texts(reader.poll("2")), ["HB:b"]);
    assert_eq!(ids(&texts(reader.poll("5"))[0]), ["a", "b"]);
}

#[test]
fn beats_stop_for_what_is_received_or_finished_and_with_the_last_one() {
    let mut reader = LoneReader::new(Wire::Vllm);
    let [a, b, c] = ["a", "b", "c"].map(|request| track(&mut reader, "p", request));
    assert_eq!(ids(&texts(reader.poll("0"))[0]), ["a", "b", "c"]);
    // Partial, by receive-finished.
    reader.begin(a);
    reader.end(a, ReadOutcome::OneSided);
    assert_eq!(texts(reader.poll("1")), ["a:1"]);
    assert_eq!(ids(&texts(reader.poll("5"))[0]), ["b", "c"]);
    // Partial, by a receive that failed.
    reader.begin(b);
    reader.end(b, ReadOutcome::Failed);
    assert_eq!(texts(reader.poll("6")), ["b:1"]);
    assert_eq!(texts(reader.poll("10")), ["HB:c"]);
    // Full, by request-finished: a release is a completion on this wire.
    reader.act(|at, cx| at.finish(cx, c)).unwrap();
    assert_eq!(texts(reader.poll("11")), ["c:1"]);
    for later in ["15", "20", "40"] {
        assert_eq!(reader.poll(later), [], "{later}");
    }
    assert_eq!((reader.verdict("a"), reader.verdict("b")), (Some(Verdict::Unverified), Some(Verdict::Failed)));
    assert_eq!(reader.reader.open(), 0);
    reader.lawful();
}

#[test]
fn a_completion_says_how_many_readers_there_are() {
    let mut reader = LoneReader::new(Wire::Vllm);
    let handle = reader.track_on("p", 1, &[0], "a", 1, ReaderRank::new(1, 2).unwrap()).unwrap();
    reader.poll("0");
    reader.act(|at, cx| at.finish(cx, handle)).unwrap();
    assert_eq!(texts(reader.poll("1")), ["a:2"]);
}

#[test]
fn a_beat_moves_a_lease_to_now_and_20_and_never_back() {
    let mut holder = LoneHolder::new(Wire::Vllm);
    holder.grant("past");
    let ttl = Some("480".parse().unwrap());
    holder.go("25");
    holder.text(None, "HB:past");
    assert_eq!(expires(&holder, "past"), "45");
    holder.grant_with("far", None, ttl).unwrap();
    holder.text(None, "HB:far,unknown");
    assert_eq!(expires(&holder, "far"), "505");
    assert_eq!((holder.holder.live(), holder.refused(Refused::Unknown)), (2, 1), "unknown not added");
    holder.go("26");
    holder.grant("near");
    holder.text(None, "HB:near");
    assert_eq!(expires(&holder, "near"), "56", "max(old, new)");
    holder.lawful();
}

#[test]
fn leases_behind_a_renewed_head_are_reaped() {
    let mut holder = LoneHolder::new(Wire::Vllm);
    holder.grant("a");
    for (time, request) in [("2", "b"), ("4", "c")] {
        holder.go(time);
        holder.grant(request);
    }
    for time in ["20", "40"] {
        holder.go(time);
        holder.text(None, "HB:a");
    }
    holder.poll("50");
    let freed = |holder: &LoneHolder| {
        let all = holder.seen.iter().filter_map(|(at, seen)| match seen {
            Seen::Freed { request, expires, why: Freed::Expired, .. } => Some(format!("{request} {expires} {at}")),
            _ => None,
        });
        all.collect::<Vec<_>>()
    };
    assert_eq!(freed(&holder), ["b 32 50", "c 34 50"]);
    for time in ["60", "80"] {
        holder.go(time);
        holder.text(None, "HB:a");
    }
    holder.poll("99.999999999");
    assert_eq!(holder.holder.live(), 1);
    holder.poll("100");
    assert_eq!(freed(&holder), ["b 32 50", "c 34 50", "a 100 100"]);
    holder.lawful();
}

#[test]
fn a_lease_ends_exactly_when_it_expires() {
    for (time, ended) in [("29.999999999", false), ("30", true), ("30.000000001", true)] {
        let mut holder = LoneHolder::new(Wire::Vllm);
        holder.grant("a");
        holder.poll(time);
        assert_eq!(holder.freed("a").is_some(), ended, "{time}");
        holder.lawful();
    }
}

#[test]
fn a_shorter_lease_behind_a_later_deadline_is_reaped() {
    for swap in [false, true] {
        let mut holder = LoneHolder::new(Wire::Vllm);
        let ttl = Some("480".parse().unwrap());
        let mut order = [("long", ttl), ("short", None)];
        if swap {
            order.reverse();
        }
        for (request, ttl) in order {
            holder.grant_with(request, None, ttl).unwrap();
        }
        holder.poll("30");
        assert_eq!((holder.freed("short"), holder.freed("long")), (Some((at("30"), Freed::Expired)), None));
        holder.lawful();
    }
}

#[test]
fn messages_come_before_timers_at_the_same_instant() {
    for (beat, kept) in [("29.999999999", true), ("30", true), ("30.000000001", true)] {
        let mut holder = LoneHolder::new(Wire::Vllm);
        holder.grant("a");
        holder.go(beat);
        holder.text(None, "HB:a");
        holder.poll(beat);
        assert_eq!(holder.freed("a").is_none(), kept, "{beat}");
    }
    let mut holder = LoneHolder::new(Wire::Vllm);
    holder.grant("a");
    holder.poll("30");
    holder.text(None, "HB:a");
    assert_eq!((holder.holder.live(), holder.refused(Refused::Expired)), (0, 1), "it had been polled away");
}

#[test]
fn a_notification_after_expiry_is_counted() {
    let mut holder = LoneHolder::new(Wire::Vllm);
    holder.grant("a");
    holder.poll("30");
    holder.text(None, "a:1");
    holder.text(None, "a:1");
    holder.text(None, "never:1");
    assert_eq!(holder.counters.read_after_expiry, 2);
    assert_eq!((holder.refused(Refused::Expired), holder.refused(Refused::Unknown)), (2, 1));
    holder.lawful();
}

#[test]
fn completions_are_counted_by_vllms_rule() {
    // Each completion with its sender, if it can be told; whether the lease ends.
    type Case<'a> = (&'a [(Option<u64>, &'a str)], bool);
    let cases: [Case<'_>; 12] = [
        (&[(None, "r:1")], true),
        (&[(None, "r:2")], false),
        (&[(None, "r:2"), (None, "r:2")], true),
        (&[(Some(1), "r:2"), (Some(2), "r:2")], true),
        (&[(Some(1), "r:2"), (Some(1), "r:2")], false),
        (&[(Some(1), "r:2"), (Some(1), "r:2"), (Some(2), "r:2")], true),
        // The last number wins: 2 of 1 never match.
        (&[(None, "r:2"), (None, "r:1")], false),
        (&[(Some(1), "r:2"), (Some(2), "r:1")], false),
        // A repeat is no progress, whatever number it brings.
        (&[(Some(1), "r:2"), (Some(1), "r:1")], false),
        (&[(None, "r:3"), (None, "r:2")], true),
        (&[(None, "r: 1 ")], true),
        (&[(None, "r:1_0")], false),
    ];
    for (messages, ends) in cases {
        let mut holder = LoneHolder::new(Wire::Vllm);
        holder.grant("r");
        messages.iter().for_each(|(from, text)| holder.text(*from, text));
        assert_eq!(holder.freed("r"), ends.then_some((at("0"), Freed::Completed)), "{messages:?}");
        holder.poll("30");
        assert!(holder.freed("r").is_some(), "{messages:?} ends by its time at the latest");
        holder.lawful();
    }
}

/// `:0` and `:-1` can never be reached and do not parse here; a known id is not harmed by them.
#[test]
fn counts_that_no_reader_count_can_be_change_nothing() {
    for text in ["r:0", "r:-1", "r:", "r", "r:x"] {
        let mut world = World::new(Wire::Vllm);
        world.start("p", 0);
        world.grant("p", "r").unwrap();
        world.receive("p", text.as_bytes());
        world.run_to("29");
        assert_eq!((world.freed("p", "r"), world.count("p", |seen| matches!(seen, Seen::Rejected(_)))), (None, 1), "{text}");
        world.run_to("30");
        assert_eq!(world.freed("p", "r"), Some((at("30"), Freed::Expired)), "{text}");
        world.lawful();
    }
}

#[test]
fn a_completion_is_remembered_for_a_request_that_is_scheduled_and_a_beat_is_not() {
    let mut holder = LoneHolder::new(Wire::Vllm);
    holder.expect("scheduled");
    holder.text(None, "HB:scheduled");
    assert_eq!(holder.refused(Refused::NotYet), 1);
    holder.text(None, "scheduled:2");
    holder.text(None, "unheard:1");
    holder.grant("scheduled");
    holder.grant("unheard");
    assert_eq!((holder.freed("scheduled"), holder.freed("unheard")), (None, None));
    holder.text(None, "scheduled:2");
    assert_eq!(holder.freed("scheduled"), Some((at("0"), Freed::Completed)));
    holder.poll("30");
    assert_eq!(holder.freed("unheard"), Some((at("30"), Freed::Expired)));
    assert_eq!(holder.counters.early_completions, 1);
    holder.lawful();
}

/// P counts its extension from L = 10, D beats by L = 60: nothing is negotiated on this wire, so the lease runs out between beats.
#[test]
fn a_holder_of_10_s_and_a_reader_of_60_s_do_not_fit() {
    let mut world = World::new(Wire::Vllm);
    world.config.lease = common::secs("10");
    world.start("p", 0);
    world.config.lease = common::secs("60");
    world.start("d", 0);
    let token = world.grant("p", "a").unwrap();
    world.track("d", "p", "a", token).unwrap();
    world.run_to("30");
    // The beats of 0 s and 10 s, the second just in time, and nothing before 20 s.
    assert_eq!(world.freed("p", "a"), Some((at("16"), Freed::Expired)));
    world.lawful();
}

#[test]
fn tracking_refuses_ids_that_the_text_cannot_carry() {
    let mut reader = LoneReader::new(Wire::Vllm);
    for request in ["a,b", "", "HB", "HB:a", "PUSH_REG:a"] {
        let refused = reader.track_on("p", 1, &[0], request, 1, ReaderRank::ONLY);
        assert_eq!(refused, Err(Refused::IdNotEncodable), "{request:?}");
    }
    let mut holder = LoneHolder::new(Wire::Vllm);
    assert_eq!(holder.grant_with("a,b", None, None), Err(Refused::IdNotEncodable));
    holder.lawful();
    reader.lawful();
}
