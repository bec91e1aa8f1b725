//! The same quantities as [`super::Forecast`]'s, counted in one run of the real state machines: one prefill instance and the
//! decode instances that talk to it, or as many of them as there is time for.

use std::{cell::RefCell, time::Instant as Clock};

use lease_proto::wire::Wire;
use serde_json::Map;

use super::{
    costs::Costs,
    cpu_time,
    driver::Driver,
    expiry::Expiry,
    inputs::{Inputs, duration, seconds},
    ledger::Ledger,
    rhythm::Rhythm,
};
use crate::sim::{
    line::Line,
    net::{Sent, Traffic},
    time::WorldTime,
    trace::{Node, Role, World as Spec},
    worker::Sizes,
    world::{Room, World},
};

/// Leases in flight that are simulated for each second of the budget, and at most.
const LEASES_PER_SECOND: f64 = 10_000.0;
const MOST_LEASES: f64 = 200_000.0;
/// Lease events that are waited for, where there is time.
const EVENTS: f64 = 1e6;
/// Leases of dead decode instances that are waited for.
const RECLAIMED: f64 = 300.0;
/// Shares of the budget by which the start-up and the counting are over.
const START_UP: f64 = 0.5;
const COUNTING: f64 = 0.8;

/// Kinds of messages, as in docs/wire.md: all text; renew, complete, release; renewed, completed, gone.
const TEXT: usize = 0;
const TO_HOLDER: [usize; 3] = [3, 5, 7];
const TO_READER: [usize; 3] = [4, 6, 8];

/// Which part of the fleet is simulated: one prefill instance and …
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slice {
    /// … so many decode instances …
    pub decoders: u32,
    /// … each with so many leases in flight there.
    pub per_pair: f64,
    /// What that is multiplied with to make one prefill instance's share.
    pub factor: f64,
}

/// What was counted. Rates are per second and for one prefill instance; `None` where there was no time or no case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// What was simulated.
    pub slice: Slice,
    /// World time that was counted, in seconds, after the start-up.
    pub covered: f64,
    /// Lease events of the whole run: grants, renewals and ends.
    pub events: u64,
    /// Seconds of one core that it took.
    pub took: f64,
    /// Grants that found no room: the sample is no good with any.
    pub full: u64,
    /// Laws that were broken: as with those.
    pub violations: u64,
    /// What was counted, if there was time.
    pub counted: Option<Counted>,
    /// What became of the leases of dead decode instances, if there was time and there were any.
    pub reclaim: Option<Reclaim>,
}

/// Counted while everything went on as always.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// Messages that the prefill instance was sent.
    pub messages_in: f64,
    /// Their bytes.
    pub bytes_in: f64,
    /// Messages that it sent.
    pub messages_out: f64,
    /// Their bytes.
    pub bytes_out: f64,
    /// Leases renewed.
    pub renewals: f64,
    /// Cores, by what each of these events costs.
    pub cpu: f64,
    /// Leases held, on average.
    pub held: f64,
    /// Leases that ended.
    pub ended: u64,
    /// Those that ran out although their decode instance lived and still needed them.
    pub expired: u64,
    /// Those that ran out because their completion got lost.
    pub late: u64,
    /// Their share.
    pub false_expiry: f64,
}

/// Seen after the death of decode instances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reclaim {
    /// Decode instances that died.
    pub dead: u32,
    /// Their leases that ran out.
    pub leases: u64,
    /// Leases of one of them in the whole fleet.
    pub of_one_decoder: f64,
    /// Seconds from its death to the end of a lease, on average.
    pub mean: f64,
    /// At most.
    pub worst: f64,
}

impl Slice {
    fn of(inputs: &Inputs) -> Self {
        let most = (inputs.asked.budget * LEASES_PER_SECOND).clamp(1.0, MOST_LEASES);
        let per_pair = inputs.per_pair().min(most);
        let decoders = (most / per_pair).clamp(1.0, f64::from(inputs.asked.decoders)) as u32;
        let whole = inputs.requests / f64::from(inputs.asked.prefills);
        Self { decoders, per_pair, factor: whole / (f64::from(decoders) * per_pair) }
    }

    fn in_flight(&self) -> f64 {
        f64::from(self.decoders) * self.per_pair
    }

    /// Decode instances that die: enough of them for a mean.
    fn dying(&self) -> u32 {
        (RECLAIMED / self.per_pair).ceil().clamp(1.0, f64::from(self.decoders)) as u32
    }

    /// Room that is never full: numbers of leases are Poisson, and who stalls completes none of its leases.
    fn rooms(&self, inputs: &Inputs) -> Vec<Room> {
        let room = |leases: f64, more: f64| (leases + 8.0 * leases.sqrt() + more) as usize + 32;
        let stall = inputs.stall_quantile(1e-4).min(seconds(inputs.terms.lease().max(inputs.terms.extension())));
        let late = self.per_pair * stall / inputs.hold;
        // On vLLM's wire leases whose completion gets lost stay until they run out.
        let lost = if inputs.asked.wire == Wire::Vllm { inputs.asked.loss * self.in_flight() / inputs.hold } else { 0.0 };
        let forgotten = lost * Expiry::of(inputs).silence().worst;
        let (pair, whole) = (room(self.per_pair, late), room(self.in_flight() + forgotten, 4.0 * late));
        let decoder = Sizes { requests: pair, legs: pair, holders: 1, ..Sizes::default() };
        let prefill = Sizes { leases: whole, ended: whole, readers: self.decoders as usize, ..Sizes::default() };
        let workers = (0..self.decoders).map(|_| decoder).chain([prefill]);
        workers.map(|sizes| Room { workers: 1, sizes }).collect()
    }

    fn spec(&self, inputs: &Inputs) -> Spec {
        let node = |name: String, role, poll| Node {
            name,
            role,
            clock: Default::default(),
            drift_ppm: 0,
            poll,
            ranks: 1,
            config: Map::new(),
            terms: inputs.terms.clone(),
        };
        let decoders = (0..self.decoders).map(|number| node(format!("d{number:04}"), Role::Decode, Default::default()));
        let prefill = node("p".into(), Role::Prefill, inputs.asked.poll);
        Spec {
            wire: inputs.asked.wire,
            seed: inputs.asked.seed,
            end: WorldTime::ZERO, // it is driven from outside
            config: Map::new(),
            delay: inputs.asked.delay,
            max_notification: inputs.asked.max_notification,
            nodes: decoders.chain([prefill]).collect(),
        }
    }
}

impl Sample {
    pub(super) fn of(inputs: &Inputs, costs: &Costs) -> Self {
        let (start, ran, budget) = (Clock::now(), cpu_time(), inputs.asked.budget);
        let within = |share: f64| move || start.elapsed().as_secs_f64() < budget * share;
        let slice = Slice::of(inputs);
        let spec = slice.spec(inputs);
        let ledger = RefCell::new(Ledger::new(slice.decoders));
        let mut sink = |line: &Line<'_>| ledger.borrow_mut().see(line);
        let mut world = World::new(&spec, &slice.rooms(inputs), false, &mut sink);
        world.lose(inputs.asked.loss);
        let mut driver = Driver::new(world, inputs, slice.decoders, slice.in_flight());
        let counted = steady(inputs, costs, &slice, &mut driver, &ledger, (within(START_UP), within(COUNTING)));
        let covered = counted.map_or(0.0, |(covered, _)| covered);
        let reclaim = counted.and_then(|_| reclaim(inputs, &slice, &mut driver, &ledger, within(1.0)));
        drop(driver);
        let counts = ledger.into_inner().counts;
        Self {
            slice,
            covered,
            events: counts.events(),
            took: cpu_time() - ran,
            full: counts.full,
            violations: counts.violations,
            counted: counted.map(|(_, counted)| counted),
            reclaim,
        }
    }

    /// Lease events for each second of one core.
    pub fn events_per_second(&self) -> f64 {
        self.events as f64 / self.took
    }
}

/// After a start-up, counts for as long as there is time; seconds and what was counted.
fn steady(
    inputs: &Inputs,
    costs: &Costs,
    slice: &Slice,
    driver: &mut Driver<'_, '_, '_>,
    ledger: &RefCell<Ledger>,
    (mut starting, mut counting): (impl FnMut() -> bool, impl FnMut() -> bool),
) -> Option<(f64, Counted)> {
    let terms = &inputs.terms;
    // First times to live are over, and the beats have spread.
    let settled = seconds(terms.lease().max(terms.extension())) + 2.0 * seconds(terms.interval());
    let from = driver.run(WorldTime::after(duration(settled)), &mut starting);
    let held_before = ledger.borrow_mut().held_until(from);
    let before = ledger.borrow().counts;
    *driver.world().traffic() = Traffic::default();
    let by = inputs.asked.span.unwrap_or_else(|| {
        let wanted = 20.0 * inputs.hold.max(seconds(terms.extension()));
        let events = slice.in_flight() * (1.0 / Rhythm::of(terms).mean() + 2.0 / inputs.hold);
        duration(wanted.max(EVENTS / events).min(1e6))
    });
    if !starting() {
        return None;
    }
    let to = driver.run(from.saturating_add(by), &mut counting);
    let covered = seconds(to.since(from));
    let counts = ledger.borrow().counts.since(&before);
    let held = (ledger.borrow_mut().held_until(to) - held_before) / covered * slice.factor;
    let traffic = *driver.world().traffic();
    // Handshakes are left out; on vLLM's wire there is nothing but text to the holder.
    let (coming, going) = match inputs.asked.wire {
        Wire::Native => (traffic.of(&TO_HOLDER), traffic.of(&TO_READER)),
        Wire::Vllm => (traffic.of(&[TEXT]), Sent::default()),
    };
    let each = |count: u64| count as f64 / covered * slice.factor;
    let counted = Counted {
        messages_in: each(coming.messages),
        bytes_in: each(coming.bytes),
        messages_out: each(going.messages),
        bytes_out: each(going.bytes),
        renewals: each(counts.renewed),
        cpu: costs.cores(each(counts.granted), each(counts.renewed), each(counts.ended())),
        held,
        ended: counts.ended(),
        expired: counts.expired,
        late: counts.late,
        false_expiry: counts.expired as f64 / counts.ended().max(1) as f64,
    };
    (covered > 0.0).then_some((covered, counted))
}

/// Lets decode instances die, at different times of their beats, and waits for the end of all that they had.
fn reclaim(
    inputs: &Inputs,
    slice: &Slice,
    driver: &mut Driver<'_, '_, '_>,
    ledger: &RefCell<Ledger>,
    mut goes_on: impl FnMut() -> bool,
) -> Option<Reclaim> {
    let (now, spread) = (driver.world().now(), 2.0 * seconds(inputs.terms.interval()));
    for decoder in 0..slice.dying() {
        let at = now.saturating_add(duration(driver.share() * spread));
        ledger.borrow_mut().dies[decoder as usize] = at;
        driver.crash(at, decoder);
    }
    let end = now.saturating_add(duration(spread + Expiry::of(inputs).silence().worst));
    if driver.run(end, &mut goes_on) < end {
        return None;
    }
    let reclaimed = ledger.borrow().reclaimed;
    let (leases, dead) = (reclaimed.leases as f64, slice.dying());
    let whole = f64::from(inputs.asked.prefills) * inputs.per_pair() / slice.per_pair;
    Some(Reclaim {
        dead,
        leases: reclaimed.leases,
        of_one_decoder: leases / f64::from(dead) * whole,
        mean: reclaimed.mean()?,
        worst: reclaimed.longest()?,
    })
}
