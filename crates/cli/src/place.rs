//! Where the workers of `paceline train` run.

use paceline_job::checkpoint::Saved;
use paceline_job::{Error, Job, Prepared, RunResult, TrainOptions};

/// A kind of cluster, and how a job is run on it.
pub struct Place {
    pub name: &'static str,
    /// How many there are, if the flags do not say so.
    pub workers: Option<u32>,
    /// Whether a worker can be put out.
    pub can_lose_members: bool,
    pub train: TrainOn,
}

/// Trains, and returns the result and its checkpoints.
pub type TrainOn =
    Box<dyn FnOnce(&Job, &Prepared, TrainOptions<'_>) -> Result<(RunResult, Option<Saved>), Error>>;
