//! A curve in bounded memory: means over bins of samples; bins are widened when there are too many.

use serde::Serialize;

/// One point of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Seconds since the start.
    pub at: f64,
    pub epochs: f64,
    pub value: f64,
}

/// Enough for 200 epochs in bins of a twentieth of an epoch; a longer run gets wider bins.
pub(crate) const POINTS_MAX: usize = 4096;

/// Points in the order of samples, one per bin.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// Samples per bin.
    width: u64,
    bins: Vec<Bin>,
    points: Vec<Point>,
}

#[derive(Clone, Copy, Debug)]
struct Bin {
    /// The number of samples applied before its first value.
    first: u64,
    weight: f64,
}

impl Series {
    pub fn new(width: u64) -> Series {
        Series { width: width.max(1), bins: Vec::new(), points: Vec::new() }
    }

    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Adds a value that was recorded after `samples` samples.
    pub fn add(&mut self, samples: u64, point: Point, weight: f64) {
        self.put(Bin { first: samples, weight }, point);
        if self.points.len() > POINTS_MAX {
            let last = self.bins.last().expect("every point has a bin").first;
            // Wide enough for all values so far to fill at most half of the points.
            self.width = (2 * self.width).max(last.div_ceil(POINTS_MAX as u64 / 2));
            let (bins, points) = (std::mem::take(&mut self.bins), std::mem::take(&mut self.points));
            bins.into_iter().zip(points).for_each(|(bin, point)| self.put(bin, point));
        }
    }

    fn put(&mut self, new: Bin, point: Point) {
        let (Some(bin), Some(mean)) = (self.bins.last_mut(), self.points.last_mut()) else {
            self.bins.push(new);
            self.points.push(point);
            return;
        };
        // A value of an earlier bin, for example after a center was restored, goes into the newest bin.
        if new.first / self.width > bin.first / self.width {
            self.bins.push(new);
            self.points.push(point);
            return;
        }
        bin.weight += new.weight;
        let part = new.weight / bin.weight;
        mean.at += (point.at - mean.at) * part;
        mean.epochs += (point.epochs - mean.epochs) * part;
        mean.value += (point.value - mean.value) * part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(value: f64) -> Point {
        Point { at: value, epochs: value, value }
    }

    #[test]
    fn a_bin_holds_the_weighted_mean_of_its_values() {
        let mut series = Series::new(10);

        series.add(0, point(1.0), 1.0);
        series.add(9, point(5.0), 3.0);
        series.add(10, point(7.0), 1.0);

        assert_eq!(series.points(), [point(4.0), point(7.0)]);
    }

    #[test]
    fn points_stay_bounded_and_evenly_spread_in_a_long_run() {
        let mut series = Series::new(1);

        (0..1_000_000).for_each(|i| series.add(100 * i, point(i as f64), 1.0));

        let points = series.points();
        assert!((POINTS_MAX / 4..=POINTS_MAX).contains(&points.len()), "{}", points.len());
        let gaps = points.windows(2).map(|pair| pair[1].at - pair[0].at);
        let (least, most) = gaps.fold((f64::MAX, 0.0f64), |(a, b), gap| (a.min(gap), b.max(gap)));
        assert!(most <= 3.0 * least, "gaps from {least} to {most}");
    }

    #[test]
    fn values_at_the_same_position_are_one_point() {
        let mut series = Series::new(1);

        (0..10_000).for_each(|_| series.add(0, point(2.0), 1.0));

        assert_eq!(series.points(), [point(2.0)]);
    }
}
