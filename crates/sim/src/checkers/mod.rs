//! Checkers watch a run for what must hold, one property each. They read the journal, never the ledger itself.

mod custody;
mod replicas_agree;
mod traffic;

pub use custody::Custody;
pub use replicas_agree::ReplicasAgree;
pub use traffic::Traffic;
