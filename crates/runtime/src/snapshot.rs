//! Snapshots: the state of a whole job, put together from one part per member; when parts are due, and where they wait.
//!
//! Synchronous members hand in their parts after the same round. Asynchronous ones do so between their own
//! rounds: what a worker applied before its part is in the snapshot, what it applies later is not.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Arc;

use paceline_learn::Vector;
use paceline_learn::vector::mean;
use serde::{Deserialize, Serialize};

use crate::coordination::{Collected, Coordination, Saved, Word};
use crate::ids::WorkerId;
use crate::private::PrivateState;
use crate::spans::Spans;
use crate::wire::{Frame, FrameError, Framed, Published, ReceivedFrame, SharedState};

/// When workers hand in parts, besides on request, when the job is stopped, and at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavePlan {
    /// The period in rounds; synchronous strategies only.
    pub every_rounds: Option<NonZero<u64>>,
}

/// The state of a whole job. Resumed with the same number of members, the job continues as if it had
/// never been interrupted.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The samples that are in the replicas, or in the center if samples are applied there.
    pub done: Spans,
    pub workers: BTreeMap<WorkerId, WorkerSnapshot>,
    pub center: Option<Published>,
}

/// The part of one member. Only its head is serialised; its vectors travel as frames.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerSnapshot {
    /// SnapshotParts of one snapshot have the same number.
    pub number: u64,
    pub shared: SharedState,
    pub private: PrivateState,
}

impl WorkerSnapshot {
    /// The message that tells the coordinator of this part. `done`: the samples in all replicas, if all members know them.
    pub fn word(&self, done: Option<Spans>) -> Word {
        // Parts of synchronous members belong together only if this is equal; asynchronous ones agree on nothing.
        let digest = if done.is_some() { self.shared.agreed.summary() } else { 0 };
        Word::HandedIn { snapshot: self.number, digest, done }
    }
}

/// The private vectors come first: how many there are follows from the head.
impl Framed for WorkerSnapshot {
    fn frames(&self) -> Vec<Frame<'_>> {
        let private = self.private.vectors().into_iter().map(|(_, vector)| Frame::Floats(vector));
        private.chain(self.shared.frames()).collect()
    }

    fn fill(&mut self, mut frames: Vec<ReceivedFrame>) -> Result<(), FrameError> {
        let names: Vec<&str> = self.private.vectors().into_iter().map(|(name, _)| name).collect();
        let (expected, received) = (names.len(), frames.len());
        if received < expected {
            return Err(FrameError { expected, received });
        }
        let shared = frames.split_off(expected);
        let private: BTreeMap<&str, Arc<Vector>> = names
            .into_iter()
            .zip(ReceivedFrame::vectors(frames)?.into_iter().map(Arc::new))
            .collect();
        self.private
            .fill(|name| private.get(name).cloned().ok_or(FrameError { expected, received }))?;
        self.shared.fill(shared)
    }
}

impl Snapshot {
    /// Puts a snapshot together once all its parts are there.
    pub fn assemble(
        collected: Collected,
        workers: BTreeMap<WorkerId, WorkerSnapshot>,
        center: Option<Published>,
        coordination: Coordination,
    ) -> Snapshot {
        let done = match (&center, coordination) {
            // Where samples are applied to the center, the center knows which ones it holds.
            (Some(center), Coordination::Centered { applies_samples: true }) => {
                (*center.done).clone()
            }
            _ => collected.done,
        };
        Snapshot { done, workers, center }
    }

    /// The coordinator's entry for this snapshot, once it is stored.
    pub fn saved(&self) -> Saved {
        Saved { round: self.rounds_mean(), version: self.version(), done: self.done.clone() }
    }

    /// The largest number of rounds that any member had completed.
    pub fn round(&self) -> u64 {
        self.workers.values().map(|worker| worker.shared.round).max().unwrap_or(0)
    }

    /// Rounds per member, on average; the same for all synchronous members.
    pub fn rounds_mean(&self) -> u64 {
        let rounds = self.workers.values().map(|worker| u128::from(worker.shared.round));
        (rounds.sum::<u128>() / self.workers.len().max(1) as u128) as u64
    }

    /// How many updates the center has seen; 0 if there is none.
    pub fn version(&self) -> u64 {
        self.center.as_ref().map_or(0, |center| center.version)
    }

    /// The parameters that would be deployed now: the center, or the mean of the replicas.
    pub fn params(&self) -> Arc<Vector> {
        if let Some(center) = &self.center {
            return center.params.clone();
        }
        mean(self.workers.values().map(|worker| &worker.shared.params)).unwrap_or_default()
    }

    /// Whether every parameter is a finite number.
    pub fn is_finite(&self) -> bool {
        let finite = |vector: &Vector| vector.iter().all(|x| x.is_finite());
        let of_worker = |worker: &WorkerSnapshot| {
            finite(&worker.shared.params) && worker.shared.optimizer.slots().iter().all(finite)
        };
        let of_center = |center: &Published| {
            finite(&center.params) && center.optimizer.slots().iter().all(finite)
        };
        self.workers.values().all(of_worker) && self.center.as_ref().is_none_or(of_center)
    }
}

/// SnapshotParts of a snapshot that is not complete yet. The coordinator sees their names; the vectors stay here.
#[derive(Debug, Default)]
pub struct SnapshotParts(BTreeMap<(u64, WorkerId), WorkerSnapshot>);

impl SnapshotParts {
    pub fn insert(&mut self, from: WorkerId, part: WorkerSnapshot) {
        self.0.insert((part.number, from), part);
    }

    /// Forgets all parts except those of the snapshot that is being collected.
    pub fn keep(&mut self, collecting: Option<u64>) {
        self.0.retain(|(number, _), _| Some(*number) == collecting);
    }

    /// Takes the parts of a complete snapshot.
    pub fn take(&mut self, collected: &Collected) -> BTreeMap<WorkerId, WorkerSnapshot> {
        let number = collected.number;
        let part = |who: &WorkerId| Some((*who, self.0.remove(&(number, *who))?));
        collected.members.iter().filter_map(part).collect()
    }
}
