//! A reader that tracks something new in every turn keeps what it has: the beat that is due is not spent on what is new.
#![cfg(feature = "sim")]

use std::fmt::Write as _;

use conformance::sim::{replay, trace::Trace};

/// One request per turn of the reader's loop, for more than two leases.
fn trace(wire: &str) -> String {
    let mut text = format!(
        concat!(
            r#"{{"world":1,"wire":"{}","seed":7,"end":"15","config":{{"lease":"6"}},"link":{{"delay":"0.001"}},"#,
            r#""nodes":{{"d":{{"role":"decode","poll":"0.05"}},"p":{{"role":"prefill"}}}}}}"#,
            "\n"
        ),
        wire
    );
    for turn in 0..280 {
        // Shortly before it.
        let at = f64::from(turn) * 0.05 + 0.04;
        writeln!(text, r#"{{"at":"{at:.2}","node":"p","do":"grant","request":"r{turn}"}}"#).unwrap();
        writeln!(text, r#"{{"at":"{at:.2}","node":"d","do":"enqueue","request":"r{turn}","from":"p"}}"#).unwrap();
    }
    for event in [r#"{"event":"freed"}"#, r#"{"event":"lost"}"#, r#"{"event":"unproven"}"#] {
        writeln!(text, r#"{{"never":{event}}}"#).unwrap();
    }
    text
}

#[test]
fn what_is_new_does_not_stand_for_the_beat_that_is_due() {
    for wire in ["native", "vllm"] {
        let trace = Trace::parse(trace(wire).as_bytes()).unwrap();
        let mut failed = Vec::new();
        let summary = replay::run(&trace, &mut |line| {
            if line.event == "failed_expectation" {
                failed.push(line.at.to_string());
            }
        });
        assert!(summary.held(), "{wire}: {failed:?}");
        assert_eq!((summary.grants, summary.live), (280, 280), "{wire}");
        // A renewal for each request, which some beats are as well.
        assert!((260..300).contains(&summary.heartbeats), "{wire}: {} heartbeats", summary.heartbeats);
    }
}
