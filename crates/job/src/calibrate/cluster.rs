//! A scenario for a cluster that is running, from what its workers did between two looks at it.

use paceline_sim::Scenario;
use paceline_sim::scenario::{Network, Pace};
use serde::Serialize;

use super::{BYTES_PER_SECOND_MAX, SECONDS_MIN, four_digits};

/// What one worker did in whole rounds, between the end of one and the end of a later one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Observed {
    pub worker: u32,
    pub rounds: u64,
    pub samples: u64,
    /// How long these rounds took, and for how much of that the worker computed, or waited for slower ones.
    pub seconds: f64,
    pub computing: f64,
    pub waiting: f64,
}

impl Observed {
    pub fn seconds_per_sample(&self) -> f64 {
        self.computing / self.samples as f64
    }

    /// What a round takes besides computing and waiting: the exchange, the update, and the work around them.
    pub fn rest(&self) -> f64 {
        ((self.seconds - self.computing - self.waiting) / self.rounds as f64).max(0.0)
    }
}

/// A scenario in which workers compute as fast as these, and in which a sum of `params` parameters takes as long as the rest
/// of their rounds. One size of vectors cannot tell latency from bandwidth: all of it counts as bandwidth, which is right
/// for slow links, and on fast ones it is a small part of a round. Every worker must have learned something.
pub fn scenario_of(observed: &[Observed], params: u64) -> Scenario {
    let fastest = observed.iter().map(Observed::seconds_per_sample).fold(f64::INFINITY, f64::min);
    let fastest = four_digits(fastest.max(SECONDS_MIN));
    let relative = |it: &Observed| four_digits((it.seconds_per_sample() / fastest).max(1.0));
    let n = observed.len() as f64;
    // A ring sends the n-th part of the vector 2 (n - 1) times.
    let sent = 8.0 * params as f64 * (n - 1.0) / n;
    let bytes_per_second = (sent / rest(observed)).clamp(1.0, BYTES_PER_SECOND_MAX);
    Scenario {
        name: "measured".to_owned(),
        description: format!("{} workers of a running cluster", observed.len()),
        workers: observed.len() as u32,
        compute: Pace {
            seconds_per_sample: fastest,
            relative: observed.iter().map(relative).collect(),
            ..Pace::default()
        },
        network: Network {
            latency: 0.0,
            bytes_per_second: four_digits(bytes_per_second),
            ..Network::default()
        },
        ..Scenario::default()
    }
}

/// The scenario as a file. `sums`: whether the cluster summed gradients in every round, so that its network was measured.
pub fn measured_toml(scenario: &Scenario, sums: bool) -> String {
    let text = toml::to_string(scenario).expect("a scenario has a TOML form");
    let network = match sums {
        true => "On its network, a sum takes as long as the rest of a round took",
        false => "Its network is the default one, because the strategy does not wait for sums",
    };
    format!("# Measured by `paceline calibrate` on a running cluster. {network}.\n\n{text}")
}

/// What a round takes besides computing and waiting; the median over the workers.
pub fn rest(observed: &[Observed]) -> f64 {
    let mut rests: Vec<f64> = observed.iter().map(Observed::rest).collect();
    rests.sort_by(f64::total_cmp);
    rests.get(rests.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Job;
    use crate::simulate::{SimulateOptions, simulate};

    #[test]
    fn rounds_of_ssgd_take_as_long_in_the_scenario_as_they_took() {
        // Batches of 16, at 1, 1, 2 and 4 ms per sample; sums take 3 ms.
        let worker = |worker, pace: f64| Observed {
            worker,
            rounds: 10,
            samples: 160,
            seconds: 10.0 * (0.064 + 0.003),
            computing: 160.0 * pace,
            waiting: 10.0 * 0.064 - 160.0 * pace,
        };
        let observed = [worker(0, 0.001), worker(1, 0.001), worker(2, 0.002), worker(5, 0.004)];
        let job = Job { epochs: 1.0, ..Job::default() };
        let prepared = job.prepare(4).expect("the job is valid");

        let scenario = scenario_of(&observed, prepared.plan.initial.len() as u64);

        assert_eq!(scenario.check(), Ok(()));
        assert_eq!(scenario.compute.relative, [1.0, 1.0, 2.0, 4.0]);
        let run = simulate(&prepared, &scenario, SimulateOptions::default()).expect("it ends");
        // The last round has only the samples that are left.
        let rounds = (prepared.plan.samples_total / 64) as f64;
        let expected = rounds * 0.067..=(rounds + 1.0) * 0.067;
        assert!(expected.contains(&run.result.seconds()), "{}", run.result.seconds());
    }
}
