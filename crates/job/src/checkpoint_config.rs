//! The `[checkpoints]` table of a job file.

use std::num::NonZero;

use serde::{Deserialize, Serialize};

use crate::error::JobError;

/// Where and how often a job saves checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoints {
    pub folder: String,
    /// Rounds between checkpoints; with asynchronous strategies: steps per worker.
    #[serde(default)]
    pub rounds: Option<NonZero<u64>>,
    /// Minutes between checkpoints. Without `rounds` and `minutes`: five minutes.
    #[serde(default)]
    pub minutes: Option<f64>,
    /// How many of the newest checkpoints are kept.
    #[serde(default = "keep_default")]
    pub keep: NonZero<u64>,
}

fn keep_default() -> NonZero<u64> {
    NonZero::new(3).expect("three is not zero")
}

impl Checkpoints {
    /// Checkpoints in this folder, with the default interval and number.
    pub fn into(folder: &str) -> Checkpoints {
        let folder = folder.to_owned();
        Checkpoints { folder, rounds: None, minutes: None, keep: keep_default() }
    }

    pub fn check(&self) -> Result<(), JobError> {
        match self.minutes {
            _ if self.folder.is_empty() => Err(JobError::NoCheckpointFolder),
            Some(minutes) if !(minutes > 0.0 && minutes < 1e6) => {
                Err(JobError::CheckpointMinutes(minutes))
            }
            _ => Ok(()),
        }
    }
}
