//! Emulated speeds: the time per sample of each worker on threads.

use std::time::{Duration, Instant};

use paceline_runtime::Spans;
use paceline_runtime::edge::Workspace;

use crate::error::JobError;
use crate::job::Prepared;

/// The largest ratio of emulated speeds.
const RATIO_MAX: f64 = 10_000.0;

/// An emulated batch takes at least this long, because sleeping is not exact to the microsecond.
const BATCH_MIN: Duration = Duration::from_millis(2);

/// The emulated time is longer than computing takes by this factor, so that a late gradient still keeps its pace.
const SLACK: f64 = 1.3;

/// Refuses speeds that cannot be emulated.
pub fn check_speeds(speeds: &[f64]) -> Result<(), JobError> {
    if let Some(speed) = speeds.iter().find(|speed| !(speed.is_finite() && **speed > 0.0)) {
        return Err(JobError::Speed(*speed));
    }
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    match speeds.iter().find(|speed| fastest / **speed > RATIO_MAX) {
        Some(slowest) => Err(JobError::SpeedRatio { fastest, slowest: *slowest, most: RATIO_MAX }),
        None => Ok(()),
    }
}

/// Each worker's time per sample relative to the fastest one's; the speeds are repeated for further workers.
pub fn relative(speeds: &[f64], workers: u32) -> Vec<f64> {
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    speeds.iter().cycle().take(workers as usize).map(|speed| fastest / speed).collect()
}

/// The fastest worker's time per sample: slow enough that sharing the cores does not distort it.
pub fn fastest(cost_per_sample: Duration, batch: u64, workers: u32) -> Duration {
    let shared = cost_per_sample.mul_f64(SLACK * sharing(workers));
    shared.max(BATCH_MIN.div_f64(batch as f64))
}

/// The number of workers per core, at least one.
pub fn sharing(workers: u32) -> f64 {
    (f64::from(workers) / cores() as f64).max(1.0)
}

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// The time per sample on this machine, at best.
pub fn measure(prepared: &Prepared) -> Duration {
    let compute = prepared.task.compute(prepared.plan.seed);
    let (mut workspace, mut cost) = (Workspace::default(), Duration::MAX);
    let samples = prepared.batch.min(prepared.plan.samples_total);
    for _ in 0..5 {
        let since = Instant::now();
        compute(&prepared.plan.initial, &Spans::one(0, samples), &mut workspace);
        cost = cost.min(since.elapsed().div_f64(samples as f64));
    }
    cost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_speed_is_twice_the_time_and_speeds_repeat() {
        assert_eq!(relative(&[4.0, 2.0, 1.0], 4), [1.0, 2.0, 4.0, 1.0]);
        assert!(relative(&[], 4).is_empty());
    }

    #[test]
    fn an_emulated_batch_takes_longer_than_computing_it() {
        let (cost, workers) = (Duration::from_millis(1), 64);

        assert!(fastest(cost, 16, workers) >= cost.mul_f64(SLACK));
        assert_eq!(fastest(Duration::from_nanos(1), 16, workers) * 16, BATCH_MIN);
    }

    #[test]
    fn impossible_speeds_are_refused() {
        for speeds in [&[1.0, 0.0][..], &[f64::NAN], &[-1.0], &[1e6, 1.0]] {
            assert!(check_speeds(speeds).is_err(), "{speeds:?}");
        }
        assert_eq!(check_speeds(&[4.0, 1.0]), Ok(()));
        assert_eq!(check_speeds(&[]), Ok(()));
    }
}
