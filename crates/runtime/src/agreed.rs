//! What all members of an exchange agree on, besides the replica and the strategy's memory.

use paceline_learn::Rescaler;
use serde::{Deserialize, Serialize};

use crate::ledger::Ledger;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    pub ledger: Ledger,
    pub rescaler: Rescaler,
    pub stopped: bool,
}
