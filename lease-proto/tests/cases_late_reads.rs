//! Law 4: what a reader may believe of a read, and what it costs to be late.

mod common;

use common::{
    Seen,
    lone::{Heard, LoneHolder, LoneReader, is_complete, is_renew, seq_of},
};
use lease_proto::{
    config::{Config, Proof},
    event::{Lost, Verdict},
    id::{ReaderRank, Seq},
    reader::{Declined, Handle, ReadOutcome},
    time::Instant,
    wire::{Wire, native::Refusal},
};

/// Renewed at 0 s for 20 s: proven strictly before floor(20 s * 0.9995 / 1.0005).
const DEADLINE: u64 = 19_980_009_995;

fn confirmed() -> (LoneReader, Handle) {
    confirmed_with(Config::default())
}

fn confirmed_with(config: Config) -> (LoneReader, Handle) {
    let mut reader = LoneReader::with(Wire::Native, config, 64);
    let handle = reader.track("a", 1);
    let sent = reader.poll("0");
    reader.grant_all(&sent, "20");
    assert!(reader.saw(&Seen::Confirmed("a".into())));
    (reader, handle)
}

fn seconds(nanos: u64) -> String {
    Instant::from_nanos(nanos).to_string()
}

/// Cases 6, 36: proof (A) to the nanosecond.
#[test]
fn a_read_is_valid_strictly_before_the_deadline_of_the_reader() {
    for (ended, valid) in [(DEADLINE - 1, true), (DEADLINE, false), (DEADLINE + 1, false), (1, true)] {
        let (mut reader, handle) = confirmed();
        reader.go("0.000000001");
        reader.begin(handle);
        reader.go(&seconds(ended));
        reader.end(handle, ReadOutcome::OneSided);
        assert_eq!(reader.verdict("a"), valid.then_some(Verdict::ValidByDeadline), "{ended}");
        // Without proof (A) the holder is asked, and not heard.
        reader.poll("100");
        reader.poll("200");
        let verdict = if valid { Verdict::ValidByDeadline } else { Verdict::Unverified };
        assert_eq!((reader.verdict("a"), reader.reader.open()), (Some(verdict), 0), "{ended}");
        reader.lawful();
    }
}

/// The stamp is the clock before the hand-over, not when the answer came.
#[test]
fn a_late_answer_proves_no_more_than_an_early_one() {
    for (answered, proven) in [("1", true), ("19", true), ("19.98", true), ("19.980009995", false), ("25", false)] {
        let mut reader = LoneReader::new(Wire::Native);
        reader.track("a", 1);
        let sent = reader.poll("0");
        reader.go(answered);
        reader.grant_all(&sent, "20");
        assert_eq!(reader.saw(&Seen::Confirmed("a".into())), proven, "{answered}");
    }
}

#[test]
fn a_read_does_not_begin_without_a_standing_promise() {
    for (begin, declined) in [(DEADLINE - 1, false), (DEADLINE, true)] {
        let (mut reader, handle) = confirmed();
        reader.go(&seconds(begin));
        let began = reader.act(|at, cx| at.begin_read(cx, handle));
        assert_eq!(began, if declined { Err(Declined::Unproven) } else { Ok(()) }, "{begin}");
    }
    let (mut reader, handle) = confirmed();
    reader.begin(handle);
    assert_eq!(reader.act(|at, cx| at.begin_read(cx, handle)), Err(Declined::Reading));
    reader.end(handle, ReadOutcome::OneSided);
    assert_eq!(reader.act(|at, cx| at.read_ended(cx, handle, ReadOutcome::OneSided)), Err(Declined::NotTracked));
    assert_eq!(reader.act(|at, cx| at.begin_read(cx, handle)), Err(Declined::NotTracked));
    assert_eq!(reader.verdict("a"), Some(Verdict::ValidByDeadline));
}

/// A lapsed promise is recovered by an answer, and every change is told once.
#[test]
fn an_unproven_lease_recovers() {
    let (mut reader, handle) = confirmed();
    let beats = reader.poll("19.990");
    assert!(reader.saw(&Seen::Unproven("a".into())));
    let seq = seq_of(&beats, is_renew);
    reader.renewed(0, seq, 1, "20", &[]);
    reader.begin(handle);
    reader.go("39");
    reader.end(handle, ReadOutcome::OneSided);
    assert_eq!(reader.verdict("a"), Some(Verdict::ValidByDeadline));
    assert_eq!(reader.seen.iter().filter(|(_, seen)| *seen == Seen::Confirmed("a".into())).count(), 2);
    assert_eq!(reader.counters.unproven, 1);
}

/// Proof (B): the holder's answer to a complete that was sent after the read.
#[test]
fn without_a_deadline_the_holders_answer_decides() {
    for (answer, verdict) in [
        (Ok(()), Verdict::ValidByCompletion),
        (Err(Refusal::Expired), Verdict::Expired),
        (Err(Refusal::Unknown), Verdict::Expired),
        (Err(Refusal::Failed), Verdict::Expired),
        (Err(Refusal::Completed), Verdict::Expired),
        (Err(Refusal::Released), Verdict::Expired),
        (Err(Refusal::Claimed), Verdict::Expired),
    ] {
        let (mut reader, handle) = confirmed();
        reader.begin(handle);
        reader.go("30");
        reader.end(handle, ReadOutcome::OneSided);
        assert_eq!(reader.verdict("a"), None);
        let sent = reader.poll("30.1");
        let seq = seq_of(&sent, is_complete);
        match answer {
            Ok(()) => reader.completed(0, seq, 1),
            Err(why) => reader.gone(0, seq, 1, why),
        }
        assert_eq!((reader.verdict("a"), reader.reader.open()), (Some(verdict), 0), "{answer:?}");
        reader.lawful();
    }
}

/// An answer to something else, to another token, or numbered before the complete was sent proves nothing.
#[test]
fn answers_to_something_else_prove_nothing() {
    let (mut reader, handle) = confirmed();
    reader.begin(handle);
    reader.completed(0, Seq(2), 1); // while it runs
    reader.go("30");
    reader.end(handle, ReadOutcome::OneSided);
    reader.completed(0, Seq(1_000), 1); // before anything was sent
    let sent = reader.poll("30.1");
    let Seq(seq) = seq_of(&sent, is_complete);
    reader.completed(0, Seq(seq - 1), 1);
    reader.completed(0, Seq(seq), 2);
    reader.gone(0, Seq(seq), 1, Refusal::NotYet);
    assert_eq!(reader.verdict("a"), None);
    reader.completed(0, Seq(seq), 1);
    assert_eq!(reader.verdict("a"), Some(Verdict::ValidByCompletion));
    reader.completed(0, Seq(seq), 1); // again
    reader.lawful();
}

/// The completion's answer was lost and a beat is refused because of that very completion: the next retry tells.
#[test]
fn its_own_completion_is_no_bad_news() {
    let (mut reader, handle) = confirmed();
    reader.begin(handle);
    reader.go("30");
    reader.end(handle, ReadOutcome::OneSided);
    let sent = reader.poll("30.1");
    let renew = seq_of(&sent, is_renew);
    reader.renewed(0, renew, 1, "20", &[(0, Err(Refusal::Completed))]);
    assert_eq!(reader.verdict("a"), None);
    let sent = reader.poll("31.2");
    let seq = seq_of(&sent, is_complete);
    reader.completed(0, seq, 1);
    assert_eq!(reader.verdict("a"), Some(Verdict::ValidByCompletion));
    reader.lawful();
}

/// Proofs (C) and (D), and reads that failed or were abandoned.
#[test]
fn what_the_transport_says_of_a_read_is_taken_for_what_it_proves() {
    for (outcome, verdict) in [
        (ReadOutcome::Served, Verdict::ValidServed),
        (ReadOutcome::Fenced, Verdict::ValidFenced),
        (ReadOutcome::Failed, Verdict::Failed),
    ] {
        for late in ["1", "30"] {
            let (mut reader, handle) = confirmed();
            reader.begin(handle);
            reader.go(late);
            reader.end(handle, outcome);
            assert_eq!(reader.verdict("a"), Some(verdict), "{outcome:?} {late}");
        }
        let (mut reader, handle) = confirmed();
        reader.begin(handle);
        reader.act(|at, cx| at.finish(cx, handle)).unwrap();
        assert_eq!(reader.verdict("a"), None, "the transport still owns it");
        reader.end(handle, outcome);
        assert_eq!(reader.verdict("a"), Some(Verdict::Failed), "abandoned");
        reader.lawful();
    }
}

/// Case 17: the holder could not produce the blocks: however they were read, they are no good.
#[test]
fn bytes_that_were_never_produced_are_never_valid() {
    for outcome in [ReadOutcome::OneSided, ReadOutcome::Served, ReadOutcome::Fenced] {
        let (mut reader, handle) = confirmed();
        reader.begin(handle);
        reader.go("1");
        reader.gone(0, Seq(0), 1, Refusal::Failed);
        assert_eq!(reader.lost("a"), Some(Lost::Failed));
        reader.end(handle, outcome);
        assert_eq!(reader.verdict("a"), Some(Verdict::Expired), "{outcome:?}");
        reader.poll("60");
        assert_eq!(reader.reader.open(), 0);
        reader.lawful();
    }
}

/// What was promised stays promised: a lease that is revoked during the read is proven by the deadline, or by the answer.
#[test]
fn a_revoked_lease_keeps_its_promise() {
    for (ended, verdict) in [("19", Verdict::ValidByDeadline), ("20", Verdict::ValidByCompletion)] {
        let (mut reader, handle) = confirmed();
        reader.begin(handle);
        reader.gone(0, Seq(0), 1, Refusal::Revoked);
        assert_eq!(reader.lost("a"), Some(Lost::Revoked));
        reader.go(ended);
        reader.end(handle, ReadOutcome::OneSided);
        let sent = reader.poll(ended);
        let seq = seq_of(&sent, is_complete);
        reader.completed(0, seq, 1);
        assert_eq!(reader.verdict("a"), Some(verdict));
        assert_eq!(reader.reader.open(), 0);
        reader.lawful();
    }
}

/// Every rank of the holder needs its own proof (cases 14, 37).
#[test]
fn one_proven_rank_does_not_prove_the_other() {
    for answered in [&[0][..], &[1], &[0, 1], &[]] {
        let mut reader = LoneReader::new(Wire::Native);
        let handle = reader.track_on("p", 1, &[0, 1], "a", 1, ReaderRank::ONLY).unwrap();
        let sent = reader.poll("0");
        let covered: Vec<_> = sent.into_iter().filter(|(rank, _)| answered.contains(rank)).collect();
        reader.grant_all(&covered, "20");
        assert_eq!(reader.saw(&Seen::Confirmed("a".into())), answered.len() == 2);
        reader.begin(handle);
        reader.go("1");
        reader.end(handle, ReadOutcome::OneSided);
        assert_eq!(reader.verdict("a"), (answered.len() == 2).then_some(Verdict::ValidByDeadline), "{answered:?}");
        // The ranks that have no deadline complete.
        let sent = reader.poll("1");
        for rank in [0, 1] {
            let to_rank: Vec<_> = sent.iter().filter(|(to, _)| *to == rank).cloned().collect();
            let seq = seq_of(&to_rank, is_complete);
            if !answered.contains(&rank) {
                assert_eq!(reader.verdict("a"), None);
                reader.completed(rank, seq, 1);
            }
        }
        let by = if answered.len() == 2 { Verdict::ValidByDeadline } else { Verdict::ValidByCompletion };
        assert_eq!(reader.verdict("a"), Some(by), "{answered:?}");
        reader.lawful();
    }
}

#[test]
fn one_rank_that_gave_the_blocks_away_spoils_the_read() {
    for bad in [0, 1] {
        let mut reader = LoneReader::new(Wire::Native);
        let handle = reader.track_on("p", 1, &[0, 1], "a", 1, ReaderRank::ONLY).unwrap();
        reader.poll("0");
        reader.begin(handle);
        reader.end(handle, ReadOutcome::OneSided);
        let sent = reader.poll("1");
        let of = |rank| sent.iter().filter(|(to, _)| *to == rank).cloned().collect::<Vec<_>>();
        reader.gone(bad, seq_of(&of(bad), is_complete), 1, Refusal::Expired);
        assert_eq!(reader.verdict("a"), Some(Verdict::Expired));
        reader.completed(1 - bad, seq_of(&of(1 - bad), is_complete), 1);
        assert_eq!((reader.verdict("a"), reader.reader.open()), (Some(Verdict::Expired), 0));
        reader.lawful();
    }
}

/// Machines that may be paused: no clock proves anything.
#[test]
fn with_proof_by_completion_only_the_answer_counts() {
    let config = Config { proof: Proof::Completion, ..Config::default() };
    for answered in [true, false] {
        let (mut reader, handle) = confirmed_with(config.clone());
        reader.begin(handle);
        reader.go("1");
        reader.end(handle, ReadOutcome::OneSided);
        assert_eq!(reader.verdict("a"), None);
        let sent = reader.poll("1");
        if answered {
            reader.completed(0, seq_of(&sent, is_complete), 1);
        }
        reader.poll("21");
        let verdict = if answered { Verdict::ValidByCompletion } else { Verdict::Unverified };
        assert_eq!(reader.verdict("a"), Some(verdict));
    }
}

/// While a verdict waits for (B) the lease is renewed; once it stands, no more. It comes within `verdict_timeout`.
#[test]
fn a_verdict_waits_for_one_extension_and_renews_meanwhile() {
    let (mut reader, handle) = confirmed();
    reader.begin(handle);
    reader.go("30");
    reader.end(handle, ReadOutcome::OneSided);
    let mut renews = 0;
    for second in 30..90 {
        let sent = reader.poll(&second.to_string());
        let renewed = sent.iter().filter(|(_, heard)| is_renew(heard)).count();
        assert!(reader.verdict("a").is_none() || renewed == 0, "renewed after the verdict");
        renews += renewed;
        if second == 49 {
            assert_eq!(reader.verdict("a"), None);
        }
        if second == 50 {
            assert_eq!(reader.verdict("a"), Some(Verdict::Unverified));
        }
    }
    assert!(renews >= 3, "{renews}");
    assert_eq!((reader.reader.open(), reader.counters.unanswered), (0, 1));
    reader.lawful();
}

/// A clock that steps back shows too little time: proofs move back with it (case 29, and a suspend that is not counted).
#[test]
fn a_clock_that_goes_back_proves_no_longer() {
    for ended in ["5", "9.980009994", "15"] {
        let (mut reader, handle) = confirmed();
        reader.poll("10");
        reader.begin(handle);
        reader.poll("0.000000001"); // nearly 10 s back: 20 s after the renew it shows 10 s
        reader.go(ended);
        reader.end(handle, ReadOutcome::OneSided);
        assert_eq!(reader.verdict("a"), None, "{ended}: the clamped clock stands at 10 s");
        assert!(reader.counters.clock_backwards > 0);
    }
}

#[test]
fn a_small_step_back_costs_as_much_and_no_more() {
    for (ended, valid) in [(DEADLINE - 1_000_000_001, true), (DEADLINE - 1_000_000_000, false)] {
        let (mut reader, handle) = confirmed();
        reader.poll("10");
        reader.begin(handle);
        reader.go("9");
        reader.act(lease_proto::drive::Machine::handle_timeout);
        reader.go(&seconds(ended));
        reader.end(handle, ReadOutcome::OneSided);
        assert_eq!(reader.verdict("a").is_some(), valid, "{ended}");
    }
    // A renew that was under way when the clock stepped back.
    let mut reader = LoneReader::new(Wire::Native);
    reader.poll("9");
    let handle = reader.track("a", 1);
    let sent = reader.poll("10");
    reader.poll("9");
    reader.grant_all(&sent, "20");
    reader.begin(handle);
    reader.go(&seconds(9_000_000_000 + DEADLINE));
    reader.end(handle, ReadOutcome::OneSided);
    assert_eq!(reader.verdict("a"), None);
}

/// Cases 7, 44: the reader learns at once that its lease is over, and once.
#[test]
fn an_expiry_is_told_to_the_last_renewer() {
    let mut holder = LoneHolder::new(Wire::Native);
    let [a, b] = ["a", "b"].map(|request| holder.grant(request));
    let session = holder.greet("d", 2, a).unwrap();
    holder.renew(session, ReaderRank::ONLY, a).unwrap();
    let told = holder.poll("30");
    assert_eq!(told, [Heard::Gone { re: Seq(0), token: a, why: Refusal::Expired }]);
    assert!(holder.freed("b").is_some(), "nobody ever renewed {b:?}");
    let (mut reader, handle) = confirmed();
    for _ in 0..2 {
        reader.gone(0, Seq(0), 1, Refusal::Expired);
    }
    assert_eq!(reader.lost("a"), Some(Lost::Expired));
    assert_eq!(reader.act(|at, cx| at.begin_read(cx, handle)), Err(Declined::NotTracked));
    assert_eq!(reader.reader.open(), 0);
    reader.lawful();
}

/// A handle outlives its request, and never names another one.
#[test]
fn handles_are_not_reused() {
    let mut reader = LoneReader::new(Wire::Native);
    let first = reader.track("a", 1);
    reader.poll("0");
    reader.gone(0, Seq(0), 1, Refusal::Expired);
    let second = reader.track("b", 2);
    assert_ne!(first, second);
    assert_eq!(reader.act(|at, cx| at.begin_read(cx, first)), Err(Declined::NotTracked));
    assert_eq!(reader.act(|at, cx| at.finish(cx, first)), Err(Declined::NotTracked));
    reader.begin(second);
    assert_eq!(reader.act(|at, cx| at.read_ended(cx, first, ReadOutcome::Served)), Err(Declined::NotTracked));
    reader.end(second, ReadOutcome::Served);
    assert_eq!((reader.verdict("a"), reader.verdict("b")), (None, Some(Verdict::ValidServed)));
}
