//! The algorithms, one file each, as their papers write them; `parts` holds their pure ingredients.

pub mod all_reduce;
pub mod delayed;
pub mod elastic_average;
pub mod gossip;
pub mod parameter_server;
pub mod parts;
pub mod periodic_average;

pub use all_reduce::AllReduce;
pub use delayed::Delayed;
pub use elastic_average::ElasticAverage;
pub use gossip::{Direction, Gossip};
pub use parameter_server::ParameterServer;
pub use periodic_average::PeriodicAverage;

use paceline_runtime::Worker;

/// Which pass over the data the job has reached.
fn epoch(worker: &Worker) -> u64 {
    worker.samples_done() / worker.plan.samples_per_epoch.max(1)
}
