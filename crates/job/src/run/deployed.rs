//! What a run leaves behind: replicas, the center, and the parameters that one would deploy.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_learn::Vector;
use paceline_learn::vector::mean;
use paceline_runtime::edge::Shelves;
use paceline_runtime::wire::Shelf;
use paceline_runtime::{Coordination, WorkerId};

/// The parameters at the end of a run.
#[derive(Clone, Debug, Default)]
pub struct Deployed {
    /// The replica of each member.
    pub replicas: BTreeMap<WorkerId, Arc<Vector>>,
    /// Only strategies with a center have one.
    pub center: Option<Arc<Vector>>,
}

impl Deployed {
    /// What `members` have published.
    pub fn new(shelves: &Shelves, members: &[WorkerId], coordination: Coordination) -> Deployed {
        let on = |who: &WorkerId, shelf| shelves.get(&(*who, shelf)).map(|it| it.params.clone());
        let replica = |who: &WorkerId| Some((*who, on(who, Shelf::Replica)?));
        let centers = || members.iter().filter_map(|who| on(who, Shelf::Center));
        let is_centered = matches!(coordination, Coordination::Centered { .. });
        Deployed {
            replicas: members.iter().filter_map(replica).collect(),
            center: is_centered.then(centers).and_then(|mut centers| centers.next()),
        }
    }

    /// The center, or the mean of the replicas; `None` if nothing was published.
    pub fn params(&self) -> Option<Arc<Vector>> {
        self.center.clone().or_else(|| mean(self.replicas.values()))
    }
}
