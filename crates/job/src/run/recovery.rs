//! How long training stands still when a worker is lost: from its death to the first samples that are applied without it. A
//! worker that has only fallen silent counts from the last samples that were applied before it was given up.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_runtime::{Line, Reader, Record, WorkerId};

use crate::run_result::Recovery;

#[derive(Default)]
pub struct Recoveries {
    died: BTreeMap<WorkerId, Duration>,
    /// When samples were last applied.
    applied: Duration,
    open: Vec<Open>,
    losses: usize,
    times: Vec<Duration>,
}

struct Open {
    since: Duration,
    /// The first view without the lost worker.
    view: Option<u64>,
}

impl Reader for Recoveries {
    fn read(&mut self, line: &Line) {
        match &line.record {
            Record::Crashed { who } => {
                self.died.insert(*who, line.at);
            }
            Record::Freed { who, .. } => {
                let since = self.died.remove(who).unwrap_or(self.applied);
                self.losses += 1;
                self.open.push(Open { since, view: None });
            }
            Record::View { number, .. } => {
                self.open.iter_mut().for_each(|open| _ = open.view.get_or_insert(*number));
            }
            Record::Applied { result, .. } => {
                self.applied = line.at;
                // A survivor may still take a result that was complete before the loss.
                let view = result.map_or(u64::MAX, |result| result.view);
                let goes_on = |open: &Open| open.view.is_some_and(|first| first <= view);
                let ended = self.open.iter().filter(|open| goes_on(open));
                self.times.extend(ended.map(|open| line.at.saturating_sub(open.since)));
                self.open.retain(|open| !goes_on(open));
            }
            _ => {}
        }
    }
}

impl Recoveries {
    /// `None` if no worker was lost.
    pub fn summary(&self) -> Option<Recovery> {
        let mut times = self.times.clone();
        times.sort_unstable();
        let seconds = |time: Option<&Duration>| time.map_or(0.0, Duration::as_secs_f64);
        (self.losses > 0).then(|| Recovery {
            losses: self.losses,
            recovered: times.len(),
            median_seconds: seconds(times.get(times.len() / 2)),
            worst_seconds: seconds(times.last()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_runtime::Spans;
    use paceline_runtime::journal::ResultName;

    #[test]
    fn a_recovery_lasts_from_the_death_to_the_first_result_without_the_dead() {
        let freed = Record::Freed { who: WorkerId(2), spans: Spans::new() };
        let applied = |view| Record::Applied {
            who: WorkerId(0),
            version: 1,
            spans: Spans::one(0, 1),
            loss_sum: 1.0,
            weight: None,
            staleness: 0,
            rate: 0.1,
            round: None,
            result: Some(ResultName { exchange: 1, view }),
        };
        let members = vec![WorkerId(0), WorkerId(1)];
        let view = Record::View { number: 2, members, reason: String::new() };
        let mut recoveries = Recoveries::default();
        let lines = [
            (1, Record::Crashed { who: WorkerId(2) }),
            (3, freed),
            (3, view),
            (4, applied(1)),
            (6, applied(2)),
            (9, applied(2)),
        ];
        for (at, record) in lines {
            recoveries.read(&Line { at: Duration::from_secs(at), record });
        }
        let expected =
            Recovery { losses: 1, recovered: 1, median_seconds: 5.0, worst_seconds: 5.0 };
        assert_eq!(recoveries.summary(), Some(expected));
    }
}
