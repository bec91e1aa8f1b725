//! What a world is made of and what is done in it. Everything is picked by number, so that a script that failed can be cut
//! anywhere and still is one; zero is the latest of its kind, or the plainest.

use conformance::loopback::Fault;
use lease_proto::{
    config::{Config, Proof},
    time::Duration,
    wire::Wire,
};
use proptest::{collection::vec, option, prelude::*};

use super::trace::Nature;

pub const MS: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub struct Script {
    pub wire: Wire,
    pub config: Config,
    pub nature: Nature,
    /// Ranks of each engine, and its clock: what it shows at world time zero, and its rate in parts per million.
    pub engines: Vec<(u16, Clock)>,
    /// How long every message travels at least, at least a nanosecond.
    pub flight: u64,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Step {
    /// Nanoseconds after the step before.
    pub after: u64,
    pub act: Act,
}

/// An exact integer function of the world's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    pub origin: u64,
    pub ppm: i32,
}

impl Clock {
    fn rate(self) -> u128 {
        (1_000_000 + i64::from(self.ppm)) as u128
    }

    pub fn read(self, world: u64) -> u64 {
        self.origin + (u128::from(world) * self.rate() / 1_000_000) as u64
    }

    /// The first world time at which it shows this, or more.
    pub fn when(self, shown: u64) -> u64 {
        (u128::from(shown.saturating_sub(self.origin)) * 1_000_000).div_ceil(self.rate()).try_into().unwrap_or(u64::MAX)
    }
}

#[derive(Clone, Debug)]
pub enum Act {
    Expect {
        engine: usize,
        id: u8,
    },
    Grant {
        engine: usize,
        id: u8,
        consumers: Option<u16>,
        ttl: Option<u64>,
        lag: u64,
    },
    /// Every rank of the engine tracks it, or one process for two ranks.
    Track {
        lease: usize,
        engine: usize,
        both: bool,
    },
    Read {
        track: usize,
        lasts: u64,
        how: How,
    },
    Finish {
        track: usize,
    },
    Abort {
        lease: usize,
        failed: bool,
    },
    Drain {
        engine: usize,
        within: u64,
    },
    /// Somebody else with the token gives it up.
    Release {
        lease: usize,
        engine: usize,
    },
    Kill {
        engine: usize,
    },
    Restart {
        engine: usize,
        origin: u64,
    },
    Stall {
        engine: usize,
        lasts: u64,
    },
    Fault {
        from: usize,
        to: usize,
        fault: Fault,
        lasts: u64,
    },
    Replay {
        nth: usize,
        to: usize,
    },
    Junk {
        kind: u8,
        nth: usize,
        at: usize,
        to: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    OneSided,
    Served,
    Fenced,
    Failed,
    Abandoned,
}

pub fn config(wire: Wire) -> Config {
    let lease = Duration::from_secs(if wire == Wire::Vllm { 6 } else { 3 });
    Config { decoder_ttl: Duration::from_secs(6), ..Config::with_lease(lease) }
}

pub fn clock() -> impl Strategy<Value = Clock> {
    let origin = prop_oneof![Just(0), 0u64..1 << 40, 0u64..1 << 62];
    let ppm = prop_oneof![Just(0), Just(500), Just(-500), -500i32..=500];
    (origin, ppm).prop_map(|(origin, ppm)| Clock { origin, ppm })
}

pub fn scripts(wire: Wire) -> impl Strategy<Value = Script> {
    scripts_of(wire, acts())
}

pub fn scripts_of(wire: Wire, acts: impl Strategy<Value = Act>) -> impl Strategy<Value = Script> {
    let after = prop_oneof![3 => Just(0), 5 => (0u64..1_500).prop_map(|ms| ms * MS), 1 => 0u64..2_000_000_000];
    let steps = vec((after, acts).prop_map(|(after, act)| Step { after, act }), 1..40);
    let engines = vec((prop_oneof![3 => Just(1u16), 1 => Just(2u16)], clock()), 2..=4);
    let flight = prop_oneof![Just(1), Just(MS), 1u64..20 * MS];
    let switches = (any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    (engines, flight, switches, steps).prop_map(move |(engines, flight, (silent, by_completion, forgetful), steps)| {
        let engine_ttl = Duration::from_secs(if forgetful { 5 } else { 3600 });
        let proof = if by_completion { Proof::Completion } else { Proof::Deadline };
        let config = Config { proof, engine_ttl, ..config(wire) };
        Script { wire, config, nature: Nature { silent, boasts: false }, engines, flight, steps }
    })
}

/// Nothing but leases, reads and ends of them, on a fabric without faults, and slots enough for all.
pub fn calm_scripts() -> impl Strategy<Value = Script> {
    let acts = prop_oneof![
        4 => (0usize..4, 0u8..4, prop_oneof![Just(0), 0u64..1_000 * MS])
            .prop_map(|(engine, id, lag)| Act::Grant { engine, id, consumers: None, ttl: None, lag }),
        5 => (0usize..2, 0usize..4).prop_map(|(lease, engine)| Act::Track { lease, engine, both: false }),
        2 => (0usize..6, 0u64..4_000 * MS).prop_map(|(track, lasts)| Act::Read { track, lasts, how: How::OneSided }),
        1 => (0usize..6).prop_map(|track| Act::Finish { track }),
    ];
    scripts_of(Wire::Native, acts)
}

fn leases() -> impl Strategy<Value = Act> {
    let ttl = option::weighted(0.2, prop_oneof![1u64..8_000 * MS, Just(3_000 * MS)]);
    let consumers = option::weighted(0.2, 1u16..3);
    let lag = prop_oneof![3 => Just(0), 1 => 0u64..1_000 * MS];
    prop_oneof![
        4 => (0usize..4, 0u8..4, consumers, ttl, lag)
            .prop_map(|(engine, id, consumers, ttl, lag)| Act::Grant { engine, id, consumers, ttl, lag }),
        7 => (0usize..3, 0usize..4, prop::bool::weighted(0.1))
            .prop_map(|(lease, engine, both)| Act::Track { lease, engine, both }),
        1 => (0usize..12, 0usize..4).prop_map(|(lease, engine)| Act::Track { lease, engine, both: false }),
        1 => (0usize..4, 0u8..4).prop_map(|(engine, id)| Act::Expect { engine, id }),
    ]
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![
        12 => Just(How::OneSided),
        1 => Just(How::Served),
        1 => Just(How::Fenced),
        1 => Just(How::Failed),
        1 => Just(How::Abandoned),
    ]
}

fn engine_acts() -> impl Strategy<Value = Act> {
    let lasts = prop_oneof![Just(0), 0u64..500 * MS, 0u64..8_000 * MS];
    prop_oneof![
        12 => (prop_oneof![0usize..2, 0usize..8], lasts, how()).prop_map(|(track, lasts, how)| Act::Read { track, lasts, how }),
        2 => (0usize..6).prop_map(|track| Act::Finish { track }),
        1 => (0usize..6, any::<bool>()).prop_map(|(lease, failed)| Act::Abort { lease, failed }),
    ]
}

fn acts() -> impl Strategy<Value = Act> {
    let lasts = prop_oneof![0u64..1_000 * MS, 0u64..6_000 * MS];
    prop_oneof![
        24 => leases(),
        24 => engine_acts(),
        1 => (0usize..6, 0usize..4).prop_map(|(lease, engine)| Act::Release { lease, engine }),
        1 => (0usize..4, 0u64..5_000 * MS).prop_map(|(engine, within)| Act::Drain { engine, within }),
        1 => (0usize..4).prop_map(|engine| Act::Kill { engine }),
        2 => (0usize..4, 0u64..1 << 62).prop_map(|(engine, origin)| Act::Restart { engine, origin }),
        3 => (0usize..4, lasts.clone()).prop_map(|(engine, lasts)| Act::Stall { engine, lasts }),
        9 => (0usize..4, 0usize..4, fault(), lasts).prop_map(|(from, to, fault, lasts)| Act::Fault { from, to, fault, lasts }),
        5 => (any::<usize>(), 0usize..4).prop_map(|(nth, to)| Act::Replay { nth, to }),
        3 => junk(),
    ]
}

pub fn junk() -> impl Strategy<Value = Act> {
    (any::<u8>(), any::<usize>(), any::<usize>(), 0usize..4).prop_map(|(kind, nth, at, to)| Act::Junk { kind, nth, at, to })
}

/// What becomes of the junk-free life of a script with junk in it.
pub fn with_junk(wire: Wire) -> impl Strategy<Value = Script> {
    let acts = prop_oneof![3 => acts(), 2 => junk()];
    // A replayed request is a request: its effect is real. And without junk there is less to pick a replay from.
    scripts_of(wire, acts.prop_filter("no replays", |act| !matches!(act, Act::Replay { .. })))
}

fn fault() -> impl Strategy<Value = Fault> {
    let none = Fault::default();
    prop_oneof![
        Just(Fault { drop: true, ..none }),
        Just(Fault { cut: true, ..none }),
        Just(Fault { hold: true, ..none }),
        (1usize..3).prop_map(move |duplicate| Fault { duplicate, ..none }),
        (1u64..3_000).prop_map(move |ms| Fault { delay: Duration::from_millis(ms), ..none }),
        (1u64..500, 0usize..2).prop_map(move |(ms, duplicate)| Fault {
            delay: Duration::from_millis(ms),
            reorder: true,
            duplicate,
            ..none
        }),
        (0usize..2).prop_map(move |limit| Fault { limit: Some(limit), delay: Duration::from_millis(300), ..none }),
    ]
}
