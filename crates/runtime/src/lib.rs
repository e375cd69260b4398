//! How a worker lives: three edges (to its cluster, to its peers, to the coordinator), the executor, the ledger,
//! the journal, and the one loop around a strategy's rounds. No socket, no clock, no dice of its own.

pub mod agreed;
pub mod codec;
pub mod coordination;
pub mod edge;
pub mod evaluation;
pub mod exchange;
pub mod executor;
pub mod host;
pub mod ids;
pub mod journal;
pub mod ledger;
pub mod plan;
pub mod private;
pub mod server;
pub mod snapshot;
pub mod spans;
pub mod strategy;
pub mod train;
pub mod view;
pub mod wire;
pub mod worker;

pub use edge::Cluster;
pub use exchange::{Meeting, Sum};
pub use executor::{Executor, Interrupt, Port, Stuck, Turn};
pub use host::HostLine;
pub use ids::{Ticket, WorkerId};
pub use journal::{Journal, Line, Reader, Record, SampleTally, Tally};
pub use plan::{Owner, Plan, Replay};
pub use server::{Call, Server};
pub use snapshot::{SavePlan, Snapshot, WorkerSnapshot};
pub use spans::Spans;
pub use strategy::{AnyStrategy, Coordination, Strategy};
pub use train::train;
pub use view::View;
pub use wire::{Letter, Memory, Message};
pub use worker::{Average, Mine, Share, Total, Worker};
