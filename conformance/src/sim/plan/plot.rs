//! Reclaim time against false expiry over the lease, as SVG.

use std::ops::Range;

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::{Plan, Point};

const SIZE: (u32, u32) = (960, 600);
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(40, 44, 52);
const FAINT: RGBColor = RGBColor(226, 229, 234);
const CURVE: RGBColor = RGBColor(44, 102, 176);
const CHOSEN: RGBColor = RGBColor(206, 92, 20);
const SAFE: RGBColor = RGBColor(34, 130, 74);
/// Below this nothing is drawn: no fleet lives that long.
const NEVER: f64 = 1e-15;
/// Leases are shown from a part of the shortest that matters up to so many times the longest.
const SHORTER: f64 = 0.25;
const LONGER: f64 = 2.0;
/// Room for the label of a point, as a share of the axis.
const LABEL: f64 = 0.05;

/// Draws a plan's curve.
pub fn svg(plan: &Plan) -> String {
    let mut text = String::new();
    let backend = SVGBackend::with_string(&mut text, SIZE);
    // The only thing that could fail is to write to a file.
    let _ = draw(plan, &backend.into_drawing_area());
    text
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn draw(plan: &Plan, area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Outcome {
    let curve = &plan.curve;
    let shown = shown(plan);
    let (x, y) = (x_range(&shown), y_range(&shown, curve.target));
    area.fill(&WHITE)?;
    let area = area.margin(12, 0, 0, 0).titled("Reclaim time against false expiry, by lease duration", font(22, INK))?;
    let area = area.titled(&fleet(plan), font(14, INK))?;
    let mut chart = ChartBuilder::on(&area)
        .margin(18)
        .x_label_area_size(52)
        .y_label_area_size(84)
        .build_cartesian_2d(x.clone(), y.clone().log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(FAINT)
        .axis_style(INK.mix(0.6))
        .label_style(font(14, INK))
        .axis_desc_style(font(16, INK))
        .x_desc("all memory of a dead decode instance free again, at most after (seconds)")
        .y_desc("probability of a false expiry, per request")
        .x_label_formatter(&|value| format!("{value}"))
        .y_label_formatter(&|value| power_of_ten(*value))
        .draw()?;
    let target = format!("target: {} a year in the fleet", plan.inputs.asked.target);
    chart.draw_series(DashedLineSeries::new(
        [(x.start, curve.target), (x.end, curve.target)],
        7,
        5,
        SAFE.mix(0.8).stroke_width(1),
    ))?;
    let end = font(14, SAFE).pos(Pos::new(HPos::Right, VPos::Bottom));
    chart.draw_series([Text::new(target, (x.end, curve.target * above(&y, 0.012)), end)])?;
    chart.draw_series(LineSeries::new(shown.iter().map(at), CURVE.stroke_width(2)))?;
    let width = x.end - x.start;
    let marked: Vec<&Point> = std::iter::once(&curve.chosen).chain(&curve.safe).collect();
    let (mut last, beside) = (f64::NEG_INFINITY, font(13, INK).pos(Pos::new(HPos::Left, VPos::Bottom)));
    for point in &shown {
        chart.draw_series([Circle::new(at(point), 3, CURVE.filled())])?;
        let near = |other: f64| (point.reclaim_worst - other).abs() < width * LABEL;
        if !near(last) && !marked.iter().any(|marked| near(marked.reclaim_worst)) {
            let place = (point.reclaim_worst + width * 0.008, drawn(point) * above(&y, 0.008));
            chart.draw_series([Text::new(format!("{} s", point.lease), place, beside.clone())])?;
            last = point.reclaim_worst;
        }
    }
    for (point, name, color, (right, up), place) in [
        (Some(&curve.chosen), "chosen", CHOSEN, (0.012, 0.02), Pos::new(HPos::Left, VPos::Bottom)),
        (curve.safe.as_ref(), "shortest safe", SAFE, (-0.012, -0.02), Pos::new(HPos::Right, VPos::Top)),
    ] {
        let Some(point) = point else { continue };
        chart.draw_series([Circle::new(at(point), 7, WHITE.filled()), Circle::new(at(point), 7, color.stroke_width(3))])?;
        let beside = (point.reclaim_worst + right * width, drawn(point) * above(&y, up));
        chart.draw_series([Text::new(format!("{name}: {} s", point.lease), beside, font(16, color).pos(place))])?;
    }
    area.present()?;
    Ok(())
}

/// One of it, or another number.
pub(crate) fn noun<'a>(count: f64, one: &'a str, many: &'a str) -> &'a str {
    if count == 1.0 { one } else { many }
}

fn fleet(plan: &Plan) -> String {
    let (asked, inputs) = (&plan.inputs.asked, &plan.inputs);
    let short = |value: f64| (value * 1000.0).round() / 1000.0;
    format!(
        "{} prefill and {} decode {}, {} wire, {} {} a second held {} s; loss {}, {} {} an hour of {} s",
        asked.prefills,
        asked.decoders,
        noun(f64::from(asked.decoders), "instance", "instances"),
        asked.wire,
        short(inputs.rate),
        noun(inputs.rate, "request", "requests"),
        short(inputs.hold),
        asked.loss,
        asked.stalls_per_hour,
        noun(asked.stalls_per_hour, "stall", "stalls"),
        asked.stall_mean
    )
}

/// The leases that matter, with the chosen and the safe one among them.
fn shown(plan: &Plan) -> Vec<Point> {
    let curve = &plan.curve;
    let marked: Vec<Point> = std::iter::once(curve.chosen).chain(curve.safe).collect();
    let leases = || marked.iter().map(Point::lease_seconds);
    let (least, most) = (leases().fold(f64::INFINITY, f64::min), leases().fold(0.0, f64::max));
    let near = |point: &&Point| (least * SHORTER..=most * LONGER).contains(&point.lease_seconds());
    let mut shown: Vec<Point> = curve.points.iter().filter(near).filter(|point| point.false_expiry >= NEVER).copied().collect();
    shown.extend(marked);
    shown.sort_by_key(|point| point.lease);
    shown.dedup_by_key(|point| point.lease);
    shown
}

fn x_range(shown: &[Point]) -> Range<f64> {
    let times = || shown.iter().map(|point| point.reclaim_worst);
    let (least, most) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    let margin = (most - least).max(most * 0.2) * 0.08;
    (least - margin).max(0.0)..most + margin
}

/// Whole powers of ten around what is shown and the target.
fn y_range(shown: &[Point], target: f64) -> Range<f64> {
    let values = || shown.iter().map(drawn).chain([target.max(NEVER)]);
    let (least, most) = (values().fold(1.0, f64::min), values().fold(NEVER, f64::max));
    10f64.powf((least.log10() - 0.3).floor())..10f64.powf((most.log10() + 0.3).ceil())
}

fn at(point: &Point) -> (f64, f64) {
    (point.reclaim_worst, drawn(point))
}

fn drawn(point: &Point) -> f64 {
    point.false_expiry.max(NEVER)
}

/// What a value is multiplied with to lie higher by a share of the axis.
fn above(y: &Range<f64>, share: f64) -> f64 {
    (y.end / y.start).powf(share)
}

fn font(size: u32, color: RGBColor) -> TextStyle<'static> {
    (FONT, size).into_font().color(&color)
}

fn power_of_ten(value: f64) -> String {
    let digits = ["⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"];
    let power = value.log10().round() as i32;
    let raised = power.abs().to_string().bytes().map(|digit| digits[usize::from(digit - b'0') % 10]).collect::<String>();
    match power {
        0 => "1".into(),
        power if power < 0 => format!("10⁻{raised}"),
        _ => format!("10{raised}"),
    }
}
