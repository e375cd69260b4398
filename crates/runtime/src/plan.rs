//! What the job fixes for all its workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paceline_learn::{Layout, Optimizer, OptimizerState, Rescale, Schedule, Vector};

use crate::cluster::WorkerId;
use crate::codec::Codec;
use crate::snapshot::{Saves, Snapshot};

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub samples_total: u64,
    pub samples_per_epoch: u64,
    pub initial: Arc<Vector>,
    /// What optimizers remember at first: nothing. One value, so that equal workers share it.
    pub blank: Arc<OptimizerState>,
    /// What of a replica is learned, and what decays.
    pub layout: Layout,
    pub optimizer: Optimizer,
    pub schedule: Schedule,
    pub rescale: Rescale,
    /// The total batch that the base learning rate was chosen for.
    pub batch_reference: f64,
    pub codec: Codec,
    /// Whether every round records the fingerprint of its replica, for checkers.
    pub fingerprints: bool,
    /// What a recorded run measured, to be taken in place of this run's clock.
    pub replay: Option<Arc<Replay>>,
    /// When workers hand in what a later run can begin with; `None`: never.
    pub saves: Option<Saves>,
    /// What the job goes on from, in place of its beginning.
    pub resumed: Option<Arc<Snapshot>>,
}

/// What a recorded run measured. `entries`: what a worker put into the exchange of a round, so many
/// samples, computed in such a time.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    pub entries: BTreeMap<(WorkerId, u64), (u64, Duration)>,
    /// What [`mean_of`](crate::Worker::mean_of) came to in a round.
    pub means: BTreeMap<u64, f64>,
}
