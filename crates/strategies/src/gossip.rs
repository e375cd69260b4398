//! Gossip: after every local step a worker averages with one random peer; no worker waits for all others.
//!
//! Jin, Yuan, Iandola and Keutzer 2016 (arXiv 1611.04581). Momentum stays local. Pull reads the peer's
//! last published replica, one-sided; push sends the own replica to the peer, which averages it in after its next step.

use std::sync::Arc;

use paceline_learn::Vector;
use paceline_learn::vector::{add, scale};
use paceline_runtime::{Coordination, Interrupt, Message, Share, Strategy, Worker};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Gossip {
    pub batch: u64,
    /// Local steps between averages.
    pub period: u64,
    pub direction: Direction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    Pull,
    Push,
}

impl Strategy for Gossip {
    async fn round(&mut self, worker: &mut Worker) -> Result<(), Interrupt> {
        for _ in 0..self.period {
            let share = Share::Leased { samples: self.batch, ahead: true };
            let Some(mine) = worker.gradient(share).await else { return Ok(()) };
            worker.descend_alone(&mine).await;
        }
        worker.publish().await;
        match self.direction {
            Direction::Pull => pull(worker).await,
            Direction::Push => push(worker).await,
        }
    }

    fn coordination(&self) -> Coordination {
        Coordination::Asynchronous
    }

    fn nominal_batch(&self, members: usize) -> f64 {
        (self.batch * members as u64) as f64
    }
}

/// x <- (x + peer's x) / 2. A worker that draws itself keeps its replica.
async fn pull(worker: &mut Worker) -> Result<(), Interrupt> {
    let peer = worker.random_member();
    if peer != worker.id {
        let theirs = worker.read(peer).await?;
        worker.blend(&theirs, 0.5).await;
    }
    Ok(())
}

/// x <- (s x + sum of received replicas) / (s + their number), where s = 1, or 2 for a worker that draws itself.
async fn push(worker: &mut Worker) -> Result<(), Interrupt> {
    let peer = worker.random_member();
    if peer != worker.id {
        worker.send(peer, Message::of(worker.params().await.clone()));
    }
    let own = if peer == worker.id { 2.0 } else { 1.0 };
    let came: Vec<Arc<Vector>> = worker.received().flat_map(|(_, it)| it.vectors).collect();
    if !came.is_empty() {
        let average = |params: &mut Vector| {
            scale(params, own);
            came.iter().for_each(|theirs| add(params, theirs));
            scale(params, 1.0 / (own + came.len() as f32));
        };
        worker.change_params(average).await;
    }
    Ok(())
}
