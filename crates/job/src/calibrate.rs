//! Measures this machine, so that the simulator's time is that of its threads.

mod fit;
mod probe;
mod scenario_file;
mod timing_check;

use std::time::Duration;

use paceline_runtime::wire::{HEADER_BYTES, TAIL_BYTES};
use paceline_sim::Scenario;
use paceline_sim::scenario::{Network, Pace};
use serde::Serialize;

use crate::job::{Job, Prepared};
use crate::pace;
use crate::run_result::Failure;

pub use fit::{Cost, Point, Spread};
pub use scenario_file::toml;
pub use timing_check::{TOLERANCE, TimingCheck, agreement};

/// What was measured, and of what.
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
    /// One worker's gradients, alone, by samples.
    pub gradients: Vec<Point>,
    /// The line through them.
    pub gradient: Cost,
    /// One update of the replica.
    pub update: Spread,
    /// From one gradient to the next in the life of a lone worker: an update, and what a worker does
    /// besides.
    pub pause: Spread,
    /// How many members exchanged; a lone worker is measured as two.
    pub members: u32,
    /// Sums of all members, by bytes of the vector.
    pub exchanges: Vec<Point>,
    /// The line through them.
    pub exchange: Cost,
    /// What a gradient of emulated speed takes beyond its pace: a sleeper wakes late, and threads
    /// hand over.
    pub handover: Spread,
}

/// What is told while it is measured.
pub type Tell<'a> = &'a mut dyn FnMut(&str);

/// More threads than this tell nothing about a machine.
const WORKERS_MAX: u32 = 256;

/// Refuses what cannot be measured.
pub fn check(workers: u32, speeds: &[f64]) -> Result<(), String> {
    if workers > WORKERS_MAX {
        return Err(format!(
            "workers = {workers}: each is a thread of this machine, give at most {WORKERS_MAX}"
        ));
    }
    pace::check_speeds(speeds)
}

impl Calibration {
    /// Measures a checked job; each of the five things takes about `budget`. `speeds` are those that
    /// threads are to emulate, if any.
    pub fn measure(
        job: &Job,
        prepared: &Prepared,
        speeds: &[f64],
        budget: Duration,
        tell: Tell<'_>,
    ) -> Result<Calibration, Failure> {
        let workers = prepared.workers;
        check(workers, speeds).map_err(Failure::Usage)?;
        tell("measuring gradients");
        let gradients = probe::gradients(prepared, budget).map_err(Failure::Failed)?;
        let gradient = Cost::through(&gradients);
        tell("measuring updates");
        let update = probe::updates(prepared, budget);
        tell("measuring what a worker does between gradients");
        let one = Duration::from_secs_f64(gradient.of(prepared.batch));
        let pause = probe::pauses(prepared, one, budget).map_err(Failure::Failed)?;
        tell("measuring exchanges");
        let members = workers.max(2);
        let exchanges = probe::exchanges(prepared, members, budget);
        tell("measuring how gradients are handed over");
        let fastest = pace_of(&gradient, prepared.batch, workers);
        let speeds = if speeds.is_empty() { &[1.0] } else { speeds };
        let relative = pace::relative(speeds, workers);
        let paces: Vec<_> = relative.iter().map(|factor| fastest.mul_f64(*factor)).collect();
        let handover = probe::handovers(prepared, &paces, budget);
        let handover = handover.map_err(Failure::Failed)?;
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
            pause,
            members,
            exchange: Cost::through(&exchanges),
            exchanges,
            handover,
        })
    }

    /// What a worker does for each gradient besides computing and updating: it keeps the journal and
    /// the ledger, and wakes its strategy.
    pub fn housekeeping(&self) -> f64 {
        (self.pause.median - self.update.median).max(0.0)
    }

    /// The pace of the fastest worker that threads are to be told where speeds are emulated.
    pub fn pace(&self, workers: u32) -> Duration {
        pace_of(&self.gradient, self.batch, workers)
    }

    /// The simulated cluster whose time is that of this machine's threads. With speeds, these are
    /// emulated at [`pace`](Self::pace); without, everyone is as fast as the shared cores allow.
    pub fn scenario(&self, workers: u32, speeds: &[f64]) -> Scenario {
        let sharing = pace::sharing(workers);
        let (alone, update) = (self.gradient, self.update.median / self.params.max(1) as f64);
        let mut compute = Pace {
            seconds_per_sample: (sharing * alone.each).max(SECONDS_MIN),
            seconds_per_gradient: sharing * (alone.fixed + self.housekeeping()),
            seconds_per_param: sharing * update,
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

    /// The network on which a ring takes as long as an exchange of threads does: 2 (n - 1) steps, of
    /// the n-th part of a vector and what goes with every part.
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

/// The least that a scenario takes for a positive number.
const SECONDS_MIN: f64 = 1e-9;
/// Where no more time was measured for more bytes.
const BYTES_PER_SECOND_MAX: f64 = 1e12;

fn pace_of(gradient: &Cost, batch: u64, workers: u32) -> Duration {
    let cost = Duration::from_secs_f64(gradient.of(batch) / batch as f64);
    let pace = pace::fastest(cost, batch, workers).as_secs_f64();
    Duration::from_secs_f64(four_digits(pace))
}

/// No clock knows more than four digits, and files are read by people.
fn four_digits(x: f64) -> f64 {
    format!("{x:.3e}").parse().expect("a number that was just written")
}

/// What this machine computes with, as it calls itself.
fn processor() -> String {
    let named = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    named.unwrap_or_else(|| format!("an {} processor", std::env::consts::ARCH))
}

#[cfg(test)]
mod tests;
