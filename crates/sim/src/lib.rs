//! A cluster in virtual time: the same workers, the same strategies, any speed, network and mishap.

pub mod checkers;
mod cluster;
mod exchanges;
mod memo;
mod network;
mod pool;
pub mod scenario;
mod speed;

pub use cluster::{Outputs, SimCluster, SimConfig};
pub use scenario::Scenario;
