//! Line figures: means as dashed lines with markers, ranges as light bands, labels at the line ends.

use std::fmt::Write;

use super::marker::marker;
use super::{HEIGHT, Line, MARGIN, RangePoint, Scale, Sketch, WIDTH, height};
use crate::axis::Axis;
use crate::panel::{COLORS, LABEL_PITCH, Panel, Place, Stroke};
use crate::points::squeezed;
use crate::svg::stroke;

const LABEL_MAX: usize = 30;
/// A line of at most this many points has a marker at each of them.
const MARKED: usize = 12;
/// The distance between markers of a longer line, in pixels.
const MARKER_PITCH: f64 = 75.0;
/// Points closer than this fraction of the plot's width are indistinguishable.
const NEAR: f64 = 1e-3;
/// Height taken by titles and tick labels.
const AROUND: f64 = 70.0;

/// Draws the lines; `None` if there is no data.
pub(super) fn sketch(x: &Scale, y: &Scale, lines: &[Line], top: f64) -> Option<Sketch> {
    let is_drawable = |point: &&RangePoint| x.can_show(point.x) && y.can_show(point.y);
    let drawable = |line: &Line| {
        line.points.iter().filter(is_drawable).map(|point| point.with_valid_range()).collect()
    };
    let drawn: Vec<Vec<RangePoint>> = lines.iter().map(drawable).collect();
    let all = || drawn.iter().flatten();
    let height = HEIGHT.max(top + AROUND + LABEL_PITCH * lines.len() as f64);
    let place = Place { x: 0.0, y: top - 12.0, width: WIDTH - MARGIN, height: height - top + 6.0 };
    let (from, to) = across(x, x.range(all().map(|point| point.x))?);
    let mut across = x.axis(from, to, WIDTH / 2.0);
    if x.logarithmic {
        across = across.at_powers_of_two(all().map(|point| point.x));
    }
    let (from, to) = upwards(y, y.range(all().flat_map(|p| [p.low, p.y, p.high]))?);
    let upwards = y.axis(from, to, height - top - AROUND);
    let drawn: Vec<Vec<RangePoint>> = drawn.iter().map(|line| thinned(&across, line)).collect();

    let strokes = lines.iter().zip(&drawn).enumerate().filter_map(|(look, (line, drawn))| {
        let points: Vec<(f64, f64)> = drawn.iter().map(|point| (point.x, point.y)).collect();
        (!points.is_empty()).then(|| Stroke { label: label(line), look, points })
    });
    let panel = Panel { title: String::new(), x: across, y: upwards, strokes: strokes.collect() };
    let plot = panel.plot(place);
    let mut body = panel.frame(plot);
    for (look, line) in drawn.iter().enumerate() {
        body += &band(&panel, plot, look, line);
    }
    body += &panel.lines(plot);
    body += &panel.labels(plot);
    for line in &panel.strokes {
        body += &markers(&panel, plot, line);
    }
    for end in panel.ends(plot) {
        let (x, y) = end.sample();
        body += &marker(end.stroke.look, x, y);
    }
    Some(Sketch { width: WIDTH, height, body, footnotes: footnotes(lines, &drawn) })
}

fn label(line: &Line) -> String {
    let diverged = line.points.last().is_some_and(|point| !point.y.is_finite());
    let end = if diverged { " (diverged)" } else { "" };
    squeezed(&line.label, LABEL_MAX - end.len()) + end
}

/// The range of the x axis: that of the data, or from 0 if the first value is close to it.
fn across(scale: &Scale, (low, high): (f64, f64)) -> (f64, f64) {
    match low {
        _ if low == high => upwards(scale, (low, high)),
        // Markers must not cover the tick labels of the y axis.
        _ if scale.logarithmic => (low / (high / low).powf(0.02), high),
        0.0.. if low < 0.1 * high => (0.0, high),
        _ => (low, high),
    }
}

/// The range of the y axis: that of the data with a margin, which does not extend below 0.
fn upwards(scale: &Scale, (low, high): (f64, f64)) -> (f64, f64) {
    if scale.logarithmic {
        let margin = (high / low).powf(0.04);
        return (low / margin, high * margin);
    }
    let size = low.abs().max(high.abs());
    let margin = match high - low {
        _ if size == 0.0 => 1.0,
        // Values that differ only in the fourth digit are drawn as equal.
        range if range < 1e-3 * size => 0.05 * size,
        range => 0.04 * range,
    };
    let from = if low >= 0.0 { (low - margin).max(0.0) } else { low - margin };
    (from, high + margin)
}

/// Drops points that are too close to be distinguished; the last point is kept.
fn thinned(axis: &Axis, points: &[RangePoint]) -> Vec<RangePoint> {
    let mut kept: Vec<RangePoint> = Vec::new();
    for point in points {
        if let [.., before, last] = kept[..]
            && (axis.place(last.x) - axis.place(before.x)).abs() < NEAR
        {
            kept.pop();
        }
        kept.push(*point);
    }
    kept
}

/// The range from the lowest to the highest seed.
fn band(panel: &Panel, plot: Place, look: usize, points: &[RangePoint]) -> String {
    if !points.iter().any(RangePoint::has_range) {
        return String::new();
    }
    let across = |point: &RangePoint| plot.x + plot.width * height(&panel.x, point.x);
    let upwards = |value: f64| plot.y + plot.height * (1.0 - height(&panel.y, value));
    let color = COLORS[look % COLORS.len()];
    if let [point] = points {
        let (x, top, bottom) = (across(point), upwards(point.high), upwards(point.low));
        return stroke(color, "", &format!("M{x:.1} {top:.1}V{bottom:.1}"));
    }
    let mut path = String::new();
    let forth = points.iter().map(|point| (point, point.high));
    let back = points.iter().rev().map(|point| (point, point.low));
    for (point, value) in forth.chain(back) {
        let letter = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{:.1} {:.1}", across(point), upwards(value));
    }
    format!(r#"<path fill="{color}" fill-opacity="0.13" d="{path}z"/>"#)
}

/// Markers at every point of a short line, and at regular distances on a long one, with an offset per line.
fn markers(panel: &Panel, plot: Place, line: &Stroke) -> String {
    let mut svg = String::new();
    let phase = (0.382 * line.look as f64).fract();
    let mut next = plot.x + MARKER_PITCH * phase;
    for (x, y) in &line.points {
        let at = plot.x + plot.width * height(&panel.x, *x);
        let y = plot.y + plot.height * (1.0 - height(&panel.y, *y));
        if line.points.len() <= MARKED {
            svg += &marker(line.look, at, y);
        } else if at >= next {
            svg += &marker(line.look, at, y);
            next = at + MARKER_PITCH;
        }
    }
    svg
}

fn footnotes(lines: &[Line], drawn: &[Vec<RangePoint>]) -> Vec<String> {
    let mut footnotes = vec![];
    if drawn.iter().flatten().any(RangePoint::has_range) {
        footnotes.push("bands: minimum to maximum over seeds".to_owned());
    }
    let missing = lines.iter().zip(drawn).filter(|(_, points)| points.is_empty());
    let missing: Vec<&str> = missing.map(|(line, _)| line.label.as_str()).collect();
    if !missing.is_empty() {
        footnotes.push(format!("no data for {}", missing.join(", ")));
    }
    footnotes
}
