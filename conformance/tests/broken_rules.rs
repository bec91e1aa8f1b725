//! The simulator notices every rule of the protocol that is broken: it comes upon a world in which a law that hangs on that rule
//! is broken, and makes it small.
#![cfg(all(kvlease_broken, feature = "sim"))]

use std::sync::{Mutex, MutexGuard, PoisonError};

use conformance::sim::{
    chaos::Shape,
    shrink::shrink,
    simulate::{Broken, Totals, Violation, judge, run_worlds},
    trace::Trace,
};
use lease_proto::{
    broken::{Rule, break_rule},
    wire::Wire,
};

/// Worlds to look for it in, at most.
const WORLDS: u64 = 20_000;

/// Rules, and the laws that are broken without them, each of which may be seen first.
const BREAK: [(Rule, Wire, &[u8]); 30] = [
    (Rule::RenewalShortens, Wire::Native, &[1, 3]),
    (Rule::AnchoredAtReceipt, Wire::Native, &[4]),
    (Rule::AnchoredAtLatestBeat, Wire::Native, &[4]),
    // The native wire carries no instants.
    (Rule::OffsetWithoutError, Wire::Vllm, &[7]),
    (Rule::CompletionWithoutRank, Wire::Native, &[1, 4]),
    (Rule::ReaperStopsAtFirstLive, Wire::Native, &[2]),
    (Rule::TombstonesForgotten, Wire::Native, &[6]),
    (Rule::AbortFreesPromised, Wire::Native, &[1, 4]),
    (Rule::DrainFreesPromised, Wire::Native, &[1, 3, 4]),
    (Rule::ReleaseFreesPromised, Wire::Native, &[1, 4]),
    (Rule::AnswerCoversAll, Wire::Native, &[4]),
    (Rule::DriftOnce, Wire::Native, &[4]),
    (Rule::StaleNow, Wire::Native, &[1, 2, 3, 4]),
    (Rule::JudgedBeforeCompletion, Wire::Native, &[4]),
    (Rule::SequenceFilters, Wire::Native, &[5]),
    (Rule::ExpiresBeforeDraining, Wire::Native, &[5]),
    (Rule::ClaimIgnored, Wire::Native, &[1, 4]),
    (Rule::CompletedForAnybody, Wire::Native, &[4]),
    (Rule::PromiseBeyondDrain, Wire::Native, &[1, 3, 4]),
    (Rule::FixedTtlMoves, Wire::Native, &[2]),
    (Rule::HeldForLonger, Wire::Native, &[2]),
    (Rule::RevokedIsRenewed, Wire::Native, &[1]),
    (Rule::HeldUntilAck, Wire::Native, &[2]),
    (Rule::OneRankIsEnough, Wire::Native, &[4]),
    (Rule::AbandonedIsJudged, Wire::Native, &[4]),
    (Rule::CompletionLeaks, Wire::Native, &[2, 6]),
    (Rule::DoubtForgotten, Wire::Native, &[4]),
    (Rule::FreedTwice, Wire::Native, &[6]),
    (Rule::SessionIgnored, Wire::Native, &[5]),
    (Rule::RestartUnnoticed, Wire::Native, &[4]),
];

/// Rules that no world breaks a law without, and why.
const SILENT: [(Rule, &str); 2] = [
    (Rule::PeerLostFrees, "the simulated fabric never reports a peer dead"),
    (Rule::ThrottleSpentWhileConnecting, "no law says that a lease is kept alive, only that it ends when it must"),
];

static SWITCH: Mutex<()> = Mutex::new(());

/// The switch is one for the process.
fn alone() -> MutexGuard<'static, ()> {
    SWITCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something while a rule is broken.
fn without<T>(rule: Rule, what: impl FnOnce() -> T) -> T {
    struct Mended;
    impl Drop for Mended {
        fn drop(&mut self) {
            break_rule(None);
        }
    }
    let _mended = Mended;
    break_rule(Some(rule));
    what()
}

fn shape(wire: Wire) -> Shape {
    Shape { chaos: true, wire: Some(wire), ..Shape::default() }
}

/// A world by itself, compared with no other.
fn violations(trace: &Trace) -> Vec<Violation> {
    judge(trace, 2, &mut Totals::default())
}

fn breaks(trace: &Trace, law: u8) -> bool {
    violations(trace).iter().any(|violation| violation.law == law)
}

#[test]
fn a_broken_rule_is_found_and_made_small() {
    let _alone = alone();
    println!("{:32} {:>6} {:>3} {:>5}  first violation", "without", "worlds", "law", "lines");
    for (rule, wire, laws) in BREAK {
        let found = without(rule, || run_worlds(0, WORLDS, &shape(wire), 2, &|_| ()).broken);
        let Some(Broken { seed, trace, violations: found }) = found else { panic!("{}: no world shows it", rule.name()) };
        let (law, line) = (found[0].law, &found[0].line);
        assert!(laws.contains(&law), "{}: breaks law {law}, expected one of {laws:?}: {line}", rule.name());
        let text = without(rule, || shrink(&trace, |trace| breaks(trace, law))).to_text();
        let small = Trace::parse(text.as_bytes()).unwrap();
        assert!(without(rule, || breaks(&small, law)), "{}: shrunk away:\n{text}", rule.name());
        assert!(small.lines.len() <= trace.lines.len());
        assert_eq!(violations(&small), [], "{}: also with it:\n{text}", rule.name());
        println!("{:32} {:>6} {law:>3} {:>5}  {line}", rule.name(), seed + 1, small.lines.len());
    }
}

#[test]
fn every_rule_is_broken_here_or_told_why_not() {
    let known: Vec<Rule> = BREAK.iter().map(|(rule, ..)| *rule).chain(SILENT.map(|(rule, _)| rule)).collect();
    assert_eq!(Rule::ALL.into_iter().find(|rule| !known.contains(rule)), None);
}

#[test]
fn no_law_is_broken_while_all_rules_are_kept() {
    let _alone = alone();
    for wire in [Wire::Native, Wire::Vllm] {
        let broken = run_worlds(0, 1_000, &shape(wire), 2, &|_| ()).broken;
        assert!(broken.is_none(), "{broken:?}");
    }
}
