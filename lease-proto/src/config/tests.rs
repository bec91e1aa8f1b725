//! Terms: vLLM's arithmetic row by row, what is refused, and that what an error tells to change is enough.

use super::*;

fn secs(text: &str) -> Duration {
    text.parse().unwrap()
}

#[test]
fn vllm_arithmetic_row_by_row() {
    for (lease, interval, extension) in [
        ("30", 5, 20),
        ("60", 10, 40),
        ("20", 3, 13),
        ("10", 1, 6),
        ("7", 1, 4),
        ("6", 1, 4),
        ("5", 0, 3),
        ("3", 0, 2),
        ("2", 0, 1),
        ("1", 0, 0),
        ("45.5", 7, 30),
    ] {
        assert_eq!(vllm_interval(secs(lease)), Duration::from_secs(interval), "{lease}");
        assert_eq!(vllm_extension(secs(lease)), Duration::from_secs(extension), "{lease}");
    }
}

#[test]
fn defaults_hold_on_both_wires() {
    let native = Config::default().validate(Wire::Native).unwrap();
    assert_eq!((native.extension(), native.interval()), (secs("20"), secs("3.896")));
    let vllm = Config::default().validate(Wire::Vllm).unwrap();
    assert_eq!((vllm.extension(), vllm.interval(), vllm.lost_after()), (secs("20"), secs("5"), secs("40")));
}

#[test]
fn every_lease_from_the_shortest_to_the_longest_holds_with_its_defaults() {
    for lease in ["0.15", "1", "3", "6", "30", "600", "5400"] {
        assert!(Config::with_lease(secs(lease)).validate(Wire::Native).is_ok(), "{lease}");
    }
}

#[test]
fn vllm_leases_hold_by_their_own_defaults() {
    for lease in ["2", "3", "6", "7", "10", "20", "30", "45.5", "60", "3600"] {
        let terms = Config::with_lease(secs(lease)).validate(Wire::Vllm).unwrap();
        assert_eq!(terms.warning(), None, "{lease}");
    }
}

#[test]
fn leases_without_meaning_are_refused_by_name() {
    for lease in ["0", "0.099999999", "86400.000000001"] {
        let error = Config::with_lease(secs(lease)).validate(Wire::Native).unwrap_err();
        assert!(matches!(error, TermsError::OutOfRange { name: "lease", .. }), "{lease}");
    }
    assert_eq!(Config::with_lease(secs("1")).validate(Wire::Vllm), Err(TermsError::RenewsNothing { lease: secs("1") }));
    assert!(Config::with_lease(secs("4294967295")).validate(Wire::Vllm).is_err());
    let long = Config { connect_deadline: Some(secs("20")), ..Config::default() }.validate(Wire::Native);
    assert!(matches!(long, Err(TermsError::TooLong { name: "connect_deadline", .. })));
}

#[test]
fn what_it_says_to_change_is_enough() {
    let mut seen = [0; 2];
    for (losses, longest_stall) in [0, 1, 2, 3].into_iter().flat_map(|losses| [(losses, None), (losses, Some(secs("17.5")))]) {
        let config = Config { longest_stall, losses: Some(losses), ..Config::default() };
        let Err(TermsError::CannotHold { remedy, .. }) = config.validate(Wire::Native) else { continue };
        if let Some(raise_to) = remedy.raise_to {
            seen[0] += 1;
            let raised = Config { extension: Some(raise_to), ..config.clone() };
            assert!(raised.validate(Wire::Native).is_ok(), "{raised:?}");
            let almost = Config { extension: Some(raise_to.saturating_sub(Duration::from_millis(1))), ..config.clone() };
            assert!(almost.validate(Wire::Native).is_err(), "{almost:?}");
        } else {
            seen[1] += 1;
        }
        let stall = remedy.stall.expect("without stalls they hold");
        let lowered = Config { longest_stall: Some(stall), ..config };
        assert!(lowered.validate(Wire::Native).is_ok(), "{lowered:?}");
    }
    assert!(seen.iter().all(|count| *count > 0), "both kinds: {seen:?}");
}

#[test]
fn what_would_not_do_is_not_said() {
    let text = Config { losses: Some(3), ..Config::default() }.validate(Wire::Native).unwrap_err();
    assert_eq!(
        std::string::ToString::to_string(&text),
        "an extension of 20 s cannot hold a lease, 22.084 s are needed: lower longest_stall to at most 2.916 s"
    );
    let poll = Config { poll: Some(secs("100")), ..Config::default() }.validate(Wire::Native).unwrap_err();
    let TermsError::CannotHold { remedy, .. } = poll else { panic!("{poll}") };
    assert_eq!(remedy.stall, None);
}

#[test]
fn vllm_terms_that_cannot_hold_warn_and_do_not_fail() {
    let terms = Config { longest_stall: Some(secs("15")), ..Config::default() }.validate(Wire::Vllm).unwrap();
    let Some(TermsError::CannotHoldVllm { remedy, .. }) = terms.warning() else { panic!("no warning") };
    let (raise_to, stall) = (remedy.raise_to.unwrap(), remedy.stall.unwrap());
    let raised = Config { longest_stall: Some(secs("15")), ..Config::with_lease(raise_to) }.validate(Wire::Vllm).unwrap();
    assert_eq!(raised.warning(), None, "raised to {raise_to}");
    let lowered = Config { longest_stall: Some(stall), ..Config::default() }.validate(Wire::Vllm).unwrap();
    assert_eq!(lowered.warning(), None, "lowered to {stall}");
    let reader = Config::with_lease(secs("60")).validate(Wire::Vllm).unwrap();
    assert!(reader.holds_with(secs("6")).is_err(), "P of 10 s, D of 60 s");
}

#[test]
fn each_name_sets_its_own_term() {
    let mut config = Config::default();
    for (key, value) in [
        ("lease", "60"),
        ("extension", "40"),
        ("decoder_ttl", "300"),
        ("drift_ppm", "100"),
        ("path_budget", "1"),
        ("longest_stall", "2"),
        ("poll", "0.5"),
        ("losses", "1"),
        ("lost_after", "80"),
        ("verdict_timeout", "10"),
        ("drain_grace", "1"),
        ("connect_deadline", "4"),
        ("tombstone_ttl", "600"),
        ("engine_ttl", "60"),
        ("max_unanswered", "4"),
        ("hold_until_ack", "true"),
        ("proof", "completion"),
    ] {
        let before = config.clone();
        config.set(key, value).unwrap();
        assert_ne!(config, before, "{key} has no effect");
    }
    for value in ["", "-1", "inf", "none", "null"] {
        assert!(matches!(config.set("lease", value), Err(ConfigError::Time(_))), "{value}");
    }
    assert_eq!(config.set("proof", "true"), Err(ConfigError::Proof));
    config.set("proof", "deadline").unwrap();
    assert_eq!(config.proof, Proof::default());
}
