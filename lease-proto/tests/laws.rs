//! The seven laws of the protocol, over random worlds: engines with clocks of their own that grant, track, read, stall, die and
//! come back on a fabric that loses, delays, repeats and holds back.
//!
//! The truth is the world's: a trace of what happened in one order that no process knows. The laws are judged by it, never by
//! what the implementation says of itself.

#![allow(unreachable_pub)] // one crate per test file

mod laws {
    pub mod broken;
    pub mod check;
    pub mod edge;
    pub mod junk;
    pub mod ledger;
    pub mod regressions;
    pub mod script;
    pub mod trace;
    pub mod world;
}

use std::collections::BTreeMap;

use laws::{
    check::{Judged, judge, judge_with, junk_is_inert, only_its_own_clock_matters, tally},
    edge::{patient, read_at_the_edge, what_is_beaten_for_is_held},
    script::{MS, calm_scripts, clock, scripts, with_junk},
    world::Harness,
};
use lease_proto::{
    event::{Freed, Lost, Verdict},
    wire::Wire,
};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

fn holds(judged: Judged) -> Result<(), TestCaseError> {
    judged.map_err(TestCaseError::fail)
}

fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn the_native_wire_keeps_the_laws(script in scripts(Wire::Native)) {
        holds(judge(&script))?;
    }

    #[test]
    fn vllms_wire_keeps_the_laws(script in scripts(Wire::Vllm)) {
        holds(judge(&script))?;
    }

    #[test]
    fn junk_on_the_native_wire_is_inert(script in with_junk(Wire::Native)) {
        holds(junk_is_inert(&script))?;
    }

    #[test]
    fn junk_on_vllms_wire_is_inert(script in with_junk(Wire::Vllm)) {
        holds(junk_is_inert(&script))?;
    }

    #[test]
    fn a_shifted_clock_changes_nothing_on_the_native_wire(script in scripts(Wire::Native), engine in 0usize..4, by in 0u64..1 << 62) {
        holds(only_its_own_clock_matters(&script, engine, by))?;
    }

    #[test]
    fn a_shifted_clock_changes_nothing_on_vllms_wire(script in scripts(Wire::Vllm), engine in 0usize..4, by in 0u64..1 << 62) {
        holds(only_its_own_clock_matters(&script, engine, by))?;
    }

    #[test]
    fn blocks_are_kept_until_answered_for_where_the_terms_say_so(script in scripts(Wire::Native)) {
        holds(judge(&patient(script)))?;
    }

    #[test]
    fn proof_by_deadline_is_right_to_the_nanosecond(
        holder in clock(), reader in clock(), flight in 1u64..40 * MS, beats_for in 0u64..8_000 * MS, late in -1i64..=1
    ) {
        holds(read_at_the_edge(holder, reader, flight, beats_for, late).map(|_| ()))?;
    }

    #[test]
    fn in_calm_what_is_beaten_for_is_held(script in calm_scripts()) {
        holds(what_is_beaten_for_is_held(&script))?;
    }
}

/// No property above holds for want of what it is about.
#[test]
fn the_worlds_are_rich() {
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeMap::new();
    for wire in [Wire::Native, Wire::Vllm] {
        for _ in 0..200 {
            let script = scripts(wire).new_tree(&mut runner).unwrap().current();
            tally(&judge_with(&script, Harness::Honest).unwrap(), &mut seen);
        }
    }
    let missing = |names: &[&'static str], what: &str| {
        let missing: Vec<_> = names.iter().filter(|name| !seen.contains_key(&format!("{what} {name}"))).collect();
        assert!(missing.is_empty(), "{what} {missing:?}: never seen, only {seen:#?}");
    };
    missing(&Freed::ALL.map(Freed::name), "freed");
    missing(&Lost::ALL.map(Lost::name), "lost");
    missing(&Verdict::ALL.map(Verdict::name), "read");
    missing(&["early_completions", "late_heartbeat", "unproven", "answers_discarded", "evicted", "one_way"], "counted");
}
