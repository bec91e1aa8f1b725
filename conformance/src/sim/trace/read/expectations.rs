//! What expectations may ask for: the events of the output, their keys and the values that have names.

use lease_proto::{
    event::{Freed, Lost, Refused},
    wire::Rejected,
};
use serde_json::{Map, Value};

use super::{
    super::Trace,
    json::{Fields, Taken, duration, map, text, whole},
};

/// What stands under a key.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Time,
    /// From the first to the last.
    Whole(u64, u64),
    /// One of these.
    Name(fn() -> Vec<&'static str>),
}
use Kind::{Name, Text, Time, Whole};

type Row = (&'static str, &'static [(&'static str, Kind)]);

const COUNT: Kind = Whole(0, u64::MAX);

/// Each event and its keys besides `at` and `node`; not the one that tells that an expectation failed.
const ROWS: [Row; 18] = [
    ("granted", &[("request", Text), ("expires", Time)]),
    ("renewed", &[("request", Text), ("expires", Time)]),
    ("freed", &[("request", Text), ("reason", Name(reasons))]),
    ("refused", &[("request", Text), ("why", Name(|| Refused::ALL.map(Refused::name).into()))]),
    ("rejected", &[("why", Name(|| Rejected::ALL.map(Rejected::name).into()))]),
    ("connected", &[("peer", Text)]),
    ("one_way", &[("peer", Text)]),
    ("peer_lost", &[("peer", Text)]),
    ("peer_restarted", &[("peer", Text)]),
    ("heartbeat_sent", &[("peer", Text), ("leases", COUNT), ("bytes", COUNT)]),
    ("unproven", &[("request", Text)]),
    ("confirmed", &[("request", Text)]),
    ("lost", &[("request", Text), ("why", Name(|| Lost::ALL.map(Lost::name).into()))]),
    ("read_started", &[("request", Text)]),
    ("read_declined", &[("request", Text), ("why", Text)]),
    ("read_ended", &[("request", Text)]),
    ("read_done", &[("request", Text), ("verdict", Name(verdicts)), ("proof", Name(proofs))]),
    ("violation", &[("law", Whole(1, 7)), ("request", Text), ("detail", Text)]),
];

fn reasons() -> Vec<&'static str> {
    Freed::ALL.into_iter().map(Freed::name).chain(["lost_in_crash"]).collect()
}

fn verdicts() -> Vec<&'static str> {
    vec!["valid", "expired", "unverified", "failed"]
}

fn proofs() -> Vec<&'static str> {
    vec!["deadline", "completion", "served", "fenced"]
}

/// Takes the event under `key`. At least one event of the output must be able to have all of its keys and values: what can
/// never come would fail as an expectation, and hold silently as its opposite.
pub(super) fn read(fields: &mut Fields, key: &'static str, trace: &Trace) -> Taken<Map<String, Value>> {
    let mut event = fields.required(key, map)?;
    if event.is_empty() {
        return Err(fields.wrong(key, "expected at least one key of an event, got none"));
    }
    let mut rows: Vec<&Row> = ROWS.iter().collect();
    if let Some(name) = event.get("event") {
        if name == "failed_expectation" {
            return Err(fields.wrong("event", "expected what happens in the world: no expectation sees a failed_expectation"));
        }
        rows.retain(|(event, _)| name == event);
        if rows.is_empty() {
            let all: Vec<_> = ROWS.iter().map(|(name, _)| *name).collect();
            return Err(fields.unexpected("event", format!("expected one of {}", all.join(", ")), name));
        }
    }
    for (key, value) in event.iter_mut() {
        let read = match key.as_str() {
            "event" => continue,
            "node" if value.as_str().is_some_and(|name| trace.node(name).is_some()) => continue,
            "node" => Err("expected the name of a node of line 1".into()),
            key => narrow(&mut rows, key, value),
        };
        *value = read.map_err(|expected| fields.unexpected(key, expected, value))?;
    }
    Ok(event)
}

/// Keeps the rows in which this value may stand under this key, and gives it as the output would write it.
fn narrow(rows: &mut Vec<&Row>, key: &str, value: &Value) -> Result<Value, String> {
    let mut read = Err(match rows[..] {
        [(event, _)] => format!("expected only keys of the event {event}"),
        _ => "expected only keys that one event has together".into(),
    });
    rows.retain(|(_, keys)| match keys.iter().find(|(name, _)| *name == key) {
        Some((_, kind)) => {
            let fits = kind.read(value);
            let keep = fits.is_ok();
            if keep || read.is_err() {
                read = fits;
            }
            keep
        }
        None => false,
    });
    read
}

impl Kind {
    fn read(self, value: &Value) -> Result<Value, String> {
        match self {
            Text => text(value).map(Value::from),
            Time => duration(value).map(|time| time.to_string().into()),
            Whole(least, most) => whole(least..=most)(value).map(Value::from),
            Name(names) => {
                let names = names();
                let known = value.as_str().is_some_and(|value| names.contains(&value));
                if known { Ok(value.clone()) } else { Err(format!("expected one of {}", names.join(", "))) }
            }
        }
    }
}
