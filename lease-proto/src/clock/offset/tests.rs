use super::*;
use crate::clock::DRIFT_PPM;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn peer(nanos: u64) -> PeerInstant {
    PeerInstant::from_nanos(nanos)
}

/// A question sent at `sent`, `out` and `back` on its way, answered at once by a clock that is `offset` ahead.
fn sample(sent: u64, out: u64, back: u64, offset: i128) -> Sample {
    let stamp = peer((i128::from(sent + out) + offset).try_into().unwrap());
    Sample { clock: ClockId(1), sent: at(sent), peer_received: stamp, peer_sent: stamp, received: at(sent + out + back) }
}

fn bounds(window: &OffsetWindow, now: u64) -> Option<(i128, i128)> {
    window.interval(at(now)).map(|interval| (interval.low(), interval.high()))
}

/// Case 3, with the margin that vLLM uses.
#[test]
fn a_foreign_deadline_is_compared_by_its_safe_end() {
    let offset = 500_000 * i128::from(SECOND);
    let mut window = OffsetWindow::new(DRIFT_PPM);
    let margin = Duration::from_secs(5);
    let gate = |window: &OffsetWindow, seconds: u64| {
        // D's clock shows 1 000 000 + seconds, so P's shows 500 000 less.
        window.before(peer(1_000_480 * SECOND), margin, at((500_000 + seconds) * SECOND))
    };
    assert_eq!(gate(&window, 474), Gate::Unknown, "nothing measured yet");
    let start = 500_473 * SECOND;
    assert_eq!(window.add(sample(start, 20_000_000, 20_000_000, offset), at(start + 40_000_000)), Added::Kept);
    let interval = window.interval(at(start + 40_000_000)).unwrap();
    let half = 20_000_000 + 40_021; // half the round trip, and 2r / (1 - r) of all of it
    assert_eq!((interval.low(), interval.high()), (offset - half, offset + half));
    assert_eq!(interval.width(), 2 * half as u128);
    assert_eq!([474, 475, 476].map(|seconds| gate(&window, seconds)), [Gate::Read, Gate::TooLate, Gate::TooLate]);
    // 20 ms of uncertainty decide: a nanosecond count away from the margin and from the bound.
    let asked = |nanos: u64| window.before(peer(1_000_480 * SECOND), margin, at(500_475 * SECOND - nanos));
    assert_eq!((asked(20_000_000), asked(30_000_000)), (Gate::TooLate, Gate::Read));
    assert_eq!((AbsentDeadline::Decline.gate(), AbsentDeadline::Read.gate()), (Gate::Unknown, Gate::Read));
    assert!(!AbsentDeadline::default().gate().is_read());
}

#[test]
fn samples_are_intersected_and_age() {
    let mut window = OffsetWindow::new(500);
    window.add(sample(0, 0, 1000, 1_000_000), at(1000)); // the peer answered at once after sending: offset up to 1000 less
    assert_eq!(bounds(&window, 1000), Some((1_000_000 - 1002, 1_000_002)));
    assert_eq!(bounds(&window, 1000 + 999_500), Some((1_000_000 - 2002, 1_001_002)), "a thousandth of its age");
    window.add(sample(999_500, 1000, 0, 1_000_000), at(1_000_500));
    assert_eq!(bounds(&window, 1_000_500), Some((1_000_000 - 2, 1_001_002)));
    // Old samples leave the window.
    for round in 0..WINDOW as u64 {
        let sent = 2_000_000 + round * 1000;
        assert_eq!(window.add(sample(sent, 400, 400, 1_000_000), at(sent + 800)), Added::Kept);
    }
    assert_eq!(bounds(&window, 2_007_800), Some((1_000_000 - 401, 1_000_401)));
}

#[test]
fn what_cannot_be_is_ignored_and_told() {
    let mut window = OffsetWindow::new(DRIFT_PPM);
    let good = sample(1000, 10, 10, 500);
    let held_longer = Sample { peer_received: peer(1500), peer_sent: peer(1521), ..good };
    let received_before_sent = Sample { received: at(999), ..good };
    let peer_went_back = Sample { peer_sent: peer(1509), ..good };
    for bad in [held_longer, received_before_sent, peer_went_back] {
        assert_eq!(window.add(bad, at(2000)), Added::NegativeRoundTrip);
        assert_eq!((window.interval(at(2000)), window.clock()), (None, None));
    }
    assert_eq!(window.add(good, at(2000)), Added::Kept);
    let other = Sample { clock: ClockId(2), ..held_longer };
    assert_eq!(window.add(other, at(2000)), Added::NegativeRoundTrip);
    assert_eq!(window.clock(), Some(ClockId(1)), "a bad sample of another clock changes nothing");
}

#[test]
fn a_jump_voids_the_window_and_another_clock_restarts_it() {
    let mut window = OffsetWindow::new(DRIFT_PPM);
    assert_eq!(window.add(sample(1000, 10, 10, 500), at(1020)), Added::Kept);
    assert_eq!(window.add(sample(2000, 10, 10, 600), at(2020)), Added::Voided, "100 ns in 1000 are no drift");
    assert_eq!(window.interval(at(2020)), None);
    assert_eq!(window.before(peer(u64::MAX), Duration::ZERO, at(2020)), Gate::Unknown);
    assert_eq!(window.add(sample(3000, 10, 10, 600), at(3020)), Added::Kept);
    let other = Sample { clock: ClockId(2), ..sample(4000, 10, 10, 1_000_000) };
    assert_eq!(window.add(other, at(4020)), Added::NewClock);
    assert_eq!((window.clock(), bounds(&window, 4020)), (Some(ClockId(2)), Some((999_989, 1_000_011))));
}

#[test]
fn offsets_reach_from_end_to_end_of_the_range() {
    let margin = Duration::from_secs(5);
    for (sent, offset) in
        [(1 << 62, 1i128 << 62), (1 << 62, -(1i128 << 62)), (0, u64::MAX as i128), (u64::MAX, -(u64::MAX as i128))]
    {
        for ppm in [0, 500, 999_999, u32::MAX] {
            let mut window = OffsetWindow::new(ppm);
            assert_eq!(window.add(sample(sent, 0, 0, offset), at(sent)), Added::Kept, "round trip 0");
            assert_eq!(bounds(&window, sent), Some((offset, offset)));
            let now = peer((i128::from(sent) + offset) as u64);
            assert_eq!(window.to_local(now, at(sent)), Some(LocalSpan { earliest: at(sent), latest: at(sent) }));
            assert_eq!(window.before(now, Duration::ZERO, at(sent)), Gate::TooLate, "the deadline itself is too late");
            for now in [0, sent, u64::MAX] {
                for deadline in [PeerInstant::ZERO, PeerInstant::MAX] {
                    let span = window.to_local(deadline, at(now)).unwrap();
                    assert!(span.earliest <= span.latest);
                    window.before(deadline, margin, at(now));
                }
            }
        }
    }
    let mut window = OffsetWindow::new(DRIFT_PPM);
    window.add(sample(0, 5 * SECOND, 5 * SECOND, 0), at(10 * SECOND));
    let width = window.interval(at(10 * SECOND)).unwrap().width();
    assert_eq!(width, 10 * 1_000_000_000 + 2 * 10_005_003, "a round trip of 10 s is kept, and says little");
}

/// A deadline far ahead is uncertain by the drift until then: 500 ppm each over 480 s are 480 ms.
#[test]
fn a_deadline_far_ahead_counts_the_drift_until_then() {
    let mut window = OffsetWindow::new(DRIFT_PPM);
    window.add(sample(0, 0, 0, 0), at(0));
    let span = window.to_local(peer(480 * SECOND), at(0)).unwrap();
    assert_eq!(span.earliest.as_nanos(), 479_520_239_880);
    assert_eq!(span.latest.as_nanos(), 480_480_240_121);
}

proptest! {
    /// Two simulated clocks within their bounds, questions at random: the window never voids, always holds the true offset, and
    /// no true instant lies outside its span.
    #[test]
    fn the_truth_is_always_inside(
        bound in prop_oneof![Just(0i64), Just(500), 0i64..100_000],
        corners in (-1i64..=1, -1i64..=1),
        start in 0u64..1 << 60,
        steps in proptest::collection::vec((0u64..60 * SECOND, 0u64..SECOND, 0u64..SECOND, 0u64..SECOND), 1..20),
        asked in 0u64..480 * SECOND,
        instant in 0u64..960 * SECOND,
    ) {
        // Clocks in thousandths of a nanosecond of true time, so that rounding to whole ones is seen.
        let clock = |ppm: i64, from: u64, picos: u64| {
            from + (u128::from(picos) * (1_000_000 + ppm) as u128 / 1_000_000_000) as u64
        };
        let local = |picos: u64| at(clock(bound * corners.0, start, picos));
        let remote = |picos: u64| peer(clock(bound * corners.1, 7 * SECOND, picos));
        let mut window = OffsetWindow::new(bound as u32);
        let mut picos = 0;
        for (wait, out, hold, back) in steps {
            let t0 = picos + wait * 1000;
            let (t1, t2) = (t0 + 2000 + out * 1000, t0 + 2000 + (out + hold) * 1000);
            picos = t2 + 2000 + back * 1000;
            let sample = Sample {
                clock: ClockId(1),
                sent: local(t0),
                peer_received: remote(t1),
                peer_sent: remote(t2),
                received: local(picos),
            };
            let added = window.add(sample, local(picos));
            // A held question may look longer than its round trip, by drift; that one is lost, no more.
            prop_assert!(matches!(added, Added::Kept | Added::NegativeRoundTrip), "{added:?}");
            let Some(interval) = window.interval(local(picos)) else { continue };
            let truth = i128::from(remote(picos).as_nanos()) - i128::from(local(picos).as_nanos());
            prop_assert!(interval.low() - 1 <= truth && truth <= interval.high() + 1, "{interval:?} {truth}");
        }
        let now = local(picos + asked * 1000);
        if let Some(span) = window.to_local(remote(instant * 1000), now) {
            let truth = local(instant * 1000).as_nanos();
            prop_assert!(span.earliest.as_nanos() <= truth + 2 && truth <= span.latest.as_nanos() + 2, "{span:?} {truth}");
        }
    }
}
