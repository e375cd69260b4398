//! Each worker's share of the samples over the run, in bounded memory.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_runtime::{Line, Record, WorkerId};

use crate::track::Track;

/// More lines than this would be indistinguishable in a panel.
const WORKERS_MAX: usize = 12;

/// A `Track` is indexed by time; a track indexed by rounds counts each round as this much time.
pub(super) const ROUND: Duration = Duration::from_micros(1);

/// Samples by round for synchronous strategies, because bins of time would split rounds; otherwise by time.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    together: bool,
    pub all: Track,
    /// The first few workers.
    pub by_worker: BTreeMap<WorkerId, Track>,
}

impl Shares {
    pub fn by_round(&self) -> bool {
        self.together
    }

    pub fn read(&mut self, line: &Line) {
        match &line.record {
            Record::Began { together, .. } => self.together = *together,
            Record::Entered { who, round, samples, .. } if self.together => {
                let round = u32::try_from(*round).unwrap_or(u32::MAX);
                self.add(ROUND * round, *who, *samples);
            }
            Record::Computed { who, samples, .. } if !self.together => {
                self.add(line.at, *who, *samples);
            }
            _ => {}
        }
    }

    fn add(&mut self, place: Duration, who: WorkerId, samples: u64) {
        self.all.add(place, samples as f64);
        let is_known = self.by_worker.contains_key(&who);
        if is_known || self.by_worker.len() < WORKERS_MAX {
            self.by_worker.entry(who).or_default().add(place, samples as f64);
        }
    }
}
