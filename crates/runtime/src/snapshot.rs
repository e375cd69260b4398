//! What a run can be taken up from again: every member's portion, at one agreed moment.
//!
//! Members that exchange together hand in their portions after the same round. Others do so between
//! rounds of their own, each when it gets there: whatever a worker applied before its portion is in
//! the snapshot, whatever it applies later is not.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use paceline_learn::Vector;
use paceline_learn::vector::mean;

use crate::cluster::{Published, SharedState, Sum, View, WorkerId};
use crate::spans::Spans;

/// When workers hand in portions, besides when they are asked to, when the job is stopped, and at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saves {
    /// After each so many rounds, where all members exchange together.
    pub every_rounds: Option<NonZero<u64>>,
}

/// The whole job between two moments. Taken up with the same members, it goes on as if nothing had been.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The samples that are in the replicas, or in the center if samples are applied there.
    pub done: Spans,
    pub portions: BTreeMap<WorkerId, WorkerSnapshot>,
    pub center: Option<Published>,
    /// The training loss at the job's beginning and now, as far as it is known.
    pub losses: (Option<f64>, Option<f64>),
}

/// What one member had.
#[derive(Clone, Debug)]
pub struct WorkerSnapshot {
    /// Portions of one snapshot have one number.
    pub snapshot: u64,
    /// What is in all replicas, where all members know it.
    pub done: Option<Spans>,
    pub shared: SharedState,
    pub own: PrivateState,
}

/// What a member knows alone.
#[derive(Clone, Debug, Default)]
pub struct PrivateState {
    /// What encoding lost, to be sent later.
    pub residual: Arc<Vector>,
    /// The sum under way, which has ended but was not looked at yet.
    pub summed: Option<FinishedSum>,
    pub drawn: u64,
    pub dealt: Spans,
    pub samples: u64,
    pub loss_sum: f64,
    pub compute: Duration,
    /// How many exchanges this view has seen: lossy ones are rounded by dice of that number.
    pub exchanges: u64,
    pub lane_batch: u64,
}

/// An exchange that was under way, and what came of it.
#[derive(Clone, Debug)]
pub struct FinishedSum {
    pub sum: Arc<Sum>,
    pub number: u64,
    pub bytes: u64,
    pub dealt: Spans,
    pub samples: u64,
}

impl Snapshot {
    /// The most rounds that any member had made.
    pub fn round(&self) -> u64 {
        self.portions.values().map(|portion| portion.shared.round).max().unwrap_or(0)
    }

    /// Rounds per member, on average; the same for all where they exchange together.
    pub fn rounds_mean(&self) -> u64 {
        let all: u64 = self.portions.values().map(|portion| portion.shared.round).sum();
        all / self.portions.len().max(1) as u64
    }

    /// How many updates the center has seen; 0 if there is none.
    pub fn version(&self) -> u64 {
        self.center.as_ref().map_or(0, |center| center.version)
    }

    /// What the job would be judged by now: the center, or the mean of the replicas.
    pub fn params(&self) -> Arc<Vector> {
        if let Some(center) = &self.center {
            return center.params.clone();
        }
        let replicas = self.portions.values().map(|portion| &portion.shared.params);
        mean(replicas).unwrap_or_default()
    }

    /// Whether every number in it is one.
    pub fn is_finite(&self) -> bool {
        let finite = |vector: &Vector| vector.iter().all(|x| x.is_finite());
        let of_portion = |portion: &WorkerSnapshot| {
            finite(&portion.shared.params) && portion.shared.optimizer.slots.iter().all(finite)
        };
        let of_center = |center: &Published| {
            finite(&center.params) && center.optimizer.slots.iter().all(finite)
        };
        self.portions.values().all(of_portion) && self.center.as_ref().is_none_or(of_center)
    }
}

/// Puts snapshots together from the portions of a view's members.
#[derive(Debug, Default)]
pub struct Collector {
    wishes: u64,
    /// A snapshot was asked for and is not whole yet.
    is_wished: bool,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    number: u64,
    done: Spans,
    portions: BTreeMap<WorkerId, WorkerSnapshot>,
}

/// The number of the last portion that an asynchronous worker hands in.
pub const LAST: u64 = u64::MAX;

impl Collector {
    /// The number of a snapshot to ask for; `None` while one is on its way already.
    pub fn wish(&mut self) -> Option<u64> {
        if std::mem::replace(&mut self.is_wished, true) {
            return None;
        }
        self.wishes += 1;
        Some(self.wishes)
    }

    /// `who` has applied these: before it hands in its portion, they are in the snapshot.
    pub fn on_done(&mut self, who: WorkerId, spans: &Spans) {
        if let Some(open) = self.open.as_mut().filter(|open| !open.portions.contains_key(&who)) {
            open.done.add(spans);
        }
    }

    /// Takes a portion; gives the snapshot if it was the last one missing. `done` is what
    /// asynchronous workers have applied so far.
    pub fn on_portion(
        &mut self,
        view: &View,
        done: &Spans,
        who: WorkerId,
        portion: WorkerSnapshot,
    ) -> Option<Snapshot> {
        let number = portion.snapshot;
        if self.open.as_ref().is_some_and(|open| open.number > number) || !view.has(who) {
            return None;
        }
        if self.open.as_ref().is_none_or(|open| open.number < number) {
            self.open = Some(Open { number, done: done.clone(), portions: BTreeMap::new() });
        }
        let open = self.open.as_mut()?;
        open.portions.insert(who, portion);
        if open.portions.len() < view.members.len() {
            return None;
        }
        let Open { done, portions, .. } = self.open.take()?;
        self.is_wished = false;
        let done = portions.values().find_map(|portion| portion.done.clone()).unwrap_or(done);
        Some(Snapshot { done, portions, ..Snapshot::default() })
    }

    /// The members, or what they had done, are others now: what is not whole never will be.
    pub fn drop_open(&mut self) {
        self.open = None;
        self.is_wished = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn portion(snapshot: u64, round: u64) -> WorkerSnapshot {
        let shared = SharedState {
            round,
            version: 0,
            params: Arc::new(vec![round as f32]),
            optimizer: Arc::default(),
            memory: vec![],
        };
        WorkerSnapshot { snapshot, done: None, shared, own: PrivateState::default() }
    }

    #[test]
    fn a_snapshot_holds_what_each_worker_applied_before_its_part_and_nothing_later() {
        let [a, b] = [WorkerId(0), WorkerId(1)];
        let view = View { number: 1, members: vec![a, b] };
        let mut collector = Collector::default();
        assert_eq!(collector.wish(), Some(1));

        assert!(collector.on_portion(&view, &Spans::one(0, 4), a, portion(1, 3)).is_none());
        collector.on_done(a, &Spans::one(4, 6));
        collector.on_done(b, &Spans::one(6, 9));
        assert_eq!(collector.wish(), None, "one is on its way");
        let snapshot = collector.on_portion(&view, &Spans::one(0, 9), b, portion(1, 5));

        let snapshot = snapshot.expect("both have handed in");
        assert_eq!(snapshot.done.intervals(), [(0, 4), (6, 9)]);
        assert_eq!(snapshot.round(), 5);
        assert_eq!(*snapshot.params(), [4.0]);
        assert_eq!(collector.wish(), Some(2));
    }

    #[test]
    fn a_newer_snapshot_replaces_one_that_is_not_whole() {
        let [a, b] = [WorkerId(0), WorkerId(1)];
        let view = View { number: 1, members: vec![a, b] };
        let mut collector = Collector::default();

        assert!(collector.on_portion(&view, &Spans::new(), a, portion(1, 1)).is_none());
        assert!(collector.on_portion(&view, &Spans::new(), a, portion(LAST, 2)).is_none());
        assert!(collector.on_portion(&view, &Spans::new(), b, portion(1, 1)).is_none());

        let snapshot = collector.on_portion(&view, &Spans::new(), b, portion(LAST, 2));
        assert!(
            snapshot.expect("both have").portions.values().all(|portion| portion.snapshot == LAST)
        );
    }
}
