//! Grouped bars: one bar per series in each group, whiskers for the range, and a legend if labels do not fit.

use std::fmt::Write;

use super::{BarSeries, HEIGHT, MARGIN, RangePoint, Scale, Sketch, WIDTH, hatch, height, wrapped};
use crate::axis::Axis;
use crate::panel::{CHARACTER, FRAME, Place, frame, left};
use crate::points::{brief, squeezed};
use crate::svg::{INK, PAPER, cross, stroke, text};

/// The distance from one bar to the next: wide enough for hatching, narrow enough for a single bar to look like one.
const PITCH_MIN: f64 = 7.0;
const PITCH_MAX: f64 = 56.0;
/// The gap between groups, as a fraction of a group's width, and at least in pixels.
const GAP: f64 = 0.18;
const GAP_MIN: f64 = 12.0;
/// From this pitch on, each bar has its value printed above it.
const VALUE_PITCH: f64 = 30.0;
const PLOT_HEIGHT_MIN: f64 = 230.0;
const LEGEND_PITCH: f64 = 17.0;
const NAME_PITCH: f64 = 12.0;
const NAME_LINES: usize = 3;
/// The width of a character in small print.
const SMALL: f64 = 5.7;
const SMALL_PRINT: &str = r#"font-size="10""#;

/// Draws the bars; `None` if there is no data.
pub(super) fn sketch(
    y: &Scale,
    groups: &[String],
    series: &[BarSeries],
    top: f64,
) -> Option<Sketch> {
    let values: Vec<Vec<Option<RangePoint>>> =
        series.iter().map(|bar| drawable(bar, groups)).collect();
    let all = || values.iter().flatten().flatten();
    let range = y.range(all().flat_map(|point| [point.low, point.y, point.high]));
    // If a logarithmic axis can show none of the values, any range will do: all bars are flat.
    let (from, to) = upwards(y, range.or(all().next().map(|_| (1.0, 10.0)))?);
    let axis = y.axis(from, to, PLOT_HEIGHT_MIN);
    let left = left(&axis);
    let needed = groups.len() as f64 * (PITCH_MIN * series.len() as f64 + GAP_MIN);
    let width = needed.max(WIDTH - left - MARGIN);
    let row = Row::new(groups.len(), series.len(), left, width);
    let labels = BarLabels::new(series, &row);

    let (legend, legend_height) =
        legend(series, labels, Place { x: left, y: top, width, height: 0.0 });
    let names = Names::new(groups, &row);
    let labels_height = if labels == BarLabels::None { 0.0 } else { NAME_PITCH };
    let below = 8.0 + labels_height + names.height();
    let plot_top = top + legend_height + 12.0;
    let plot_height = (HEIGHT - plot_top - below).max(PLOT_HEIGHT_MIN);
    let plot = Place { x: left, y: plot_top, width, height: plot_height };
    let bottom = plot.y + plot.height;

    let mut body = legend + &frame(&axis, plot);
    if from < 0.0 {
        let zero = bottom - plot.height * axis.place(0.0);
        body += &stroke(FRAME, "", &format!("M{left:.1} {zero:.1}h{width:.1}"));
    }
    for (look, (bar, values)) in series.iter().zip(&values).enumerate() {
        for (group, value) in values.iter().enumerate() {
            let center = row.bar(group, look);
            body += &match value {
                Some(point) => drawn(&axis, plot, look, center, row.pitch, point),
                None => missing_mark(center, bottom),
            };
            body += &labels.svg(look, bar, center, bottom);
        }
    }
    body += &names.svg(&row, bottom + 12.0 + labels_height);
    let footnotes = footnotes(&values);
    let (width, height) = ((left + width + MARGIN).ceil(), (bottom + below + 6.0).ceil());
    Some(Sketch { width, height, body, footnotes })
}

fn footnotes(values: &[Vec<Option<RangePoint>>]) -> Vec<String> {
    let mut symbols = vec![];
    if values.iter().flatten().flatten().any(RangePoint::has_range) {
        symbols.push("whiskers: minimum and maximum over seeds");
    }
    if values.iter().flatten().any(Option::is_none) {
        symbols.push("x: run missing or diverged");
    }
    if symbols.is_empty() { vec![] } else { vec![symbols.join("; ")] }
}

/// The values that can be drawn, one per group.
fn drawable(bar: &BarSeries, groups: &[String]) -> Vec<Option<RangePoint>> {
    let is_number = |point: &RangePoint| point.y.abs() <= 1e100;
    let value = |group| bar.values.get(group).copied().flatten().filter(is_number);
    (0..groups.len()).map(|group| value(group).map(RangePoint::with_valid_range)).collect()
}

/// The range of the axis: from 0, or on a logarithmic axis from a round number below all values.
fn upwards(scale: &Scale, (low, high): (f64, f64)) -> (f64, f64) {
    if scale.logarithmic {
        let below = 10f64.powf((low / 1.25).log10().floor());
        let digit = [5.0, 2.0].into_iter().find(|digit| digit * below <= low / 1.25);
        let from = digit.unwrap_or(1.0) * below;
        return (from, high * (high / from).powf(0.07));
    }
    let margin = 0.07 * (high.max(0.0) - low.min(0.0));
    let below = if low < 0.0 { low - margin } else { 0.0 };
    (below, if high > 0.0 { high + margin } else { margin })
}

/// The horizontal positions of groups and bars.
struct Row {
    left: f64,
    group: f64,
    pitch: f64,
    series: usize,
}

impl Row {
    fn new(groups: usize, series: usize, left: f64, width: f64) -> Row {
        let group = width / groups as f64;
        let available = group - (GAP * group).max(GAP_MIN);
        Row { left, group, pitch: (available / series as f64).min(PITCH_MAX), series }
    }

    fn center(&self, group: usize) -> f64 {
        self.left + self.group * (group as f64 + 0.5)
    }

    fn bar(&self, group: usize, series: usize) -> f64 {
        let from_center = series as f64 + 0.5 - self.series as f64 / 2.0;
        self.center(group) + self.pitch * from_center
    }
}

/// A bar with its whisker, and its value if there is room.
fn drawn(
    axis: &Axis,
    plot: Place,
    look: usize,
    center: f64,
    pitch: f64,
    point: &RangePoint,
) -> String {
    let at = |value: f64| plot.y + plot.height * (1.0 - height(axis, value));
    let (base, end) = (at(0.0), at(point.y));
    let width = if pitch > 12.0 { pitch - 3.0 } else { pitch - 1.2 };
    let (y, tall) = (base.min(end), (base - end).abs());
    let mut svg = hatch::bar(look, Place { x: center - width / 2.0, y, width, height: tall });
    let (high, low) = (at(point.high), at(point.low));
    if point.has_range() {
        let cap = (0.28 * pitch).min(5.0);
        let mut path = format!("M{center:.1} {high:.1}V{low:.1}");
        for end in [high, low] {
            let _ = write!(path, "M{:.1} {end:.1}h{:.1}", center - cap, 2.0 * cap);
        }
        // A rim in the color of the paper keeps the whisker visible on any bar.
        svg += &stroke(PAPER, r#"stroke-width="3" stroke-opacity="0.8""#, &path);
        svg += &stroke(INK, r#"stroke-width="1.1""#, &path);
    }
    if pitch >= VALUE_PITCH {
        let style = r#"font-size="9.5" text-anchor="middle""#;
        svg += &text(center, high.min(base) - 4.0, style, &brief(point.y));
    }
    svg
}

fn missing_mark(center: f64, bottom: f64) -> String {
    stroke(INK, r#"stroke-width="1.2""#, &cross(center, bottom - 6.0, 6.0))
}

/// The labels below single bars.
#[derive(Clone, Copy, PartialEq)]
enum BarLabels {
    None,
    /// The series' label.
    Names,
    /// A letter that the legend explains.
    Letters,
}

impl BarLabels {
    fn new(series: &[BarSeries], row: &Row) -> BarLabels {
        let fits = |bar: &BarSeries| SMALL * bar.label.chars().count() as f64 <= row.pitch - 4.0;
        match series {
            [_] => BarLabels::None,
            _ if series.iter().all(fits) => BarLabels::Names,
            _ => BarLabels::Letters,
        }
    }

    fn svg(self, look: usize, bar: &BarSeries, center: f64, bottom: f64) -> String {
        let middle = |size: f64| format!(r#"font-size="{size}" text-anchor="middle""#);
        match self {
            BarLabels::None => String::new(),
            BarLabels::Names => text(center, bottom + 12.0, &middle(10.0), &bar.label),
            BarLabels::Letters => text(center, bottom + 10.0, &middle(9.0), &letter(look)),
        }
    }
}

fn letter(look: usize) -> String {
    char::from(b'a' + (look % 26) as u8).to_string()
}

/// The legend, a swatch and a label per series in as many rows as needed, and its height.
fn legend(series: &[BarSeries], labels: BarLabels, place: Place) -> (String, f64) {
    if labels == BarLabels::Names || series.iter().all(|bar| bar.label.is_empty()) {
        return (String::new(), 0.0);
    }
    let (mut x, mut y, mut svg) = (place.x, place.y + LEGEND_PITCH, String::new());
    for (look, bar) in series.iter().enumerate() {
        let label = squeezed(&bar.label, 40);
        let key = if labels == BarLabels::Letters { 12.0 } else { 0.0 };
        let wide = key + 24.0 + CHARACTER * label.chars().count() as f64;
        if x > place.x && x + wide > place.x + place.width {
            (x, y) = (place.x, y + LEGEND_PITCH);
        }
        if labels == BarLabels::Letters {
            svg += &text(x, y, "", &letter(look));
        }
        let swatch = Place { x: x + key, y: y - 8.5, width: 18.0, height: 10.0 };
        svg += &hatch::bar(look, swatch);
        svg += &text(x + key + 24.0, y, "", &label);
        x += wide + 14.0;
    }
    (svg, y - place.y)
}

/// The names of the groups: wrapped below each group, or all of them tilted.
enum Names {
    Level(Vec<Vec<String>>),
    Tilted(Vec<String>),
}

/// The angle of tilted names, in degrees.
const TILT: f64 = 40.0;

impl Names {
    fn new(groups: &[String], row: &Row) -> Names {
        let columns = ((row.group - 6.0) / SMALL) as usize;
        let level = groups.iter().map(|name| wrapped(name, columns, NAME_LINES)).collect();
        if let Some(level) = level {
            return Names::Level(level);
        }
        // The first name must not extend beyond the left edge.
        let available = (row.center(0) - 4.0) / TILT.to_radians().cos();
        let columns = ((available / SMALL) as usize).clamp(4, 30);
        Names::Tilted(groups.iter().map(|name| squeezed(name, columns)).collect())
    }

    fn height(&self) -> f64 {
        match self {
            Names::Level(names) => {
                NAME_PITCH * names.iter().map(Vec::len).max().unwrap_or(0) as f64
            }
            Names::Tilted(names) => {
                let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
                16.0 + SMALL * longest as f64 * TILT.to_radians().sin()
            }
        }
    }

    fn svg(&self, row: &Row, y: f64) -> String {
        let mut svg = String::new();
        match self {
            Names::Level(names) => {
                for (group, lines) in names.iter().enumerate() {
                    for (i, line) in lines.iter().enumerate() {
                        let style = format!(r#"{SMALL_PRINT} text-anchor="middle""#);
                        svg += &text(row.center(group), y + NAME_PITCH * i as f64, &style, line);
                    }
                }
            }
            Names::Tilted(names) => {
                for (group, name) in names.iter().enumerate() {
                    let x = row.center(group) + 3.0;
                    let turn = format!(r#"transform="rotate(-{TILT} {x:.1} {y:.1})""#);
                    let style = format!(r#"{SMALL_PRINT} text-anchor="end" {turn}"#);
                    svg += &text(x, y, &style, name);
                }
            }
        }
        svg
    }
}
