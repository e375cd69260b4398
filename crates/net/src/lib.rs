//! Real clusters. So far, one of threads in one process.

mod threads;

pub use threads::{Elastic, Life, StartHost, ThreadCluster, ThreadConfig, ThreadHub};
