//! Checkers watch a run for what must hold, one property each. They read the journal, never the ledger itself.

mod custody;
mod gradients_once;
mod learning;
mod liveness;
mod replicas_agree;
mod traffic;

pub use custody::Custody;
pub use gradients_once::GradientsOnce;
pub use learning::{Learning, Updates};
pub use liveness::{Liveness, Work};
pub use replicas_agree::ReplicasAgree;
pub use traffic::Traffic;
