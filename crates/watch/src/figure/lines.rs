//! Lines over an axis: means in dashes and markers, ranges as light bands, labels at the ends.

use std::fmt::Write;

use super::marker::marker;
use super::{HEIGHT, Line, MARGIN, Scale, Sketch, Spot, WIDTH, height};
use crate::axis::Axis;
use crate::panel::{COLORS, LABEL_PITCH, Panel, Place, Stroke};
use crate::points::squeezed;
use crate::svg::stroke;

const LABEL_MAX: usize = 30;
/// A line of so few points has a marker at each.
const MARKED: usize = 12;
/// Markers of a longer line are so many pixels apart.
const MARKER_PITCH: f64 = 75.0;
/// Points nearer than this part of the plot cannot be told apart.
const NEAR: f64 = 1e-3;
/// What titles and numbers take of the height.
const AROUND: f64 = 70.0;

/// None if there is nothing to draw.
pub(super) fn sketch(x: &Scale, y: &Scale, lines: &[Line], top: f64) -> Option<Sketch> {
    let has_place = |spot: &&Spot| x.takes(spot.x) && y.takes(spot.y);
    let spots = |line: &Line| line.points.iter().filter(has_place).map(|s| s.mended()).collect();
    let spots: Vec<Vec<Spot>> = lines.iter().map(spots).collect();
    let all = || spots.iter().flatten();
    let height = HEIGHT.max(top + AROUND + LABEL_PITCH * lines.len() as f64);
    let place = Place { x: 0.0, y: top - 12.0, width: WIDTH - MARGIN, height: height - top + 6.0 };
    let (from, to) = across(x, x.ends(all().map(|spot| spot.x))?);
    let across = x.axis(from, to, WIDTH / 2.0);
    let (from, to) = upwards(y, y.ends(all().flat_map(|s| [s.low, s.y, s.high]))?);
    let upwards = y.axis(from, to, height - top - AROUND);
    let spots: Vec<Vec<Spot>> = spots.iter().map(|line| thinned(&across, line)).collect();

    let strokes = lines.iter().zip(&spots).enumerate().filter_map(|(look, (line, spots))| {
        let points: Vec<(f64, f64)> = spots.iter().map(|spot| (spot.x, spot.y)).collect();
        (!points.is_empty()).then(|| Stroke { label: label(line), look, points })
    });
    let panel = Panel { title: String::new(), x: across, y: upwards, strokes: strokes.collect() };
    let plot = panel.plot(place);
    let mut body = panel.frame(plot);
    for (look, line) in spots.iter().enumerate() {
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
    Some(Sketch { width: WIDTH, height, body, footnotes: footnotes(lines, &spots) })
}

fn label(line: &Line) -> String {
    let diverged = line.points.last().is_some_and(|spot| !spot.y.is_finite());
    let end = if diverged { " (diverged)" } else { "" };
    squeezed(&line.label, LABEL_MAX - end.len()) + end
}

/// From end to end, or from 0 if the first value is near it.
fn across(scale: &Scale, (low, high): (f64, f64)) -> (f64, f64) {
    match low {
        _ if low == high => upwards(scale, (low, high)),
        // Markers must not stand on the numbers of the other axis.
        _ if scale.logarithmic => (low / (high / low).powf(0.02), high),
        0.0.. if low < 0.1 * high => (0.0, high),
        _ => (low, high),
    }
}

/// With some room below and above, but not below 0 for the sake of room.
fn upwards(scale: &Scale, (low, high): (f64, f64)) -> (f64, f64) {
    if scale.logarithmic {
        let room = (high / low).powf(0.04);
        return (low / room, high * room);
    }
    let size = low.abs().max(high.abs());
    let room = match high - low {
        _ if size == 0.0 => 1.0,
        // Numbers that differ only in the fourth digit are better drawn as equal.
        range if range < 1e-3 * size => 0.05 * size,
        range => 0.04 * range,
    };
    let from = if low >= 0.0 { (low - room).max(0.0) } else { low - room };
    (from, high + room)
}

/// No more points than can be seen; the last one stays.
fn thinned(axis: &Axis, spots: &[Spot]) -> Vec<Spot> {
    let mut kept: Vec<Spot> = Vec::new();
    for spot in spots {
        if let [.., before, last] = kept[..]
            && (axis.place(last.x) - axis.place(before.x)).abs() < NEAR
        {
            kept.pop();
        }
        kept.push(*spot);
    }
    kept
}

/// From the lowest to the highest of the seeds.
fn band(panel: &Panel, plot: Place, look: usize, spots: &[Spot]) -> String {
    if !spots.iter().any(Spot::has_range) {
        return String::new();
    }
    let across = |spot: &Spot| plot.x + plot.width * height(&panel.x, spot.x);
    let upwards = |value: f64| plot.y + plot.height * (1.0 - height(&panel.y, value));
    let color = COLORS[look % COLORS.len()];
    if let [spot] = spots {
        let (x, top, bottom) = (across(spot), upwards(spot.high), upwards(spot.low));
        return stroke(color, "", &format!("M{x:.1} {top:.1}V{bottom:.1}"));
    }
    let mut path = String::new();
    let forth = spots.iter().map(|spot| (spot, spot.high));
    let back = spots.iter().rev().map(|spot| (spot, spot.low));
    for (spot, value) in forth.chain(back) {
        let letter = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{:.1} {:.1}", across(spot), upwards(value));
    }
    format!(r#"<path fill="{color}" fill-opacity="0.13" d="{path}z"/>"#)
}

/// At every point of a short line; at some of a long one, elsewhere than its neighbors'.
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

fn footnotes(lines: &[Line], spots: &[Vec<Spot>]) -> Vec<String> {
    let mut footnotes = vec![];
    if spots.iter().flatten().any(Spot::has_range) {
        footnotes.push("bands: from the lowest to the highest of the seeds".to_owned());
    }
    let missing = lines.iter().zip(spots).filter(|(_, spots)| spots.is_empty());
    let missing: Vec<&str> = missing.map(|(line, _)| line.label.as_str()).collect();
    if !missing.is_empty() {
        footnotes.push(format!("nothing to draw of {}", missing.join(", ")));
    }
    footnotes
}
