//! Figures in the style of papers, legible without color: lines with bands, and grouped bars with whiskers.

mod bars;
mod hatch;
mod lines;
mod marker;

use crate::axis::Axis;
use crate::page::drawing;
use crate::panel::{CHARACTER, FRAME};
use crate::points::shortened;
use crate::svg::{BOLD, file, text, xml};

/// A drawing with its title and caption.
///
/// The title is part of the drawing. The caption is not: the page that shows the figure prints it as text.
#[derive(Clone, Debug)]
pub struct Figure {
    pub title: String,
    pub caption: String,
    pub drawing: Drawing,
}

#[derive(Clone, Debug)]
pub enum Drawing {
    /// Legible up to a dozen lines.
    Lines { x: Scale, y: Scale, lines: Vec<Line> },
    /// Every group has one bar of each series; legible up to 8 series in 9 groups.
    Bars { y: Scale, groups: Vec<String>, series: Vec<BarSeries> },
}

/// Label and kind of an axis; its range follows from the data.
#[derive(Clone, Debug)]
pub struct Scale {
    pub label: String,
    /// A logarithmic axis cannot show values that are not above 0: lines omit them, bars get height 0.
    pub logarithmic: bool,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub label: String,
    /// In order of `x`. Points that are not finite are omitted; if the last one is, the line is labeled as diverged.
    pub points: Vec<RangePoint>,
}

/// A mean over seeds with its range; `low` and `high` equal `y` if there is only one seed.
#[derive(Clone, Copy, Debug)]
pub struct RangePoint {
    pub x: f64,
    pub y: f64,
    pub low: f64,
    pub high: f64,
}

/// One series of bars.
#[derive(Clone, Debug)]
pub struct BarSeries {
    pub label: String,
    /// One value per group; its `x` is ignored. A missing or non-finite value is drawn as a cross.
    pub values: Vec<Option<RangePoint>>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const MARGIN: f64 = 12.0;
const TITLE_PITCH: f64 = 17.0;
const FOOTNOTE_PITCH: f64 = 14.0;
/// The width of a bold character of a title, with some reserve.
const TITLE_CHARACTER: f64 = 7.8;

impl Figure {
    /// A self-contained SVG file with a white background.
    pub fn svg(&self) -> String {
        let Sketch { width, height, body, .. } = self.sketch();
        let caption = match self.caption.as_str() {
            "" => String::new(),
            caption => format!("<desc>{}</desc>", xml(caption)),
        };
        file(width, height, &(caption + &body))
    }

    /// The drawing as a part of a page.
    pub(crate) fn html(&self) -> String {
        let Sketch { width, height, body, .. } = self.sketch();
        drawing(&self.title, width, height, &body)
    }

    /// Title, drawing and footnotes.
    fn sketch(&self) -> Sketch {
        let columns = ((WIDTH - 2.0 * MARGIN) / TITLE_CHARACTER) as usize;
        let titles = wrapped(&self.title, columns, 3);
        let titles = titles.unwrap_or_else(|| vec![shortened(&self.title, columns)]);
        let top = 4.0 + TITLE_PITCH * titles.len() as f64;
        let sketch = match &self.drawing {
            Drawing::Lines { x, y, lines } => lines::sketch(x, y, lines, top),
            Drawing::Bars { y, groups, series } => bars::sketch(y, groups, series, top),
        };
        let mut sketch = sketch.unwrap_or_else(empty);
        for (i, title) in titles.iter().enumerate() {
            sketch.body += &text(MARGIN, 4.0 + TITLE_PITCH * (i as f64 + 0.75), BOLD, title);
        }
        let columns = ((sketch.width - 2.0 * MARGIN) / 5.6) as usize;
        let footnotes = std::mem::take(&mut sketch.footnotes);
        for footnote in footnotes {
            let style = format!(r#"font-size="10" fill="{FRAME}""#);
            let place = sketch.height + 3.0;
            sketch.body += &text(MARGIN, place, &style, &shortened(&footnote, columns));
            sketch.height += FOOTNOTE_PITCH;
        }
        sketch
    }
}

/// The content of a drawing.
struct Sketch {
    width: f64,
    height: f64,
    body: String,
    /// Explanations of symbols, and the series that could not be drawn.
    footnotes: Vec<String>,
}

fn empty() -> Sketch {
    let (x, y) = (WIDTH / 2.0, HEIGHT / 2.0);
    let body = text(x, y, r#"text-anchor="middle""#, "no data");
    Sketch { width: WIDTH, height: HEIGHT, body, footnotes: vec![] }
}

impl Scale {
    /// Whether the axis can show this value. Larger magnitudes are excluded because their sums and ratios could overflow.
    fn can_show(&self, value: f64) -> bool {
        let lowest = if self.logarithmic { 1e-100 } else { -1e100 };
        (lowest..=1e100).contains(&value)
    }

    /// The lowest and the highest of the values that the axis can show.
    fn range(&self, values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
        let mut values = values.filter(|value| self.can_show(*value));
        let first = values.next()?;
        Some(values.fold((first, first), |(low, high), value| (low.min(value), high.max(value))))
    }

    /// An axis whose title fits into `length` pixels.
    fn axis(&self, from: f64, to: f64, length: f64) -> Axis {
        let title = shortened(&self.label, (length / CHARACTER) as usize);
        match self.logarithmic {
            true => Axis::logarithmic(title, from, to),
            false => Axis::linear(title, from, to),
        }
    }
}

impl RangePoint {
    /// The same point with a finite range that contains the mean.
    fn with_valid_range(self) -> RangePoint {
        let or_mean = |end: f64| if end.is_finite() { end } else { self.y };
        let (low, high) = (or_mean(self.low).min(self.y), or_mean(self.high).max(self.y));
        RangePoint { low, high, ..self }
    }

    fn has_range(&self) -> bool {
        self.low < self.high
    }
}

/// The position of a value on the axis, clamped to its ends.
fn height(axis: &Axis, value: f64) -> f64 {
    let place = axis.place(value);
    // A negative value has no logarithm.
    if place.is_nan() { 0.0 } else { place.clamp(0.0, 1.0) }
}

/// Breaks a text after spaces and punctuation into lines of at most `width` characters; `None` if that takes
/// more than `lines_max` lines, or if a single part is too long.
fn wrapped(words: &str, width: usize, lines_max: usize) -> Option<Vec<String>> {
    let length = |text: &str| text.trim_end().chars().count();
    let mut lines: Vec<String> = Vec::new();
    for part in words.split_inclusive([' ', '-', '_', '/', ',']) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + length(part) <= width => line.push_str(part),
            _ => lines.push(part.to_owned()),
        }
    }
    let lines: Vec<String> = lines.iter().map(|line| line.trim_end().to_owned()).collect();
    let fits = lines.len() <= lines_max && lines.iter().all(|line| length(line) <= width);
    fits.then_some(lines)
}

#[cfg(test)]
mod tests;
