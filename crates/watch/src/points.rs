//! Prepares points and texts for drawing: smoothing, thinning, shortening.

use crate::curves::Point;

const POINTS_MAX: usize = 400;
/// The training loss is averaged over this many epochs, so that lines remain distinguishable.
const SMOOTHED: f64 = 0.5;
/// A run whose loss has grown by this factor is drawn as diverged.
pub(crate) const DIVERGED: f64 = 5.0;

/// Moving averages over the last half epoch, or over a tenth of a very short run; values that a
/// logarithmic axis cannot show are omitted.
pub(crate) fn smoothed(points: &[Point]) -> Vec<Point> {
    let is_number = |point: &&Point| point.value.is_finite();
    let points: Vec<Point> = points.iter().filter(is_number).copied().collect();
    let reach = points.last().map_or(0.0, |last| SMOOTHED.min(0.1 * last.epochs));
    let mut first = 0;
    let mean = |(i, point): (usize, &Point)| {
        while points[first].epochs < point.epochs - reach {
            first += 1;
        }
        // The sum is computed afresh each time, so that a huge loss leaves no rounding error in later means.
        let sum: f64 = points[first..=i].iter().map(|point| point.value).sum();
        Point { value: sum / (i + 1 - first) as f64, ..*point }
    };
    points.iter().enumerate().map(mean).filter(|point| point.value > 0.0).collect()
}

/// Averages neighboring points so that there are no more points than pixels. The last point stays where it is.
pub(crate) fn thinned(points: &[Point]) -> Vec<Point> {
    let mean = |group: &[Point]| {
        let n = group.len() as f64;
        let sum = |part: fn(&Point) -> f64| group.iter().map(part).sum::<f64>() / n;
        Point { at: sum(|p| p.at), epochs: sum(|p| p.epochs), value: sum(|p| p.value) }
    };
    let size = points.len().div_ceil(POINTS_MAX).max(1);
    let last = points.last().filter(|_| size > 1);
    points.chunks(size).map(mean).chain(last.copied()).collect()
}

/// A value with about three significant digits.
pub(crate) fn brief(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        ..0.001 => format!("{value:.1e}"),
        ..1.0 => format!("{value:.3}"),
        ..1e4 => format!("{value:.2}"),
        _ => format!("{value:.1e}"),
    }
}

pub(crate) fn shortened(text: &str, length: usize) -> String {
    if text.chars().count() <= length {
        return text.to_owned();
    }
    text.chars().take(length - 1).chain(['…']).collect()
}

/// Shortens a text in the middle, because names often differ at the end.
pub(crate) fn squeezed(text: &str, length: usize) -> String {
    let n = text.chars().count();
    if n <= length {
        return text.to_owned();
    }
    let (begin, end) = (length / 2, length - length / 2 - 1);
    text.chars().take(begin).chain(['…']).chain(text.chars().skip(n - end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squeezed_names_keep_their_ends() {
        let table =
            [("period=16", 9, "period=16"), ("period=16", 8, "peri…=16"), ("äöüß", 3, "ä…ß")];

        for (text, length, expected) in table {
            assert_eq!(squeezed(text, length), expected);
        }
    }

    #[test]
    fn thinned_points_are_few_and_end_where_the_line_ends() {
        let point = |i: u32| Point { at: i.into(), epochs: i.into(), value: i.into() };
        let points: Vec<Point> = (0..2_001).map(point).collect();

        let thinned = thinned(&points);

        assert!(thinned.len() <= POINTS_MAX + 1);
        assert_eq!(thinned.last(), points.last());
    }

    #[test]
    fn a_brief_value_has_about_three_digits() {
        let table =
            [(0.0, "0"), (-3.0, "-3.00"), (0.25, "0.250"), (2e-5, "2.0e-5"), (1e6, "1.0e6")];

        for (value, expected) in table {
            assert_eq!(brief(value), expected);
        }
    }

    #[test]
    fn a_noisy_loss_below_zero_counts_in_the_mean() {
        let point = |i: u32| {
            let value = if i.is_multiple_of(2) { 3.0 } else { -1.0 };
            Point { at: f64::from(i), epochs: 0.125 * f64::from(i), value }
        };

        let smoothed = smoothed(&(0..100).map(point).collect::<Vec<_>>());

        assert_eq!(smoothed.len(), 100);
        // Half an epoch covers five points: three of one value and two of the other.
        assert_eq!((smoothed[50].value, smoothed[51].value), (1.4, 0.6));
    }
}
