//! A worker's portion of a snapshot: how it is handed in, and how a worker begins with one.

use std::sync::Arc;

use super::{PendingSum, Worker};
use crate::cluster::{ExchangeResult, SharedState, Sum, Tail};
use crate::executor::{Interrupt, Result, Wanted};
use crate::snapshot::{FinishedSum, PrivateState, Snapshot, WorkerSnapshot};
use crate::spans::Spans;

impl Worker {
    /// Hands in this worker's portion of a snapshot. What is under way is waited for but not finished,
    /// so that the rounds to come do not notice.
    pub(crate) async fn hand_in(
        &mut self,
        snapshot: u64,
        done: Option<Spans>,
        shared: SharedState,
    ) -> Result<()> {
        let summed = self.known_sum().await?;
        let state = &self.state;
        let own = PrivateState {
            residual: state.residual.clone(),
            summed,
            drawn: state.drawn,
            dealt: state.dealt.clone(),
            samples: state.samples,
            loss_sum: state.loss_sum,
            compute: state.compute,
            exchanges: self.exchanges,
            lane_batch: self.lane_batch,
        };
        self.port.save(WorkerSnapshot { snapshot, done, shared, own });
        Ok(())
    }

    async fn known_sum(&self) -> Result<Option<FinishedSum>> {
        let Some(summing) = &self.state.summing else { return Ok(None) };
        let wanted = Wanted::Exchange { view: summing.view.number, number: summing.number };
        let outcome = self
            .port
            .until(wanted, |inbox| {
                let lost = inbox.has_lost_one_of(&summing.view) || inbox.over;
                let known = inbox.known_outcome(summing.ticket).cloned();
                known.map(Ok).or(lost.then_some(Err(Interrupt::ViewChanged)))
            })
            .await?;
        let ExchangeResult::Summed(sum) = outcome else {
            unreachable!("members enter the same kind of exchange")
        };
        // Views and wishes are of this run; the next one has its own.
        let tails = sum.tails.iter().cloned();
        let tails = tails.map(|tail| Tail { view: 0, stop: false, save: false, ..tail }).collect();
        let sum = Arc::new(Sum::new(sum.gradient.sum.clone(), tails));
        let PendingSum { number, bytes, samples, .. } = *summing;
        Ok(Some(FinishedSum { sum, number, bytes, dealt: summing.dealt.clone(), samples }))
    }

    /// Begins with what the snapshot holds for this worker: its own portion, if the members are the same;
    /// else what a newcomer gets.
    pub(crate) fn begin_from(&mut self, snapshot: &Snapshot) {
        let ledger = &mut self.state.agreed.ledger;
        let is_same = self.view.members.iter().eq(snapshot.portions.keys())
            && ledger.total() == self.plan.samples_total;
        if !is_same {
            // As when members change: what was dealt and not applied is free again.
            ledger.release_all();
            ledger.set_total(self.plan.samples_total);
        }
        let first = snapshot.portions.values().next().expect("a snapshot has portions");
        // Without a portion of its own a worker adopts the first one's, as newcomers do.
        let mine = snapshot.portions.values().nth(self.rank());
        let WorkerSnapshot { shared, own, .. } = mine.unwrap_or(first);
        // The newest checkpoint is known by its round: never fewer than there were.
        self.state.round = if is_same { shared.round } else { snapshot.round() };
        self.state.version = shared.version;
        self.state.params = if is_same { shared.params.clone() } else { snapshot.params() };
        self.state.optimizer = shared.optimizer.clone();
        self.state.anchor = self.state.params.clone();
        if mine.is_some() {
            self.state.residual = own.residual.clone();
        }
        self.exchanges = first.own.exchanges;
        self.lane_batch = first.own.lane_batch;
        if is_same {
            self.take_back(own);
        }
    }

    /// What was under way goes on being so.
    fn take_back(&mut self, own: &PrivateState) {
        self.state.drawn = own.drawn;
        self.state.dealt = own.dealt.clone();
        self.state.samples = own.samples;
        self.state.loss_sum = own.loss_sum;
        self.state.compute = own.compute;
        self.state.summing = own.summed.as_ref().map(|summed| PendingSum {
            ticket: self.port.put_back(ExchangeResult::Summed(summed.sum.clone())),
            view: self.view.clone(),
            number: summed.number,
            entered: self.now(),
            bytes: summed.bytes,
            dealt: summed.dealt.clone(),
            samples: summed.samples,
        });
    }
}
