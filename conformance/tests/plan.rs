//! `kvlease plan`: closed form and sample agree, longer leases are safer and slower, wrong input is refused, and the largest
//! fleet is taken.
#![cfg(feature = "cli")]

use std::process::{Command, Output};

use conformance::sim::plan::{Asked, Counted, Plan, PlanError, Reclaim, plot};
use lease_proto::{config::Config, time::Duration, wire::Wire};
use serde_json::Value;

/// Enough real time on any machine: what is sampled then depends on the seed alone.
const PATIENCE: f64 = 600.0;

fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

/// One prefill instance whose sample covers so much of its time.
fn asked(span: u64) -> Asked {
    Asked { prefills: 1, budget: PATIENCE, span: seconds(span), seed: 11, ..Asked::default() }
}

fn plan(asked: Asked) -> (Plan, Counted, Reclaim) {
    let plan = Plan::of(asked.check().unwrap());
    let (sample, span) = (plan.sample, plan.inputs.asked.span.unwrap());
    assert_eq!((sample.full, sample.violations), (0, 0));
    assert!((sample.covered - span.as_nanos() as f64 / 1e9).abs() < 1e-6, "{}", sample.covered);
    (plan, sample.counted.unwrap(), sample.reclaim.unwrap())
}

#[track_caller]
fn near(what: &str, closed: f64, sampled: f64, tolerance: f64) {
    let difference = sampled / closed - 1.0;
    assert!(difference.abs() <= tolerance, "{what}: {closed} by closed form, {sampled} sampled, {:.1} %", difference * 100.0);
}

/// Traffic within 3 %, reclaim time within its bound and near its mean.
#[track_caller]
fn agrees(asked: Asked) -> (Plan, Counted) {
    let (plan, counted, reclaim) = plan(asked);
    let closed = plan.forecast;
    near("held", closed.held, counted.held, 0.03);
    near("renewals", closed.renewals, counted.renewals, 0.03);
    near("messages in", closed.messages_in, counted.messages_in, 0.03);
    near("bytes in", closed.bytes_in, counted.bytes_in, 0.03);
    if plan.inputs.asked.wire == Wire::Native {
        near("messages out", closed.messages_out, counted.messages_out, 0.03);
        near("bytes out", closed.bytes_out, counted.bytes_out, 0.03);
    } else {
        assert_eq!((closed.messages_out, counted.messages_out, closed.bytes_out, counted.bytes_out), (0.0, 0.0, 0.0, 0.0));
    }
    near("cpu", closed.cpu, counted.cpu, 0.03);
    assert!(reclaim.worst <= closed.reclaim_worst, "{} of at most {} s", reclaim.worst, closed.reclaim_worst);
    assert!(reclaim.mean <= closed.reclaim_worst);
    near("reclaim", closed.reclaim_mean, reclaim.mean, 0.1);
    near("leases of one", closed.of_one_decoder, reclaim.of_one_decoder, 0.25);
    (plan, counted)
}

#[test]
fn closed_form_and_sample_agree_where_pairs_are_busy() {
    for wire in [Wire::Native, Wire::Vllm] {
        agrees(Asked { wire, requests: Some(400), hold: seconds(20), ..asked(2000) });
    }
}

#[test]
fn closed_form_and_sample_agree_where_most_pairs_are_idle() {
    for wire in [Wire::Native, Wire::Vllm] {
        agrees(Asked { wire, decoders: 100, requests: Some(50), hold: seconds(6), ..asked(6000) });
    }
}

#[test]
fn closed_form_and_sample_agree_where_a_beat_takes_many_datagrams() {
    for wire in [Wire::Native, Wire::Vllm] {
        let asked = Asked { wire, decoders: 2, requests: Some(1000), hold: seconds(20), max_notification: 1024, ..asked(600) };
        let (plan, _) = agrees(asked);
        assert!(plan.forecast.datagrams_per_beat > 5.0);
    }
}

#[test]
fn closed_form_and_sample_agree_where_messages_get_lost() {
    for wire in [Wire::Native, Wire::Vllm] {
        agrees(Asked { wire, decoders: 50, requests: Some(100), hold: seconds(10), loss: 0.1, ..asked(6000) });
    }
}

#[test]
fn a_holder_that_acts_at_once_agrees_too() {
    let config = Config::with_lease(Duration::from_secs(6));
    agrees(Asked { config, poll: Duration::ZERO, requests: Some(200), hold: seconds(3), ..asked(2000) });
}

/// So many messages get lost that leases run out: a hundred times and more.
#[test]
fn leases_run_out_as_often_as_they_should_where_messages_get_lost() {
    for (wire, loss) in [(Wire::Native, 0.2), (Wire::Vllm, 0.3)] {
        let lease = if wire == Wire::Native { 6 } else { 12 };
        let config = Config::with_lease(Duration::from_secs(lease));
        let (decoders, requests, hold) = (100, Some(100), seconds(30));
        let asked = Asked { wire, config, decoders, requests, hold, loss, stalls_per_hour: 0.0, ..asked(20_000) };
        let (plan, counted, _) = plan(asked);
        assert!(counted.expired > 100, "{wire}: {}", counted.expired);
        near(&wire.to_string(), plan.forecast.false_expiry, counted.false_expiry, 0.2);
    }
}

#[test]
fn leases_run_out_as_often_as_they_should_where_engines_stall() {
    for longest_stall in [None, seconds(25)] {
        let config = Config { losses: Some(0), extension: seconds(33), ..Config::default() };
        let (decoders, requests, hold) = (100, Some(100), seconds(20));
        let (loss, stalls_per_hour, stall_mean) = (0.0, 10.0, Duration::from_secs(12));
        let asked = Asked { config, decoders, requests, hold, loss, stalls_per_hour, stall_mean, longest_stall, ..asked(20_000) };
        let (plan, counted, _) = plan(asked);
        match longest_stall {
            None => {
                assert!(counted.expired > 100, "{}", counted.expired);
                near("stalls", plan.forecast.false_expiry, counted.false_expiry, 0.2);
            }
            // The terms hold through the longest stall that there is.
            Some(_) => assert_eq!((counted.expired, plan.forecast.false_expiry), (0, 0.0)),
        }
    }
}

/// A lease is rarely needed still when the beats after a stall have got lost.
#[test]
fn leases_run_out_as_often_as_they_should_where_engines_stall_and_messages_get_lost() {
    for wire in [Wire::Native, Wire::Vllm] {
        let config = Config { losses: Some(0), ..Config::with_lease(Duration::from_secs(12)) };
        let (decoders, requests, hold, loss) = (20, Some(20), seconds(4), 0.3);
        let (stalls_per_hour, stall_mean) = (120.0, Duration::from_secs(2));
        let asked = Asked { wire, config, decoders, requests, hold, loss, stalls_per_hour, stall_mean, ..asked(20_000) };
        let (plan, counted, _) = plan(asked);
        assert!(counted.expired > 100, "{wire}: {}", counted.expired);
        near(&wire.to_string(), plan.forecast.false_expiry, counted.false_expiry, 0.2);
    }
}

#[test]
fn nothing_is_needed_as_long_as_a_long_lease_lasts() {
    let of = |lease| {
        let config = Config::with_lease(Duration::from_secs(lease));
        Plan::of(Asked { config, loss: 0.2, budget: 0.1, ..asked(1) }.check().unwrap()).curve.chosen.per_year
    };
    let (short, long, longest) = (of(30), of(300), of(5000));
    assert!(short > 1.0 && long < 1e-15 && longest <= long, "{short} {long} {longest}");
}

#[test]
fn the_shortest_safe_lease_on_vllms_wire_needs_no_warning() {
    let of = |lease| {
        let (config, longest_stall) = (Config::with_lease(Duration::from_secs(lease)), seconds(20));
        let asked = Asked { wire: Wire::Vllm, config, longest_stall, loss: 0.0, budget: 0.1, ..asked(1) };
        asked.check().unwrap()
    };
    assert!(of(30).terms.warning().is_some());
    let curve = Plan::of(of(30)).curve;
    let safe = curve.safe.unwrap();
    let warns = |lease: Duration| of(lease.as_nanos() / 1_000_000_000).terms.warning().is_some();
    assert!(!warns(safe.lease) && curve.points.iter().all(|point| !warns(point.lease)), "{}", safe.lease);
    // No stall outlasts what is left of a lease that holds, and nothing gets lost: terms decide alone.
    assert!(
        (1..safe.lease.as_nanos() / 1_000_000_000).all(|lease| Asked { target: 1e12, ..of(lease.max(2)).asked }
            .check()
            .unwrap()
            .terms
            .warning()
            .is_some())
    );
}

#[test]
fn a_longer_lease_is_safer_and_frees_later() {
    for (loss, stalls_per_hour) in [(0.01, 0.0), (0.0, 10.0), (0.05, 1.0)] {
        let mut before: Option<Plan> = None;
        for lease in [3, 6, 12, 24, 48, 96] {
            let config = Config::with_lease(Duration::from_secs(lease));
            let asked = Asked { config, loss, stalls_per_hour, budget: 0.1, hold: seconds(10), ..asked(1) };
            let plan = Plan::of(asked.check().unwrap());
            if let Some(before) = &before {
                let (shorter, longer) = (&before.forecast, &plan.forecast);
                assert!(longer.false_expiry < shorter.false_expiry, "lease {lease}, loss {loss}");
                assert!(longer.reclaim_worst > shorter.reclaim_worst && longer.reclaim_mean > shorter.reclaim_mean);
                assert!(longer.messages_in < shorter.messages_in);
                // Neither depends on the lease that was chosen.
                assert_eq!((plan.curve.safe, &plan.curve.points), (before.curve.safe, &before.curve.points));
            }
            before = Some(plan);
        }
    }
}

#[test]
fn the_shortest_safe_lease_meets_the_target_and_a_shorter_one_does_not() {
    for wire in [Wire::Native, Wire::Vllm] {
        let of = |lease| {
            let asked = Asked { wire, config: Config::with_lease(lease), loss: 0.01, budget: 0.1, ..asked(1) };
            Plan::of(asked.check().unwrap())
        };
        let safe = of(Duration::from_secs(30)).curve.safe.unwrap();
        assert!(safe.per_year <= 1.0);
        assert_eq!(of(safe.lease).curve.chosen, safe);
        let step = Duration::from_millis(if wire == Wire::Native { 100 } else { 1000 });
        assert!(of(safe.lease.saturating_sub(step)).curve.chosen.per_year > 1.0);
    }
}

#[test]
fn a_stricter_target_takes_a_longer_lease() {
    let safe = |target| Plan::of(Asked { target, budget: 0.1, ..asked(1) }.check().unwrap()).curve.safe.unwrap().lease;
    assert!(safe(100.0) < safe(1.0) && safe(1.0) < safe(0.01));
}

#[test]
fn the_same_seed_samples_the_same() {
    let sample = |seed| {
        let (_, counted, reclaim) = plan(Asked { seed, requests: Some(100), ..asked(100) });
        (counted.messages_in, counted.bytes_out, counted.held, counted.ended, reclaim)
    };
    assert_eq!(sample(1), sample(1));
    assert_ne!(sample(1), sample(2));
}

/// How fast is printed: a clock is no judge here.
#[test]
fn a_long_run_handles_every_lease_event() {
    let (plan, counted, _) = plan(Asked { requests: Some(800), hold: seconds(30), loss: 0.0, ..asked(5000) });
    let sample = plan.sample;
    assert!(sample.events > 1_000_000 && counted.ended > 100_000);
    println!("{} lease events, {:.2} million for each second of one core", sample.events, sample.events_per_second() / 1e6);
}

#[test]
fn the_largest_fleet_is_planned_and_sampled_in_part() {
    let asked = Asked {
        prefills: 100,
        decoders: 1000,
        requests: Some(1_000_000),
        hold: seconds(60),
        budget: PATIENCE,
        span: seconds(1),
        ..Asked::default()
    };
    let plan = Plan::of(asked.check().unwrap());
    let slice = plan.sample.slice;
    assert_eq!((slice.decoders, slice.per_pair, slice.factor), (1000, 10.0, 1.0));
    near("held", plan.forecast.held, plan.sample.counted.unwrap().held, 0.1);
    near("renewals", plan.forecast.renewals, plan.sample.counted.unwrap().renewals, 0.1);
    // With less time it is a part.
    let asked = Asked { budget: 0.2, ..plan.inputs.asked };
    let slice = Plan::of(asked.check().unwrap()).sample.slice;
    assert_eq!((slice.decoders, slice.factor), (200, 5.0));
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    type Change<'a> = &'a dyn Fn(&mut Asked);
    let refused = |change: Change<'_>| {
        let mut asked = Asked::default();
        change(&mut asked);
        asked.check().unwrap_err().to_string()
    };
    let expected: [(Change<'_>, &str); 18] = [
        (&|asked| asked.prefills = 0, "prefill instances is 0, expected 1 to 100"),
        (&|asked| asked.prefills = 101, "prefill instances is 101, expected 1 to 100"),
        (&|asked| asked.decoders = 1001, "decode instances is 1001, expected 1 to 1000"),
        (&|asked| asked.requests = Some(0), "requests in flight is 0, expected 1 to 1000000"),
        (&|asked| asked.requests = Some(1_000_001), "requests in flight is 1000001, expected 1 to 1000000"),
        (&|asked| asked.rate = Some(-1.0), "rate is -1, expected 0.001 to 1000000 requests a second"),
        (&|asked| asked.rate = Some(f64::NAN), "rate is NaN, expected 0.001 to 1000000 requests a second"),
        (&|asked| asked.hold = seconds(4000), "hold is 4000, expected 0.01 to 3600 s"),
        (&|asked| asked.request_bytes = 0, "bytes per request is 0, expected 1 to 1000000000000000"),
        (&|asked| asked.id_length = 8, "id length is 8, expected 16 to 256 bytes"),
        (&|asked| asked.loss = 1.0, "loss is 1, expected 0 to 0.8: beyond that the closed form does not hold"),
        (&|asked| asked.loss = 0.81, "loss is 0.81, expected 0 to 0.8"),
        (&|asked| asked.loss = f64::NAN, "loss is NaN, expected 0 to 0.8"),
        (&|asked| asked.max_notification = 100, "max notification is 100, expected 512 to 16777216 bytes"),
        (&|asked| asked.stall_mean = Duration::ZERO, "stall mean is 0, expected 0.001 to 3600 s"),
        (&|asked| asked.stalls_per_hour = 3600.0, "time stalled is 3600, expected 0 to 1800 s an hour"),
        (&|asked| asked.target = 0.0, "target is 0, expected 0.000000001 to 1000000000000 false expiries a year"),
        (&|asked| asked.longest_stall = seconds(19), "an extension of 20 s cannot hold a lease"),
    ];
    for (change, text) in expected {
        let error = refused(change);
        assert!(error.starts_with(text), "{error}");
    }
    let little = Asked { requests: Some(100), rate: Some(10.0), hold: seconds(5), ..Asked::default() }.check();
    assert!(matches!(little, Err(PlanError::Little { product: 50.0, .. })), "{little:?}");
}

#[test]
fn two_of_requests_rate_and_hold_tell_the_third() {
    let of = |requests, rate, hold| {
        let inputs = Asked { requests, rate, hold, ..Asked::default() }.check().unwrap();
        (inputs.requests, inputs.rate, inputs.hold)
    };
    assert_eq!(of(None, None, None), (400.0, 80.0, 5.0));
    assert_eq!(of(Some(100), Some(10.0), None), (100.0, 10.0, 10.0));
    assert_eq!(of(Some(100), None, seconds(4)), (100.0, 25.0, 4.0));
    assert_eq!(of(None, Some(10.0), seconds(4)), (40.0, 10.0, 4.0));
    assert_eq!(of(Some(40), Some(10.0), seconds(4)), (40.0, 10.0, 4.0));
}

/// Every element is closed, in order.
fn is_well_formed(svg: &str) -> bool {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1).map(|rest| rest.split_once('>').expect("every tag ends").0) {
        let name = tag.trim_start_matches('/').split(|char: char| char.is_whitespace() || char == '/').next().unwrap();
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) if open.pop() != Some(name) => return false,
            (false, false) => open.push(name),
            _ => {}
        }
    }
    open.is_empty()
}

#[test]
fn the_plot_is_an_svg_with_axes_a_curve_and_marks() {
    for wire in [Wire::Native, Wire::Vllm] {
        for loss in [0.0, 0.001, 0.5] {
            let asked = Asked { wire, loss, budget: 0.1, ..asked(1) };
            let svg = plot::svg(&Plan::of(asked.check().unwrap()));
            assert!(svg.starts_with("<svg") && is_well_formed(&svg), "{svg}");
            for text in ["(seconds)", "probability of a false expiry", "chosen: 30 s", "target", "<polyline", "10⁻"] {
                assert!(svg.contains(text), "{wire} {loss}: no {text}");
            }
            assert!(svg.contains("shortest safe"));
        }
    }
}

fn kvlease(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvlease")).arg("plan").args(args).output().unwrap()
}

#[test]
fn the_table_tells_both_side_by_side() {
    let Output { status, stdout, stderr } = kvlease(&["--span", "200", "--budget", "600"]);
    let text = String::from_utf8(stdout).unwrap();
    assert_eq!((status.code(), String::from_utf8_lossy(&stderr).as_ref()), (Some(0), ""));
    for row in [
        "closed form",
        "leases renewed",
        "CPU for leases",
        "memory held for it",
        "false expiry, per request",
        "shortest safe lease",
    ] {
        assert!(text.contains(row), "no {row}:\n{text}");
    }
    // Columns end where their titles do.
    let column = |line: &str| line.chars().count();
    let titles: Vec<&str> = text.lines().filter(|line| line.ends_with("difference")).collect();
    assert!(titles[1].contains("in 8 deaths") && text.contains("leases there, ±"), "{text}");
    assert!(text.contains("1 stall an hour of 1 s") && text.contains(" a year") && !text.contains(" a day"), "{text}");
    let rows: Vec<&str> = text.lines().filter(|line| line.ends_with(" %") && line.starts_with("  ")).collect();
    assert_eq!(titles.len(), 3);
    assert!(rows.len() > 8 && rows.iter().all(|row| column(row) == column(titles[0])), "{text}");
}

#[test]
fn the_chosen_lease_is_held_against_the_target() {
    let said = |args: &[&str]| {
        let Output { status, stdout, .. } = kvlease(&[&["--budget", "0.1", "--span", "1"], args].concat());
        assert_eq!(status.code(), Some(0), "{args:?}");
        String::from_utf8(stdout).unwrap()
    };
    let verdict = |text: &str| text.lines().find(|line| line.starts_with("your lease")).unwrap().to_owned();
    let short = verdict(&said(&["--lease", "6"]));
    assert!(short.starts_with("your lease of 6 s: ") && short.ends_with(" a year in the fleet, target 1: too short"), "{short}");
    let long = verdict(&said(&["--lease", "300"]));
    assert!(long.ends_with("target 1: within the target"), "{long}");
    // An extension is an hour at most.
    let hopeless = ["--hold", "3600", "--loss", "0.8"];
    for (wire, longest) in [("native", 5400), ("vllm", 5401)] {
        let text = said(&[&["--wire", wire], &hopeless[..]].concat());
        let none = format!(
            "shortest safe lease: none up to {longest} s, the longest whose terms hold, has at most 1 false expiry a year"
        );
        assert!(text.contains(&none), "{text}");
    }
    let one = said(&["--requests", "32", "--decode", "8", "--prefill", "4"]);
    assert!(one.contains("8 decode instances, 1 lease each"), "{one}");
}

#[test]
fn json_has_every_quantity() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.svg");
    let args = ["--json", "--span", "200", "--budget", "600", "--wire", "vllm", "--lease", "12", "--term", "losses=0", "--plot"];
    let Output { status, stdout, stderr } = kvlease(&[&args[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(status.code(), Some(0));
    let said: Value = serde_json::from_slice(&stdout).unwrap();
    for key in ["inputs", "terms", "quantities", "costs_ns", "sample", "shortest_safe", "chosen", "curve"] {
        assert!(!said[key].is_null(), "no {key}");
    }
    assert_eq!(said["terms"]["extension"], "8");
    for key in ["renewals", "messages_in", "bytes_in", "cpu", "bytes_of_one_decoder", "reclaim_mean", "reclaim_worst"] {
        let quantity = &said["quantities"][key];
        assert!(
            quantity["closed"].is_f64() && quantity["sampled"].is_f64() && quantity["difference"].is_f64(),
            "{key}: {quantity}"
        );
    }
    assert!(said["quantities"]["false_expiry"]["closed"].is_f64());
    assert_eq!(String::from_utf8(stderr).unwrap(), format!("kvlease plan: wrote {}\n", file.display()));
    assert!(is_well_formed(&std::fs::read_to_string(file).unwrap()));
}

#[test]
fn wrong_input_is_one_clear_line_and_exit_status_2() {
    for (args, complaint) in [
        (&["--prefill", "0"][..], "prefill instances is 0, expected 1 to 100"),
        (&["--term", "lease"], "--term lease: expected NAME=VALUE"),
        (&["--term", "leases=3"], "--term leases=3: no term has that name"),
        (&["--lease", "0.01"], "lease is 0.01 s, expected 0.1 to 86400 s"),
        (&["--requests", "100", "--rate", "10", "--hold", "5"], "leave one of the three out"),
        (&["--plot", "/nowhere/plan.svg", "--budget", "600"], "cannot write /nowhere/plan.svg"),
        (&["--plot", "plan.png"], "--plot plan.png: expected a name that ends in .svg"),
        (&["--longest-stall", "10"], "; the shortest lease that would do: --lease 38.6"),
        (&["--lease", "20", "--term", "lease=30"], "--term lease=30 and --lease are both given: leave one of them out"),
        (&["--lease", "20", "--term", "kv_lease_duration=30"], "--term kv_lease_duration=30 and --lease are both given"),
        (&["--poll", "0.1", "--term", "poll=1"], "--term poll=1 and --poll are both given"),
        (&["--longest-stall", "1", "--term", "longest_stall=2"], "--term longest_stall=2 and --longest-stall are both given"),
        (&["--rate", "-1"], "rate is -1, expected 0.001 to 1000000 requests a second"),
        (&["--loss", "-0.5"], "loss is -0.5, expected 0 to 0.8"),
        (&["--loss", "0.9"], "loss is 0.9, expected 0 to 0.8"),
    ] {
        let Output { status, stdout, stderr } = kvlease(args);
        let stderr = String::from_utf8(stderr).unwrap();
        assert_eq!((status.code(), stdout.len(), stderr.lines().count()), (Some(2), 0, 1), "{args:?}: {stderr}");
        assert!(stderr.starts_with("kvlease plan: ") && stderr.contains(complaint), "{args:?}: {stderr}");
    }
    let Output { status, .. } = kvlease(&["--request-bytes", "5 pigs"]);
    assert_eq!(status.code(), Some(2));
}
