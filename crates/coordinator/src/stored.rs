//! What the coordinator must know after a restart: the state of the job, and who may join and who has said what.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use paceline_identity::{JobName, TokenChange, Tokens};
use paceline_runtime::WorkerId;
use paceline_runtime::coordination::{Entry, State};
use serde::{Deserialize, Serialize};

/// A snapshot of everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub memory: Memory,
    pub state: State,
}

/// Everything but the state of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub job: JobName,
    pub text: String,
    pub began: SystemTime,
    /// The coordinator's clock at the last commit.
    pub at: Duration,
    /// What the first worker knows of the job's model and data; all others must know the same.
    pub facts: Option<String>,
    pub tokens: Tokens,
    /// How much of what each worker said is logged.
    pub heard: BTreeMap<WorkerId, u64>,
    pub addresses: BTreeMap<WorkerId, String>,
    pub banned: BTreeSet<WorkerId>,
    /// The length of the journal. What a crash left behind it is cut off: its senders send it again.
    pub journal: u64,
}

/// What changed since the last commit: one record of the log, so that it is there as a whole or not at all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub at: Duration,
    pub journal: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Entry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<TokenChange>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub heard: BTreeMap<WorkerId, u64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub addresses: BTreeMap<WorkerId, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub banned: BTreeSet<WorkerId>,
}

impl Memory {
    /// Takes a batch of the log; its entries are for the state of the job.
    pub fn apply(&mut self, batch: &Batch) {
        (self.at, self.journal) = (batch.at, batch.journal);
        batch.tokens.iter().for_each(|change| self.tokens.apply(change));
        self.heard.extend(&batch.heard);
        self.addresses.extend(batch.addresses.clone());
        self.banned.extend(&batch.banned);
        if let Some(facts) = &batch.facts {
            self.facts = Some(facts.clone());
        }
    }
}
