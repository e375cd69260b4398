//! The tally of samples: how many a run has applied, and whether each was applied exactly once.
//!
//! It reads the journal, never the ledger. Progress, results, reports and checkers all use this one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Line, Past, Record};
use crate::ids::WorkerId;
use crate::spans::Spans;

#[derive(Clone, Debug)]
pub struct SampleTally {
    pub samples_total: u64,
    pub samples_per_epoch: u64,
    mode: Mode,
    /// One in this many of the frequent records is in the journal; it stands for the others.
    keeping_one_in: u64,
    /// Samples in living replicas, or in the center; each is counted once.
    samples: u64,
    /// Synchronous: the results of the last exchanges, each with the view of its contributors; and what older results hold.
    results: BTreeMap<u64, (u64, Spans)>,
    results_before: Applied,
    /// The exchanges up to this one are in `results_before`.
    settled_to: u64,
    /// Results of older views are void: the job began anew since.
    view_min: u64,
    /// Asynchronous: what each worker applied. Synchronous, in journals of older versions: what is in its replica.
    by_worker: BTreeMap<WorkerId, Applied>,
    /// What every replica held when the members began, for the first time or anew.
    before: Applied,
    /// How many samples an earlier run had applied.
    before_run: u64,
    /// What was applied to the center long ago, and what was applied lately, by its version.
    center_before: Applied,
    center: Vec<(u64, Spans)>,
    /// The worker that restored the center last.
    server: Option<WorkerId>,
    members: Vec<WorkerId>,
    /// What every member held when the job was declared over.
    at_end: Vec<Applied>,
    /// Workers that are lost: what they report from then on does not count.
    void: BTreeSet<WorkerId>,
    /// After the job started over: all members since. What others still apply to the replicas and centers that are
    /// lost does not count.
    members_since: Option<BTreeSet<WorkerId>>,
    /// Samples in all gradients that were computed.
    computed: u64,
    /// The number of the newest view.
    view: u64,
}

/// A result is replaced by that of a newer view soon or never: members differ by one exchange at most. What a process that stood
/// still for longer reports of older exchanges was made in a view without it since, and counts no more.
const RESULTS_KEPT: usize = 1024;

/// Updates of a center that a restored copy may undo: far more than any surviving copy lags by. If one lagged
/// further, its samples would be reported as repeated, never silently lost.
const CENTER_UPDATES: usize = 1 << 16;

/// Who applies a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// Every member, to equal replicas.
    Synchronous,
    /// The worker that leased it.
    Asynchronous,
    /// The server, to the center.
    Centered,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Applied {
    spans: Spans,
    repeated: u64,
    /// As many as `spans` has, unless the journal was thinned.
    count: u64,
}

impl Applied {
    fn add(&mut self, spans: &Spans) {
        self.repeated += self.spans.overlap(spans).len();
        self.spans.add(spans);
    }
}

/// The verdict over a whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub done: u64,
    pub lost: u64,
    pub repeated: u64,
}

impl Default for SampleTally {
    fn default() -> SampleTally {
        SampleTally {
            samples_total: 0,
            samples_per_epoch: 1,
            mode: Mode::Asynchronous,
            keeping_one_in: 1,
            samples: 0,
            results: BTreeMap::new(),
            results_before: Applied::default(),
            settled_to: 0,
            view_min: 0,
            by_worker: BTreeMap::new(),
            before: Applied::default(),
            before_run: 0,
            center_before: Applied::default(),
            center: Vec::new(),
            server: None,
            members: Vec::new(),
            at_end: Vec::new(),
            void: BTreeSet::new(),
            members_since: None,
            computed: 0,
            view: 0,
        }
    }
}

impl SampleTally {
    /// Samples that are in living replicas, or in the center, as far as the journal was read.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    pub fn epochs(&self, samples: u64) -> f64 {
        samples as f64 / self.samples_per_epoch as f64
    }

    /// How many records one record of a frequent kind stands for.
    pub fn keeping_one_in(&self) -> u64 {
        self.keeping_one_in
    }

    /// Whether all members apply the same samples.
    pub fn is_synchronous(&self) -> bool {
        self.mode == Mode::Synchronous
    }

    /// Reads a line; returns how many samples it applied that no line before it had.
    pub fn read(&mut self, line: &Line) -> u64 {
        match &line.record {
            Record::Began { samples_total, samples_per_epoch, together, central, .. } => {
                self.samples_total = *samples_total;
                self.samples_per_epoch = (*samples_per_epoch).max(1);
                self.mode = match (together, central) {
                    (true, _) => Mode::Synchronous,
                    (_, true) => Mode::Centered,
                    _ => Mode::Asynchronous,
                };
            }
            Record::Resumed { version, spans, samples_total, past, .. } => {
                let count = spans.len();
                if let Some(past) = past {
                    self.resume(past, samples_total.unwrap_or(self.samples_total));
                } else if self.computed == 0 {
                    self.before_run = count;
                }
                // After `started_over` the replicas begin with what the newest snapshot of this run holds.
                self.before = Applied { spans: spans.clone(), repeated: 0, count };
                self.samples = count;
                self.center = vec![(*version, spans.clone())];
            }
            Record::Computed { samples, .. } => {
                let samples = samples.saturating_mul(self.keeping_one_in);
                self.computed = self.computed.saturating_add(samples);
            }
            Record::Applied { spans, result: Some(name), .. } => {
                return self.take_result(name.exchange, name.view, spans);
            }
            Record::Applied { who, version, spans, .. } => {
                return self.apply(*who, *version, spans);
            }
            Record::Settled { who, adopted: Some(source), .. }
                if self.is_synchronous() && !self.by_worker.is_empty() =>
            {
                let theirs = self.replica_of(source);
                self.by_worker.insert(*who, theirs);
            }
            Record::Freed { who, spans } => self.free(*who, spans),
            Record::StartedOver => self.start_over(),
            // The coordinator ignores a center that was restored by a worker that counts as lost.
            Record::Restored { who, version, .. }
                if self.mode == Mode::Centered && !self.is_forgotten(who) =>
            {
                self.server = Some(*who);
                let kept = self.center.partition_point(|(applied, _)| applied <= version);
                let lost: u64 = self.center.drain(kept..).map(|(_, spans)| spans.len()).sum();
                self.samples = self.samples.saturating_sub(lost);
            }
            Record::View { number, members, .. } => {
                self.view = *number;
                self.members.clone_from(members);
                if let Some(since) = &mut self.members_since {
                    since.extend(members);
                }
            }
            Record::Over if self.is_synchronous() => {
                self.at_end = self.members.iter().map(|who| self.replica_of(who)).collect();
            }
            Record::Thinned { keeping_one_in } => self.keeping_one_in = (*keeping_one_in).max(1),
            _ => {}
        }
        0
    }

    /// A run is resumed that was started again: nothing counts but what its checkpoint holds. Its workers and views have
    /// the ids of the run before.
    fn resume(&mut self, past: &Past, samples_total: u64) {
        *self = SampleTally {
            samples_total,
            samples_per_epoch: self.samples_per_epoch,
            mode: self.mode,
            keeping_one_in: self.keeping_one_in,
            computed: past.samples_computed,
            ..SampleTally::default()
        };
    }

    /// Samples in all gradients that were computed.
    pub fn computed(&self) -> u64 {
        self.computed
    }

    /// The result of an exchange was taken. Of several results of one exchange, the one of the newest view is in the
    /// replicas; the others were made by members that the coordinator had put out.
    fn take_result(&mut self, exchange: u64, view: u64, spans: &Spans) -> u64 {
        if view < self.view_min || exchange <= self.settled_to {
            return 0;
        }
        let before = self.results.get(&exchange).map_or((0, 0), |(view, it)| (*view, it.len()));
        if self.results.contains_key(&exchange) && before.0 >= view {
            return 0;
        }
        self.results.insert(exchange, (view, spans.clone()));
        while self.results.len() > RESULTS_KEPT {
            let (oldest, (_, spans)) = self.results.pop_first().expect("there are results");
            self.results_before.add(&spans);
            self.settled_to = oldest;
        }
        let factor = self.keeping_one_in;
        let new = spans.len().saturating_sub(before.1).saturating_mul(factor);
        let less = before.1.saturating_sub(spans.len()).saturating_mul(factor);
        self.samples = self.samples.saturating_add(new).saturating_sub(less);
        new
    }

    fn apply(&mut self, who: WorkerId, version: u64, spans: &Spans) -> u64 {
        // A server that counts as lost may go on until it knows; what it applies counts if its successor takes the copy.
        let is_void = match self.mode {
            Mode::Centered => self.server.is_some_and(|server| server != who),
            Mode::Synchronous | Mode::Asynchronous => self.void.contains(&who),
        };
        if is_void || (self.members_since.is_some() && self.is_forgotten(&who)) {
            return 0;
        }
        let count = spans.len().saturating_mul(self.keeping_one_in);
        let new = match self.mode {
            Mode::Synchronous => {
                let before = &self.before;
                let replica = self.by_worker.entry(who).or_insert_with(|| before.clone());
                replica.add(spans);
                replica.count = replica.count.saturating_add(count);
                replica.count.saturating_sub(self.samples)
            }
            Mode::Asynchronous => {
                self.by_worker.entry(who).or_default().add(spans);
                count
            }
            Mode::Centered => {
                self.center.push((version, spans.clone()));
                if self.center.len() >= 2 * CENTER_UPDATES {
                    let old = self.center.drain(..CENTER_UPDATES);
                    old.for_each(|(_, spans)| self.center_before.add(&spans));
                }
                count
            }
        };
        self.samples = self.samples.saturating_add(new);
        new
    }

    /// The leases of a lost worker are free again: what it applied of them is in no replica that counts.
    fn free(&mut self, who: WorkerId, spans: &Spans) {
        self.void.insert(who);
        if let (Mode::Asynchronous, Some(applied)) = (self.mode, self.by_worker.get_mut(&who)) {
            let struck = applied.spans.overlap(spans);
            applied.spans.subtract(&struck);
            self.samples = self.samples.saturating_sub(struck.len());
        }
    }

    /// Whether a worker is lost, or was put out when the job started over.
    fn is_forgotten(&self, who: &WorkerId) -> bool {
        let since = self.members_since.as_ref();
        self.void.contains(who) || since.is_some_and(|since| !since.contains(who))
    }

    /// Nothing that was applied is in a living replica, except what the run began with.
    fn start_over(&mut self) {
        self.by_worker.clear();
        self.results.clear();
        self.results_before = Applied::default();
        self.settled_to = 0;
        self.view_min = self.view;
        self.center_before = Applied::default();
        self.server = None;
        self.members_since = Some(BTreeSet::new());
        let before = &self.before;
        self.center = if before.count > 0 { vec![(0, before.spans.clone())] } else { vec![] };
        self.samples = before.count;
    }

    /// Synchronous: what is in a worker's replica.
    fn replica_of(&self, who: &WorkerId) -> Applied {
        self.by_worker.get(who).unwrap_or(&self.before).clone()
    }

    /// Samples whose gradients were computed and are in no replica that counts: they died with a worker, a server, or
    /// every replica. Gradients that have not been applied yet are among them while the job runs.
    pub fn wasted(&self) -> u64 {
        let applied = self.samples.saturating_sub(self.before_run);
        self.computed.saturating_sub(applied)
    }

    /// The verdict. A job that was stopped early has lost nothing.
    pub fn verdict(&self, stopped: bool) -> Tally {
        let applied = match self.mode {
            Mode::Synchronous if self.by_worker.is_empty() => {
                let mut all = self.before.clone();
                all.repeated += self.results_before.repeated;
                all.add(&self.results_before.spans);
                self.results.values().for_each(|(_, spans)| all.add(spans));
                all
            }
            Mode::Synchronous => {
                // All replicas hold the same; if not, the worst one is the verdict.
                let worst = self.at_end.iter().min_by_key(|applied| applied.spans.len());
                // A run that was given up has no end: the most advanced replica counts.
                let best = || self.by_worker.values().max_by_key(|applied| applied.spans.len());
                worst.or_else(best).unwrap_or(&self.before).clone()
            }
            Mode::Asynchronous => {
                let repeated = self.by_worker.values().map(|applied| applied.repeated).sum();
                let all = self.by_worker.values().chain([&self.before]);
                let mut intervals: Vec<(u64, u64)> =
                    all.flat_map(|applied| applied.spans.intervals()).copied().collect();
                // In order, so that each is added at the end of what is there.
                intervals.sort_unstable();
                let mut all = Applied { repeated, ..Applied::default() };
                intervals.into_iter().for_each(|(from, to)| all.add(&Spans::one(from, to)));
                all
            }
            Mode::Centered => {
                let mut all = self.center_before.clone();
                self.center.iter().for_each(|(_, spans)| all.add(spans));
                all
            }
        };
        let owed = if stopped { 0 } else { self.samples_total };
        Tally {
            done: applied.spans.len(),
            lost: applied.spans.gaps(owed).len(),
            repeated: applied.repeated,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::journal::ResultName;

    fn began(together: bool, central: bool) -> Record {
        Record::Began {
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
        }
    }

    fn applied(who: u32, version: u64, from: u64, to: u64) -> Record {
        let (who, spans) = (WorkerId(who), Spans::one(from, to));
        let (loss_sum, staleness, rate, round, result) = (1.0, 0, 0.1, None, None);
        Record::Applied {
            who,
            version,
            spans,
            loss_sum,
            weight: None,
            staleness,
            rate,
            round,
            result,
        }
    }

    fn computed(who: u32, samples: u64) -> Record {
        Record::Computed {
            who: WorkerId(who),
            since: Duration::ZERO,
            samples,
            round: None,
            spans: None,
        }
    }

    fn result(exchange: u64, view: u64, from: u64, to: u64) -> Record {
        let (who, spans, name) = (WorkerId(0), Spans::one(from, to), ResultName { exchange, view });
        let (version, loss_sum, staleness, rate, round) = (exchange, 1.0, 0, 0.1, None);
        let result = Some(name);
        Record::Applied {
            who,
            version,
            spans,
            loss_sum,
            weight: None,
            staleness,
            rate,
            round,
            result,
        }
    }

    fn tally(records: impl IntoIterator<Item = Record>) -> SampleTally {
        let mut tally = SampleTally::default();
        for record in records {
            tally.read(&Line { at: Duration::ZERO, record });
        }
        tally
    }

    #[test]
    fn samples_applied_before_a_checkpoint_count_and_must_not_be_applied_again() {
        for (together, central) in [(true, false), (false, false), (false, true)] {
            let (loss_first, loss_last) = (None, None);
            let spans = Spans::one(0, 4);
            let resumed = Record::Resumed {
                round: 1,
                version: 1,
                spans,
                loss_first,
                loss_last,
                samples_total: None,
                past: None,
            };

            let tally = tally([began(together, central), resumed, applied(0, 2, 2, 8)]);

            assert_eq!(tally.verdict(false), Tally { done: 8, lost: 2, repeated: 2 });
        }
    }

    /// A process that was stopped takes a result that the others have made again without it, long after them.
    #[test]
    fn a_result_that_is_reported_after_a_thousand_others_counts_no_more() {
        let made = (1..=3000).map(|exchange| result(exchange, 2, exchange - 1, exchange));
        let records = [began(true, false)].into_iter().chain(made).chain([result(7, 1, 6, 8)]);

        let tally = tally(records);

        assert_eq!(tally.verdict(true), Tally { done: 3000, lost: 0, repeated: 0 });
    }

    #[test]
    fn equal_replicas_count_once_and_a_newcomer_takes_over_what_it_adopts() {
        let adopted = Some(WorkerId(0));
        let settled = Record::Settled { who: WorkerId(2), view: 2, round: 1, adopted };

        let tally = tally([
            began(true, false),
            applied(0, 1, 0, 4),
            applied(1, 1, 0, 4),
            settled,
            applied(2, 2, 4, 6),
        ]);

        assert_eq!(tally.samples(), 6);
        assert_eq!(tally.verdict(true), Tally { done: 6, lost: 0, repeated: 0 });
    }

    #[test]
    fn samples_lost_with_a_center_are_wasted_and_count_no_more() {
        let restored = Record::Restored { who: WorkerId(1), version: 1, reign: 2 };

        let tally = tally([
            began(false, true),
            computed(0, 8),
            applied(0, 1, 0, 4),
            applied(0, 2, 4, 8),
            restored,
            computed(1, 2),
            applied(1, 2, 4, 6),
        ]);

        assert_eq!((tally.samples(), tally.wasted()), (6, 4));
        assert_eq!(tally.verdict(true), Tally { done: 6, lost: 0, repeated: 0 });
    }

    #[test]
    fn of_two_results_of_an_exchange_the_one_of_the_newer_view_counts() {
        let records = [
            began(true, false),
            computed(0, 8),
            result(1, 1, 0, 4),
            result(2, 3, 4, 6),
            // A member that was put out completed the exchange in the view before, and is heard late.
            result(2, 1, 4, 8),
        ];

        let tally = tally(records);

        assert_eq!((tally.samples(), tally.wasted()), (6, 2));
        assert_eq!(tally.verdict(true), Tally { done: 6, lost: 0, repeated: 0 });
    }

    #[test]
    fn what_was_learned_before_the_job_began_anew_is_wasted() {
        let (number, members, reason) = (2, vec![WorkerId(1)], String::new());
        let records = [
            began(true, false),
            computed(0, 4),
            result(1, 1, 0, 4),
            Record::View { number, members, reason },
            Record::StartedOver,
            result(1, 1, 0, 4),
            computed(1, 10),
            result(1, 2, 0, 10),
        ];

        let tally = tally(records);

        assert_eq!((tally.samples(), tally.wasted()), (10, 4));
        assert_eq!(tally.verdict(false), Tally { done: 10, lost: 0, repeated: 0 });
    }

    #[test]
    fn a_server_that_does_not_know_that_the_job_began_anew_applies_nothing_that_counts() {
        let view = |number, who| {
            let (members, reason) = (vec![WorkerId(who)], String::new());
            Record::View { number, members, reason }
        };
        let records = [
            began(false, true),
            view(1, 0),
            applied(0, 1, 0, 4),
            Record::StartedOver,
            applied(0, 2, 4, 8),
            view(2, 1),
            applied(0, 3, 8, 10),
            applied(1, 1, 0, 10),
        ];

        assert_eq!(tally(records).verdict(false), Tally { done: 10, lost: 0, repeated: 0 });
    }

    #[test]
    fn in_a_thinned_journal_one_record_stands_for_several() {
        let thinned = Record::Thinned { keeping_one_in: 3 };
        let tally = tally([began(false, false), applied(0, 1, 0, 2), thinned, applied(0, 7, 6, 8)]);
        assert_eq!(tally.samples(), 2 + 3 * 2);
    }
}
