//! A worker's whole life: the one loop around a strategy's rounds, in two variants.
//!
//! Synchronous members exchange with each other, and an exchange is a transaction: it is tried again until it has a
//! result. Asynchronous workers wait for nobody. Nothing that a worker has computed is ever undone.

mod asynchronous;
mod synchronous;

use std::sync::Arc;

use crate::coordination::Word;
use crate::executor::Port;
use crate::journal::Record;
use crate::plan::Plan;
use crate::strategy::{AnyStrategy, Coordination};
use crate::view::View;
use crate::wire::SharedState;
use crate::worker::{Basis, Deployed, Worker};

/// Lives as a worker until the job is over or this worker has left.
pub async fn train(plan: Arc<Plan>, port: Port, strategy: Box<dyn AnyStrategy>) {
    let mut worker = Worker::new(plan, port);
    // The worker loops end when the job does, or when it goes on without this worker.
    match strategy.coordination() {
        Coordination::Synchronous => synchronous::run(&mut worker, strategy).await,
        Coordination::Asynchronous | Coordination::Centered { .. } => {
            asynchronous::run(&mut worker, strategy).await;
        }
    }
    worker.close();
    let (who, rounds) = (worker.id, worker.state.round);
    let (is_put_out, is_over) = worker.port.look(|inbox| (inbox.put_out, inbox.over));
    let record = if is_put_out {
        Record::PutOut { who }
    } else if is_over && worker.view.has(who) {
        let fingerprint = worker.port.fingerprint(worker.params().await);
        Record::Finished { who, rounds, fingerprint }
    } else {
        Record::Left { who }
    };
    worker.port.record(record);
    worker.port.tell(Word::Gone);
}

/// Begins in a view in which all members do, from the initial state or from a snapshot.
async fn start(worker: &mut Worker, strategy: &mut Box<dyn AnyStrategy>, view: Arc<View>) {
    worker.stand_in(view.clone());
    worker.agree_on(view);
    let saved = worker.port.look(|inbox| inbox.snapshot.clone());
    let Some(snapshot) = saved.or(worker.plan.resumed.clone()) else {
        return worker.begin_with_initial().await;
    };
    let first = snapshot.workers.values().next().expect("a snapshot has parts");
    strategy.load(first.shared.strategy.clone()).expect("the memory was checked when it was read");
    worker.begin_from(&snapshot).await;
    worker.skip_epochs(snapshot.done.len());
    if strategy.coordination() == (Coordination::Centered { applies_samples: true }) {
        // Replicas are copies of the center, which is the newest of them.
        worker.set_params(snapshot.params()).await;
        worker.state.version = snapshot.version();
    }
    // If nothing is left to do, these are the parameters that are evaluated.
    worker.publish().await;
}

/// What a newcomer would adopt from this worker.
async fn shared_state(worker: &Worker, strategy: &dyn AnyStrategy) -> SharedState {
    SharedState {
        round: worker.state.round,
        version: worker.state.version,
        params: worker.params().await.clone(),
        optimizer: worker.optimizer().await,
        strategy: strategy.save(),
        agreed: worker.state.agreed.clone(),
    }
}

/// The results of all exchanges are compared every time; replicas and memory only in one of this many rounds, because that
/// takes as long as reading them.
const COMPARED_EVERY: u64 = 16;

fn deployed(coordination: Coordination) -> Deployed {
    match coordination {
        Coordination::Synchronous => Deployed::Common,
        Coordination::Asynchronous => Deployed::Mean,
        Coordination::Centered { applies_samples: false } => Deployed::Center,
        Coordination::Centered { applies_samples: true } => Deployed::Server,
    }
}

fn begin_round(worker: &mut Worker, strategy: &dyn AnyStrategy) {
    let is_synchronous = strategy.coordination() == Coordination::Synchronous;
    let is_compared = is_synchronous && worker.state.round.is_multiple_of(COMPARED_EVERY);
    worker.begin_round(Basis {
        nominal_batch: strategy.nominal_batch(worker.members().len()),
        lane_batch: strategy.lane_batch(),
        is_synchronous,
        deployed: deployed(strategy.coordination()),
        memory: is_compared.then(|| strategy.save()),
    });
}
