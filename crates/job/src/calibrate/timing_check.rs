//! Compares the time of a job on threads with its simulated time.

use std::time::Duration;

use paceline_runtime::{Line, Reader, Record};
use paceline_sim::Scenario;
use serde::Serialize;

use crate::error::{Error, RunError};
use crate::job::Prepared;
use crate::pace::cores;
use crate::run_result::RunResult;
use crate::simulate::{SimulateOptions, simulate};
use crate::threads::{TrainOptions, train};

/// The largest accepted relative difference between simulated and real time.
pub const TOLERANCE: f64 = 0.1;

/// Seconds per epoch of one strategy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimingCheck {
    pub strategy: String,
    pub threads: f64,
    pub simulated: f64,
}

impl TimingCheck {
    /// The relative difference: 0.1 if the simulated time is 10 % longer than the real one.
    pub fn difference(&self) -> f64 {
        self.simulated / self.threads - 1.0
    }

    pub fn is_within(&self) -> bool {
        self.difference().abs() <= TOLERANCE
    }
}

/// Repeats of a run on threads. The fastest counts, because other programs only make a run slower.
const REPEATS: usize = 3;

/// Times a job on threads and in the scenario that describes these threads.
pub fn check_timing(
    prepared: &Prepared,
    (speeds, pace): (&[f64], Duration),
    scenario: &Scenario,
) -> Result<TimingCheck, Error> {
    let mut fastest = Duration::MAX;
    for _ in 0..REPEATS {
        let mut watch = Watch::default();
        let trained = train(
            prepared,
            TrainOptions {
                speeds: speeds.to_vec(),
                pace: Some(pace),
                readers: vec![&mut watch],
                ..TrainOptions::default()
            },
        )?;
        refuse_diverged(&trained.result)?;
        fastest = fastest.min(watch.over);
    }
    let options = SimulateOptions { threads: cores(), ..SimulateOptions::default() };
    let simulated = simulate(prepared, scenario, options)?;
    refuse_diverged(&simulated.result)?;
    let epochs = prepared.plan.samples_total as f64 / prepared.plan.samples_per_epoch as f64;
    Ok(TimingCheck {
        strategy: prepared.name.clone(),
        threads: fastest.as_secs_f64() / epochs,
        simulated: simulated.result.seconds() / epochs,
    })
}

/// A diverged run ended early, so its time cannot be compared.
fn refuse_diverged(result: &RunResult) -> Result<(), RunError> {
    match &result.diverged {
        Some(reason) => {
            let (strategy, reason) = (result.strategy.clone(), reason.clone());
            Err(RunError::Diverged { strategy, reason })
        }
        None => Ok(()),
    }
}

/// The time at which the coordinator ended the job; later work is not simulated.
#[derive(Default)]
struct Watch {
    over: Duration,
}

impl Reader for Watch {
    fn read(&mut self, line: &Line) {
        if matches!(line.record, Record::Over) {
            self.over = line.at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_too_long_or_too_short_is_within_the_tolerance() {
        let of = |simulated| TimingCheck { strategy: String::new(), threads: 2.0, simulated };

        assert!(of(1.81).is_within() && of(2.19).is_within());
        assert!(!of(1.79).is_within() && !of(2.21).is_within() && !of(f64::NAN).is_within());
    }
}
