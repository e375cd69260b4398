//! Real clusters. So far one of threads in one process.

mod threads;

pub use threads::{ThreadCluster, ThreadConfig, ThreadHub};
