//! What a run has learned follows from its journal.
//!
//! The task must be a quadratic with equal curvatures, without noise: the gradient at x is curvature x, so that all
//! parameters are x times their initial values, and x follows from the rate and the staleness of every update. A
//! gradient that is forgotten, counted twice, or of the wrong sign or scale changes x, and so does a replica that
//! begins again with the initial parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use paceline_runtime::{Line, Reader, Record, WorkerId};

/// How an update moves the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updates {
    /// Along one gradient, of all members or of one worker: x is known exactly.
    Gradients,
    /// To the mean of replicas that made some steps each: as far as the slowest worker came at least, and as far as
    /// the fastest at most.
    Averages,
    /// One of many replicas by one step. How they are mixed is not in the journal: x is as small as that of a worker that
    /// made all steps at least, and a part of what all replicas would learn together at most.
    OneReplica,
}

pub struct Learning {
    updates: Updates,
    curvature: f64,
    /// After each update: the number of its exchange or version, the smallest and the largest x.
    values: Vec<(u64, f64, f64)>,
    /// Gradients that each worker computed, by round.
    steps: BTreeMap<(u64, WorkerId), i32>,
    /// The smallest and the largest x of a center that was lost, and how many workers may still push a gradient that was
    /// computed there.
    lost: (f64, f64, usize),
    views: BTreeMap<u64, u64>,
    server: Option<WorkerId>,
    members: Vec<WorkerId>,
    /// Everyone that was ever a member, and those of them that were before the job began anew.
    seen: BTreeSet<WorkerId>,
    forgotten: BTreeSet<WorkerId>,
    /// How often the mean of all replicas has become e times smaller, if all learn from each other at once.
    decay: f64,
}

/// Of what all replicas learn together, this part is in the mean replica or in the center at least: a center is behind the
/// replicas, a newcomer is at the beginning, and what a lost worker learned may have been passed on to few.
const MIXED: f64 = 0.1;

impl Learning {
    pub fn new(updates: Updates, curvature: f64) -> Learning {
        Learning {
            updates,
            curvature,
            values: vec![(0, 1.0, 1.0)],
            steps: BTreeMap::new(),
            lost: (1.0, 1.0, 0),
            views: BTreeMap::new(),
            server: None,
            members: vec![],
            seen: BTreeSet::new(),
            forgotten: BTreeSet::new(),
            decay: 0.0,
        }
    }

    /// What x must be.
    pub fn expected(&self) -> RangeInclusive<f64> {
        let (_, low, high) = *self.values.last().expect("there is a first value");
        match self.updates {
            Updates::OneReplica => low..=(-MIXED * self.decay).exp(),
            Updates::Gradients | Updates::Averages => low..=high,
        }
    }

    fn update(&mut self, key: u64, rate: f64, staleness: u64, steps_most: i32) {
        while self.values.last().is_some_and(|(known, ..)| *known >= key && *known > 0) {
            self.values.pop();
        }
        let part = rate * self.curvature;
        let now = *self.values.last().expect("there is a first value");
        let next = match self.updates {
            Updates::Gradients => {
                let behind = self.values.len().saturating_sub(1 + staleness as usize);
                let (mut least, mut most) = (self.values[behind].1, self.values[behind].2);
                if self.lost.2 > 0 {
                    self.lost.2 -= 1;
                    (least, most) = (least.min(self.lost.0), most.max(self.lost.1));
                }
                (key, now.1 - part * most, now.2 - part * least)
            }
            Updates::Averages => (key, now.1 * (1.0 - part).powi(steps_most), now.2 * (1.0 - part)),
            Updates::OneReplica => (key, now.1 * (1.0 - part), now.2),
        };
        self.values.push(next);
    }
}

impl Reader for Learning {
    fn read(&mut self, line: &Line) {
        match &line.record {
            Record::Computed { who, round: Some(round), .. } => {
                *self.steps.entry((*round, *who)).or_default() += 1;
            }
            Record::View { members, .. } => {
                self.members.clone_from(members);
                self.seen.extend(members);
                // A newcomer that had not begun when every replica was lost begins with the others.
                self.forgotten.retain(|who| !members.contains(who));
            }
            // A worker that does not know yet that the job began anew changes nothing that counts.
            Record::Applied { who, .. } if self.forgotten.contains(who) => {}
            Record::Applied { spans, result: Some(name), rate, staleness, round, .. } => {
                let newest = self.views.entry(name.exchange).or_insert(name.view);
                if *newest > name.view {
                    return;
                }
                *newest = name.view;
                let round = round.unwrap_or(0);
                let of_round = self.steps.range((round, WorkerId(0))..(round + 1, WorkerId(0)));
                let most = of_round.map(|(_, steps)| *steps).max().unwrap_or(0);
                // A result without samples moves nothing.
                let rate = if spans.is_empty() { 0.0 } else { f64::from(*rate) };
                self.update(name.exchange, rate, *staleness, most);
            }
            Record::Applied { who, version, rate, staleness, .. } => {
                self.decay += f64::from(*rate) * self.curvature / self.members.len().max(1) as f64;
                let is_center = self.updates == Updates::Gradients;
                if is_center && self.server.is_none_or(|server| server == *who) {
                    self.update(*version, f64::from(*rate), *staleness, 1);
                } else if !is_center {
                    let next = self.values.len() as u64;
                    self.update(next, f64::from(*rate), 0, 1);
                }
            }
            Record::Restored { who, version, .. }
                if self.updates == Updates::Gradients && self.members.contains(who) =>
            {
                self.server = Some(*who);
                let kept = self.values.partition_point(|(known, ..)| known <= version);
                for (_, low, high) in self.values.drain(kept..) {
                    let (least, most, _) = self.lost;
                    self.lost = (least.min(low), most.max(high), self.members.len());
                }
            }
            Record::StartedOver => {
                self.values.truncate(1);
                self.views.clear();
                self.steps.clear();
                self.server = None;
                self.members.clear();
                self.forgotten.append(&mut self.seen);
                self.decay = 0.0;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use paceline_runtime::Spans;
    use paceline_runtime::journal::ResultName;

    fn applied(version: u64, staleness: u64, result: Option<(u64, u64)>) -> Record {
        let result = result.map(|(exchange, view)| ResultName { exchange, view });
        let (who, spans, loss_sum, rate) = (WorkerId(0), Spans::one(0, 1), 0.0, 0.5);
        Record::Applied {
            weight: None,
            who,
            version,
            spans,
            loss_sum,
            staleness,
            rate,
            round: Some(0),
            result,
        }
    }

    fn expected(updates: Updates, records: &[Record]) -> (f64, f64) {
        let mut learning = Learning::new(updates, 0.5);
        for record in records {
            learning.read(&Line { at: Duration::ZERO, record: record.clone() });
        }
        learning.expected().into_inner()
    }

    #[test]
    fn every_gradient_makes_the_parameters_smaller_by_what_its_worker_knew_of_them() {
        let gradients = |records: &[Record]| expected(Updates::Gradients, records).0;
        assert_eq!(gradients(&[applied(1, 0, None), applied(2, 0, None)]), 0.75 * 0.75);
        assert_eq!(gradients(&[applied(1, 0, None), applied(2, 1, None)]), 0.75 - 0.25);
        // An update that a restored center does not hold, and one that began anew.
        let restored = Record::Restored { who: WorkerId(0), version: 1, reign: 2 };
        let (number, members, reason) = (1, vec![WorkerId(0)], String::new());
        let view = Record::View { number, members, reason };
        assert_eq!(gradients(&[view, applied(1, 0, None), applied(2, 0, None), restored]), 0.75);
        assert_eq!(gradients(&[applied(1, 0, None), Record::StartedOver]), 1.0);
    }

    #[test]
    fn of_two_results_of_an_exchange_one_counts() {
        let results = [applied(1, 0, Some((1, 1))), applied(1, 0, Some((1, 2)))];
        assert_eq!(expected(Updates::Gradients, &results), (0.75, 0.75));
        let reversed = [applied(1, 0, Some((1, 2))), applied(1, 0, Some((1, 1)))];
        assert_eq!(expected(Updates::Gradients, &reversed), (0.75, 0.75));
    }

    #[test]
    fn a_worker_that_does_not_know_that_the_job_began_anew_changes_nothing() {
        let view = |number, members: &[u32]| {
            let members = members.iter().copied().map(WorkerId).collect();
            Record::View { number, members, reason: String::new() }
        };
        let late = [view(1, &[0]), Record::StartedOver, view(2, &[1]), applied(7, 0, Some((7, 1)))];
        assert_eq!(expected(Updates::Gradients, &late), (1.0, 1.0));
        let anew = [view(1, &[0]), Record::StartedOver, view(2, &[0]), applied(1, 0, Some((1, 2)))];
        assert_eq!(expected(Updates::Gradients, &anew), (0.75, 0.75));
    }

    #[test]
    fn an_average_is_between_the_slowest_and_the_fastest_worker() {
        let (who, since, samples, round, spans) = (WorkerId(0), Duration::ZERO, 1, Some(0), None);
        let computed = Record::Computed { who, since, samples, round, spans };
        let records = [computed.clone(), computed, applied(2, 0, Some((1, 1)))];
        assert_eq!(expected(Updates::Averages, &records), (0.75 * 0.75, 0.75));
    }

    #[test]
    fn replicas_that_have_learned_are_not_at_the_beginning() {
        let (low, high) =
            expected(Updates::OneReplica, &[applied(1, 0, None), applied(1, 0, None)]);
        assert_eq!(low, 0.75 * 0.75);
        assert!(high < 0.96, "{high}");
    }
}
