//! Bars with distinct shades and hatching. Hatching is drawn line by line because SVG patterns need ids, which would clash on a page with several figures.

use std::fmt::Write;

use crate::panel::{COLORS, Place};
use crate::svg::{PAPER, fill, rectangle, stroke};

/// The fills of bars: opacity and hatching.
const LOOKS: [(f64, &[Slope]); 8] = [
    (0.85, &[]),
    (0.0, &[Slope::Up]),
    (0.35, &[]),
    (0.0, &[Slope::Level]),
    (0.0, &[Slope::Up, Slope::Down]),
    (0.0, &[]),
    (0.3, &[Slope::Down]),
    (0.0, &[Slope::Upright]),
];

#[derive(Clone, Copy)]
enum Slope {
    Up,
    Down,
    Level,
    Upright,
}

/// The distance from one hatching line to the next.
const PITCH: f64 = 3.6;

pub(super) fn bar(look: usize, place: Place) -> String {
    let lap = look / COLORS.len();
    let color = COLORS[look % COLORS.len()];
    let (shade, slopes) = LOOKS[(look + 3 * lap) % LOOKS.len()];
    let edge = rectangle(place.x, place.y, place.width, place.height);
    // The grid must not show through.
    let paper = fill(PAPER, &edge);
    let inside =
        format!(r#"<path fill="{color}" fill-opacity="{shade}" stroke="{color}" d="{edge}"/>"#);
    let lines: String = slopes.iter().map(|slope| hatching(*slope, place)).collect();
    match lines.as_str() {
        "" => paper + &inside,
        lines => paper + &inside + &stroke(color, "", lines),
    }
}

/// The path of parallel lines that fill a rectangle.
fn hatching(slope: Slope, place: Place) -> String {
    let Place { x, y, width, height } = place;
    let mut path = String::new();
    match slope {
        Slope::Level => {
            for down in steps(PITCH, height) {
                let _ = write!(path, "M{x:.1} {:.1}h{width:.1}", y + down);
            }
        }
        Slope::Upright => {
            for right in steps(PITCH, width) {
                let _ = write!(path, "M{:.1} {y:.1}v{height:.1}", x + right);
            }
        }
        // A line joins points with the same right + down, clipped at the edges; mirrored for the other slope.
        Slope::Up | Slope::Down => {
            let mirrored = |right: f64| if let Slope::Up = slope { right } else { width - right };
            for sum in steps(std::f64::consts::SQRT_2 * PITCH, width + height) {
                let (from, to) = ((sum - height).max(0.0), sum.min(width));
                let (left, right) = (x + mirrored(from), x + mirrored(to));
                let (low, high) = (y + sum - from, y + sum - to);
                let _ = write!(path, "M{left:.1} {low:.1}L{right:.1} {high:.1}");
            }
        }
    }
    path
}

/// The multiples of `pitch` below `end`.
fn steps(pitch: f64, end: f64) -> impl Iterator<Item = f64> {
    (1..).map(move |i| f64::from(i) * pitch).take_while(move |at| *at < end)
}
