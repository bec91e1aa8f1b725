//! What a person reads, and what a program does.

use serde_json::{Value, json};

use super::{
    metric::{Kind, Target, name},
    rounds::{Outcome, Ratio},
};

/// What stands below a table with reads in it.
const READS: &str =
    "reads: ours are served by their owner, who checks the lease; UCX's are gets, which on these lanes it emulates\n";
/// What stands below one with a figure missing.
const HUNG: &str = "-: ucx_perftest did not end\n";

/// The report, a line for each metric.
pub fn table(outcomes: &[Outcome]) -> String {
    let width = outcomes.iter().map(|outcome| outcome.metric.to_string().len()).max().unwrap_or(0);
    let mut text = format!("{:width$} {:>10} {:>10} {:5}  {:>5}  {:>13}  target\n", "", "ours", "ucx", "", "ratio", "min - max");
    for outcome in outcomes {
        text += &match &outcome.pairs {
            Ok(_) => line(outcome, width),
            Err(why) => format!("{:width$} failed: {why}\n", outcome.metric.to_string()),
        };
    }
    let measured = |kind: Kind| outcomes.iter().any(|outcome| outcome.metric.kind == kind && outcome.pairs.is_ok());
    text += if measured(Kind::Read) { READS } else { "" };
    text += if outcomes.iter().any(|outcome| outcome.medians().0.is_some() && outcome.ratio().is_none()) { HUNG } else { "" };
    text
}

fn line(outcome: &Outcome, width: usize) -> String {
    let (metric, target) = (outcome.metric, outcome.metric.target());
    let shown = |figure: Option<f64>| figure.map_or("-".to_owned(), short);
    let (ours, theirs) = outcome.medians();
    let (ratio, spread, met) = match outcome.ratio() {
        Some(Ratio { median, min, max }) => {
            (format!("{median:.2}"), format!("{min:.2} - {max:.2}"), if target.is_met(median) { "" } else { "  MISSED" })
        }
        None => ("-".into(), String::new(), ""),
    };
    let (ours, theirs, unit, id) = (shown(ours), shown(theirs), metric.unit(), metric.to_string());
    format!("{id:width$} {ours:>10} {theirs:>10} {unit:5}  {ratio:>5}  {spread:>13}  {target}{met}\n")
}

/// Three digits that mean something.
fn short(figure: f64) -> String {
    let decimals = if figure >= 100.0 {
        0
    } else if figure >= 10.0 {
        1
    } else {
        2
    };
    format!("{figure:.decimals$}")
}

/// One object for each metric.
pub fn to_json(outcome: &Outcome) -> Value {
    let metric = &outcome.metric;
    let mut object = json!({
        "metric": metric.to_string(),
        "lane": name(metric.lane),
        "mode": name(metric.mode),
        "kind": name(metric.kind),
        "bytes": metric.bytes,
        "unit": metric.unit(),
    });
    let target = metric.target();
    let (ours, theirs) = outcome.medians();
    let ratio = outcome.ratio();
    let rest = match &outcome.pairs {
        Err(why) => json!({"failed": why}),
        Ok(pairs) => json!({
            "ours": ours,
            "ucx": theirs,
            "ratio": ratio.map(|ratio| ratio.median),
            "min": ratio.map(|ratio| ratio.min),
            "max": ratio.map(|ratio| ratio.max),
            "target": match target { Target::AtMost(most) => json!({"at_most": most}), Target::AtLeast(least) => json!({"at_least": least}) },
            "met": ratio.map(|ratio| target.is_met(ratio.median)),
            "rounds": pairs.iter().map(|pair| json!([pair.ours, pair.theirs])).collect::<Vec<_>>(),
        }),
    };
    if let (Some(object), Value::Object(rest)) = (object.as_object_mut(), rest) {
        object.extend(rest);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::{
        super::{metric::all, rounds::Pair},
        *,
    };

    fn outcome(id: &str, pairs: Result<&[(f64, Option<f64>)], &str>) -> Outcome {
        let metric = all().into_iter().find(|metric| metric.to_string() == id).unwrap();
        let pairs = pairs.map(|pairs| pairs.iter().map(|&(ours, theirs)| Pair { ours, theirs }).collect());
        Outcome { metric, pairs: pairs.map_err(str::to_owned) }
    }

    #[test]
    fn a_table_tells_each_fate() {
        let table = table(&[
            outcome("tcp/event/latency-200", Ok(&[(20.4, Some(20.0)), (22.0, Some(20.0)), (20.0, Some(20.0))])),
            outcome("shm/poll/rate-200", Ok(&[(1_000_000.0, Some(2_000_000.0))])),
            outcome("shm/event/read-4k", Ok(&[(1234.5, None)])),
            outcome("tcp/poll/idle", Err("it broke")),
        ]);
        let lines: Vec<String> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines[0], "ours ucx ratio min - max target");
        assert_eq!(lines[1], "tcp/event/latency-200 20.4 20.0 us 1.02 1.00 - 1.10 <= 1.05");
        assert_eq!(lines[2], "shm/poll/rate-200 1000000 2000000 msg/s 0.50 0.50 - 0.50 >= 0.9 MISSED");
        assert_eq!(lines[3], "shm/event/read-4k 1234 - MB/s - >= 0.95");
        assert_eq!(lines[4], "tcp/poll/idle failed: it broke");
        assert!(table.ends_with(&format!("{READS}{HUNG}")), "{table}");
    }

    #[test]
    fn an_object_holds_every_round() {
        let object = to_json(&outcome("tcp/event/latency-200", Ok(&[(21.0, Some(20.0)), (22.0, None)])));
        assert_eq!((&object["metric"], &object["unit"]), (&json!("tcp/event/latency-200"), &json!("us")));
        assert_eq!(
            (&object["ratio"], &object["met"], &object["target"]),
            (&json!(1.05), &json!(true), &json!({"at_most": 1.05}))
        );
        assert_eq!(object["rounds"], json!([[21.0, 20.0], [22.0, null]]));
        assert_eq!(to_json(&outcome("tcp/poll/idle", Err("it broke")))["failed"], "it broke");
    }
}
