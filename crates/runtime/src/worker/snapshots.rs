//! A worker's part of a snapshot: how it is handed in, and how a worker begins with one.

use std::sync::Arc;

use super::Worker;
use crate::agreed::Agreed;
use crate::exchange::Sum;
use crate::executor::Interrupt;
use crate::private::{PendingSum, PrivateState, Progress};
use crate::snapshot::{Snapshot, WorkerSnapshot};
use crate::spans::Spans;
use crate::wire::{SharedState, Tail};

impl Worker {
    /// Hands in this worker's part of a snapshot. A sum that is under way is waited for but not used, so
    /// that saving does not change the rounds that follow. `done`: the samples in all replicas, if known.
    pub(crate) async fn hand_in(
        &mut self,
        number: u64,
        done: Option<Spans>,
        shared: SharedState,
    ) -> Result<(), Interrupt> {
        let pending = self.finished_pending().await?;
        let private = PrivateState { pending, ..self.state.private.clone() };
        self.port.save(WorkerSnapshot { number, shared, private }, done);
        Ok(())
    }

    async fn finished_pending(&mut self) -> Result<Option<PendingSum>, Interrupt> {
        if self.state.private.pending.is_none() {
            return Ok(None);
        }
        let sum = self.complete().await?;
        // Plans and requests belong to this run; a resumed run has its own.
        let tails = sum.tails.iter().cloned();
        let tails = tails.map(|tail| Tail { plan: 0, stop: false, save: 0, ..tail }).collect();
        let (exchange, view) = (sum.exchange, sum.view.clone());
        let sum = Arc::new(Sum::new(exchange, view, sum.gradient.sum.clone(), tails));
        let pending = self.state.private.pending.clone();
        Ok(pending.map(|it| PendingSum { progress: Progress::Finished(sum), input: None, ..it }))
    }

    /// Begins with this worker's part of the snapshot, if the members are the same; else with what a
    /// newcomer gets.
    pub(crate) async fn begin_from(&mut self, snapshot: &Snapshot) {
        let first = snapshot.workers.values().next().expect("a snapshot has parts");
        self.state.agreed = Agreed { stopped: false, ..first.shared.agreed.clone() };
        let is_same = self.view.members.iter().eq(snapshot.workers.keys())
            && self.state.agreed.ledger.total() == self.plan.samples_total;
        // A worker without a part of its own adopts the first one's, as a newcomer does.
        let mine = snapshot.workers.values().nth(self.rank());
        let WorkerSnapshot { shared, private, .. } = mine.unwrap_or(first);
        // Checkpoints are named by their round, so the count never goes back.
        self.state.round = if is_same { shared.round } else { snapshot.round() };
        self.state.version = shared.version;
        let params = if is_same { shared.params.clone() } else { snapshot.params() };
        self.adopt(params, shared.optimizer.clone()).await;
        // In older formats each member counted its own exchanges, which are as many as all members'.
        let counted = self.state.agreed.exchanges.max(first.private.exchanges);
        let pending =
            u64::from(first.private.pending.is_some() && self.state.agreed.exchanges == 0);
        self.state.agreed.exchanges = counted - pending.min(counted);
        self.state.private = match mine {
            _ if is_same => private.clone(),
            Some(mine) => {
                let residual = mine.private.residual.clone();
                PrivateState { residual, ..PrivateState::default() }
            }
            None => PrivateState::default(),
        };
        let (view, now) = (self.view.clone(), self.now());
        let ledger = Arc::make_mut(&mut self.state.agreed.ledger);
        if !is_same {
            // As after a change of members, samples that were dealt and not applied are free again.
            ledger.release_all();
            ledger.set_total(self.plan.samples_total);
        }
        if let Some(pending) = &mut self.state.private.pending {
            pending.number = self.state.agreed.exchanges + 1;
            pending.entered = now;
            if let Progress::Finished(sum) = &mut pending.progress {
                // The members that contributed are those of the view in which the job is resumed.
                let (vector, tails) = (sum.gradient.sum.clone(), sum.tails.clone());
                *sum = Arc::new(Sum::new(pending.number, view.clone(), vector, tails));
                let mut dealt = std::mem::take(&mut pending.dealt);
                if !dealt.is_empty() {
                    // An older format names the samples of the sum here, and has no lanes for them.
                    for (who, samples) in sum.counts() {
                        ledger.put_into_lane(who, &dealt.take(samples));
                    }
                    self.state.private.drawn = pending.samples;
                }
            }
        }
        self.state.agreed.view = view;
    }
}
