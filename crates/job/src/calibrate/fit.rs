//! Statistics of timings: a median with its spread, and a line through several sizes.

use serde::Serialize;

/// Repeated timings of one thing, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    /// Far above the median if other programs disturbed the measurement.
    pub mean: f64,
    /// The 10th and the 90th percentile.
    pub low: f64,
    pub high: f64,
    pub repeats: usize,
}

impl Spread {
    /// The spread of at least one timing.
    pub fn of(mut timings: Vec<f64>) -> Spread {
        assert!(!timings.is_empty(), "there is at least one timing");
        timings.sort_by(f64::total_cmp);
        let last = timings.len() - 1;
        let at = |part: f64| timings[(part * last as f64).round() as usize];
        let (repeats, sum) = (timings.len(), timings.iter().sum::<f64>());
        let mean = sum / repeats as f64;
        Spread { median: at(0.5), mean, low: at(0.1), high: at(0.9), repeats }
    }
}

/// The time for one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    pub size: u64,
    pub seconds: Spread,
}

/// seconds = fixed + size x each; both are at least zero.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    pub fixed: f64,
    pub each: f64,
}

impl Cost {
    /// The least-squares line through the medians.
    ///
    /// If noise makes a coefficient negative: the nearest line without a negative one, which is flat or goes
    /// through the origin.
    pub fn through(points: &[Point]) -> Cost {
        assert!(!points.is_empty(), "there is at least one timing");
        let n = points.len() as f64;
        let at = || points.iter().map(|point| (point.size as f64, point.seconds.median));
        let (x_mean, y_mean) =
            (at().map(|(x, _)| x).sum::<f64>() / n, at().map(|(_, y)| y).sum::<f64>() / n);
        let both: f64 = at().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
        let square: f64 = at().map(|(x, _)| (x - x_mean).powi(2)).sum();
        let through_origin = || {
            let (both, square) = at().fold((0.0, 0.0), |(b, s), (x, y)| (b + x * y, s + x * x));
            Cost { fixed: 0.0, each: if square > 0.0 { both / square } else { 0.0 } }
        };
        if square == 0.0 {
            return through_origin();
        }
        let each = both / square;
        let fixed = y_mean - each * x_mean;
        match (fixed < 0.0, each < 0.0) {
            (_, true) => Cost { fixed: y_mean, each: 0.0 },
            (true, false) => through_origin(),
            (false, false) => Cost { fixed, each },
        }
    }

    pub fn of(&self, size: u64) -> f64 {
        self.fixed + size as f64 * self.each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(timings: &[(u64, f64)]) -> Vec<Point> {
        let point = |(size, seconds): &(u64, f64)| Point {
            size: *size,
            seconds: Spread::of(vec![*seconds]),
        };
        timings.iter().map(point).collect()
    }

    fn is_near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * b.abs().max(1e-9)
    }

    #[test]
    fn points_on_a_line_give_that_line() {
        let cost = Cost::through(&points(&[(4, 0.7), (8, 0.9), (16, 1.3), (32, 2.1)]));

        assert!(is_near(cost.fixed, 0.5) && is_near(cost.each, 0.05), "{cost:?}");
        assert!(is_near(cost.of(10), 1.0));
    }

    #[test]
    fn noise_that_cancels_out_moves_the_line_little() {
        let noisy = [(4, 0.71), (8, 0.89), (16, 1.29), (32, 2.11)];

        let cost = Cost::through(&points(&noisy));

        assert!((cost.fixed - 0.5).abs() < 0.02 && (cost.each - 0.05).abs() < 0.002, "{cost:?}");
    }

    #[test]
    fn no_part_of_a_cost_is_negative() {
        let falling = Cost::through(&points(&[(1, 3.0), (2, 2.0), (3, 1.0)]));
        let below_zero = Cost::through(&points(&[(10, 1.0), (20, 3.0)]));

        assert_eq!(falling, Cost { fixed: 2.0, each: 0.0 });
        assert_eq!(below_zero, Cost { fixed: 0.0, each: (10.0 + 60.0) / 500.0 });
    }

    #[test]
    fn a_single_size_gives_a_line_through_the_origin() {
        assert_eq!(Cost::through(&points(&[(4, 2.0)])), Cost { fixed: 0.0, each: 0.5 });
        assert_eq!(Cost::through(&points(&[(0, 2.0)])), Cost { fixed: 0.0, each: 0.0 });
    }

    #[test]
    fn an_outlier_moves_neither_the_median_nor_the_range() {
        let timings = (1..=11).map(|i| if i == 11 { 1e6 } else { f64::from(i) }).collect();

        let Spread { median, low, high, repeats, mean } = Spread::of(timings);

        assert_eq!((median, low, high, repeats), (6.0, 2.0, 10.0, 11));
        assert_eq!(mean, 1_000_055.0 / 11.0);
    }
}
