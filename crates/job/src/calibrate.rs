//! Measures this machine, so that simulated runs take as long as runs on its threads; `cluster` does so for one that is running.

mod cluster;
mod fit;
mod probe;
mod scenario_file;
mod timing_check;

use std::time::Duration;

use paceline_runtime::wire::{HEADER_BYTES, TAIL_BYTES};
use paceline_sim::Scenario;
use paceline_sim::scenario::{Network, Pace};
use serde::Serialize;

use crate::config::Job;
use crate::error::{Error, JobError};
use crate::job::Prepared;
use crate::pace;

pub use cluster::{Observed, measured_toml, rest, scenario_of};
pub use fit::{Cost, Point, Spread};
pub use scenario_file::toml;
pub use timing_check::{TOLERANCE, TimingCheck, check_timing};

/// What was measured, and for which job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    pub processor: String,
    pub cores: usize,
    pub model: String,
    pub data: String,
    /// The length of the replica.
    pub params: u64,
    pub batch: u64,
    pub workers: u32,
    /// The time of a gradient by its samples, for a single worker.
    pub gradients: Vec<Point>,
    /// The line through them.
    pub gradient: Cost,
    /// One update of the replica.
    pub update: Spread,
    /// What a lossy codec (QSGD with 8 bits) costs a member in one exchange.
    pub encoding: Spread,
    /// The time between two gradients of a single worker: an update and its other work.
    pub pause: Spread,
    /// The members of the measured exchanges, at least two.
    pub members: u32,
    /// The time of a sum of all members by the bytes of the vector.
    pub exchanges: Vec<Point>,
    /// The line through them.
    pub exchange: Cost,
    /// How much longer a gradient of emulated speed takes than its pace: sleeping overshoots, and threads
    /// take time to hand it over.
    pub handover: Spread,
}

/// Receives a message when the next measurement starts.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

/// Measurements with more threads than this say nothing about a machine.
const WORKERS_MAX: u32 = 256;

/// Refuses numbers of workers and speeds that cannot be measured.
pub fn check(workers: u32, speeds: &[f64]) -> Result<(), JobError> {
    if workers > WORKERS_MAX {
        return Err(JobError::TooManyToMeasure { workers, most: WORKERS_MAX });
    }
    pace::check_speeds(speeds)
}

impl Calibration {
    /// Measures a job; each of the six measurements takes about `budget`. `speeds` are the speeds that
    /// threads will emulate, if any.
    pub fn measure(
        job: &Job,
        prepared: &Prepared,
        speeds: &[f64],
        budget: Duration,
        progress: Progress<'_>,
    ) -> Result<Calibration, Error> {
        let workers = prepared.workers;
        check(workers, speeds)?;
        progress("measuring gradients");
        let gradients = probe::gradients(prepared, budget)?;
        let gradient = Cost::through(&gradients);
        progress("measuring updates");
        let update = probe::updates(prepared, budget);
        progress("measuring a lossy codec");
        let encoding = probe::encodings(prepared, budget);
        progress("measuring the work between gradients");
        let one = Duration::from_secs_f64(gradient.of(prepared.batch));
        let pause = probe::pauses(prepared, one, budget)?;
        progress("measuring exchanges");
        let members = workers.max(2);
        let exchanges = probe::exchanges(prepared, members, budget);
        progress("measuring the handover of gradients");
        let fastest = pace_of(&gradient, prepared.batch, workers);
        let speeds = if speeds.is_empty() { &[1.0] } else { speeds };
        let relative = pace::relative(speeds, workers);
        let paces: Vec<_> = relative.iter().map(|factor| fastest.mul_f64(*factor)).collect();
        let handover = probe::handovers(prepared, &paces, budget)?;
        Ok(Calibration {
            processor: processor(),
            cores: pace::cores(),
            model: job.model.clone(),
            data: job.data.clone(),
            params: prepared.plan.initial.len() as u64,
            batch: prepared.batch,
            workers,
            gradients,
            gradient,
            update,
            encoding,
            pause,
            members,
            exchange: Cost::through(&exchanges),
            exchanges,
            handover,
        })
    }

    /// The time per gradient besides computing and updating: journal, ledger, and waking the strategy.
    pub fn housekeeping(&self) -> f64 {
        (self.pause.median - self.update.median).max(0.0)
    }

    /// The time per sample of the fastest worker, where threads emulate speeds.
    pub fn pace(&self, workers: u32) -> Duration {
        pace_of(&self.gradient, self.batch, workers)
    }

    /// A scenario in which runs take as long as on this machine's threads. Speeds are emulated at
    /// [`pace`](Self::pace); without them, every worker is as fast as the shared cores allow.
    pub fn scenario(&self, workers: u32, speeds: &[f64]) -> Scenario {
        let sharing = pace::sharing(workers);
        let (alone, update) = (self.gradient, self.update.median / self.params.max(1) as f64);
        let mut compute = Pace {
            seconds_per_sample: (sharing * alone.each).max(SECONDS_MIN),
            seconds_per_gradient: sharing * (alone.fixed + self.housekeeping()),
            seconds_per_param: sharing * update,
            seconds_per_encoded: sharing * self.encoding.median / self.params.max(1) as f64,
            ..Pace::default()
        };
        if !speeds.is_empty() {
            compute.seconds_per_sample = self.pace(workers).as_secs_f64();
            compute.seconds_per_gradient = 0.0;
            compute.seconds_per_param = update;
            compute.seconds_per_handover = self.handover.median + self.housekeeping();
            compute.relative = pace::relative(speeds, workers);
        }
        for cost in [
            &mut compute.seconds_per_sample,
            &mut compute.seconds_per_gradient,
            &mut compute.seconds_per_param,
            &mut compute.seconds_per_encoded,
            &mut compute.seconds_per_handover,
        ] {
            *cost = four_digits(*cost);
        }
        let speeds: Vec<String> = speeds.iter().map(f64::to_string).collect();
        let paced = match speeds.is_empty() {
            true => "as fast as they can".to_owned(),
            false => format!("of speeds {}", speeds.join(", ")),
        };
        let description = format!(
            "{workers} workers {paced}, threads of {}: {} on {}, batch {}",
            self.processor, self.model, self.data, self.batch
        );
        let (name, network) = ("calibrated".to_owned(), self.network());
        Scenario { name, description, workers, compute, network, ..Scenario::default() }
    }

    /// The network on which a ring takes as long as an exchange of threads: 2 (n - 1) steps, each with the
    /// n-th part of a vector, a header and a tail.
    fn network(&self) -> Network {
        let n = f64::from(self.members);
        let steps = 2.0 * (n - 1.0);
        let bytes_per_second = (steps / (n * self.exchange.each)).clamp(1.0, BYTES_PER_SECOND_MAX);
        let passing = (HEADER_BYTES + TAIL_BYTES) as f64 / bytes_per_second;
        let latency = (self.exchange.fixed / steps - passing).max(0.0);
        Network {
            latency: four_digits(latency),
            bytes_per_second: four_digits(bytes_per_second),
            ..Network::default()
        }
    }
}

/// The smallest time per sample that a scenario accepts.
const SECONDS_MIN: f64 = 1e-9;
/// The bandwidth if larger vectors did not take longer.
const BYTES_PER_SECOND_MAX: f64 = 1e12;

fn pace_of(gradient: &Cost, batch: u64, workers: u32) -> Duration {
    let cost = Duration::from_secs_f64(gradient.of(batch) / batch as f64);
    let pace = pace::fastest(cost, batch, workers).as_secs_f64();
    Duration::from_secs_f64(four_digits(pace))
}

/// Clocks are not more exact than four digits, and people read the file.
fn four_digits(x: f64) -> f64 {
    format!("{x:.3e}").parse().expect("a number that was just written")
}

/// The processor's name, from the operating system.
fn processor() -> String {
    let named = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    named.unwrap_or_else(|| format!("an {} processor", std::env::consts::ARCH))
}

#[cfg(test)]
mod tests;
