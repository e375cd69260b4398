//! A wrapper around a strategy that writes its replicas to the journal, number by number.

use std::future::Future;
use std::pin::Pin;

use paceline::runtime::Memory;
use paceline::{AnyStrategy, Coordination, Dice, Interrupt, Server, Vector, Worker};

pub struct Probe {
    pub inner: Box<dyn AnyStrategy>,
    pub start: Start,
}

/// The initial replicas.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The model's initial params on all workers, as always.
    Together,
    /// Different normally distributed params on each worker.
    Scattered,
}

type Round<'a> = Pin<Box<dyn Future<Output = Result<(), Interrupt>> + 'a>>;

impl AnyStrategy for Probe {
    fn round<'a>(&'a mut self, worker: &'a mut Worker) -> Round<'a> {
        Box::pin(async move {
            if worker.round() == 0 {
                if self.start == Start::Scattered {
                    scatter(worker).await;
                }
                note_replica(worker).await;
            }
            worker.note(PEER, f64::from(worker.random_member().0));
            self.inner.round(worker).await?;
            note_replica(worker).await;
            Ok(())
        })
    }

    fn finish<'a>(&'a mut self, worker: &'a mut Worker) -> Round<'a> {
        Box::pin(async move {
            self.inner.finish(worker).await?;
            note_replica(worker).await;
            Ok(())
        })
    }

    fn serve<'a>(&'a mut self, server: &'a mut Server) -> Round<'a> {
        self.inner.serve(server)
    }

    fn coordination(&self) -> Coordination {
        self.inner.coordination()
    }

    fn nominal_batch(&self, members: usize) -> f64 {
        self.inner.nominal_batch(members)
    }

    fn copy(&self) -> Box<dyn AnyStrategy> {
        Box::new(Probe { inner: self.inner.copy(), start: self.start })
    }

    fn lane_batch(&self) -> Option<u64> {
        self.inner.lane_batch()
    }

    fn save(&self) -> Memory {
        self.inner.save()
    }

    fn load(&mut self, memory: Memory) -> serde_json::Result<()> {
        self.inner.load(memory)
    }
}

/// The name of the notes with a replica's numbers, in order.
pub const REPLICA: &str = "replica";

/// The name of the note with the member that a gossiping worker draws in a round, itself included.
pub const PEER: &str = "peer";

async fn note_replica(worker: &Worker) {
    worker.params().await.iter().for_each(|x| worker.note(REPLICA, f64::from(*x)));
}

async fn scatter(worker: &mut Worker) {
    let mut dice = Dice::keyed(&[worker.plan.seed, u64::from(worker.id.0), 1611]);
    let random = |params: &mut Vector| params.iter_mut().for_each(|x| *x = dice.normal() as f32);
    worker.change_params(random).await;
}
