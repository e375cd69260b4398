//! A panel of a drawing: two axes, lines, and a label at the end of each line.

use std::fmt::Write;

use crate::axis::Axis;
use crate::svg::{BOLD, stroke, text};

/// Lines differ in color, and for readers without color in dashes, weight and label.
pub(crate) const COLORS: [&str; 8] =
    ["#0072b2", "#d55e00", "#00795a", "#b0387f", "#6a3d9a", "#7d5a0b", "#000000", "#3f9bd8"];
const DASHES: [&str; 8] =
    ["none", "7 3", "2 2.5", "9 3 2 3", "14 4", "5 2 1 2 1 2", "3 6", "15 3 3 3 3 3"];

/// Looks without a color of their own: of lines that are only there for comparison, and of the target of all.
pub(crate) const MUTED: usize = usize::MAX - 1;
pub(crate) const TARGET: usize = usize::MAX;
pub(crate) const MUTED_COLOR: &str = "#b4b4b4";

pub(crate) const GRID: &str = "#e3e3e3";
pub(crate) const FRAME: &str = "#555555";

/// Space for tick labels and titles: left of the plot (at least), below it and above it.
const LEFT: f64 = 58.0;
const BELOW: f64 = 42.0;
const ABOVE: f64 = 24.0;
/// Space between the plot and its labels, and for a short piece of each line before its label.
const GUTTER: f64 = 20.0;
const SAMPLE: f64 = 30.0;
pub(crate) const LABEL_PITCH: f64 = 15.0;
/// The average width of a character in a common sans-serif font of this size, with some reserve.
pub(crate) const CHARACTER: f64 = 6.3;

pub(crate) struct Panel {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub strokes: Vec<Stroke>,
}

/// One line of a panel.
pub(crate) struct Stroke {
    pub label: String,
    /// The index of its combination of color and dashes, or one of the looks without color.
    pub look: usize,
    pub points: Vec<(f64, f64)>,
}

/// The end of a line in a plot, and the position of its label.
pub(crate) struct End<'a> {
    pub stroke: &'a Stroke,
    x: f64,
    y: f64,
    /// The start of the piece of line that precedes the label's text.
    label: (f64, f64),
}

impl End<'_> {
    /// The middle of the piece of line that precedes the label.
    pub fn sample(&self) -> (f64, f64) {
        (self.label.0 + (SAMPLE - 5.0) / 2.0, self.label.1)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl Panel {
    pub fn svg(&self, place: Place) -> String {
        let plot = self.plot(place);
        let title = text(plot.x, place.y + 12.0, BOLD, &self.title);
        title + &self.frame(plot) + &self.lines(plot) + &self.labels(plot)
    }

    /// The area of the plot itself: `place` without titles, tick labels and line labels.
    pub fn plot(&self, place: Place) -> Place {
        let widest = self.strokes.iter().map(|stroke| stroke.label.chars().count()).max();
        let labels = SAMPLE + CHARACTER * widest.unwrap_or(0) as f64;
        let left = left(&self.y);
        Place {
            x: place.x + left,
            y: place.y + ABOVE,
            width: place.width - left - GUTTER - labels,
            height: place.height - ABOVE - BELOW,
        }
    }

    pub fn frame(&self, plot: Place) -> String {
        let Place { x, y, width, height } = plot;
        let bottom = y + height;
        let (mut rules, mut numbers) = (String::new(), String::new());
        for tick in self.x.ticks() {
            let at = x + width * self.x.place(tick.value);
            let _ = write!(rules, "M{at:.1} {y:.1}v{height:.1}");
            numbers += &text(at, bottom + 14.0, "", &tick.text);
        }
        let title = text(x + width / 2.0, bottom + 32.0, "", &self.x.title);
        stroke(GRID, "", &rules)
            + &frame(&self.y, plot)
            + &format!(r#"<g text-anchor="middle">{numbers}{title}</g>"#)
    }

    /// The lines, in a nested drawing that clips them to the plot.
    pub fn lines(&self, plot: Place) -> String {
        let Place { x, y, width, height } = plot;
        let corner = format!(r#"x="{x:.1}" y="{y:.1}""#);
        let size = format!(r#"width="{width:.1}" height="{height:.1}""#);
        let mut svg = format!(r#"<svg {corner} {size} overflow="hidden">"#);
        for line in &self.strokes {
            let mut path = String::new();
            for (i, point) in line.points.iter().enumerate() {
                let (x, y) = self.position(*point);
                let letter = if i == 0 { 'M' } else { 'L' };
                // Points far outside are clamped to keep the numbers short.
                let (x, y) = (width * x, (height * (1.0 - y)).clamp(-9999.0, 9999.0));
                let _ = write!(path, "{letter}{x:.1} {y:.1}");
            }
            svg += &drawn(line.look, &path);
        }
        svg + "</svg>"
    }

    /// The labels to the right of the plot, each near the height at which its line ends.
    pub fn labels(&self, plot: Place) -> String {
        let edge = plot.x + plot.width + 2.0;
        let mut svg = String::new();
        for End { stroke: line, x, y, label: (start, height) } in self.ends(plot) {
            let color = color(line.look);
            let leader = format!("M{x:.1} {y:.1}H{edge:.1}L{start:.1} {height:.1}");
            let sample = format!("M{start:.1} {height:.1}h{:.1}", SAMPLE - 5.0);
            let _ = write!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="2.4" fill="{color}"/>"#);
            svg += &stroke(color, r#"stroke-width="0.6" stroke-opacity="0.6""#, &leader);
            svg += &drawn(line.look, &sample);
            svg += &text(start + SAMPLE, height + 4.0, "", &line.label);
        }
        svg
    }

    /// The line ends from top to bottom, with labels that do not overlap.
    pub fn ends(&self, plot: Place) -> Vec<End<'_>> {
        let end = |line: &Stroke| {
            let (x, y) = self.position(*line.points.last().expect("a line has points"));
            let (x, y) = (x.clamp(0.0, 1.0), 1.0 - y.clamp(0.0, 1.0));
            (plot.x + plot.width * x, plot.y + plot.height * y)
        };
        let mut ends: Vec<(&Stroke, (f64, f64))> =
            self.strokes.iter().map(|line| (line, end(line))).collect();
        ends.sort_by(|(_, a), (_, b)| a.1.total_cmp(&b.1));
        let heights: Vec<f64> = ends.iter().map(|(_, (_, y))| *y).collect();
        let heights = spread(&heights, LABEL_PITCH, plot.y, plot.y + plot.height);
        let start = plot.x + plot.width + GUTTER;
        let end = |((stroke, (x, y)), height)| End { stroke, x, y, label: (start, height) };
        ends.into_iter().zip(heights).map(end).collect()
    }

    fn position(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (self.x.place(x), self.y.place(y))
    }
}

/// The left and the lower edge of a plot, with tick labels and title of the y axis.
pub(crate) fn frame(axis: &Axis, plot: Place) -> String {
    let Place { x, y, width, height } = plot;
    let (mut rules, mut numbers) = (String::new(), String::new());
    for tick in axis.ticks() {
        let at = y + height * (1.0 - axis.place(tick.value));
        let _ = write!(rules, "M{x:.1} {at:.1}h{width:.1}");
        numbers += &text(x - 5.0, at + 4.0, r#"text-anchor="end""#, &tick.text);
    }
    let (left, middle) = (x - left(axis) + 14.0, y + height / 2.0);
    let turned = format!(r#"text-anchor="middle" transform="rotate(-90 {left:.1} {middle:.1})""#);
    let title = text(left, middle, &turned, &axis.title);
    let edges = stroke(FRAME, "", &format!("M{x:.1} {y:.1}v{height:.1}h{width:.1}"));
    stroke(GRID, "", &rules) + &edges + &numbers + &title
}

/// The space to the left of a plot for tick labels and title of the y axis.
pub(crate) fn left(axis: &Axis) -> f64 {
    let widest = axis.ticks().iter().map(|tick| tick.text.chars().count()).max().unwrap_or(0);
    (24.0 + CHARACTER * widest as f64).max(LEFT)
}

fn color(look: usize) -> &'static str {
    match look {
        MUTED => MUTED_COLOR,
        TARGET => FRAME,
        look => COLORS[look % COLORS.len()],
    }
}

/// A path in the color and dashes of a look.
fn drawn(look: usize, path: &str) -> String {
    match look {
        MUTED => return stroke(color(look), r#"stroke-width="1""#, path),
        TARGET => return stroke(color(look), r#"stroke-width="1" stroke-dasharray="3 3""#, path),
        _ => {}
    }
    let lap = look / COLORS.len();
    let (color, dash) = (COLORS[look % COLORS.len()], DASHES[(look + 3 * lap) % DASHES.len()]);
    let width = if lap.is_multiple_of(2) { 1.9 } else { 1.2 };
    let style = format!(r#"stroke-width="{width}" stroke-dasharray="{dash}""#);
    stroke(color, &style, path)
}

/// Moves sorted heights as little as necessary to keep them `pitch` apart, and between `low` and `high`
/// if there is enough space.
fn spread(heights: &[f64], pitch: f64, low: f64, high: f64) -> Vec<f64> {
    // Groups that would overlap move apart around their common center.
    let mut groups: Vec<(f64, usize)> = Vec::new();
    for height in heights {
        groups.push((*height, 1));
        while let [.., (above, many), (below, few)] = groups[..]
            && below - above < pitch * (many + few) as f64 / 2.0
        {
            let center = (above * many as f64 + below * few as f64) / (many + few) as f64;
            groups.truncate(groups.len() - 2);
            let half = pitch * (many + few - 1) as f64 / 2.0;
            let center = center.min(high - half).max(low + half);
            groups.push((center, many + few));
        }
    }
    let placed = groups.iter().flat_map(|(center, many)| {
        (0..*many).map(move |i| center + pitch * (i as f64 - (*many - 1) as f64 / 2.0))
    });
    placed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_overlap_and_stay_inside() {
        let table: [(&[f64], &[f64]); 5] = [
            (&[10.0, 50.0], &[10.0, 50.0]),
            (&[50.0, 50.0], &[45.0, 55.0]),
            (&[0.0, 1.0, 2.0], &[0.0, 10.0, 20.0]),
            (&[99.0, 100.0, 100.0], &[80.0, 90.0, 100.0]),
            (
                &[20.0, 24.0, 26.0, 70.0],
                &[13.0 + 1.0 / 3.0, 23.0 + 1.0 / 3.0, 33.0 + 1.0 / 3.0, 70.0],
            ),
        ];

        for (heights, expected) in table {
            let spread = spread(heights, 10.0, 0.0, 100.0);
            let near = spread.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(near && spread.len() == expected.len(), "{heights:?} gave {spread:?}");
        }
    }
}
