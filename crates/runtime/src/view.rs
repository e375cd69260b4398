//! A view: the members that exchange with each other (a membership epoch).

use serde::{Deserialize, Serialize};

use crate::ids::WorkerId;

/// The members of the job at one time, as decided by the coordinator. A view is a value: it is
/// replaced as a whole and never edited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// How often the coordinator had been started when it decided this view.
    #[serde(default)]
    pub incarnation: u64,
    /// Views and plans share one sequence of numbers, which goes on when the coordinator restarts.
    pub number: u64,
    /// In rank order, which is the order of ids.
    pub members: Vec<WorkerId>,
}

/// Names a view, and never another one: a coordinator that lost its memory has a new incarnation.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct ViewName {
    pub incarnation: u64,
    pub number: u64,
}

impl View {
    pub fn name(&self) -> ViewName {
        ViewName { incarnation: self.incarnation, number: self.number }
    }

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
