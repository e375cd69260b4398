//! Every sample of the job is applied exactly once.

use std::collections::{BTreeMap, BTreeSet};

use paceline_runtime::{Line, Reader, Record, Spans, WorkerId};
use serde::{Deserialize, Serialize};

/// Counts samples as the journal tells of them.
#[derive(Default)]
pub struct LedgerCheck {
    total: u64,
    coordination: Coordination,
    /// Together: what is in each worker's replica. Apart: what each worker applied.
    by_worker: BTreeMap<WorkerId, Account>,
    /// What every replica held when the run began, if it goes on from a checkpoint.
    before: Account,
    /// Central: what was applied to the center, by its version.
    center: Vec<(u64, Spans)>,
    members: Vec<WorkerId>,
    /// What every member held when the coordinator declared the job over.
    at_end: Vec<Account>,
    /// Gone without a word: what they say from then on does not count.
    void: BTreeSet<WorkerId>,
    wasted: u64,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Coordination {
    #[default]
    Asynchronous,
    Synchronous,
    Centered,
}

#[derive(Clone, Default, PartialEq)]
struct Account {
    spans: Spans,
    repeated: u64,
}

impl Account {
    fn apply(&mut self, spans: &Spans) {
        self.repeated += self.spans.overlap(spans).len();
        self.spans.add(spans);
    }
}

/// The verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub done: u64,
    pub lost: u64,
    pub repeated: u64,
}

impl Reader for LedgerCheck {
    fn read(&mut self, line: &Line) {
        match &line.record {
            Record::Began { samples_total, together, central, .. } => {
                self.total = *samples_total;
                self.coordination = match (together, central) {
                    (true, _) => Coordination::Synchronous,
                    (_, true) => Coordination::Centered,
                    _ => Coordination::Asynchronous,
                };
            }
            Record::Resumed { version, spans, .. } => {
                self.before.apply(spans);
                self.center = vec![(*version, spans.clone())];
            }
            Record::Applied { who, version, spans, .. } => self.apply(*who, *version, spans),
            Record::Settled { who, adopted: Some(source), .. }
                if self.coordination == Coordination::Synchronous =>
            {
                let shared = self.account_of(source);
                self.by_worker.insert(*who, shared);
            }
            Record::Freed { who, spans } => {
                self.void.insert(*who);
                if let (Coordination::Asynchronous, Some(account)) =
                    (self.coordination, self.by_worker.get_mut(who))
                {
                    let struck = account.spans.overlap(spans);
                    self.wasted += struck.len();
                    account.spans.subtract(&struck);
                }
            }
            Record::StartedOver => self.start_over(),
            Record::Restored { version, .. } if self.coordination == Coordination::Centered => {
                let kept = self.center.partition_point(|(applied, _)| applied <= version);
                self.wasted += self.center.drain(kept..).map(|(_, spans)| spans.len()).sum::<u64>();
            }
            Record::View { members, .. } => self.members.clone_from(members),
            Record::Over if self.coordination == Coordination::Synchronous => {
                self.at_end = self.members.iter().map(|who| self.account_of(who)).collect();
            }
            _ => {}
        }
    }
}

impl LedgerCheck {
    /// Together: what is in a worker's replica.
    fn account_of(&self, who: &WorkerId) -> Account {
        self.by_worker.get(who).unwrap_or(&self.before).clone()
    }

    /// What was applied so far is in no living replica, but for what the run began with.
    fn start_over(&mut self) {
        let by_worker = self.by_worker.values().map(|account| account.spans.len());
        let center = self.center.iter().map(|(_, spans)| spans.len());
        let before = self.before.spans.len();
        self.wasted += match self.coordination {
            Coordination::Synchronous => by_worker.max().unwrap_or(before) - before,
            Coordination::Asynchronous => by_worker.sum(),
            Coordination::Centered => center.sum::<u64>() - before,
        };
        self.by_worker.clear();
        self.center.truncate(usize::from(before > 0));
    }

    fn apply(&mut self, who: WorkerId, version: u64, spans: &Spans) {
        if self.void.contains(&who) {
            self.wasted += spans.len();
            return;
        }
        match self.coordination {
            Coordination::Centered => self.center.push((version, spans.clone())),
            Coordination::Synchronous => {
                let before = &self.before;
                self.by_worker.entry(who).or_insert_with(|| before.clone()).apply(spans);
            }
            Coordination::Asynchronous => self.by_worker.entry(who).or_default().apply(spans),
        }
    }

    /// Samples that were applied to replicas nobody has any more.
    pub fn wasted(&self) -> u64 {
        self.wasted
    }

    /// What came of it. A job that was stopped early owes nothing.
    pub fn tally(&self, stopped: bool) -> Tally {
        let account = match self.coordination {
            Coordination::Synchronous => {
                // All hold the same; if not, the worst account is the verdict.
                let worst = self.at_end.iter().min_by_key(|account| account.spans.len());
                // A run that was given up has no end: the most advanced tells how far it came.
                let farthest = || self.by_worker.values().max_by_key(|account| account.spans.len());
                worst.or_else(farthest).unwrap_or(&self.before).clone()
            }
            Coordination::Asynchronous => {
                let repeated = self.by_worker.values().map(|account| account.repeated).sum();
                let accounts = self.by_worker.values().chain([&self.before]);
                let mut intervals: Vec<(u64, u64)> =
                    accounts.flat_map(|account| account.spans.intervals()).copied().collect();
                // In order, for each then goes to the end of what is there already.
                intervals.sort_unstable();
                let mut all = Account { repeated, ..Account::default() };
                intervals.into_iter().for_each(|(from, to)| all.apply(&Spans::one(from, to)));
                all
            }
            Coordination::Centered => {
                let mut all = Account::default();
                self.center.iter().for_each(|(_, spans)| all.apply(spans));
                all
            }
        };
        let owed = if stopped { 0 } else { self.total };
        Tally {
            done: account.spans.len(),
            lost: account.spans.gaps(owed).len(),
            repeated: account.repeated,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_applied_before_a_checkpoint_counts_and_may_not_be_applied_again() {
        for (together, central) in [(true, false), (false, false), (false, true)] {
            let mut check = LedgerCheck::default();
            let mut read = |record| check.read(&Line { at: Duration::ZERO, record });
            read(Record::Began {
                version: 1,
                strategy: String::new(),
                seed: 1,
                samples_total: 10,
                samples_per_epoch: 10,
                model: String::new(),
                data: String::new(),
                params: 1,
                kernels: String::new(),
                together,
                central,
            });
            let (loss_first, loss_last) = (None, None);
            let spans = Spans::one(0, 4);
            read(Record::Resumed { round: 1, version: 1, spans, loss_first, loss_last });
            read(Record::Applied {
                who: WorkerId(0),
                version: 2,
                spans: Spans::one(2, 8),
                loss_sum: 1.0,
                staleness: 0,
                rate: 0.1,
            });
            assert_eq!(check.tally(false), Tally { done: 8, lost: 2, repeated: 2 });
        }
    }
}
