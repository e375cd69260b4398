//! The plan of a job: what is the same for all its workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paceline_learn::{Layout, Optimizer, OptimizerState, Rescale, Schedule, Vector};

use crate::codec::Codec;
use crate::ids::WorkerId;
use crate::ledger::Ledger;
use crate::snapshot::{SavePlan, Snapshot};

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub samples_total: u64,
    pub samples_per_epoch: u64,
    /// How often per epoch of samples the model that would be deployed is evaluated.
    pub evaluations_per_epoch: u64,
    /// The ledger of a job that begins. One value, so that equal workers share it.
    pub ledger: Arc<Ledger>,
    /// Synchronous members wait at the end of a round while they are fewer than this.
    pub members_min: usize,
    pub initial: Arc<Vector>,
    /// Who holds the workers' replicas and optimizers.
    pub replicas: Owner,
    /// How many rounds of its samples a synchronous member knows before their time, so that its host can read them. 0: it learns of
    /// them when they are dealt, and a round has the next samples of the job, whatever its shares.
    pub rounds_ahead: u64,
    /// The empty state of an optimizer. One value, so that equal workers share it.
    pub blank: Arc<OptimizerState>,
    /// Which part of a replica is learned, and which part decays.
    pub layout: Layout,
    pub optimizer: Optimizer,
    pub schedule: Schedule,
    pub rescale: Rescale,
    /// The total batch that the base learning rate was chosen for.
    pub batch_reference: f64,
    pub codec: Codec,
    /// Whether every round records the fingerprint of its replica, and every gradient its samples, for checkers.
    pub fingerprints: bool,
    /// Measurements of a recorded run, used in place of this run's clock.
    pub replay: Option<Arc<Replay>>,
    /// When workers hand in parts of a snapshot; `None`: never.
    pub saves: Option<SavePlan>,
    /// The snapshot that the job resumes from.
    pub resumed: Option<Arc<Snapshot>>,
}

impl Plan {
    /// How many epochs, and how many intervals between evaluations, have ended after `samples` samples.
    pub(crate) fn ended(&self, samples: u64) -> Ended {
        let per_epoch = self.samples_per_epoch.max(1);
        let intervals = u128::from(samples) * u128::from(self.evaluations_per_epoch);
        Ended { epochs: samples / per_epoch, intervals: (intervals / u128::from(per_epoch)) as u64 }
    }
}

/// What has ended since the beginning of the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    pub epochs: u64,
    pub intervals: u64,
}

/// Who holds a worker's replica, steps it with an optimizer, and computes its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This engine.
    Ours,
    /// The worker's host.
    Theirs,
}

/// Measurements of a recorded run. `entries`: the samples that a worker put into the exchange of a round, and
/// the time it computed them in.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    pub entries: BTreeMap<(WorkerId, u64), (u64, Duration)>,
    /// What [`mean_of`](crate::Worker::mean_of) came to in a round.
    pub means: BTreeMap<u64, f64>,
}
