//! The training loss over time, and when a curve reaches a target.

use std::collections::VecDeque;
use std::time::Duration;

/// The training loss over time, on a grid of 1/20 epoch of samples. Cells are of equal size whatever the length of a round: a
/// long round fills several cells when its samples are applied.
#[derive(Default)]
pub struct Curve {
    per_cell: u64,
    samples: u64,
    loss_sum: f64,
    weight: f64,
    recent: VecDeque<f64>,
    /// The first loss of the job, with its initial parameters.
    began: Option<f64>,
    /// Time and smoothed loss.
    pub points: Vec<(Duration, f64)>,
}

/// The loss is smoothed over this many cells: half an epoch.
const SMOOTHED: usize = 10;
pub const CELLS_PER_EPOCH: u64 = 20;

impl Curve {
    pub fn new(samples_per_epoch: u64) -> Curve {
        Curve { per_cell: (samples_per_epoch / CELLS_PER_EPOCH).max(1), ..Curve::default() }
    }

    /// A new curve of a job that continues from a snapshot, or begins again. Its losses are still compared with the job's first one: a loss
    /// that has come down to almost nothing may be several times as large a moment later, and nothing is wrong.
    pub fn continued(samples_per_epoch: u64, began: Option<f64>) -> Curve {
        Curve { began, ..Curve::new(samples_per_epoch) }
    }

    pub fn add(&mut self, at: Duration, samples: u64, loss_sum: f64, weight: f64) {
        let mut left = samples;
        while left > 0 {
            let some = left.min(self.per_cell.max(1) - self.samples);
            let part = some as f64 / samples as f64;
            self.samples += some;
            self.loss_sum += part * loss_sum;
            self.weight += part * weight;
            left -= some;
            if self.samples >= self.per_cell {
                self.close_cell(at);
            }
        }
    }

    fn close_cell(&mut self, at: Duration) {
        self.samples = 0;
        // Samples that are all masked have no mean loss.
        if self.weight == 0.0 {
            return;
        }
        self.recent.push_back(self.loss_sum / self.weight);
        if self.recent.len() > SMOOTHED {
            self.recent.pop_front();
        }
        let smoothed = self.recent.iter().sum::<f64>() / self.recent.len() as f64;
        self.push(at, smoothed);
        (self.loss_sum, self.weight) = (0.0, 0.0);
    }

    pub fn push(&mut self, at: Duration, loss: f64) {
        self.began.get_or_insert(loss);
        self.points.push((at, loss));
    }

    pub fn began(&self) -> Option<f64> {
        self.began
    }

    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|(_, loss)| *loss)
    }

    /// Whether the loss ends well above where it began.
    pub fn ends_higher(&self) -> bool {
        match (self.began, self.last()) {
            (Some(first), Some(last)) => last > 1.5 * first.abs().max(1e-3),
            _ => false,
        }
    }

    /// Whether training has diverged: the loss is not finite, or far above where it began.
    pub fn has_diverged(&self) -> bool {
        if !self.loss_sum.is_finite() {
            return true;
        }
        match (self.began, self.last()) {
            (Some(first), Some(last)) => !last.is_finite() || last > 20.0 * first.abs().max(1e-3),
            _ => false,
        }
    }
}

/// When a curve fell to `target`, in seconds: at the first of `in_a_row` points in a row that are at or below it, between this
/// point and the one before by interpolation.
pub fn time_to(points: &[(Duration, f64)], target: f64, in_a_row: usize) -> Option<f64> {
    let is_there = |some: &[(Duration, f64)]| some.iter().all(|(_, value)| *value <= target);
    let at = points.windows(in_a_row).position(is_there)?;
    let (after, below) = points[at];
    let Some((before, above)) = at.checked_sub(1).map(|before| points[before]) else {
        return Some(after.as_secs_f64());
    };
    let part = if above > below { (above - target) / (above - below) } else { 1.0 };
    Some(before.as_secs_f64() + part * after.saturating_sub(before).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PER_EPOCH: u64 = 2_000;

    /// A run of ten epochs whose loss falls from 1 to 0 and that learns 1,000 samples a second, in rounds of this many samples.
    fn run(round: u64) -> Curve {
        let mut curve = Curve::new(PER_EPOCH);
        for end in (round..=10 * PER_EPOCH).step_by(round as usize) {
            let middle = end as f64 - 0.5 * round as f64;
            let loss = 1.0 - middle / (10 * PER_EPOCH) as f64;
            curve.add(Duration::from_millis(end), round, round as f64 * loss, round as f64);
        }
        curve
    }

    /// A window of ten rounds would let the run with rounds of an epoch reach the target 4 epochs, 8 seconds, later. Samples
    /// count when they are applied, so that a target is reached at the end of a round.
    #[test]
    fn the_window_is_half_an_epoch_whatever_the_length_of_a_round() {
        let reached = |round| time_to(&run(round).points, 0.5, 1).expect("it is reached");
        let short = reached(10);

        assert!((10.4..10.6).contains(&short), "{short}");
        for round in [100, 400, 1_000, 2_000] {
            let (later, seconds) = (reached(round) - short, round as f64 / 1_000.0);
            assert!((-0.5 * seconds..=seconds).contains(&later), "{round}: {later} s later");
        }
    }

    #[test]
    fn a_job_that_continues_with_almost_no_loss_has_not_diverged_when_some_samples_are_harder() {
        let mut before = run(100);
        let mut alone = Curve::new(PER_EPOCH);
        let mut continued = Curve::continued(PER_EPOCH, before.began());
        for curve in [&mut before, &mut alone, &mut continued] {
            for (at, loss) in [(11, 1e-4), (12, 0.5)] {
                curve.add(Duration::from_secs(at), PER_EPOCH / 2, loss * 1e3, 1e3);
            }
        }

        let is_astray = |it: &Curve| (it.has_diverged(), it.ends_higher());
        assert_eq!([&before, &continued].map(is_astray), [(false, false); 2]);
        assert_eq!(is_astray(&alone), (true, true), "what a job without a history would be told");
        continued.add(Duration::from_secs(13), PER_EPOCH / 2, 30.0 * 1e3, 1e3);
        assert_eq!(is_astray(&continued), (true, true));
    }

    #[test]
    fn a_round_of_many_cells_fills_each_of_them() {
        let mut curve = Curve::new(PER_EPOCH);
        curve.add(Duration::from_secs(1), 150, 150.0, 150.0);

        curve.add(Duration::from_secs(6), 250, 125.0, 250.0);

        let at = Duration::from_secs;
        let expected = [(at(1), 1.0), (at(6), 0.875), (at(6), 0.75), (at(6), 0.6875)];
        assert_eq!(curve.points, expected);
    }

    #[test]
    fn one_lucky_evaluation_does_not_count() {
        let at = |second, value| (Duration::from_secs(second), value);
        let points = [at(1, 0.9), at(2, 0.4), at(3, 0.6), at(4, 0.4), at(5, 0.3), at(6, 0.8)];

        assert_eq!(time_to(&points, 0.5, 1), Some(1.8));
        assert_eq!(time_to(&points, 0.5, 2), Some(3.5));
        assert_eq!(time_to(&points, 0.5, 3), None);
    }
}
