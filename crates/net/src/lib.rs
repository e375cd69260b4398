//! Real clusters: threads in one process, and processes.

mod gradients;
pub mod processes;
mod threads;

pub use gradients::StartHost;
pub use threads::{Elastic, Life, ThreadCluster, ThreadConfig, ThreadHub};
