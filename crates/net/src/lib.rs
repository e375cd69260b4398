//! Real clusters: threads in one process, and processes.

mod gradients;
mod inbox;
pub mod processes;
mod threads;

pub use gradients::StartHost;
pub use inbox::{Inbox, Teller, inbox};
pub use threads::{Elastic, Life, ThreadCluster, ThreadConfig, ThreadHub};
