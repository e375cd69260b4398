//! Synchronous SGD: every worker steps along the gradient over the samples of all workers.
//!
//! With even shares this is the baseline of all five papers. With shares that follow speed it is
//! DBS (Ye et al. 2020, arXiv 2007.11831): slow workers get fewer samples, so that all finish at the same
//! time, while the total batch, and thus convergence, stays the same. With a learning rate that
//! follows the number of members smoothly it is Dynamic SGD (Lin et al. 2019, arXiv 1904.12043), with
//! a quantising codec QSGD (Alistarh et al. 2017).

use std::sync::Arc;

use paceline_runtime::{Coordination, Interrupt, Strategy, Worker};
use serde::{Deserialize, Serialize};

use crate::epoch;
use crate::parts::Batches;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AllReduce {
    pub batches: Arc<Batches>,
}

impl Strategy for AllReduce {
    async fn round(&mut self, worker: &mut Worker) -> Result<(), Interrupt> {
        let mine = worker.gradient(self.batches.share(worker.members())).await;
        let total = worker.sum(mine).await?;
        worker.descend(&total).await;
        let (efforts, epoch) = (worker.efforts(&total.sum), epoch(worker));
        worker.agree(&mut self.batches, &total.sum, |batches| batches.follow(efforts, epoch));
        Ok(())
    }

    fn coordination(&self) -> Coordination {
        Coordination::Synchronous
    }

    fn nominal_batch(&self, members: usize) -> f64 {
        self.batches.nominal(members) as f64
    }
}
