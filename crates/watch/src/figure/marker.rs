//! Markers: small shapes that distinguish lines.

use crate::panel::COLORS;
use crate::svg::PAPER;

/// Centered at (0, 0), of about the same visual weight.
const SHAPES: [&str; 6] = [
    "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z",
    "m-3 -3h6v6h-6z",
    "m0 -4.2l3.9 6.9h-7.8z",
    "m0 -4.4l4 4.4l-4 4.4l-4 -4.4z",
    "m0 4.2l3.9 -6.9h-7.8z",
    "m-1.3 -4.2h2.6v2.9h2.9v2.6h-2.9v2.9h-2.6v-2.9h-2.9v-2.6h2.9z",
];

/// The marker of a look: filled shapes first, then the same shapes hollow.
pub(super) fn marker(look: usize, x: f64, y: f64) -> String {
    let color = COLORS[look % COLORS.len()];
    let is_filled = (look / SHAPES.len()).is_multiple_of(2);
    // A rim in the color of the paper sets a filled marker off from the lines behind it.
    let (inside, rim, width) = if is_filled { (color, PAPER, 0.7) } else { (PAPER, color, 1.3) };
    let shape = SHAPES[look % SHAPES.len()];
    format!(
        r#"<path fill="{inside}" stroke="{rim}" stroke-width="{width}" d="M{x:.1} {y:.1}{shape}"/>"#
    )
}
