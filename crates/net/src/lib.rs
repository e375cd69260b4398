//! Real clusters. So far one of threads in one process; the only room with real time and I/O.

mod threads;

pub use threads::{News, ThreadCluster, ThreadConfig, ThreadHub};
