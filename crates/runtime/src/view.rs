//! A view: the members that exchange with each other (a membership epoch).

use serde::{Deserialize, Serialize};

use crate::ids::WorkerId;

/// The members of the job at one time, as decided by the coordinator. A view is a value: it is
/// replaced as a whole and never edited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub number: u64,
    /// In rank order, which is the order of ids.
    pub members: Vec<WorkerId>,
}

impl View {
    pub fn rank(&self, worker: WorkerId) -> Option<usize> {
        self.members.binary_search(&worker).ok()
    }

    pub fn has(&self, worker: WorkerId) -> bool {
        self.rank(worker).is_some()
    }

    /// The first member; it hosts the center in strategies that have one.
    pub fn first(&self) -> WorkerId {
        *self.members.first().expect("a view has members")
    }
}
