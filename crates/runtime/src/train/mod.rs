//! A worker's whole life: the one loop around a strategy's rounds, in two variants.
//!
//! Synchronous rounds are transactions: when a member is lost, replica, memory and ledger go back to the
//! start of the round, and all members settle on the most advanced state. Asynchronous rounds are never undone.

mod asynchronous;
mod synchronous;

use std::sync::Arc;

use crate::agreed::Agreed;
use crate::coordination::Word;
use crate::executor::{Port, Wanted};
use crate::journal::Record;
use crate::plan::Plan;
use crate::snapshot::Snapshot;
use crate::strategy::{AnyStrategy, Coordination};
use crate::wire::SharedState;
use crate::worker::Worker;

/// Lives as a worker until the job is over or this worker has left.
pub async fn train(plan: Arc<Plan>, port: Port, mut strategy: Box<dyn AnyStrategy>) {
    let view = port
        .until(Wanted::View, |inbox| {
            let mine = inbox.views.values().find(|view| view.has(port.worker)).cloned();
            mine.map(Some).or(inbox.over.then_some(None))
        })
        .await;
    let Some(view) = view else { return port.tell(Word::Gone) };
    let mut worker = Worker::new(plan, port, view);
    if let Some(snapshot) = worker.plan.resumed.clone() {
        resume(&mut worker, &mut strategy, &snapshot);
    }
    match strategy.coordination() {
        Coordination::Synchronous => synchronous::run(&mut worker, strategy).await,
        Coordination::Asynchronous | Coordination::Centered { .. } => {
            asynchronous::run(&mut worker, strategy).await;
        }
    }
    let (who, rounds) = (worker.id, worker.state.round);
    // A worker that was leaving when the job ended has left.
    if worker.port.look(|inbox| inbox.over && inbox.is_member(who)) {
        let fingerprint = worker.port.fingerprint(&worker.state.params);
        worker.port.record(Record::Finished { who, rounds, fingerprint });
    } else {
        worker.port.record(Record::Left { who });
    }
    worker.port.tell(Word::Gone);
}

/// Begins where the snapshot was taken.
fn resume(worker: &mut Worker, strategy: &mut Box<dyn AnyStrategy>, snapshot: &Snapshot) {
    let first = snapshot.workers.values().next().expect("a snapshot has parts");
    strategy.load(first.shared.strategy.clone()).expect("the memory was checked when it was read");
    worker.state.agreed = Agreed { stopped: false, ..first.shared.agreed.clone() };
    worker.begin_from(snapshot);
    worker.skip_epochs(snapshot.done.len());
    if strategy.coordination() == (Coordination::Centered { applies_samples: true }) {
        // Replicas are copies of the center, which is the newest of them.
        worker.state.params = snapshot.params();
        worker.state.version = snapshot.version();
    }
    // If nothing is left to do, these are the parameters that are evaluated.
    worker.publish();
}

/// What a newcomer would adopt from this worker.
fn shared_state(worker: &Worker, strategy: &dyn AnyStrategy) -> SharedState {
    SharedState {
        round: worker.state.round,
        version: worker.state.version,
        params: worker.state.params.clone(),
        optimizer: worker.state.optimizer.clone(),
        strategy: strategy.save(),
        agreed: worker.state.agreed.clone(),
    }
}
