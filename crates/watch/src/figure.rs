//! Figures as papers have them, that can be read without color: lines with bands, and grouped bars with whiskers.

mod bars;
mod hatch;
mod lines;
mod marker;

use crate::axis::Axis;
use crate::page::drawing;
use crate::panel::{CHARACTER, FRAME};
use crate::points::shortened;
use crate::svg::{BOLD, file, text, xml};

/// A drawing with its title, and the words that belong below it.
///
/// The title is drawn. The caption is not: whoever shows the figure sets it in a face of their own.
#[derive(Clone, Debug)]
pub struct Figure {
    pub title: String,
    pub caption: String,
    pub drawing: Drawing,
}

#[derive(Clone, Debug)]
pub enum Drawing {
    /// Up to a dozen lines stay readable.
    Lines { x: Scale, y: Scale, lines: Vec<Line> },
    /// Every group has one bar of each series; up to 8 series in 9 groups stay readable.
    Bars { y: Scale, groups: Vec<String>, series: Vec<Bar> },
}

/// What an axis is to show; its ends follow from what is drawn.
#[derive(Clone, Debug)]
pub struct Scale {
    pub label: String,
    /// Values that are not above 0 have no place on a logarithmic axis: lines leave them out, bars have no height.
    pub logarithmic: bool,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub label: String,
    /// In order of `x`. What is not finite is left out; a line that ends so is said to have diverged.
    pub points: Vec<Spot>,
}

/// A mean over seeds, and the range of what was averaged: both ends are `y` if there was one seed.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    pub x: f64,
    pub y: f64,
    pub low: f64,
    pub high: f64,
}

/// One series of bars.
#[derive(Clone, Debug)]
pub struct Bar {
    pub label: String,
    /// One for each group, whose `x` means nothing. None, and what is not finite, is drawn as an x.
    pub values: Vec<Option<Spot>>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const MARGIN: f64 = 12.0;
const TITLE_PITCH: f64 = 17.0;
const FOOTNOTE_PITCH: f64 = 14.0;
/// What a bold character of a title takes, with some reserve.
const TITLE_CHARACTER: f64 = 7.8;

impl Figure {
    /// A whole file (SVG, nothing else needed), on white paper.
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
        let mut sketch = sketch.unwrap_or_else(nothing);
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

/// The inside of a drawing.
struct Sketch {
    width: f64,
    height: f64,
    body: String,
    /// What the signs in it mean, and what could not be drawn.
    footnotes: Vec<String>,
}

fn nothing() -> Sketch {
    let (x, y) = (WIDTH / 2.0, HEIGHT / 2.0);
    let body = text(x, y, r#"text-anchor="middle""#, "nothing was recorded");
    Sketch { width: WIDTH, height: HEIGHT, body, footnotes: vec![] }
}

impl Scale {
    /// Whether a value has a place on such an axis. Sums and ratios of what is larger would leave the numbers.
    fn takes(&self, value: f64) -> bool {
        let lowest = if self.logarithmic { 1e-100 } else { -1e100 };
        (lowest..=1e100).contains(&value)
    }

    /// The lowest and the highest of those values that have a place.
    fn ends(&self, values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
        let mut values = values.filter(|value| self.takes(*value));
        let first = values.next()?;
        Some(values.fold((first, first), |(low, high), value| (low.min(value), high.max(value))))
    }

    /// An axis whose title fits into so many pixels.
    fn axis(&self, from: f64, to: f64, length: f64) -> Axis {
        let title = shortened(&self.label, (length / CHARACTER) as usize);
        match self.logarithmic {
            true => Axis::logarithmic(title, from, to),
            false => Axis::linear(title, from, to),
        }
    }
}

impl Spot {
    /// The range lies around the mean, whatever it was said to be.
    fn mended(self) -> Spot {
        let or_mean = |end: f64| if end.is_finite() { end } else { self.y };
        let (low, high) = (or_mean(self.low).min(self.y), or_mean(self.high).max(self.y));
        Spot { low, high, ..self }
    }

    fn has_range(&self) -> bool {
        self.low < self.high
    }
}

/// Where a value is drawn: its part of the axis, or the end that it lies beyond.
fn height(axis: &Axis, value: f64) -> f64 {
    let place = axis.place(value);
    // There is no logarithm of what is below 0.
    if place.is_nan() { 0.0 } else { place.clamp(0.0, 1.0) }
}

/// Lines of at most `width` characters, broken between words and their parts; none if that takes more than
/// `lines_max`, or if a part does not fit.
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
