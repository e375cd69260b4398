//! A worker's part of a snapshot: how it is handed in, and how a worker begins with one.

use std::sync::Arc;

use super::Worker;
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

    async fn finished_pending(&self) -> Result<Option<PendingSum>, Interrupt> {
        let Some(pending) = &self.state.private.pending else { return Ok(None) };
        let sum = self.wait_for(pending, false).await?;
        // Views and requests belong to this run; a resumed run has its own.
        let tails = sum.tails.iter().cloned();
        let tails =
            tails.map(|tail| Tail { newest_view: 0, stop: false, save: false, ..tail }).collect();
        let sum = Arc::new(Sum::new(sum.gradient.sum.clone(), tails));
        Ok(Some(PendingSum { progress: Progress::Finished(sum), ..pending.clone() }))
    }

    /// Begins with this worker's part of the snapshot, if the members are the same; else with what a
    /// newcomer gets.
    pub(crate) fn begin_from(&mut self, snapshot: &Snapshot) {
        let ledger = &mut self.state.agreed.ledger;
        let is_same = self.view.members.iter().eq(snapshot.workers.keys())
            && ledger.total() == self.plan.samples_total;
        if !is_same {
            // As after a change of members, samples that were dealt and not applied are free again.
            ledger.release_all();
            ledger.set_total(self.plan.samples_total);
        }
        let first = snapshot.workers.values().next().expect("a snapshot has parts");
        // A worker without a part of its own adopts the first one's, as a newcomer does.
        let mine = snapshot.workers.values().nth(self.rank());
        let WorkerSnapshot { shared, private, .. } = mine.unwrap_or(first);
        // Checkpoints are named by their round, so the count never goes back.
        self.state.round = if is_same { shared.round } else { snapshot.round() };
        self.state.version = shared.version;
        self.state.params = if is_same { shared.params.clone() } else { snapshot.params() };
        self.state.optimizer = shared.optimizer.clone();
        self.state.anchor = self.state.params.clone();
        let exchanges = first.private.exchanges;
        self.state.private = match mine {
            _ if is_same => {
                let mut private = PrivateState { exchanges, ..private.clone() };
                if let Some(pending) = &mut private.pending {
                    pending.entered = self.now();
                }
                private
            }
            Some(mine) => {
                let residual = mine.private.residual.clone();
                PrivateState { residual, exchanges, ..PrivateState::default() }
            }
            None => PrivateState { exchanges, ..PrivateState::default() },
        };
    }
}
