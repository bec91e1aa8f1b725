//! Worlds that broke a law once, as small as they shrank.

use lease_proto::{
    event::{Lost, Verdict},
    wire::Wire,
};

use super::{
    check::{judge_with, reads_are_judged_rightly},
    edge::{grant, pair, track, what_is_beaten_for_is_held},
    script::{Act, Clock, How, MS, Script},
    trace::What,
    world::{Harness, World},
};

const TRUE: Clock = Clock { origin: 0, ppm: 0 };

fn world(wire: Wire, steps: &[(u64, Act)]) -> Script {
    pair(wire, [TRUE, TRUE], 1, steps)
}

fn read(track: usize, lasts: u64) -> Act {
    Act::Read { track, lasts, how: How::OneSided }
}

#[track_caller]
fn lawful(script: &Script) -> World {
    judge_with(script, Harness::Honest).unwrap()
}

fn verdicts(world: &World) -> Vec<Verdict> {
    let done = |what: &What| if let What::ReadDone(_, verdict) = what { Some(*verdict) } else { None };
    world.trace.entries().iter().filter_map(|entry| done(&entry.what)).collect()
}

/// Beats are never answered there, and what is not answered made the reader greet its holder: in native bytes.
#[test]
fn no_native_byte_reaches_vllms_wire() {
    lawful(&world(Wire::Vllm, &[(0, grant()), (0, track()), (5_000 * MS, grant())]));
}

/// Neither by who served it nor by who fenced it: there is no token to check, or to fence for.
#[test]
fn no_read_on_vllms_wire_is_valid() {
    for how in [How::OneSided, How::Served, How::Fenced] {
        let steps = [(0, grant()), (0, track()), (100 * MS, Act::Read { track: 0, lasts: 0, how })];
        assert_eq!(verdicts(&lawful(&world(Wire::Vllm, &steps))), [Verdict::Unverified], "{how:?}");
    }
}

/// The holder remembered that this reader had completed the lease, and took its second read for a repetition of the first.
#[test]
fn a_lease_that_was_completed_proves_no_second_read() {
    let steps = [(0, grant()), (0, track()), (0, read(0, 0)), (390 * MS, track()), (0, read(0, 0))];
    let verdicts = verdicts(&lawful(&world(Wire::Native, &steps)));
    assert!(verdicts[0].is_valid() && !verdicts[1].is_valid(), "{verdicts:?}");
}

/// A rank that had completed was promised more, and the other rank's completion freed the lease under its second read.
#[test]
fn a_rank_that_is_done_is_promised_nothing_more() {
    let again = [(500 * MS, track()), (500 * MS, read(0, 500 * MS)), (0, read(1, 0)), (1_000 * MS, grant())];
    let steps: Vec<_> = [(0, grant()), (0, track()), (100 * MS, read(1, 0))].into_iter().chain(again).collect();
    let mut script = world(Wire::Native, &steps);
    script.engines[1].0 = 2;
    let mut world = World::play(&script, Harness::Honest);
    world.heal();
    for e in world.trace.entries() {
        eprintln!("{} {} {:?}", e.at, e.life, e.what);
    }
}

/// Holders were looked up by hash, and the neighbours in their bucket taken for earlier lives of theirs.
#[test]
fn a_new_holder_is_no_later_life_of_another_one() {
    let grants = (0..4).map(|engine| (0, Act::Grant { engine, id: 0, consumers: None, ttl: None, lag: 0 }));
    let tracks = [3, 2, 1, 0].map(|lease| (100 * MS, Act::Track { lease, engine: lease, both: false }));
    let mut script = world(Wire::Native, &grants.chain(tracks).collect::<Vec<_>>());
    script.engines = vec![(1, TRUE); 4];
    let world = lawful(&script);
    let restarted = |what: &What| matches!(what, What::Lost(_, Lost::PeerRestarted));
    assert!(!world.trace.entries().iter().any(|entry| restarted(&entry.what)));
}

/// The hello named the token of a lease that was over, again and again, while the release of a live one waited for it.
#[test]
fn a_dead_token_keeps_no_live_one_waiting() {
    let late = [(3_000 * MS, track()), (450 * MS, grant()), (0, track()), (0, Act::Finish { track: 0 }), (1_500 * MS, grant())];
    let steps: Vec<_> = [(0, grant())].into_iter().chain(late).collect();
    what_is_beaten_for_is_held(&world(Wire::Native, &steps)).unwrap();
}

/// A process that dies may leave a verdict behind that was right: it counts until its end.
#[test]
fn what_was_proven_before_the_holder_died_stays_proven() {
    let steps = [(0, grant()), (0, track()), (1_000 * MS, read(0, 0)), (0, Act::Kill { engine: 0 })];
    let world = lawful(&world(Wire::Native, &steps));
    assert_eq!(verdicts(&world), [Verdict::ValidByDeadline]);
    reads_are_judged_rightly(&world, &world.trace.entries()).unwrap();
}

/// Two leases of one request, of which a renew names both and renews the first: the ledger took that for the second.
#[test]
fn two_leases_of_one_request_are_two() {
    let grant = || Act::Grant { engine: 1, id: 2, consumers: None, ttl: None, lag: 0 };
    lawful(&world(
        Wire::Native,
        &[
            (0, grant()),
            (0, Act::Track { lease: 0, engine: 0, both: false }),
            (0, Act::Expect { engine: 1, id: 2 }),
            (0, Act::Track { lease: 2, engine: 0, both: false }),
            (MS, Act::Stall { engine: 1, lasts: 2205 * MS }),
            (389 * MS, Act::Restart { engine: 0, origin: 0 }),
            (0, grant()),
            (0, Act::Abort { lease: 1, failed: false }),
        ],
    ));
}
