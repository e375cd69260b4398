//! The result of a run, also as JSON.

use paceline_runtime::Tally;
use paceline_runtime::journal::number;
use serde::{Deserialize, Serialize};

/// The result of a run. Field names are stable: programs read them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    pub strategy: String,
    pub seed: u64,
    pub workers: u32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub virtual_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub real_seconds: Option<f64>,
    /// Whether the run was stopped before its job was done.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub stopped: bool,
    /// Asynchronous strategies: steps per worker.
    pub rounds: u64,
    pub samples: u64,
    /// Computed, but in no replica that counts: lost with a worker, a server, or every replica.
    pub samples_wasted: u64,
    /// How often every replica was lost, so that training began anew: from the newest checkpoint if there was one.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub started_over: u32,
    /// How long training stood still when workers were lost; `None` if none was.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub recovery: Option<Recovery>,
    pub epochs: f64,
    pub bytes_sent: u64,
    /// Bytes of the replicas of other members that were averaged to be evaluated. They are no part of the training, and on
    /// threads and in simulations nothing is sent for them.
    #[serde(skip_serializing_if = "is_none", default)]
    pub bytes_evaluated: u64,
    /// Training loss at the workers, smoothed over the last half epoch of samples.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// The loss of the deployed model on the validation part: the center, the common replica, or the mean of the replicas.
    #[serde(deserialize_with = "number")]
    pub validation_loss: f64,
    #[serde(deserialize_with = "number")]
    pub validation_accuracy: f64,
    /// Of the deployed model on the test set.
    #[serde(deserialize_with = "number")]
    pub accuracy: f64,
    /// Compute time over time as a member, in the order of workers' ids.
    pub utilization: Vec<f64>,
    /// When the job's target was reached, if it was: the first of two evaluations in a row that are at the target.
    pub seconds_to_target: Option<f64>,
    pub ledger: Tally,
    /// Why the run was ended as diverged, if it was.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub diverged: Option<String>,
    pub learning_rate: f32,
    pub batch: u64,
    /// The most updates between reading parameters and applying a gradient computed from them.
    pub staleness_max: u64,
    /// The mean period of averaging strategies.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub period_mean: Option<f64>,
    /// The worker that the others waited for most, and the seconds they waited in total.
    pub waited_for: Option<(u32, f64)>,
    /// 16 hexadecimal digits; equal runs have equal hashes.
    pub journal_hash: String,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl RunResult {
    pub fn seconds(&self) -> f64 {
        self.virtual_seconds.or(self.real_seconds).unwrap_or(0.0)
    }

    pub fn utilization_mean(&self) -> f64 {
        self.utilization.iter().sum::<f64>() / self.utilization.len().max(1) as f64
    }
}

/// How long training stood still when workers were lost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// How many workers were lost.
    pub losses: usize,
    /// How many of these losses training went on after; the times are those of these.
    #[serde(default)]
    pub recovered: usize,
    pub median_seconds: f64,
    pub worst_seconds: f64,
}

/// The training loss at the beginning of a job and at some later time, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Losses {
    pub first: Option<f64>,
    pub last: Option<f64>,
}
