//! Runs the same job on threads and simulated, and sets the times beside each other.

use std::sync::Arc;
use std::time::Duration;

use paceline_runtime::{Line, Reader, Record};
use paceline_sim::Scenario;
use serde::Serialize;

use crate::job::Prepared;
use crate::pace;
use crate::run_result::{Failure, RunResult};
use crate::simulate::simulate;
use crate::threads::{ThreadOptions, train};

/// How far the simulator's time may be off.
pub const TOLERANCE: f64 = 0.1;

/// Seconds per epoch of one strategy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimingCheck {
    pub strategy: String,
    pub threads: f64,
    pub simulated: f64,
}

impl TimingCheck {
    /// By how much of the real time the simulated one is longer.
    pub fn difference(&self) -> f64 {
        self.simulated / self.threads - 1.0
    }

    pub fn is_within(&self) -> bool {
        self.difference().abs() <= TOLERANCE
    }
}

/// So often a run on threads is repeated, and the fastest counts: others on the machine only ever make it slower.
const REPEATS: usize = 5;

/// Trains on threads and in the scenario that describes them.
pub fn agreement(
    prepared: &Prepared,
    setting: ThreadOptions,
    scenario: &Scenario,
) -> Result<TimingCheck, Failure> {
    let mut fastest = Duration::MAX;
    for _ in 0..REPEATS {
        let mut watch = Watch::default();
        let trained = train(prepared, setting.clone(), Arc::default(), vec![&mut watch])?;
        whole(&trained.result)?;
        fastest = fastest.min(watch.over);
    }
    let simulated = simulate(prepared, scenario, pace::cores(), vec![])?;
    whole(&simulated.result)?;
    let epochs = prepared.plan.samples_total as f64 / prepared.plan.samples_per_epoch as f64;
    Ok(TimingCheck {
        strategy: prepared.name.clone(),
        threads: fastest.as_secs_f64() / epochs,
        simulated: simulated.result.seconds() / epochs,
    })
}

/// A run that was given up has no time to be compared.
fn whole(outcome: &RunResult) -> Result<(), Failure> {
    match &outcome.diverged {
        Some(sentence) => {
            Err(Failure::Failed(format!("{} diverged: {sentence}", outcome.strategy)))
        }
        None => Ok(()),
    }
}

/// When the coordinator declared the job over: what comes after it is not simulated.
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
    fn a_tenth_too_long_or_too_short_is_still_within() {
        let of = |simulated| TimingCheck { strategy: String::new(), threads: 2.0, simulated };

        assert!(of(1.81).is_within() && of(2.19).is_within());
        assert!(!of(1.79).is_within() && !of(2.21).is_within() && !of(f64::NAN).is_within());
    }
}
