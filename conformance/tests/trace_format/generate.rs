//! Valid traces of every kind of line.

use conformance::sim::{
    time::WorldTime,
    trace::{Action, Effect, Fault, Line, Node, Role, Trace, What, World},
};
use lease_proto::{config::Config, time::Duration, wire::Wire};
use proptest::{collection::vec, option, prelude::*};
use serde_json::{Map, Value, json};

const HOUR: u64 = 3_600_000_000_000;

/// A trace whose lines are numbered as they would be written.
pub(crate) fn trace() -> impl Strategy<Value = Trace> {
    world().prop_flat_map(|world| {
        let end = world.end.as_nanos();
        vec(line(world.nodes.len(), end), 0..20)
            .prop_map(move |whats| Trace { world: world.clone(), lines: lines(&world, whats) })
    })
}

/// In order of time; without what the nodes' roles and their crashes rule out; some readers name their grant.
fn lines(world: &World, mut whats: Vec<What>) -> Vec<Line> {
    whats.sort_by_key(|what| match what {
        What::Do { at, .. } | What::Link { at, .. } | What::Expect { at, .. } => *at,
        What::Never { .. } => WorldTime::ZERO,
    });
    let (mut lines, mut crashed) = (Vec::<Line>::new(), vec![false; world.nodes.len()]);
    for mut what in whats {
        if let What::Do { node, action, .. } = &mut what {
            let router = |node: usize| world.nodes[node].role == Role::Router;
            let may = match action {
                Action::Enqueue { from, .. } => !router(*node) && !router(*from) && from != node,
                Action::Release { .. } => router(*node),
                Action::Grant { .. } | Action::Expect { .. } | Action::Abort { .. } | Action::Drain { .. } => !router(*node),
                Action::Read { .. } | Action::Finish { .. } => !router(*node),
                _ => true,
            };
            if !may || crashed[*node] && *action != Action::Restart {
                continue;
            }
            crashed[*node] = *action == Action::Crash;
            if let Action::Enqueue { request, from, grant: grant @ Some(_), .. } = action {
                *grant = lines.iter().find(|line| grants(line, *from, request)).map(|line| line.number);
            }
        }
        lines.push(Line { number: lines.len() + 2, what });
    }
    lines
}

fn grants(line: &Line, at: usize, of: &str) -> bool {
    matches!(&line.what, What::Do { node, action: Action::Grant { request, .. }, .. } if *node == at && request == of)
}

fn world() -> impl Strategy<Value = World> {
    let wire = prop_oneof![Just(Wire::Native), Just(Wire::Vllm)];
    let parts = (wire, any::<u64>(), 1..HOUR, config(), duration(), 64u32..=16_777_216);
    (parts, proptest::collection::btree_map("[a-z0-9é\"\\\\\n .-]{1,6}", node(), 2..5)).prop_map(
        |((wire, seed, end, config, delay, max_notification), nodes)| {
            let nodes = nodes.into_iter().map(|(name, node)| Node { name, ..node }).map(|node| {
                let mut terms = Config::default();
                for (name, value) in config.iter().chain(&node.config) {
                    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    terms.set(name, &value).unwrap();
                }
                Node { terms: terms.validate(wire).unwrap(), ..node }
            });
            let nodes = nodes.collect();
            let end = WorldTime::after(Duration::from_nanos(end));
            World { wire, seed, end, config: config.clone(), delay, max_notification, nodes }
        },
    )
}

fn node() -> impl Strategy<Value = Node> {
    let role = prop_oneof![Just(Role::Prefill), Just(Role::Decode), Just(Role::Router)];
    let ppm = prop_oneof![Just(0), -999_999i64..=999_999_999];
    (role, duration(), ppm, duration(), 1u16..=64, config()).prop_map(|(role, clock, drift_ppm, poll, ranks, config)| Node {
        name: String::new(),
        role,
        clock,
        drift_ppm,
        poll,
        ranks,
        config,
        terms: Config::default().validate(Wire::Native).unwrap(),
    })
}

/// Terms that hold in every combination.
fn config() -> impl Strategy<Value = Map<String, Value>> {
    let term = |name: &'static str, values: &[Value]| {
        option::of(proptest::sample::select(values.to_vec())).prop_map(move |value| value.map(|value| (name.to_owned(), value)))
    };
    (
        term("lease", &[json!("30"), json!("31.000000001"), json!("060")]),
        term("drift_ppm", &[json!(0), json!(200)]),
        term("hold_until_ack", &[json!(true), json!(false)]),
        term("proof", &[json!("deadline"), json!("completion")]),
    )
        .prop_map(|(lease, drift, hold, proof)| [lease, drift, hold, proof].into_iter().flatten().collect())
}

fn line(nodes: usize, end: u64) -> impl Strategy<Value = What> {
    let at = move || (0..=end).prop_map(|nanos| WorldTime::after(Duration::from_nanos(nanos)));
    prop_oneof![
        6 => (at(), 0..nodes, action(nodes)).prop_map(|(at, node, action)| What::Do { at, node, action: later(at, action) }),
        2 => (at(), 0..nodes, 1..nodes, fault()).prop_map(move |(at, from, step, fault)| {
            What::Link { at, from, to: (from + step) % nodes, fault: match fault {
                Fault::Window { until, effect } => Fault::Window { until: after(at, until), effect },
                fault => fault,
            }}
        }),
        1 => (at(), duration(), event()).prop_map(|(at, within, event)| What::Expect { at, within, event }),
        1 => (option::of(at()), event()).prop_map(|(until, event)| What::Never { until, event }),
    ]
}

/// Windows end after they begin: what was drawn is how long they are.
fn later(at: WorldTime, action: Action) -> Action {
    match action {
        Action::Stall { until } => Action::Stall { until: after(at, until) },
        Action::Suspend { until, counted } => Action::Suspend { until: after(at, until), counted },
        action => action,
    }
}

fn after(at: WorldTime, length: WorldTime) -> WorldTime {
    at.saturating_add(length.since(WorldTime::ZERO)).saturating_add(Duration::from_nanos(1))
}

fn action(nodes: usize) -> impl Strategy<Value = Action> {
    let rank = || (1u16..=64).prop_flat_map(|of| (0..of, Just(of)));
    let ppm = -999_999i64..=999_999_999;
    prop_oneof![
        4 => (request(), option::of(1u16..=64), option::of(duration()))
            .prop_map(|(request, consumers, ttl)| Action::Grant { request, consumers, ttl }),
        1 => request().prop_map(|request| Action::Expect { request }),
        1 => request().prop_map(|request| Action::Abort { request }),
        1 => duration().prop_map(|within| Action::Drain { within }),
        4 => (request(), 0..nodes, any::<bool>(), prop_oneof![Just((0, 1)), rank()]).prop_map(
            |(request, from, grant, (reader, of))| Action::Enqueue { request, from, grant: grant.then_some(0), reader, of }
        ),
        2 => (request(), duration(), any::<bool>()).prop_map(|(request, takes, fails)| Action::Read { request, takes, fails }),
        1 => request().prop_map(|request| Action::Finish { request }),
        1 => request().prop_map(|request| Action::Release { request }),
        1 => until().prop_map(|until| Action::Stall { until }),
        1 => (until(), any::<bool>()).prop_map(|(until, counted)| Action::Suspend { until, counted }),
        1 => ppm.prop_map(|ppm| Action::Drift { ppm }),
        1 => Just(Action::Crash),
        2 => Just(Action::Restart),
        2 => (prop_oneof![vec(any::<u8>(), 0..9), request().prop_map(String::into_bytes)], option::of(0..nodes))
            .prop_map(|(bytes, from)| Action::Receive { bytes, from }),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    let effect = prop_oneof![
        Just(Effect::Drop),
        Just(Effect::Partition),
        Just(Effect::Hold),
        Just(Effect::Reorder),
        duration().prop_map(|by| Effect::Delay { by }),
        (1u32..=1000).prop_map(|times| Effect::Duplicate { times }),
    ];
    prop_oneof![
        (until(), effect).prop_map(|(until, effect)| Fault::Window { until, effect }),
        (1u64..).prop_map(|count| Fault::DropNext { count }),
        any::<u64>().prop_map(|nth| Fault::Replay { nth }),
    ]
}

fn event() -> impl Strategy<Value = Map<String, Value>> {
    let event = prop_oneof![
        request().prop_map(|request| json!({"event": "freed", "request": request, "reason": "lost_in_crash"})),
        duration().prop_map(|expires| json!({"expires": expires.to_string()})),
        any::<u64>().prop_map(|leases| json!({"leases": leases, "event": "heartbeat_sent"})),
        (1..=7).prop_map(|law| json!({"law": law})),
    ];
    event.prop_map(|event| event.as_object().cloned().unwrap())
}

fn request() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[ab]", 1 => any::<String>()]
}

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(0), (0..3600u64).prop_map(|seconds| seconds * 1_000_000_000), 0..HOUR].prop_map(Duration::from_nanos)
}

fn until() -> impl Strategy<Value = WorldTime> {
    duration().prop_map(WorldTime::after)
}
