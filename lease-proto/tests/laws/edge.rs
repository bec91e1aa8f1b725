//! Worlds made for one question, where chance would rarely ask it.

use conformance::loopback::Fault;
use lease_proto::{
    config::Config,
    event::{Freed, Verdict},
    wire::{self, Message, Wire, native::Body},
};

use super::{
    check::{Judged, reads_are_judged_rightly},
    ledger::holder_keeps_the_laws,
    script::{Act, Clock, How, MS, Script, Step, config},
    trace::{Nature, What},
    world::{Harness, World},
};

const FOR_EVER: u64 = 1 << 50;

pub fn pair(wire: Wire, clocks: [Clock; 2], flight: u64, steps: &[(u64, Act)]) -> Script {
    let steps = steps.iter().map(|(after, act)| Step { after: *after, act: act.clone() }).collect();
    let engines = clocks.map(|clock| (1, clock)).to_vec();
    Script { wire, config: config(wire), nature: Nature::default(), engines, flight, steps }
}

pub fn grant() -> Act {
    Act::Grant { engine: 0, id: 0, consumers: None, ttl: None, lag: 0 }
}

pub fn track() -> Act {
    Act::Track { lease: 0, engine: 0, both: false }
}

/// A reader beats for a while; then nothing gets through any more, and its read ends `late` nanoseconds after the last one
/// that the last answer proves. Whether that read was declared valid, or `None` if it was never begun.
pub fn read_at_the_edge(holder: Clock, reader: Clock, flight: u64, beats_for: u64, late: i64) -> Result<Option<bool>, String> {
    let mut world = World::new(&pair(Wire::Native, [holder, reader], flight, &[]), Harness::Honest);
    world.act(grant());
    world.act(track());
    world.run_to(beats_for);
    for (from, to) in [(0, 1), (1, 0)] {
        world.act(Act::Fault { from, to, fault: Fault { drop: true, ..Fault::default() }, lasts: FOR_EVER });
    }
    world.run_to(beats_for + flight);
    let Some(proof) = proof(&world, reader) else { return Ok(None) };
    let end = reader.when(proof.saturating_add_signed(late));
    if world.now() > end {
        return Ok(None); // it lapsed while the last answer was on its way
    }
    world.act(Act::Read { track: 0, lasts: end - world.now(), how: How::OneSided });
    let begun = world.tracks[0].reading;
    world.run_to(end + 10_000 * MS);
    let trace = world.trace.entries();
    holder_keeps_the_laws(&world, 0, &trace)?;
    reads_are_judged_rightly(&world, &trace)?;
    let verdict = trace.iter().find_map(|entry| match entry.what {
        What::ReadDone(_, verdict) => Some(verdict),
        _ => None,
    });
    let in_time = reader.read(end) < proof;
    match verdict {
        Some(verdict) if verdict.is_valid() != in_time => {
            Err(format!("{verdict:?} at {}, proven until {proof}", reader.read(end)))
        }
        None if begun => Err("no verdict".into()),
        verdict => Ok(verdict.map(Verdict::is_valid)),
    }
}

/// Proof (A) by the book: s + floor(g * (1 - r) / (1 + r)).
fn proof(world: &World, reader: Clock) -> Option<u64> {
    let (mut sent, mut proof) = (Vec::new(), None);
    for entry in world.trace.entries().iter().filter(|entry| entry.life == 1) {
        let (What::In(bytes) | What::Out(bytes)) = &entry.what else { continue };
        match wire::decode(Wire::Native, bytes) {
            Ok(Message::Native { seq, body: Body::Renew(_), .. }) => sent.push((seq, reader.read(entry.at))),
            Ok(Message::Native { body: Body::Renewed(renewed), .. }) => {
                let (_, stamp) = sent.iter().find(|(seq, _)| *seq == renewed.re)?;
                let r = u128::from(world.terms.drift_ppm());
                let reach = u128::from(renewed.granted.as_nanos()) * (1_000_000 - r) / (1_000_000 + r);
                proof = proof.max(Some(stamp + reach as u64));
            }
            _ => {}
        }
    }
    proof
}

/// Without faults, what is tracked in time is held until its reader lets it go, and each read of it is valid.
pub fn what_is_beaten_for_is_held(script: &Script) -> Judged {
    let mut world = World::play(script, Harness::Honest);
    world.run_to(world.now() + 8_000 * MS);
    if let Some(wrong) = world.wrong {
        return Err(wrong);
    }
    let trace = world.trace.entries();
    for (index, lease) in world.leases.iter().enumerate() {
        let tracks: Vec<_> = world.tracks.iter().filter(|track| track.lease == index).collect();
        let granted = |what: &What| matches!(what, What::Granted { token, .. } if *token == lease.token);
        let Some(granted) = trace.iter().find(|entry| granted(&entry.what)) else { continue };
        // By one reader, and soon enough to shake hands.
        let one = tracks
            .iter()
            .all(|track| world.lives[track.life].identity.incarnation == world.lives[tracks[0].life].identity.incarnation);
        let ranks = tracks.first().map(|track| usize::from(world.lives[track.life].identity.ranks));
        if !one || ranks != Some(tracks.len()) || tracks.iter().any(|track| track.began > granted.at + 1_500 * MS) {
            continue;
        }
        let lost = |life: usize, what: &What| match what {
            What::Freed { token, why, .. } => *token == lease.token && *why == Freed::Expired,
            What::Lost(handle, _) | What::Unproven(handle) => {
                tracks.iter().any(|track| (track.life, track.handle) == (life, *handle))
            }
            What::ReadDone(handle, Verdict::Expired | Verdict::Unverified) => {
                tracks.iter().any(|track| (track.life, track.handle) == (life, *handle))
            }
            _ => false,
        };
        if let Some(entry) = trace.iter().find(|entry| lost(entry.life, &entry.what)) {
            return Err(format!("lease {index} was beaten for and {entry:?}"));
        }
    }
    Ok(())
}

/// Terms under which blocks are kept until their readers answer.
pub fn patient(script: Script) -> Script {
    Script { config: Config { hold_until_ack: true, ..script.config }, ..script }
}
