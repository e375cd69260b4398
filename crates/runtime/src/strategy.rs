//! What a training algorithm is: one round, written as its paper writes it.

use std::future::Future;
use std::pin::Pin;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::executor::Result;
use crate::server::Server;
use crate::worker::Worker;

/// How the members of a strategy deal with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordination {
    /// All members exchange together: a round is a transaction, undone when a member is lost.
    Synchronous,
    /// Nobody waits for all: rounds are never undone.
    Asynchronous,
    /// As `Asynchronous`, around a center at the view's first member. `applies_samples`: samples are applied to
    /// the center, not to the workers' replicas.
    Centered { applies_samples: bool },
}

/// An algorithm. Its fields are the memory on which all members agree, plain data all of it;
/// what belongs to one worker alone lives in [`Worker`].
pub trait Strategy: Clone + Serialize + DeserializeOwned + 'static {
    async fn round(&mut self, worker: &mut Worker) -> Result<()>;

    /// Drains what is under way: before a change of members, and at the end.
    async fn finish(&mut self, worker: &mut Worker) -> Result<()> {
        let _ = worker;
        Ok(())
    }

    /// The second task of the view's first member, for strategies with a center.
    async fn serve(&mut self, server: &mut Server) -> Result<()> {
        let _ = server;
        Ok(())
    }

    fn coordination(&self) -> Coordination;

    /// The total batch that one update stands for when so many members take part.
    fn nominal_batch(&self, members: usize) -> f64;
}

type Round<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// [`Strategy`] as an object, for tables of them; every strategy is one.
pub trait AnyStrategy {
    fn round<'a>(&'a mut self, worker: &'a mut Worker) -> Round<'a>;
    fn finish<'a>(&'a mut self, worker: &'a mut Worker) -> Round<'a>;
    fn serve<'a>(&'a mut self, server: &'a mut Server) -> Round<'a>;
    fn coordination(&self) -> Coordination;
    fn nominal_batch(&self, members: usize) -> f64;
    fn copy(&self) -> Box<dyn AnyStrategy>;
    fn save(&self) -> serde_json::Value;
    fn load(&mut self, memory: serde_json::Value) -> serde_json::Result<()>;
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

    fn copy(&self) -> Box<dyn AnyStrategy> {
        Box::new(self.clone())
    }

    fn save(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("a strategy is plain data")
    }

    fn load(&mut self, memory: serde_json::Value) -> serde_json::Result<()> {
        *self = serde_json::from_value(memory)?;
        Ok(())
    }
}
