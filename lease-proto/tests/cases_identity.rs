//! Who may say what about which lease: tokens, claims, counts, repeats, order.

mod common;

use common::{
    Seen, at,
    lone::{Heard, LoneHolder, LoneReader, greeted, is_renew, rank, seq_of},
    secs,
};
use lease_proto::{
    config::Config,
    event::{Freed, Lost, Refused},
    holder::Abort,
    id::{ReaderRank, Seq, Token},
    wire::{Wire, native::Refusal},
};

const ONLY: ReaderRank = ReaderRank::ONLY;

/// Case 4: a beat for what the holder does not know is answered, and the reader learns at its first beat.
#[test]
fn an_unknown_lease_is_refused_and_lost_at_once() {
    let (mut holder, known, session) = greeted();
    for unknown in [Token { number: 0, ..known }, Token { number: 0, nonce: 1 }] {
        assert_eq!(holder.renew(session, ONLY, unknown), Err(Refusal::Unknown));
    }
    assert_eq!(holder.refused(Refused::Unknown), 2);
    let mut reader = LoneReader::new(Wire::Native);
    reader.track("a", 1);
    reader.track("b", 2);
    let sent = reader.poll("0");
    reader.renewed(0, seq_of(&sent, is_renew), 2, "20", &[(0, Err(Refusal::Unknown))]);
    assert_eq!((reader.lost("a"), reader.lost("b")), (Some(Lost::Unknown), None));
    assert!(reader.saw(&Seen::Confirmed("b".into())));
    holder.lawful();
    reader.lawful();
}

/// Case 4 on vLLM's wire: the router's id, and another suffix, renew nothing and are counted.
#[test]
fn ids_match_whole_or_not_at_all() {
    let mut holder = LoneHolder::new(Wire::Vllm);
    holder.grant("cmpl-U-0-aaaaaaaa");
    for other in ["U", "cmpl-U-0-bbbbbbbb", "cmpl-U-0-aaaaaaa", "cmpl-U-0-aaaaaaaaa", "CMPL-U-0-AAAAAAAA"] {
        holder.text(None, &format!("HB:{other}"));
        holder.text(None, &format!("{other}:1"));
    }
    assert_eq!((holder.refused(Refused::Unknown), holder.counters.renewed), (10, 0));
    holder.poll("30");
    assert_eq!(holder.freed("cmpl-U-0-aaaaaaaa"), Some((at("30"), Freed::Expired)));
    holder.lawful();
}

/// Case 69: "read-1" is not "read-10"; case 56: ids are not parsed.
#[test]
fn a_completion_ends_its_own_lease_only() {
    let ids = ["read-1", "read-10", "read-1:1", "0", "x-AAAA", "x-\"BBBB\""];
    for (index, done) in ids.into_iter().enumerate() {
        let mut holder = LoneHolder::new(Wire::Vllm);
        for id in ids {
            holder.grant(id);
        }
        holder.text(None, &format!("{done}:1"));
        for (other, id) in ids.into_iter().enumerate() {
            assert_eq!(holder.freed(id).is_some(), other == index, "{done}: {id}");
        }
        holder.lawful();
    }
}

/// Case 8, 52: the number alone opens nothing; a later lease of the same request is another one.
#[test]
fn a_foreign_token_opens_nothing() {
    let (mut holder, token, session) = greeted();
    let foreign = Token { nonce: token.nonce ^ 1, ..token };
    assert_eq!(holder.renew(session, ONLY, foreign), Err(Refusal::Unknown), "told apart by nobody");
    assert_eq!(holder.complete(session, ONLY, foreign), Err(Refusal::Unknown));
    assert_eq!(holder.release(session, ONLY, foreign), Refusal::Unknown);
    assert_eq!(holder.greet("stranger", 3, foreign), None, "no stranger's address is parsed");
    assert_eq!(holder.refused(Refused::ForeignToken), 4);
    assert_eq!((holder.holder.live(), holder.counters.renewed), (1, 0));
    holder.lawful();
}

/// Cases 8, 19, 52: the same blocks, and the same request, under a new generation.
#[test]
fn an_old_generation_cannot_touch_the_new_one() {
    let mut holder = LoneHolder::with(Wire::Native, Config::default(), 2);
    let first = holder.grant("a");
    let session = holder.greet("d", 2, first).unwrap();
    assert_eq!(holder.complete(session, ONLY, first), Ok(()));
    let second = holder.grant("a");
    assert!(second.number > first.number);
    assert_eq!(holder.renew(session, ONLY, first), Err(Refusal::Completed));
    assert_eq!(holder.release(session, ONLY, first), Refusal::Completed);
    assert_eq!(holder.complete(session, ONLY, first), Ok(()), "its own completion, again");
    assert_eq!(holder.complete(session, rank(1, 2), first), Err(Refusal::Completed));
    assert_eq!(holder.abort(first, Abort::Cancelled), Err(Refused::Unknown));
    assert_eq!((holder.holder.live(), holder.counters.renewed), (1, 0));
    holder.lawful();
}

#[test]
fn a_number_is_granted_once() {
    let mut holder = LoneHolder::new(Wire::Native);
    let [a, b] = [holder.grant("a"), holder.expect("b")];
    assert_eq!(holder.grant_token("a", a), Err(Refused::Duplicate));
    assert_eq!(holder.grant_token("c", Token { nonce: 1, ..a }), Err(Refused::Duplicate));
    assert_eq!(holder.grant_token("c", b), Err(Refused::Duplicate), "announced for another request");
    holder.grant("b");
    assert_eq!(holder.grant_token("b", b), Err(Refused::Duplicate));
    assert_eq!(holder.refused(Refused::Duplicate), 4);
    let mut vllm = LoneHolder::new(Wire::Vllm);
    vllm.grant("a");
    assert_eq!(vllm.grant_with("a", None, None), Err(Refused::Duplicate), "ids are all there is");
    holder.lawful();
    vllm.lawful();
}

/// The first message claims the lease for its reader's incarnation.
#[test]
fn another_incarnation_is_refused_while_the_promise_is_open() {
    let (mut holder, token, first) = greeted();
    assert_eq!(holder.renew(first, ONLY, token), Ok(secs("20")));
    let second = holder.greet("e", 3, token).unwrap();
    assert_eq!(holder.renew(second, ONLY, token), Err(Refusal::Claimed));
    assert_eq!(holder.complete(second, ONLY, token), Err(Refusal::Claimed));
    assert_eq!(holder.refused(Refused::Claimed), 2);
    assert_eq!(holder.complete(first, ONLY, token), Ok(()));
    assert_eq!(holder.complete(second, ONLY, token), Err(Refusal::Completed), "answered only to the one who did");
    holder.lawful();
}

/// A reader that restarted under the same name is another incarnation, and its lease ends by time.
#[test]
fn a_restarted_reader_does_not_inherit_a_claim() {
    let (mut holder, token, old) = greeted();
    holder.renew(old, ONLY, token).unwrap();
    let new = holder.greet("d", 3, token).unwrap();
    assert_eq!((new == old, holder.counters.peer_restarted), (false, 1));
    assert_eq!(holder.renew(new, ONLY, token), Err(Refusal::Claimed));
    assert_eq!(holder.holder.live(), 1, "only time ends a lease");
    holder.poll("30");
    assert_eq!(holder.freed("a"), Some((at("30"), Freed::Expired)));
    holder.lawful();
}

/// Case 13: ranks are bits, repeats are no progress, totals that differ are refused.
#[test]
fn each_rank_counts_once_and_all_must_agree() {
    let (mut holder, token, session) = greeted();
    for _ in 0..4 {
        assert_eq!(holder.complete(session, rank(0, 4), token), Ok(()));
    }
    for other in [rank(0, 2), ONLY, rank(4, 5)] {
        assert_eq!(holder.complete(session, other, token), Err(Refusal::Inconsistent));
        assert_eq!(holder.renew(session, other, token), Err(Refusal::Inconsistent));
        assert_eq!(holder.release(session, other, token), Refusal::Inconsistent);
    }
    for index in [3, 1] {
        assert_eq!(holder.complete(session, rank(index, 4), token), Ok(()));
    }
    assert_eq!((holder.freed("a"), holder.refused(Refused::Inconsistent)), (None, 9));
    assert_eq!(holder.complete(session, rank(2, 4), token), Ok(()));
    assert_eq!(holder.freed("a"), Some((at("0"), Freed::Completed)));
    holder.lawful();
}

#[test]
fn consumers_given_at_grant_are_a_check() {
    for (of, answer) in [(2, Ok(secs("20"))), (1, Err(Refusal::Inconsistent)), (3, Err(Refusal::Inconsistent))] {
        let mut holder = LoneHolder::new(Wire::Native);
        let token = holder.grant_with("a", Some(2), None).unwrap();
        let session = holder.greet("d", 2, token).unwrap();
        assert_eq!(holder.renew(session, rank(0, of), token), answer, "{of}");
        holder.lawful();
    }
}

/// Case 13 on vLLM's wire: totals that differ are reported; a duplicate of one of two ranks is no progress.
#[test]
fn totals_that_differ_are_reported_on_the_text_wire() {
    let mut holder = LoneHolder::new(Wire::Vllm);
    holder.grant("a");
    holder.text(Some(1), "a:2");
    holder.text(Some(1), "a:2");
    assert_eq!((holder.freed("a"), holder.refused(Refused::Inconsistent)), (None, 0));
    holder.text(Some(2), "a:3");
    assert_eq!((holder.freed("a"), holder.refused(Refused::Inconsistent)), (None, 1));
    holder.lawful();
}

/// Ranks that read, and ranks that give up, end a lease together (case 11: siblings).
#[test]
fn completions_and_releases_of_ranks_add_up() {
    for (read, freed) in [([true, true], Freed::Completed), ([true, false], Freed::Completed), ([false, false], Freed::Released)]
    {
        let (mut holder, token, session) = greeted();
        for (index, read) in read.into_iter().enumerate() {
            assert_eq!(holder.freed("a"), None);
            let rank = rank(index as u16, 2);
            if read {
                assert_eq!(holder.complete(session, rank, token), Ok(()));
            } else {
                assert_eq!(holder.release(session, rank, token), Refusal::Released);
            }
        }
        assert_eq!(holder.freed("a"), Some((at("0"), freed)));
        holder.lawful();
    }
}

/// Cases 10, 11: a completion before the grant is kept if the request was announced, and only then.
#[test]
fn an_early_completion_is_kept_for_what_was_announced() {
    for release in [false, true] {
        let mut holder = LoneHolder::new(Wire::Native);
        let keep = holder.grant("keep");
        let session = holder.greet("d", 2, keep).unwrap();
        let token = holder.expect("a");
        let other = holder.greet("e", 3, keep).unwrap();
        assert_eq!(holder.renew(other, ONLY, token), Err(Refusal::NotYet), "a refused message claims nothing");
        if release {
            assert_eq!(holder.release(session, ONLY, token), Refusal::Released);
        } else {
            assert_eq!(holder.complete(session, ONLY, token), Ok(()));
        }
        assert_eq!((holder.holder.live(), holder.counters.early_completions), (1, 1));
        holder.go("1");
        holder.grant("a");
        let freed = if release { Freed::Released } else { Freed::Completed };
        assert_eq!(holder.freed("a"), Some((at("1"), freed)), "the grant frees at once");
        assert_eq!(holder.complete(session, ONLY, token).is_ok(), !release);
        holder.lawful();
    }
}

#[test]
fn an_early_completion_of_one_of_two_ranks_waits_for_the_other() {
    let mut holder = LoneHolder::new(Wire::Native);
    let token = holder.expect("a");
    let session = holder.greet("d", 2, token).unwrap();
    assert_eq!(holder.complete(session, rank(1, 2), token), Ok(()));
    holder.grant("a");
    assert_eq!(holder.freed("a"), None);
    assert_eq!(holder.complete(session, rank(0, 2), token), Ok(()));
    assert_eq!(holder.freed("a"), Some((at("0"), Freed::Completed)));
    holder.lawful();
}

#[test]
fn what_was_not_announced_is_not_yet_and_no_loss() {
    let (mut holder, known, session) = greeted();
    let later = Token { number: known.number + 1, nonce: 77 };
    assert_eq!(holder.renew(session, ONLY, later), Err(Refusal::NotYet));
    assert_eq!(holder.complete(session, ONLY, later), Err(Refusal::NotYet));
    holder.grant_token("b", later).unwrap();
    assert_eq!(holder.freed("b"), None, "an early completion that nobody expected is forgotten");
    assert_eq!(holder.renew(session, ONLY, later), Ok(secs("20")));
    let mut reader = LoneReader::new(Wire::Native);
    reader.track("a", 1);
    for second in 0..39 {
        for (_, heard) in reader.poll(&second.to_string()) {
            if let Heard::Renew { seq, .. } = heard {
                reader.renewed(0, seq, 1, "20", &[(0, Err(Refusal::NotYet))]);
            }
        }
    }
    assert_eq!(reader.lost("a"), None);
    reader.poll("40");
    assert_eq!((reader.lost("a"), reader.reader.open()), (Some(Lost::NoAnswer), 0), "but not for ever");
    holder.lawful();
    reader.lawful();
}

/// Case 54: an abort before the grant wins, whichever call comes first.
#[test]
fn an_abort_before_the_grant_wins() {
    for wire in [Wire::Native, Wire::Vllm] {
        let mut holder = LoneHolder::new(wire);
        let token = holder.expect("a");
        holder.go("1");
        holder.abort(token, Abort::Cancelled).unwrap();
        holder.go("1.001");
        assert_eq!(holder.grant_token("a", token), Err(Refused::Revoked));
        assert_eq!((holder.holder.live(), holder.counters.granted), (0, 0));
        let again = holder.expect("a");
        assert!(holder.grant_token("a", again).is_ok(), "a new one of the same request");
        holder.lawful();
    }
}

/// Case 32: whoever has the token may give the lease up; a promise to its reader is kept.
#[test]
fn a_third_party_may_release() {
    let (mut holder, token, session) = greeted();
    assert_eq!(holder.release(session, ONLY, token), Refusal::Released);
    assert_eq!((holder.freed("a"), holder.counters.unclaimed), (Some((at("0"), Freed::Released)), 1), "nothing was promised");
    let (mut holder, token, session) = greeted();
    holder.renew(session, ONLY, token).unwrap();
    let third = holder.greet("router", 9, token).unwrap();
    assert_eq!(holder.release(third, ONLY, token), Refusal::Released);
    assert!(holder.notices().contains(&Heard::Gone { re: Seq(0), token, why: Refusal::Revoked }), "its reader is told");
    assert_eq!(holder.renew(session, ONLY, token), Err(Refusal::Revoked));
    holder.poll("29.999999999");
    assert_eq!(holder.freed("a"), None);
    holder.poll("30");
    assert_eq!(holder.freed("a"), Some((at("30"), Freed::Revoked)));
    holder.lawful();
}

#[test]
fn a_third_partys_release_does_not_stop_the_reader_from_completing() {
    let (mut holder, token, session) = greeted();
    holder.renew(session, ONLY, token).unwrap();
    let third = holder.greet("router", 9, token).unwrap();
    holder.release(third, ONLY, token);
    assert_eq!(holder.complete(session, ONLY, token), Ok(()));
    assert_eq!(holder.freed("a"), Some((at("0"), Freed::Completed)));
    holder.lawful();
}

/// A claim keeps others out only while a promise to the claimant is open.
#[test]
fn a_claim_without_a_promise_keeps_nobody_out() {
    let mut holder = LoneHolder::new(Wire::Native);
    let token = holder.grant("a");
    let (first, second) = (holder.greet("d", 1, token).unwrap(), holder.greet("e", 2, token).unwrap());
    let half = ReaderRank::new(0, 2).unwrap();
    assert_eq!(holder.complete(first, half, token), Ok(()), "it claims, and is promised nothing");
    assert!(holder.renew(second, ReaderRank::ONLY, token).is_ok());
    assert_eq!(holder.renew(first, half, token), Err(Refusal::Claimed), "now there is a promise to somebody else");
    assert_eq!(holder.complete(second, ReaderRank::ONLY, token), Ok(()));
    assert_eq!(holder.freed("a"), Some((at("0"), Freed::Completed)));
    holder.lawful();
}
