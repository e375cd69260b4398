//! A timeline as bars: an SVG fragment that is part of a larger drawing.

use std::fmt::Write;
use std::time::Duration;

use crate::axis::{Axis, time_unit};
use crate::svg::{INK, cross, fill, rectangle, stroke, text};
use crate::timeline::{Cell, Timeline};

/// Size and time range of the bars; lengths are in pixels.
#[derive(Clone, Copy, Debug)]
pub struct Bars {
    pub width: f64,
    /// The distance from one row to the next.
    pub pitch: f64,
    pub workers_max: usize,
    /// The end of the time range; `None` means the newest line of the journal.
    pub until: Option<Duration>,
}

/// Width reserved for worker ids to the left of the bars.
pub(crate) const IDS: f64 = 24.0;

/// The colors from waiting to computing.
pub(crate) const SHADES: [&str; 5] = ["#e0e0e0", "#b3b8c1", "#868f9e", "#58657c", "#2b3c5a"];

impl Timeline {
    /// Draws one bar per worker. The upper left corner is at (0, 0); ids are drawn to the left of it.
    ///
    /// Dark means computing, light means waiting. A shade in between means that the worker computed for
    /// part of the time that the pixel covers.
    pub fn svg(&self, bars: Bars) -> String {
        let Bars { width, pitch, workers_max, until } = bars;
        let columns = (width.ceil() as usize).max(1);
        let (pixel, height) = (width / columns as f64, 0.8 * pitch);
        let mut shades = [const { String::new() }; SHADES.len()];
        let (mut crashes, mut names) = (String::new(), String::new());
        for (i, (who, cells)) in self.rows(columns, workers_max, self.until(until)).enumerate() {
            let top = i as f64 * pitch;
            let mut begin = 0;
            for same in cells.chunk_by(|a, b| a.shade() == b.shade()) {
                if let Some(shade) = same[0].shade() {
                    let (x, wide) = (begin as f64 * pixel, same.len() as f64 * pixel);
                    shades[shade] += &rectangle(x, top, wide, height);
                }
                begin += same.len();
            }
            if let Some(at) = cells.iter().position(|cell| matches!(cell, Cell::Crash)) {
                crashes += &cross((at as f64 + 0.5) * pixel, top + height / 2.0, height);
            }
            names += &text(-5.0, top + height, "", &who.to_string());
        }
        let font = 0.95 * pitch;
        let mut svg = format!(r#"<g font-size="{font:.1}" text-anchor="end">{names}</g>"#);
        for (path, shade) in shades.iter().zip(SHADES).filter(|(path, _)| !path.is_empty()) {
            svg += &fill(shade, path);
        }
        if !crashes.is_empty() {
            svg += &crash_marks(&crashes);
        }
        svg
    }
}

impl Cell {
    fn shade(&self) -> Option<usize> {
        match self {
            Cell::Busy(part) => Some((part * (SHADES.len() - 1) as f64).round() as usize),
            Cell::Absent | Cell::Crash => None,
        }
    }
}

fn crash_marks(path: &str) -> String {
    stroke("#c00000", r#"stroke-width="1.6""#, path)
}

/// A time scale below the bars.
pub(crate) fn scale(x: f64, y: f64, width: f64, until: f64) -> String {
    let (unit, seconds) = time_unit(until);
    let axis = Axis::linear("", 0.0, until / seconds);
    let (mut marks, mut numbers) = (format!("M{x:.1} {y:.1}h{width:.1}"), String::new());
    for tick in axis.ticks() {
        let at = x + width * axis.place(tick.value);
        let _ = write!(marks, "M{at:.1} {y:.1}v4");
        numbers += &text(at, y + 15.0, "", &tick.text);
    }
    numbers += &text(x + width / 2.0, y + 29.0, "", &format!("time, {unit}"));
    stroke(INK, "", &marks) + &format!(r#"<g text-anchor="middle">{numbers}</g>"#)
}

/// The legend of the shades; its text starts at (`x`, `y`).
pub(crate) fn legend(x: f64, y: f64) -> String {
    let swatch = |x: f64, shade: &str| fill(shade, &rectangle(x, y - 8.0, 18.0, 8.0));
    let word = |x: f64, word: &str| text(x, y, "", word);
    let x = x + IDS;
    [
        swatch(x, SHADES[SHADES.len() - 1]),
        word(x + 23.0, "computing"),
        swatch(x + 90.0, SHADES[0]),
        word(x + 113.0, "waiting"),
        crash_marks(&cross(x + 174.0, y - 4.0, 7.0)),
        word(x + 183.0, "crash"),
        word(x + 235.0, "blank: not a member"),
    ]
    .concat()
}
