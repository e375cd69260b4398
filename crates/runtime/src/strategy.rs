//! What a training algorithm is: one round, written as its paper writes it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use paceline_learn::Vector;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::coordination::Coordination;
use crate::executor::Interrupt;
use crate::server::Server;
use crate::wire::Memory;
use crate::worker::Worker;

/// A training algorithm. Its fields are memory on which all members agree; all of it is plain data.
/// What belongs to one worker alone lives in [`Worker`].
pub trait Strategy: Clone + Serialize + DeserializeOwned + 'static {
    async fn round(&mut self, worker: &mut Worker) -> Result<(), Interrupt>;

    /// Drains what is under way: before a change of members, and at the end.
    async fn finish(&mut self, worker: &mut Worker) -> Result<(), Interrupt> {
        let _ = worker;
        Ok(())
    }

    /// The second task of the view's first member, for strategies with a center.
    async fn serve(&mut self, server: &mut Server) -> Result<(), Interrupt> {
        let _ = server;
        Ok(())
    }

    fn coordination(&self) -> Coordination;

    /// The total batch of one update with this number of members.
    fn nominal_batch(&self, members: usize) -> f64;

    /// For strategies that draw batches without a preset size ([`Share::Lane`](crate::Share::Lane)): the samples that a
    /// worker draws in a round, at least. All members must return the same, so it may depend on the strategy's memory
    /// only. `None`: the strategy draws no such batches.
    fn lane_batch(&self) -> Option<u64> {
        None
    }

    /// The long vectors of the memory, by name. Their fields are marked `#[serde(skip)]`: they travel and are
    /// saved as they are, never as JSON.
    fn vectors(&mut self) -> Vec<(&'static str, &mut Arc<Vector>)> {
        vec![]
    }
}

type Round<'a> = Pin<Box<dyn Future<Output = Result<(), Interrupt>> + 'a>>;

/// The object-safe twin of [`Strategy`]; every strategy implements it.
pub trait AnyStrategy {
    fn round<'a>(&'a mut self, worker: &'a mut Worker) -> Round<'a>;
    fn finish<'a>(&'a mut self, worker: &'a mut Worker) -> Round<'a>;
    fn serve<'a>(&'a mut self, server: &'a mut Server) -> Round<'a>;
    fn coordination(&self) -> Coordination;
    fn nominal_batch(&self, members: usize) -> f64;
    fn lane_batch(&self) -> Option<u64>;
    fn copy(&self) -> Box<dyn AnyStrategy>;
    fn save(&self) -> Memory;
    fn load(&mut self, memory: Memory) -> serde_json::Result<()>;
}

impl<S: Strategy> AnyStrategy for S {
    fn round<'a>(&'a mut self, worker: &'a mut Worker) -> Round<'a> {
        Box::pin(Strategy::round(self, worker))
    }

    fn finish<'a>(&'a mut self, worker: &'a mut Worker) -> Round<'a> {
        Box::pin(Strategy::finish(self, worker))
    }

    fn serve<'a>(&'a mut self, server: &'a mut Server) -> Round<'a> {
        Box::pin(Strategy::serve(self, server))
    }

    fn coordination(&self) -> Coordination {
        Strategy::coordination(self)
    }

    fn nominal_batch(&self, members: usize) -> f64 {
        Strategy::nominal_batch(self, members)
    }

    fn lane_batch(&self) -> Option<u64> {
        Strategy::lane_batch(self)
    }

    fn copy(&self) -> Box<dyn AnyStrategy> {
        Box::new(self.clone())
    }

    fn save(&self) -> Memory {
        let json = serde_json::to_value(self).expect("a strategy is plain data");
        let mut copy = self.clone();
        let vectors = copy.vectors().into_iter();
        let vectors = vectors.map(|(name, vector)| (name.to_owned(), vector.clone())).collect();
        Memory { json, vectors }
    }

    fn load(&mut self, memory: Memory) -> serde_json::Result<()> {
        let Memory { json, mut vectors } = memory;
        *self = serde_json::from_value(json)?;
        for (name, place) in self.vectors() {
            *place = vectors.remove(name).unwrap_or_default();
        }
        Ok(())
    }
}
