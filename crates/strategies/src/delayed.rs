//! ABS-SGD: while the last sum is under way, every worker computes its next gradient. No worker idles, and
//! every gradient is applied exactly one step late.
//!
//! Zhou, Chen and Wu 2023 (arXiv 2308.15164). With open shares a batch has no preset size: it grows
//! until the sum has ended. With even shares this is Pipe-SGD (Li et al. 2018).

use std::sync::Arc;

use paceline_runtime::{Coordination, Interrupt, Share, Strategy, Worker};
use serde::{Deserialize, Serialize};

use crate::epoch;
use crate::parts::{Batches, Shares};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Delayed {
    pub batches: Arc<Batches>,
    /// By how many samples an open batch grows at a time.
    pub batch_growth: u64,
    /// A slow moving average of the total of open batches.
    pub batch_usual: f64,
}

impl Strategy for Delayed {
    async fn round(&mut self, worker: &mut Worker) -> Result<(), Interrupt> {
        let mut mine = worker.gradient(self.base(worker)).await;
        while self.batches.shares == Shares::Open && worker.is_summing() {
            let Some(more) = worker.gradient(Share::Lane(self.batch_growth)).await else { break };
            match &mut mine {
                Some(mine) => mine.add(more),
                None => mine = Some(more),
            }
        }
        if let Some(total) = worker.finish_sum().await? {
            worker.descend(&total).await;
            let (efforts, epoch) = (worker.efforts(&total.sum), epoch(worker));
            worker.agree(&mut self.batches, &total.sum, |batches| batches.follow(efforts, epoch));
            self.remember(total.sum.gradient.samples as f64);
        }
        if !worker.is_done() {
            worker.start_sum(mine);
        }
        Ok(())
    }

    async fn finish(&mut self, worker: &mut Worker) -> Result<(), Interrupt> {
        if let Some(total) = worker.finish_sum().await? {
            worker.descend(&total).await;
        }
        Ok(())
    }

    fn coordination(&self) -> Coordination {
        Coordination::Synchronous
    }

    fn lane_batch(&self) -> Option<u64> {
        (self.batches.shares == Shares::Open).then_some(self.batches.batch)
    }

    /// Open batches have no nominal size; the learning rate may follow their moving average.
    fn nominal_batch(&self, members: usize) -> f64 {
        match self.batches.shares {
            Shares::Open => self.batch_usual,
            _ => self.batches.nominal(members) as f64,
        }
    }
}

/// The weight of the newest batch in the moving average.
const NEWEST: f64 = 0.1;

impl Delayed {
    fn remember(&mut self, samples: f64) {
        self.batch_usual += NEWEST * (samples - self.batch_usual);
    }

    fn base(&self, worker: &Worker) -> Share {
        match self.batches.shares {
            Shares::Open => Share::Lane(self.batches.batch),
            _ => self.batches.share(worker.members()),
        }
    }
}
