//! Each law can be broken, and is seen to be: harnesses, fabrics and traces that lie.

use lease_proto::{event::Freed, wire::Wire};

use super::{
    check::{Judged, judge_with, junk_is_inert, only_its_own_clock_matters, reads_are_judged_rightly},
    edge::{grant, pair, read_at_the_edge, track},
    ledger::holder_keeps_the_laws,
    script::{Act, Clock, How, MS, Script},
    trace::{Entry, Nature, What},
    world::{Harness, World},
};

const TRUE: Clock = Clock { origin: 0, ppm: 0 };

fn read(lasts: u64) -> Act {
    Act::Read { track: 0, lasts, how: How::OneSided }
}

fn world(steps: &[(u64, Act)]) -> Script {
    pair(Wire::Native, [TRUE, TRUE], MS, steps)
}

#[track_caller]
fn breaks(judged: Judged, law: &str) {
    let why = judged.expect_err("it went unnoticed");
    assert!(why.contains(law), "{why}");
}

/// The reader's process stalls while a read runs: no renewal, and the holder frees.
fn slow_read() -> Script {
    let stall = Act::Stall { engine: 1, lasts: 5_000 * MS };
    world(&[(0, grant()), (0, track()), (1_000 * MS, read(4_000 * MS)), (0, stall), (6_000 * MS, grant())])
}

#[test]
fn an_honest_world_breaks_nothing() {
    assert!(judge_with(&slow_read(), Harness::Honest).is_ok());
}

#[test]
fn a_verdict_judged_before_the_end_of_its_read_breaks_law_4() {
    breaks(judge_with(&slow_read(), Harness::JudgesEarly).map(|_| ()), "law 4");
}

#[test]
fn a_process_that_is_told_an_old_time_breaks_law_2() {
    breaks(judge_with(&world(&[(0, grant())]), Harness::Late(1_000 * MS)).map(|_| ()), "law 2");
}

#[test]
fn a_holder_that_promises_more_than_it_keeps_breaks_law_1() {
    let script = Script {
        nature: Nature { boasts: true, ..Nature::default() },
        ..world(&[(0, grant()), (0, track()), (900 * MS, grant())])
    };
    breaks(judge_with(&script, Harness::Honest).map(|_| ()), "law 1");
}

#[test]
fn clocks_that_drift_more_than_they_say_break_law_4() {
    let (fast, slow) = (Clock { origin: 0, ppm: 1_000 }, Clock { origin: 0, ppm: -1_000 });
    breaks(read_at_the_edge(fast, slow, 1, 5_000 * MS, -1).map(|_| ()), "law 4");
}

/// A replayed renew is an ordinary one, so it is no junk: the reader is dead and its lease goes on.
#[test]
fn bytes_that_change_something_break_law_5() {
    let steps = [(0, grant()), (0, track()), (2_500 * MS, Act::Kill { engine: 1 })];
    let replays = (0..40).map(|nth| (100 * MS, Act::Replay { nth, to: 0 }));
    breaks(junk_is_inert(&world(&steps.into_iter().chain(replays).collect::<Vec<_>>())), "law 5");
}

/// A clock that runs at another rate IS everybody's business: the differential notices.
#[test]
fn a_trace_that_differs_breaks_law_7() {
    let script = world(&[(0, grant()), (0, track()), (1_000 * MS, read(0))]);
    assert!(only_its_own_clock_matters(&script, 0, 1 << 61).is_ok());
    let other = Script { flight: 2 * MS, ..script.clone() };
    let outcome = |script| super::check::outcome(&judge_with(script, Harness::Honest).unwrap());
    assert_ne!(outcome(&script), outcome(&other));
}

/// One lease that is beaten for until it was read, one that nobody reads.
fn honest_trace() -> (World, Vec<Entry>) {
    let steps = [(0, grant()), (0, track()), (4_000 * MS, read(100 * MS)), (1_000 * MS, grant())];
    let world = judge_with(&world(&steps), Harness::Honest).unwrap();
    let trace = world.trace.entries();
    (world, trace)
}

#[track_caller]
fn doctored(law: &str, doctor: impl FnOnce(&mut Vec<Entry>)) {
    let (world, mut trace) = honest_trace();
    let judge = |trace: &[Entry]| holder_keeps_the_laws(&world, 0, trace);
    assert_eq!(judge(&trace), Ok(()));
    doctor(&mut trace);
    breaks(judge(&trace), law);
}

fn freed(trace: &[Entry], why: Freed) -> usize {
    trace.iter().position(|entry| matches!(entry.what, What::Freed { why: freed, .. } if freed == why)).unwrap()
}

fn last_renewal(trace: &mut [Entry]) -> &mut u64 {
    trace
        .iter_mut()
        .rev()
        .find_map(|entry| if let What::Renewed { expires, .. } = &mut entry.what { Some(expires) } else { None })
        .unwrap()
}

#[test]
fn a_lease_that_is_freed_before_it_was_read_breaks_law_1() {
    doctored("law 1", |trace| {
        let completed = freed(trace, Freed::Completed);
        let mut early = trace.remove(completed);
        let at = trace.iter().rposition(|entry| matches!(entry.what, What::Renewed { .. })).unwrap() + 2; // and its answer
        early.at = trace[at].at;
        if let What::Freed { now, .. } = &mut early.what {
            *now = early.at;
        }
        trace.insert(at, early);
    });
}

#[test]
fn a_lease_that_is_never_freed_breaks_law_2() {
    doctored("law 2", |trace| {
        trace.remove(freed(trace, Freed::Expired));
    });
}

#[test]
fn a_lease_that_is_renewed_for_too_long_breaks_law_2() {
    doctored("law 2", |trace| *last_renewal(trace) += 2_000 * MS);
}

#[test]
fn a_renewal_that_shortens_breaks_law_3() {
    doctored("law 3", |trace| {
        let first = trace
            .iter_mut()
            .find_map(|entry| if let What::Renewed { expires, .. } = &mut entry.what { Some(expires) } else { None });
        *first.unwrap() -= 500 * MS;
    });
}

#[test]
fn a_valid_read_that_ended_when_the_blocks_were_gone_breaks_law_4() {
    let (world, mut trace) = honest_trace();
    let end = trace.iter().position(|entry| matches!(entry.what, What::ReadEnded(_))).unwrap();
    let gone = trace.remove(freed(&trace, Freed::Completed));
    trace.insert(end, gone);
    breaks(reads_are_judged_rightly(&world, &trace), "law 4");
}

#[test]
fn a_lease_that_is_freed_twice_breaks_law_6() {
    doctored("law 6", |trace| {
        let at = freed(trace, Freed::Completed);
        trace.insert(at, trace[at].clone());
    });
}
