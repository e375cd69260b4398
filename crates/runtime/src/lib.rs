//! How a worker lives: the edge to the cluster, the executor, the ledger, membership, the journal,
//! and the one loop around a strategy's rounds. No socket, no clock, no dice of its own.

pub mod cluster;
pub mod codec;
pub mod coordinator;
pub mod executor;
pub mod journal;
pub mod leases;
pub mod ledger;
pub mod meeting;
pub mod membership;
pub mod plan;
pub mod server;
pub mod snapshot;
pub mod spans;
pub mod strategy;
pub mod train;
pub mod worker;

pub use cluster::{Cluster, Letter, View, WorkerId};
pub use executor::{Executor, Halt, Interrupt, Port, Result, Stuck};
pub use journal::{Journal, Line, Reader, Record};
pub use meeting::Meeting;
pub use plan::{Plan, Replay};
pub use server::{Call, Server};
pub use snapshot::{Saves, Snapshot, WorkerSnapshot};
pub use spans::Spans;
pub use strategy::{AnyStrategy, Coordination, Strategy};
pub use train::train;
pub use worker::{Average, Mine, Share, Total, Worker};
