//! A plan as a table and as JSON.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::sim::plan::{Counted, Plan, Point, Reclaim, plot::noun};

/// How a number is written.
#[derive(Clone, Copy)]
enum Unit {
    Count,
    PerSecond,
    BytesPerSecond,
    Bytes,
    ByteSeconds,
    Cores,
    Seconds,
    Probability,
    /// Said per year.
    PerDay,
}

/// One quantity, by closed form and sampled.
struct Row {
    key: &'static str,
    label: &'static str,
    unit: Unit,
    closed: f64,
    sampled: Option<f64>,
    /// Whether enough was seen for a comparison.
    enough: bool,
}

/// Leases that must have run out for their share to mean something.
const ENOUGH: u64 = 10;
const DAY: f64 = 86_400.0;
/// In days.
const YEAR: f64 = 365.25;

fn rows(plan: &Plan) -> [(&'static str, Vec<Row>); 3] {
    use Unit::{ByteSeconds, Bytes, BytesPerSecond, Cores, Count, PerDay, PerSecond, Probability, Seconds};
    let closed = &plan.forecast;
    let row = |key, label, unit, closed, sampled| Row { key, label, unit, closed, sampled, enough: true };
    let (counted, reclaim) = (plan.sample.counted, plan.sample.reclaim);
    let count = |of: fn(&Counted) -> f64| counted.as_ref().map(of);
    let steady = vec![
        row("held", "leases held", Count, closed.held, count(|counted| counted.held)),
        row("renewals", "leases renewed", PerSecond, closed.renewals, count(|counted| counted.renewals)),
        row("messages_in", "messages from decode", PerSecond, closed.messages_in, count(|counted| counted.messages_in)),
        row("bytes_in", "bytes from decode", BytesPerSecond, closed.bytes_in, count(|counted| counted.bytes_in)),
        row("messages_out", "messages to decode", PerSecond, closed.messages_out, count(|counted| counted.messages_out)),
        row("bytes_out", "bytes to decode", BytesPerSecond, closed.bytes_out, count(|counted| counted.bytes_out)),
        row("cpu", "CPU for leases", Cores, closed.cpu, count(|counted| counted.cpu)),
    ];
    let after = |of: fn(&Reclaim) -> f64| reclaim.as_ref().map(of);
    let leases = after(|reclaim| reclaim.of_one_decoder);
    let bytes = leases.map(|leases| leases * plan.inputs.asked.request_bytes as f64);
    let (mean, worst) = (after(|reclaim| reclaim.mean), after(|reclaim| reclaim.worst));
    let byte_seconds = bytes.zip(mean).map(|(bytes, mean)| bytes * mean);
    let death = vec![
        row("of_one_decoder", "its leases in the fleet", Count, closed.of_one_decoder, leases),
        row("bytes_of_one_decoder", "memory held for it", Bytes, closed.bytes_of_one_decoder, bytes),
        row("reclaim_mean", "free again, on average after", Seconds, closed.reclaim_mean, mean),
        row("reclaim_worst", "all free again, at most after", Seconds, closed.reclaim_worst, worst),
        row("byte_seconds", "memory times time", ByteSeconds, closed.byte_seconds, byte_seconds),
    ];
    let rare = |row| Row { enough: counted.is_some_and(|counted| counted.expired >= ENOUGH), ..row };
    let share = count(|counted| counted.false_expiry);
    let per_day = share.map(|share| share * plan.inputs.rate * DAY);
    let falsely = vec![
        rare(row("false_expiry", "false expiry, per request", Probability, closed.false_expiry, share)),
        rare(row("false_per_day", "false expiries of the fleet", PerDay, closed.false_per_day, per_day)),
    ];
    [("one prefill instance", steady), ("when a decode instance dies", death), ("while all decode instances live", falsely)]
}

impl Row {
    /// By how much the sample is above the closed form.
    fn difference(&self) -> Option<f64> {
        self.sampled.filter(|_| self.enough && self.closed > 0.0).map(|sampled| sampled / self.closed - 1.0)
    }
}

/// A plan for people.
pub(super) fn table(plan: &Plan) -> String {
    let mut out = String::new();
    // Nothing that is written to a string fails.
    let _ = write_table(plan, &mut out);
    out
}

fn write_table(plan: &Plan, out: &mut String) -> std::fmt::Result {
    let (inputs, asked, terms) = (&plan.inputs, &plan.inputs.asked, &plan.inputs.terms);
    writeln!(
        out,
        "{} prefill x {} decode, {} wire: {} {} in flight, {} a second, held {} s, {} each",
        asked.prefills,
        asked.decoders,
        asked.wire,
        number(inputs.requests),
        noun(inputs.requests, "request", "requests"),
        number(inputs.rate),
        number(inputs.hold),
        scaled(asked.request_bytes as f64, "B"),
    )?;
    writeln!(
        out,
        "lease {} s, extension {} s, a beat every {} s, poll {} s, delay {} s; loss {}, {} {} an hour of {} s{}",
        terms.lease(),
        terms.extension(),
        terms.interval(),
        asked.poll,
        asked.delay,
        number(asked.loss),
        number(asked.stalls_per_hour),
        noun(asked.stalls_per_hour, "stall", "stalls"),
        asked.stall_mean,
        asked.longest_stall.map_or(String::new(), |longest| format!(", at most {longest} s")),
    )?;
    let [steady, death, falsely] = rows(plan);
    // A difference of few deaths is chance and no fault of the formula.
    let deaths = plan.sample.reclaim.map(|reclaim| f64::from(reclaim.dead));
    let seen = deaths.map_or("sampled".into(), |dead| format!("in {} {}", number(dead), noun(dead, "death", "deaths")));
    for ((title, rows), seen) in [(steady, "sampled"), (death, &seen), (falsely, "sampled")] {
        writeln!(out, "\n{title:<32}{:>16}{seen:>16}{:>13}", "closed form", "difference")?;
        for row in rows {
            let sampled = row.sampled.map_or("-".into(), |sampled| row.show(sampled));
            let difference = row.difference().map_or("-".into(), |difference| format!("{:+.1} %", difference * 100.0));
            writeln!(out, "  {:<30}{:>16}{sampled:>16}{difference:>13}", row.label, row.show(row.closed))?;
        }
    }
    writeln!(out)?;
    verdict(plan, out)?;
    let costs = &plan.costs;
    writeln!(
        out,
        "measured on this machine: {:.0} ns to grant a lease, {:.0} ns to renew it, {:.0} ns to end it",
        costs.grant, costs.renew, costs.end
    )?;
    sampled(plan, out)
}

/// Whether the chosen lease meets the target, and the shortest that does.
fn verdict(plan: &Plan, out: &mut String) -> std::fmt::Result {
    let (curve, target) = (&plan.curve, plan.inputs.asked.target);
    let expiries = |count: f64| format!("{} false {} a year", number(count), noun(count, "expiry", "expiries"));
    let (chosen, per_year) = (curve.chosen.lease, curve.chosen.per_year);
    let meets = if per_year <= target { "within the target" } else { "too short" };
    writeln!(out, "your lease of {chosen} s: {} in the fleet, target {}: {meets}", expiries(per_year), number(target))?;
    match (&curve.safe, curve.longest) {
        (Some(safe), _) => writeln!(
            out,
            "shortest safe lease: {} s, {} in the fleet; all free again after {} s at most",
            safe.lease,
            expiries(safe.per_year),
            number(safe.reclaim_worst)
        ),
        (None, Some(longest)) => writeln!(
            out,
            "shortest safe lease: none up to {longest} s, the longest whose terms hold, has at most {} in the fleet",
            expiries(target)
        ),
        (None, None) => writeln!(out, "shortest safe lease: none, there is no lease whose terms hold"),
    }
}

fn sampled(plan: &Plan, out: &mut String) -> std::fmt::Result {
    let (sample, slice) = (&plan.sample, &plan.sample.slice);
    writeln!(
        out,
        "sampled: one prefill and {} decode {}, {} {} each, times {}; {} s of their time",
        slice.decoders,
        noun(slice.decoders.into(), "instance", "instances"),
        number(slice.per_pair),
        noun(slice.per_pair, "lease", "leases"),
        number(slice.factor),
        number(sample.covered)
    )?;
    if let Some(counted) = &sample.counted {
        let late =
            if counted.late > 0 { format!(", of {} after a completion that got lost", counted.late) } else { String::new() };
        let requests = noun(counted.ended as f64, "request", "requests");
        writeln!(out, "         {} {requests} ended, the leases of {} ran out too early{late}", counted.ended, counted.expired)?;
    }
    match &sample.reclaim {
        Some(reclaim) => writeln!(
            out,
            "         {} decode {} died with {} {} there, ±{:.0} % by chance",
            reclaim.dead,
            noun(reclaim.dead.into(), "instance", "instances"),
            reclaim.leases,
            noun(reclaim.leases as f64, "lease", "leases"),
            100.0 / (reclaim.leases as f64).sqrt()
        )?,
        None => writeln!(out, "         the budget of {} s was over before decode instances died", plan.inputs.asked.budget)?,
    }
    if sample.full > 0 {
        let requests = noun(sample.full as f64, "request", "requests");
        writeln!(out, "         {} {requests} found no room: the sample is not to be trusted", sample.full)?;
    }
    if sample.violations > 0 {
        let laws = noun(sample.violations as f64, "law was", "laws were");
        writeln!(out, "         {} {laws} broken: the sample is not to be trusted", sample.violations)?;
    }
    writeln!(
        out,
        "         {} lease events in {:.2} s on one core: {:.2} million a second",
        sample.events,
        sample.took,
        sample.events_per_second() / 1e6
    )
}

/// A plan for programs. Rates are per second and prefill instance, as in the table; what is unknown is absent.
pub(super) fn json(plan: &Plan) -> Value {
    let (inputs, asked, terms) = (&plan.inputs, &plan.inputs.asked, &plan.inputs.terms);
    let (sample, costs) = (&plan.sample, &plan.costs);
    let mut quantities = Map::new();
    for row in rows(plan).into_iter().flat_map(|(_, rows)| rows) {
        let mut said = Map::new();
        said.insert("closed".into(), row.closed.into());
        row.sampled.into_iter().for_each(|sampled| drop(said.insert("sampled".into(), sampled.into())));
        row.difference().into_iter().for_each(|difference| drop(said.insert("difference".into(), difference.into())));
        quantities.insert(row.key.into(), said.into());
    }
    json!({
        "inputs": {
            "wire": asked.wire.to_string(),
            "prefill": asked.prefills,
            "decode": asked.decoders,
            "requests": inputs.requests,
            "rate": inputs.rate,
            "hold": inputs.hold,
            "request_bytes": asked.request_bytes,
            "id_length": asked.id_length,
            "poll": asked.poll.to_string(),
            "max_notification": asked.max_notification,
            "delay": asked.delay.to_string(),
            "loss": asked.loss,
            "stall_rate": asked.stalls_per_hour,
            "stall_mean": asked.stall_mean.to_string(),
            "longest_stall": asked.longest_stall.map(|longest| longest.to_string()),
            "target": asked.target,
            "seed": asked.seed,
        },
        "terms": {
            "lease": terms.lease().to_string(),
            "extension": terms.extension().to_string(),
            "interval": terms.interval().to_string(),
        },
        "quantities": quantities,
        "datagrams_per_beat": plan.forecast.datagrams_per_beat,
        "costs_ns": {"grant": costs.grant, "renew": costs.renew, "end": costs.end},
        "sample": {
            "decode": sample.slice.decoders,
            "leases_per_pair": sample.slice.per_pair,
            "factor": sample.slice.factor,
            "covered": sample.covered,
            "ended": sample.counted.map(|counted| counted.ended),
            "expired": sample.counted.map(|counted| counted.expired),
            "late": sample.counted.map(|counted| counted.late),
            "reclaimed": sample.reclaim.map(|reclaim| reclaim.leases),
            "full": sample.full,
            "violations": sample.violations,
            "events": sample.events,
            "took": sample.took,
            "events_per_second": sample.events_per_second(),
        },
        "shortest_safe": plan.curve.safe.as_ref().map(point),
        "chosen": point(&plan.curve.chosen),
        "curve": plan.curve.points.iter().map(point).collect::<Vec<_>>(),
    })
}

fn point(point: &Point) -> Value {
    json!({
        "lease": point.lease.to_string(),
        "reclaim_worst": point.reclaim_worst,
        "reclaim_mean": point.reclaim_mean,
        "false_expiry": point.false_expiry,
        "per_year": point.per_year,
    })
}

impl Row {
    /// A value of this row, both with the same prefix.
    fn show(&self, value: f64) -> String {
        let like = |unit| scaled_like(value, self.closed, unit);
        match self.unit {
            Unit::Count | Unit::Probability => number(value),
            Unit::PerSecond => format!("{} /s", number(value)),
            Unit::BytesPerSecond => like("B/s"),
            Unit::Bytes => like("B"),
            Unit::ByteSeconds => like("B s"),
            Unit::Cores => format!("{} %", number(value * 100.0)),
            Unit::Seconds => format!("{} s", number(value)),
            Unit::PerDay => format!("{} a year", number(value * YEAR)),
        }
    }
}

/// With a binary prefix.
fn scaled(value: f64, unit: &str) -> String {
    scaled_like(value, value, unit)
}

/// With the binary prefix that another value has.
fn scaled_like(value: f64, other: f64, unit: &str) -> String {
    let prefixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let power = (0..prefixes.len() - 1).find(|power| other < 1024f64.powi(*power as i32 + 1)).unwrap_or(prefixes.len() - 1);
    format!("{} {}{unit}", number(value / 1024f64.powi(power as i32)), prefixes[power])
}

/// Four digits that matter.
fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    if !(1e-4..1e7).contains(&value) {
        return format!("{value:.2e}");
    }
    let decimals = (3 - value.log10().floor() as i32).clamp(0, 7) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}
