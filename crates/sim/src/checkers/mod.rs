//! Watch a run for what must hold, one property each. They read the journal, never the ledger itself.

mod agreement;
mod ledger;
mod traffic;

pub use agreement::Agreement;
pub use ledger::{LedgerCheck, Tally};
pub use traffic::Traffic;
