//! What is known of a run while it lasts, read from its journal.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use paceline_runtime::{Line, Reader, Record, WorkerId};

/// Shared by the run's reader, its lines and Python.
#[derive(Clone, Default)]
pub struct News(Arc<(Mutex<Known>, Condvar)>);

#[derive(Clone, Default)]
pub struct Known {
    pub view: u64,
    pub members: Vec<WorkerId>,
    pub samples: u64,
    pub time: Duration,
    pub is_over: bool,
    /// The run has ended, in whatever way.
    pub has_ended: bool,
    pub fates: BTreeMap<WorkerId, Fate>,
}

/// Why a worker's line ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The job is over, or was stopped.
    Over,
    Left,
    Lost,
}

impl News {
    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.0.0.lock().expect("no holder panics")
    }

    /// The run has ended: nobody waits for news any more.
    pub fn end(&self) {
        self.known().has_ended = true;
        self.0.1.notify_all();
    }

    /// Waits until it is known why a worker's line ended, which may take a moment: lines of the journal come later. `None`: it is
    /// not known yet.
    pub fn fate(&self, who: WorkerId, time: Duration) -> Option<Fate> {
        let find = |known: &Known| {
            let over = (known.is_over || known.has_ended).then_some(Fate::Over);
            known.fates.get(&who).copied().or(over)
        };
        let waited = self.0.1.wait_timeout_while(self.known(), time, |known| find(known).is_none());
        find(&waited.expect("no holder panics").0)
    }
}

/// The reader of a run.
pub struct NewsReader(pub News);

impl Reader for NewsReader {
    fn read(&mut self, line: &Line) {
        let mut known = self.0.known();
        known.time = line.at;
        match &line.record {
            Record::View { number, members, .. } => {
                known.view = *number;
                known.members.clone_from(members);
            }
            Record::Applied { spans, .. } => known.samples += spans.len(),
            Record::Crashed { who } | Record::PutOut { who } => {
                known.fates.insert(*who, Fate::Lost);
            }
            Record::Left { who } => _ = known.fates.insert(*who, Fate::Left),
            Record::Finished { who, .. } => _ = known.fates.insert(*who, Fate::Over),
            Record::Over => known.is_over = true,
            _ => return,
        }
        drop(known);
        self.0.0.1.notify_all();
    }
}
