//! What happens in a sampled fleet: requests come, decode instances stall and die. The world does the rest.

use std::{cmp::Reverse, collections::BinaryHeap, fmt::Write as _};

use lease_proto::{id::Entropy, time::Duration};

use super::inputs::{Inputs, duration, seconds};
use crate::sim::{time::WorldTime, trace::Action, worker::entropy, world::World};

/// What is to happen, by time; then in the order in which it was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// The next request of the stream comes.
    Arrive,
    /// A request that was in flight when this decode instance began.
    Hold { decoder: u32, ends: WorldTime },
    /// A request comes to a decode instance that has stalled until now.
    Enqueue { decoder: u32, number: u64, ends: WorldTime },
    /// This decode instance stalls.
    Stall { decoder: u32 },
    /// This one dies.
    Crash { decoder: u32 },
}

/// Drives a world of `decoders` decode instances, in that order, and a prefill instance after them.
pub(super) struct Driver<'a, 't, 's> {
    world: World<'t, 's>,
    inputs: &'a Inputs,
    decoders: u32,
    /// Requests per second.
    rate: f64,
    agenda: BinaryHeap<Reverse<(WorldTime, u64, Next)>>,
    planned: u64,
    /// Before these nothing comes to them, so that their beats spread.
    begins: Vec<WorldTime>,
    stalled: Vec<WorldTime>,
    crashed: Vec<bool>,
    requests: u64,
    entropy: Entropy,
    /// Ends every request's name, as long as they are to be.
    padding: String,
    /// Filled in anew for each request.
    grant: Action,
    enqueue: Action,
    read: Action,
}

impl<'a, 't, 's> Driver<'a, 't, 's> {
    /// A world in which about as many requests are in flight, after one interval, as there always will be.
    pub(super) fn new(world: World<'t, 's>, inputs: &'a Inputs, decoders: u32, in_flight: f64) -> Self {
        let name = String::new;
        let from = decoders as usize;
        let mut driver = Self {
            world,
            inputs,
            decoders,
            rate: in_flight / inputs.hold,
            agenda: BinaryHeap::new(),
            planned: 0,
            begins: Vec::new(),
            stalled: vec![WorldTime::ZERO; from],
            crashed: vec![false; from],
            requests: 0,
            entropy: entropy(inputs.asked.seed, u32::from(u16::MAX - 1), 0, 0, 0),
            padding: "0".repeat(inputs.asked.id_length.saturating_sub(DECODER + NUMBER)),
            grant: Action::Grant { request: name(), consumers: None, ttl: None },
            enqueue: Action::Enqueue { request: name(), from, grant: None, reader: 0, of: 1 },
            read: Action::Read { request: name(), takes: Duration::ZERO, fails: false },
        };
        for _ in 0..decoders {
            let begins = duration(driver.share() * seconds(inputs.terms.interval()));
            driver.begins.push(WorldTime::after(begins));
        }
        // Holding times are exponential: what is left of one that runs is like a new one.
        for number in 0..in_flight.round() as u64 {
            let decoder = driver.decoder();
            // Not all at one instant: nobody is told of a million requests at once.
            let begins = driver.begins[decoder as usize].saturating_add(Duration::from_nanos(number));
            let ends = begins.saturating_add(duration(driver.exponential(inputs.hold)));
            driver.plan(begins, Next::Hold { decoder, ends });
        }
        driver.plan_arrival(WorldTime::ZERO);
        (0..decoders).for_each(|decoder| driver.plan_stall(WorldTime::ZERO, decoder));
        driver
    }

    pub(super) fn world(&mut self) -> &mut World<'t, 's> {
        &mut self.world
    }

    /// Lets everything happen up to `by`; what has real time for that is asked now and then.
    pub(super) fn run(&mut self, by: WorldTime, goes_on: &mut dyn FnMut() -> bool) -> WorldTime {
        const SLICES: u64 = 256;
        let start = self.world.now();
        for slice in 1..=SLICES {
            let until = WorldTime::after(by.since(start).scale(slice, SLICES));
            let until = start.saturating_add(until.since(WorldTime::ZERO));
            while let Some((at, next)) = self.next(until) {
                self.world.run(at, &[]);
                self.happen(at, next);
            }
            self.world.run(until, &[]);
            if !goes_on() {
                break;
            }
        }
        self.world.now()
    }

    /// What is to happen by then.
    fn next(&mut self, by: WorldTime) -> Option<(WorldTime, Next)> {
        self.agenda.peek().filter(|Reverse((at, ..))| *at <= by)?;
        self.agenda.pop().map(|Reverse((at, _, next))| (at, next))
    }

    /// That decode instance dies then.
    pub(super) fn crash(&mut self, at: WorldTime, decoder: u32) {
        self.plan(at, Next::Crash { decoder });
    }

    /// A number from 0 up to 1.
    pub(super) fn share(&mut self) -> f64 {
        (self.entropy.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }

    fn plan(&mut self, at: WorldTime, next: Next) {
        self.planned += 1;
        self.agenda.push(Reverse((at, self.planned, next)));
    }

    fn plan_arrival(&mut self, now: WorldTime) {
        let pause = self.exponential(1.0 / self.rate);
        self.plan(now.saturating_add(duration(pause)), Next::Arrive);
    }

    /// It runs for some time before it stalls again.
    fn plan_stall(&mut self, now: WorldTime, decoder: u32) {
        if let Some(runs) = self.inputs.between_stalls() {
            let pause = self.exponential(runs);
            self.plan(now.saturating_add(duration(pause)), Next::Stall { decoder });
        }
    }

    fn happen(&mut self, now: WorldTime, next: Next) {
        match next {
            Next::Arrive => {
                let (decoder, hold) = (self.decoder(), self.exponential(self.inputs.hold));
                if self.begins[decoder as usize] < now {
                    self.arrive(now, decoder, now.saturating_add(duration(hold)));
                }
                self.plan_arrival(now);
            }
            Next::Hold { decoder, ends } => self.arrive(now, decoder, ends),
            Next::Enqueue { decoder, number, ends } => self.enqueue(now, decoder, number, ends),
            Next::Stall { decoder } if self.crashed[decoder as usize] => {}
            Next::Stall { decoder } => {
                let longer_than = 1.0 - self.share();
                let until = now.saturating_add(duration(self.inputs.stall_quantile(longer_than)));
                self.stalled[decoder as usize] = until;
                self.world.act(decoder, 0, &Action::Stall { until });
                self.plan_stall(until, decoder);
            }
            Next::Crash { decoder } => {
                self.crashed[decoder as usize] = true;
                self.world.act(decoder, 0, &Action::Crash);
            }
        }
    }

    fn decoder(&mut self) -> u32 {
        (self.entropy.draw() % u64::from(self.decoders)) as u32
    }

    /// A request's blocks are held, and it comes to a decode instance, if that is there.
    fn arrive(&mut self, now: WorldTime, decoder: u32, ends: WorldTime) {
        if self.crashed[decoder as usize] {
            return; // nothing is routed there any more
        }
        self.requests += 1;
        let number = self.requests;
        named(&mut self.grant, decoder, number, &self.padding);
        self.world.act(self.decoders, 0, &self.grant);
        let waits = self.stalled[decoder as usize];
        if waits > now {
            self.plan(waits, Next::Enqueue { decoder, number, ends });
        } else {
            self.enqueue(now, decoder, number, ends);
        }
    }

    /// It is read for as long as its blocks are needed.
    fn enqueue(&mut self, now: WorldTime, decoder: u32, number: u64, ends: WorldTime) {
        named(&mut self.enqueue, decoder, number, &self.padding);
        self.world.act(decoder, 0, &self.enqueue);
        named(&mut self.read, decoder, number, &self.padding);
        if let Action::Read { takes, .. } = &mut self.read {
            *takes = ends.since(now);
        }
        self.world.act(decoder, 0, &self.read);
    }
}

/// Digits of a request's name: of its decode instance, and of its number.
const DECODER: usize = 4;
const NUMBER: usize = 11;

/// The decode instance of a request.
pub(super) fn decoder_of(request: &str) -> Option<usize> {
    request.get(..DECODER)?.parse().ok()
}

/// Tells it from all others.
pub(super) fn number_of(request: &str) -> Option<u64> {
    request.get(DECODER..DECODER + NUMBER)?.parse().ok()
}

fn named(action: &mut Action, decoder: u32, number: u64, padding: &str) {
    let (Action::Grant { request, .. } | Action::Enqueue { request, .. } | Action::Read { request, .. }) = action else { return };
    request.clear();
    // Nothing that is written to a string fails.
    let _ = write!(request, "{decoder:0DECODER$}{number:0NUMBER$}");
    request.push_str(padding);
}
