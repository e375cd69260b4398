//! A simulated cluster in virtual time: the same workers and strategies, with any speeds, network and faults.

pub mod checkers;
mod cluster;
mod error;
mod exchanges;
mod hosts;
mod memo;
mod network;
mod pool;
pub mod scenario;
mod speed;

pub use cluster::{Outputs, SimCluster, SimConfig};
pub use error::ScenarioError;
pub use hosts::StartHost;
pub use scenario::Scenario;
