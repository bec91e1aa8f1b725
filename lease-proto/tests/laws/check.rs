//! The seven laws over a world that was played.

use std::collections::BTreeMap;

use lease_proto::{reader::Handle, wire::Wire};

use super::{
    ledger::holder_keeps_the_laws,
    script::Script,
    trace::{Entry, What},
    world::{Harness, Tracked, World},
};

pub type Judged = Result<(), String>;

/// Plays a script and judges it.
pub fn judge(script: &Script) -> Judged {
    judge_with(script, Harness::Honest).map(|_| ())
}

pub fn judge_with(script: &Script, harness: Harness) -> Result<World, String> {
    let mut world = World::play(script, harness);
    all_is_over_in_bounded_time(&mut world)?;
    let trace = world.trace.entries();
    for life in 0..world.lives.len() {
        holder_keeps_the_laws(&world, life, &trace)?;
    }
    reads_are_judged_rightly(&world, &trace)?;
    readers_tell_each_thing_once(&world, &trace)?;
    let text = |what: &What| !matches!(what, What::Out(bytes) if str::from_utf8(bytes).is_err());
    if world.script.wire == Wire::Vllm && !trace.iter().all(|entry| text(&entry.what)) {
        return Err("a native byte on vLLM's wire".into());
    }
    Ok(world)
}

/// Law 6: what is tracked resolves, and what is granted ends.
fn all_is_over_in_bounded_time(world: &mut World) -> Judged {
    let seen = |world: &World| world.wrong.clone().map_or(Ok(()), Err);
    seen(world)?;
    world.heal();
    let (patience, terms) = (world.terms.lost_after().as_nanos(), world.terms.clone());
    // Lost, then released to the other ranks; or judged, then completed.
    let bounded = 2 * patience + terms.verdict_timeout().as_nanos();
    world.run_to(world.now() + bounded);
    seen(world)?;
    if world.script.wire == Wire::Native {
        for (index, track) in world.tracks.iter().enumerate().filter(|(_, track)| !track.reading) {
            let dead = world.leases[track.lease].lives.iter().any(|life| world.lives[*life].node.is_none());
            if dead && track.since + bounded <= world.now() && !resolved(world, track) {
                return Err(format!("track {index} is open for ever: its holder is dead"));
            }
        }
    }
    world.finish_all();
    world.run_to(world.now() + 8_000_000_000); // the longest read
    world.finish_all();
    world.run_to(world.now() + bounded);
    seen(world)?;
    for (life, at) in world.lives.iter().enumerate() {
        let Some(node) = &at.node else { continue };
        if node.reader.open() > 0 {
            return Err(format!("process {life} still tracks {}", node.reader.open()));
        }
        if node.holder.live() > 0 && !world.terms.hold_until_ack() {
            return Err(format!("process {life} still holds {}", node.holder.live()));
        }
    }
    Ok(())
}

fn resolved(world: &World, track: &Tracked) -> bool {
    world.lives[track.life].node.is_none() || world.trace.any(track.life, |what| *what == What::Resolved(track.handle))
}

/// Law 4.
pub fn reads_are_judged_rightly(world: &World, trace: &[Entry]) -> Judged {
    let mut ended = BTreeMap::new();
    for (index, Entry { life, what, at }) in trace.iter().enumerate() {
        match what {
            What::ReadEnded(track) => {
                ended.insert(*track, index);
            }
            What::ReadDone(handle, verdict) if verdict.is_valid() => {
                let found = world.tracks.iter().position(|track| (track.life, track.handle) == (*life, *handle));
                let end = found.and_then(|track| ended.get(&track).copied());
                let (Some(track), Some(end)) = (found, end) else {
                    return Err(format!("world {at}: a verdict about a read that is not over"));
                };
                if world.script.wire == Wire::Vllm {
                    return Err(format!("law 4, world {at}: a valid read on vLLM's wire"));
                }
                if world.tracks[track].abandoned {
                    return Err(format!("law 4, world {at}: an abandoned read is valid"));
                }
                let lease = &world.leases[world.tracks[track].lease];
                let gone = |life: usize, what: &What| {
                    lease.lives.contains(&life)
                        && match what {
                            What::Freed { token, .. } | What::Withdrawn(token) => *token == lease.token,
                            What::Died => true,
                            _ => false,
                        }
                };
                if let Some(gone) = trace[..end].iter().find(|entry| gone(entry.life, &entry.what)) {
                    let over = trace[end].at;
                    return Err(format!("law 4: a read of track {track} that ended at {over} is {verdict:?} and {gone:?}"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn readers_tell_each_thing_once(world: &World, trace: &[Entry]) -> Judged {
    for (index, track) in world.tracks.iter().enumerate() {
        let of = |what: &What| match what {
            What::Lost(handle, _) => (*handle == track.handle).then_some(0),
            What::ReadDone(handle, _) => (*handle == track.handle).then_some(1),
            What::Resolved(handle) => (*handle == track.handle).then_some(2),
            What::Confirmed(handle) | What::Unproven(handle) => (*handle == track.handle).then_some(3),
            _ => None,
        };
        let told: Vec<i32> = trace.iter().filter(|entry| entry.life == track.life).filter_map(|entry| of(&entry.what)).collect();
        let count = |kind| told.iter().filter(|told| **told == kind).count();
        if count(0) > 1 || count(1) > 1 || count(2) > 1 {
            return Err(format!("law 6: track {index} was lost, judged or resolved twice: {told:?}"));
        }
        if count(2) == 1 && told.last() != Some(&2) {
            return Err(format!("track {index} was told of after it was resolved: {told:?}"));
        }
        verdict_comes_in_time(world, trace, index)?;
    }
    Ok(())
}

/// After the first poll at which the verdict's time is over there is one.
fn verdict_comes_in_time(world: &World, trace: &[Entry], index: usize) -> Judged {
    let Tracked { life, handle, .. } = world.tracks[index];
    let Some(end) = trace.iter().position(|entry| entry.what == What::ReadEnded(index)) else { return Ok(()) };
    let clock = world.lives[life].clock;
    let late = clock.read(trace[end].at) + world.terms.verdict_timeout().as_nanos();
    let over = |entry: &&Entry| matches!(entry.what, What::Turned { more: false, .. }) && clock.read(entry.at) >= late;
    for entry in trace[end..].iter().filter(|entry| entry.life == life) {
        match entry.what {
            What::ReadDone(done, _) if done == handle => return Ok(()),
            _ if over(&entry) => return Err(format!("a read of track {index} has no verdict at {}", entry.at)),
            _ => {}
        }
    }
    Ok(())
}

/// What an engine acts on: when, on which process, what. Without instants, which belong to some clock.
pub fn outcome(world: &World) -> Vec<(u64, usize, String)> {
    // Not by handle: which slot is free depends on the order within an instant.
    let track =
        |life: usize, handle: &Handle| world.tracks.iter().position(|track| (track.life, track.handle) == (life, *handle));
    let told = |life: usize, what: &What| match what {
        What::Freed { token, why, .. } => Some(format!("{token:?} {why:?}")),
        What::Lost(handle, why) => Some(format!("{:?} lost {why:?}", track(life, handle))),
        What::ReadDone(handle, verdict) => Some(format!("{:?} {verdict:?}", track(life, handle))),
        What::Resolved(handle) => Some(format!("{:?} resolved", track(life, handle))),
        What::Confirmed(handle) => Some(format!("{:?} confirmed", track(life, handle))),
        What::Unproven(handle) => Some(format!("{:?} unproven", track(life, handle))),
        What::Granted { token, .. } => Some(format!("{token:?} granted")),
        What::Renewed { request, .. } => Some(format!("{request} renewed")),
        What::Drained => Some("drained".into()),
        _ => None,
    };
    let entries = world.trace.entries();
    let mut all: Vec<_> =
        entries.iter().filter_map(|entry| Some((entry.at, entry.life, told(entry.life, &entry.what)?))).collect();
    all.sort(); // what happens in one instant has no order
    all
}

/// Messages taken in, and what was counted as inert.
pub fn counted(world: &World) -> (u64, u64) {
    let taken = world.trace.entries().iter().filter(|entry| matches!(entry.what, What::In(_))).count() as u64;
    let mut inert = 0;
    for life in &world.lives {
        life.counters.each(|name, _, count| {
            if ["rejected", "refused", "foreign"].contains(&name) {
                inert += count;
            }
        });
    }
    (taken, inert)
}

/// Law 5: with junk and without, the same happens; and each piece of junk is counted.
pub fn junk_is_inert(script: &Script) -> Judged {
    let (with, without) = (judge_with(script, Harness::Honest)?, judge_with(script, Harness::Silent)?);
    same("law 5, junk", &outcome(&without), &outcome(&with))?;
    let ((taken, inert), (taken_before, inert_before)) = (counted(&with), counted(&without));
    if taken - taken_before != inert - inert_before {
        return Err(format!("law 5: {} pieces of junk, {} counted", taken - taken_before, inert - inert_before));
    }
    Ok(())
}

/// Law 7: what a clock shows is nobody else's business.
pub fn only_its_own_clock_matters(script: &Script, engine: usize, by: u64) -> Judged {
    let mut shifted = script.clone();
    let engine = engine % script.engines.len();
    let origin = &mut shifted.engines[engine].1.origin;
    *origin = origin.wrapping_add(by) % (1 << 62);
    same(
        "law 7, a shifted clock",
        &outcome(&judge_with(script, Harness::Honest)?),
        &outcome(&judge_with(&shifted, Harness::Honest)?),
    )
}

fn same(law: &str, right: &[(u64, usize, String)], got: &[(u64, usize, String)]) -> Judged {
    let differs = (0..right.len().max(got.len())).find(|at| right.get(*at) != got.get(*at));
    match differs {
        Some(at) => Err(format!("{law}: event {at} is {:?} and was {:?}", got.get(at), right.get(at))),
        None => Ok(()),
    }
}

/// How often each thing happened, so that no property holds for want of it.
pub fn tally(world: &World, into: &mut BTreeMap<String, u64>) {
    for Entry { what, .. } in world.trace.entries() {
        let name = match what {
            What::Freed { why, .. } => format!("freed {}", why.name()),
            What::Lost(_, why) => format!("lost {}", why.name()),
            What::ReadDone(_, verdict) => format!("read {}", verdict.name()),
            _ => continue,
        };
        *into.entry(name).or_default() += 1;
    }
    for life in &world.lives {
        life.counters.each(|name, kind, count| {
            if kind.is_none() && count > 0 {
                *into.entry(format!("counted {name}")).or_default() += count;
            }
        });
    }
}
