//! What comes late, twice, out of order, or answers something else.

mod common;

use common::{
    Seen, World, at,
    lone::{Heard, LoneReader, greeted, is_renew, rank, seq_of, token},
};
use lease_proto::{
    event::{Freed, Lost, Refused, Verdict},
    id::{ReaderRank, Seq, Session},
    reader::ReadOutcome,
    wire::{
        Wire,
        native::{About, Body, Refusal, Renew, Tokens},
    },
};

const ONLY: ReaderRank = ReaderRank::ONLY;

/// HB after DONE, HB reordered after REL, REL during a read: each is answered and none brings a lease back.
#[test]
fn beats_after_the_end_renew_nothing() {
    for (complete, why) in [(true, Refusal::Completed), (false, Refusal::Released)] {
        let (mut holder, token, session) = greeted();
        holder.renew(session, ONLY, token).unwrap();
        if complete {
            holder.complete(session, ONLY, token).unwrap();
        } else {
            assert_eq!(holder.release(session, ONLY, token), Refusal::Released);
        }
        assert_eq!(holder.renew(session, ONLY, token), Err(why));
        assert_eq!(holder.holder.live(), 0);
        holder.lawful();
    }
}

/// REL during a read: the reader's own rank 1 gives up while rank 0 reads: rank 0 is still proven.
#[test]
fn a_release_of_one_rank_leaves_the_others_promise() {
    let (mut holder, token, session) = greeted();
    holder.renew(session, rank(0, 2), token).unwrap();
    assert_eq!(holder.release(session, rank(1, 2), token), Refusal::Released);
    holder.poll("29");
    assert_eq!(holder.freed("a"), None);
    assert_eq!(holder.complete(session, rank(0, 2), token), Ok(()));
    holder.lawful();
}

/// Laws 2 and 5: a repeated renew is an ordinary one, an unknown session is inert, an answer is never answered.
#[test]
fn replays_and_strangers_are_harmless() {
    let (mut holder, token, session) = greeted();
    let renew = [token.to_bytes()];
    let body = || Body::Renew(Renew { reader: ONLY, tokens: Tokens::from_chunks(&renew).unwrap() });
    for unknown in [Session(0), Session(session.0 ^ 1), Session(u64::MAX)] {
        assert_eq!(holder.say(unknown, body()), None);
        assert_eq!(holder.say(unknown, Body::Complete(About { token, reader: ONLY })), None);
    }
    assert_eq!(holder.counters.rejected(lease_proto::wire::Rejected::StaleSession), 6);
    assert_eq!(holder.counters.renewed, 0);
    holder.renew(session, ONLY, token).unwrap();
    holder.go("5");
    holder.renew(session, ONLY, token).unwrap();
    holder.poll("30");
    assert_eq!(holder.freed("a"), Some((at("30"), Freed::Expired)), "5 + 20 is less than what was granted first");
    assert_eq!(holder.say(session, Body::Time), Some(Heard::TimeReply));
    holder.lawful();
}

/// Everything that was ever sent is delivered again, at once and an hour later: nothing ends twice, nothing comes back.
#[test]
fn a_replay_of_a_whole_conversation_changes_nothing() {
    for wire in [Wire::Native, Wire::Vllm] {
        let mut world = World::new(wire);
        world.start("p", 5);
        world.start("d", 7_000_000_000);
        let token = world.grant("p", "a").unwrap();
        let handle = world.track("d", "p", "a", token).unwrap();
        world.run_to("20");
        world.begin_read("d", handle).unwrap();
        world.read_ended("d", handle, ReadOutcome::OneSided).unwrap();
        world.run_to("21");
        assert!(matches!(world.freed("p", "a"), Some((_, Freed::Completed))));
        let (there, back) = (world.link("d", "p"), world.link("p", "d"));
        for end in ["22", "3000"] {
            (0..100).for_each(|nth| {
                world.fabric.replay(there, nth);
                world.fabric.replay(back, nth);
            });
            world.run_to(end);
        }
        assert!(matches!(world.freed("p", "a"), Some((_, Freed::Completed))));
        assert_eq!((world.node("p").holder.live(), world.node("d").reader.open()), (0, 0));
        assert_eq!(world.count("d", |seen| matches!(seen, Seen::ReadDone(..) | Seen::Resolved(_))), 2);
        world.lawful();
    }
}

/// Answers that fit no renew exactly are discarded whole, and do not stand in the way of the right one.
#[test]
fn an_answer_with_the_wrong_count_is_discarded_whole() {
    let mut reader = LoneReader::new(Wire::Native);
    reader.track("a", 1);
    reader.track("b", 2);
    let sent = reader.poll("0");
    let Seq(seq) = seq_of(&sent, is_renew);
    for (re, count) in [(seq, 1), (seq, 3), (seq + 1, 2), (seq + 16, 2), (0, 2)] {
        reader.renewed(0, Seq(re), count, "20", &[]);
    }
    assert_eq!((reader.counters.answers, reader.counters.answers_discarded), (0, 5));
    reader.renewed(0, Seq(seq), 2, "20", &[]);
    assert!(reader.saw(&Seen::Confirmed("a".into())) && reader.saw(&Seen::Confirmed("b".into())));
    reader.renewed(0, Seq(seq), 2, "3000", &[]);
    assert_eq!(reader.counters.answers_discarded, 6, "each renew is answered once");
    reader.lawful();
}

/// An answer covers the leases that its renew named, by index, whatever came and went since.
#[test]
fn an_answer_covers_what_its_renew_named() {
    let mut reader = LoneReader::new(Wire::Native);
    let handles: Vec<_> = (1..=5).map(|number| reader.track(&number.to_string(), number)).collect();
    let sent = reader.poll("0");
    let seq = seq_of(&sent, is_renew);
    reader.act(|at, cx| at.finish(cx, handles[1])).unwrap();
    reader.track("6", 6);
    reader.renewed(0, seq, 5, "20", &[(1, Err(Refusal::Expired)), (3, Err(Refusal::Expired))]);
    let confirmed: Vec<bool> = (1..=6).map(|number| reader.saw(&Seen::Confirmed(number.to_string()))).collect();
    assert_eq!(confirmed, [true, false, true, false, true, false]);
    assert_eq!((reader.lost("4"), reader.lost("2")), (Some(Lost::Expired), None));
    reader.lawful();
}

/// A request is tracked once per holder's life.
#[test]
fn a_request_is_tracked_once() {
    let mut reader = LoneReader::new(Wire::Native);
    reader.track("a", 1);
    assert_eq!(reader.track_on("p", 1, &[0], "a", 1, ONLY), Err(Refused::Duplicate));
    assert!(reader.track_on("p", 1, &[0], "a", 2, ONLY).is_ok(), "another lease of the same request");
    assert_eq!(reader.track_on("p", 1, &[], "b", 3, ONLY), Err(Refused::Unknown), "a read of no rank proves nothing");
    assert_eq!(reader.track_on("p", 1, &[0, 1, 0], "b", 3, ONLY), Err(Refused::Duplicate), "a rank is read once");
    assert_ne!(token(1), token(2));
    reader.lawful();
}

/// Two ranks of a reader, two of a holder, two of both: every pair is its own conversation (cases 13, 14).
#[test]
fn ranks_of_both_sides_end_a_lease_together() {
    use common::Spec;
    let mut world = World::new(Wire::Native);
    for (name, engine, incarnation, rank) in [("p0", "p", 1, 0), ("p1", "p", 1, 1), ("d0", "d", 2, 0), ("d1", "d", 2, 1)] {
        let clock = 1_000 * u64::from(rank);
        world.spawn(name, Spec { incarnation: Some(incarnation), rank, ranks: 2, clock, ..Spec::of(engine) });
    }
    let token = world.grant("p0", "a").unwrap();
    world.grant_token("p1", "a", token).unwrap();
    let frames = ["p0", "p1"].map(|name| world.frame(name));
    let targets = [(0, frames[0].1.clone()), (1, frames[1].1.clone())];
    let handles = [("d0", 0), ("d1", 1)]
        .map(|(name, index)| (name, world.track_ranks(name, &frames[0].0, &targets, "a", token, rank(index, 2)).unwrap()));
    world.run_to("60");
    for (name, handle) in handles {
        assert_eq!((world.freed("p0", "a"), world.freed("p1", "a")), (None, None));
        world.begin_read(name, handle).unwrap();
        world.read_ended(name, handle, ReadOutcome::OneSided).unwrap();
        world.run_to(if name == "d0" { "61" } else { "62" });
        assert_eq!(world.verdict(name, "a"), Some(Verdict::ValidByDeadline));
    }
    for name in ["p0", "p1"] {
        assert_eq!(world.freed(name, "a"), Some((at("61"), Freed::Completed)), "{name}");
    }
    world.lawful();
}

/// A rank's metadata in another rank's place is found out in the handshake.
#[test]
fn a_rank_that_answers_for_another_one_is_not_believed() {
    let mut world = World::new(Wire::Native);
    world.start("p", 0);
    world.start("d", 0);
    let token = world.grant("p", "a").unwrap();
    let (identity, frame) = world.frame("p");
    world.track_ranks("d", &identity, &[(1, frame)], "a", token, ONLY).unwrap();
    world.run_to("39");
    assert!(!world.saw("d", &Seen::Confirmed("a".into())));
    world.run_to("41");
    assert_eq!(world.lost("d", "a"), Some(Lost::NoAnswer));
    world.lawful();
}
