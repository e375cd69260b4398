//! What all members of an exchange agree on, besides the replica and the strategy's memory.

use std::sync::Arc;

use paceline_learn::{Rescaler, mix};
use serde::{Deserialize, Serialize};

use crate::ledger::Ledger;
use crate::view::View;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    /// One value while members agree: in a simulator thousands of them share it.
    pub ledger: Arc<Ledger>,
    pub rescaler: Rescaler,
    pub stopped: bool,
    /// The view whose members contributed to the last result, or a planned view that is in force since. Shares,
    /// nominal batches and periods follow its members, never a view that only some members have heard of.
    #[serde(default)]
    pub view: Arc<View>,
    /// How many exchanges are completed, over the whole job.
    #[serde(default)]
    pub exchanges: u64,
    /// A hash of all results so far.
    #[serde(default)]
    pub digest: u64,
}

impl Agreed {
    /// Extends the chain of results by one.
    pub fn extend(&mut self, result: u64) {
        self.exchanges += 1;
        self.digest = chain(self.digest, result);
    }

    /// A short name for all of it but the rescaler, which follows from the rest.
    pub fn summary(&self) -> u64 {
        let parts = [
            self.exchanges,
            self.ledger.done().len(),
            self.ledger.dealt(),
            self.view.members.len() as u64,
            u64::from(self.stopped),
        ];
        parts.into_iter().fold(self.digest, |hash, part| mix(hash ^ part))
    }
}

/// The hash of a chain of results, after one more.
pub fn chain(digest: u64, result: u64) -> u64 {
    mix(digest ^ result)
}
