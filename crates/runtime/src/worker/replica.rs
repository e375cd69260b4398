//! The replica, and every verb that reads or changes it. All of them are awaited, because a replica may be held elsewhere.

use std::sync::Arc;

use paceline_learn::Vector;
use paceline_learn::vector::{blend, distance_squared};

use super::{Mine, Total, Worker};
use crate::coordination::Word;
use crate::edge::Replica;
use crate::journal::Record;
use crate::wire::{Published, Shelf};

impl Worker {
    /// This worker's replica.
    pub async fn params(&self) -> &Arc<Vector> {
        &self.state.params
    }

    /// The replica as it was at the start of the round.
    pub async fn anchor(&self) -> &Arc<Vector> {
        &self.state.anchor
    }

    /// Replaces the replica; the optimizer's state stays.
    pub async fn set_params(&mut self, params: Arc<Vector>) {
        self.state.params = params;
    }

    /// Changes the replica by plain arithmetic, in place if nobody else holds it.
    pub async fn change_params(&mut self, change: impl FnOnce(&mut Vector)) {
        change(Arc::make_mut(&mut self.state.params));
    }

    /// Moves the replica towards another one by `part` of the way: x <- x + part (theirs - x)
    pub async fn blend(&mut self, theirs: &[f32], part: f32) {
        self.change_params(|params| blend(params, theirs, part)).await;
    }

    /// The squared distance between the learned parameters of this replica and of `mean`. Buffers do not count.
    pub async fn drift_from(&self, mean: &[f32]) -> f64 {
        let learned = ..self.plan.layout.params;
        distance_squared(&self.params().await[learned], &mean[learned])
    }

    /// Steps along the mean gradient over the samples of all members.
    pub async fn descend(&mut self, total: &Total) {
        let rate = self.rate();
        if total.sum.gradient.samples > 0 {
            let before = (self.state.params.clone(), self.state.optimizer.clone());
            let plan = self.plan.clone();
            let step = |(params, state): &Replica| -> Replica {
                let gradient = &total.sum.gradient;
                let (params, state) =
                    plan.optimizer.descended(params, state, gradient, rate, &plan.layout);
                (Arc::new(params), Arc::new(state))
            };
            let after = self.port.descend(before, &total.sum, rate, &step);
            (self.state.params, self.state.optimizer) = after;
        }
        self.updates += 1;
        self.state.version += 1;
    }

    /// Steps along this worker's own gradient, before any exchange. Leased samples are thereby applied;
    /// others are when the replicas are averaged.
    pub async fn descend_alone(&mut self, mine: &Mine) {
        let rate = self.rate();
        let plan = self.plan.clone();
        let params = Arc::make_mut(&mut self.state.params);
        let optimizer = Arc::make_mut(&mut self.state.optimizer);
        plan.optimizer.descend(params, optimizer, &mine.gradient, rate, &plan.layout);
        let staleness = self.state.version - mine.version;
        self.updates += 1;
        self.state.version += 1;
        if mine.is_leased {
            // This is never undone, so journal and coordinator are told in the same step.
            let (who, version, spans) = (self.id, self.state.version, mine.spans.clone());
            let (loss_sum, round) = (mine.gradient.loss_sum, Some(self.state.round));
            self.in_hand.subtract(&spans);
            let (done, result) = (Word::Done { spans: spans.clone() }, None);
            let applied =
                Record::Applied { who, version, spans, loss_sum, staleness, rate, round, result };
            self.port.record(applied);
            self.port.tell(done);
        }
    }

    /// Puts the replica where peers can read it.
    pub async fn publish(&self) {
        let (params, optimizer) = (self.params().await.clone(), self.state.optimizer.clone());
        let (reign, version, done) = (0, 0, Arc::default());
        self.port.publish(Shelf::Replica, Published { params, optimizer, reign, version, done });
    }
}
