//! A gradient is computed again only after the first one has died.
//!
//! A gradient lives while the worker that computed it has it in hand and is not held for lost, and, once it is applied, as
//! long as the update stands. It dies with its worker (a crash, a put-out, a leave, or the coordinator freeing what the
//! worker held), with a result that a newer view makes without it, with a center that held it and whose newest copy does not, and when
//! the job starts over. A worker that pushes to a server has its gradient in hand until the server replies.

use std::collections::{BTreeMap, BTreeSet};

use paceline_runtime::journal::ResultName;
use paceline_runtime::{Line, Reader, Record, Spans, WorkerId};

/// Follows the gradient of every sample. `plan.fingerprints` must be set, or this is a violation itself.
#[derive(Default)]
pub struct GradientsOnce {
    synchronous: bool,
    central: bool,
    gradients: BTreeMap<u64, Gradient>,
    /// What each worker may have in hand.
    in_hand: BTreeMap<WorkerId, Vec<u64>>,
    /// Workers that are lost, or held for lost: what they still compute does not count.
    gone: BTreeSet<WorkerId>,
    started: BTreeSet<WorkerId>,
    /// The newest view that made a result of an exchange.
    views: BTreeMap<u64, u64>,
    /// The worker that restored the center last.
    server: Option<WorkerId>,
    pub violations: Vec<String>,
}

/// The gradient of one sample.
#[derive(Clone, Copy)]
struct Gradient {
    by: WorkerId,
    is_in_hand: bool,
    applied: Option<Place>,
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Result(ResultName),
    Center { version: u64 },
    Replica,
}

impl Reader for GradientsOnce {
    fn read(&mut self, line: &Line) {
        match &line.record {
            Record::Began { together, central, .. } => {
                (self.synchronous, self.central) = (*together, *central);
            }
            Record::Started { who } => drop(self.started.insert(*who)),
            Record::Computed { who, spans, .. } => self.compute(*who, spans.as_ref()),
            Record::Crashed { who } | Record::PutOut { who } | Record::Left { who } => {
                self.lose(*who);
            }
            Record::Freed { who, spans } => {
                self.lose(*who);
                for position in spans.positions() {
                    self.gradients.remove(&position);
                }
            }
            Record::Applied { spans, result: Some(name), .. } => self.take_result(*name, spans),
            Record::Applied { who, version, spans, .. } => self.apply(*who, *version, spans),
            // The server has replied: the worker goes on without the gradient that it pushed.
            Record::Waited { who, .. } if self.central => self.drop_in_hand(*who),
            Record::Restored { who, version, .. } if self.central && !self.gone.contains(who) => {
                self.server = Some(*who);
                let newest = *version;
                // Its worker may push it again, but the coordinator cannot know: it was told that they were applied.
                let is_lost =
                    |place| matches!(place, Place::Center { version } if version > newest);
                self.gradients.retain(|_, gradient| !gradient.applied.is_some_and(is_lost));
            }
            Record::StartedOver => {
                self.gradients.clear();
                self.in_hand.clear();
                self.views.clear();
                if !self.synchronous {
                    // All are put out, and may not know it yet.
                    self.gone.append(&mut self.started);
                }
            }
            _ => {}
        }
    }
}

impl GradientsOnce {
    fn compute(&mut self, who: WorkerId, spans: Option<&Spans>) {
        let Some(spans) = spans else {
            if self.violations.is_empty() {
                let advice = "the journal does not say which samples gradients are of: set plan.fingerprints";
                self.violations.push(advice.into());
            }
            return;
        };
        if self.gone.contains(&who) {
            return;
        }
        self.in_hand.entry(who).or_default().extend(spans.positions());
        for position in spans.positions() {
            let gradient = Gradient { by: who, is_in_hand: true, applied: None };
            if let Some(first) = self.gradients.insert(position, gradient) {
                let place = if first.applied.is_some() { "is applied" } else { "is in hand" };
                self.violations.push(format!(
                    "worker {who} computed sample {position} again, but the gradient of worker {} {place}",
                    first.by
                ));
            }
        }
    }

    /// What a worker has in hand dies with it.
    fn lose(&mut self, who: WorkerId) {
        self.gone.insert(who);
        self.drop_in_hand(who);
    }

    fn drop_in_hand(&mut self, who: WorkerId) {
        for position in self.in_hand.remove(&who).unwrap_or_default() {
            if let Some(gradient) = self.gradients.get_mut(&position)
                && gradient.by == who
            {
                gradient.is_in_hand = false;
                if gradient.applied.is_none() {
                    self.gradients.remove(&position);
                }
            }
        }
    }

    /// Updates that are undone; gradients that are still in hand live on.
    fn void(&mut self, is_void: impl Fn(Place) -> bool) {
        self.gradients.retain(|_, gradient| {
            gradient.applied = gradient.applied.filter(|place| !is_void(*place));
            gradient.is_in_hand || gradient.applied.is_some()
        });
    }

    fn take_result(&mut self, name: ResultName, spans: &Spans) {
        match self.views.insert(name.exchange, name.view) {
            None => {}
            Some(newer) if newer > name.view => {
                self.views.insert(name.exchange, newer);
                return;
            }
            Some(_) => {
                self.void(
                    |place| matches!(place, Place::Result(it) if it.exchange == name.exchange),
                );
            }
        }
        self.place(spans, Place::Result(name));
    }

    fn apply(&mut self, who: WorkerId, version: u64, spans: &Spans) {
        let is_void = match self.central {
            true => self.server.is_some_and(|server| server != who),
            false => self.gone.contains(&who),
        };
        if !is_void {
            let place = if self.central { Place::Center { version } } else { Place::Replica };
            self.place(spans, place);
        }
    }

    /// A gradient that was declared dead before it was applied is not looked for: it may be computed again.
    fn place(&mut self, spans: &Spans, place: Place) {
        for position in spans.positions() {
            if let Some(gradient) = self.gradients.get_mut(&position) {
                gradient.applied = Some(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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

    fn computed(who: u32, from: u64, to: u64) -> Record {
        let (who, since, spans) = (WorkerId(who), Duration::ZERO, Some(Spans::one(from, to)));
        Record::Computed { who, since, samples: to - from, round: None, spans }
    }

    fn applied(who: u32, version: u64, spans: Spans, result: Option<(u64, u64)>) -> Record {
        let result = result.map(|(exchange, view)| ResultName { exchange, view });
        let (who, loss_sum, staleness, rate, round) = (WorkerId(who), 0.0, 0, 0.1, None);
        Record::Applied {
            weight: None,
            who,
            version,
            spans,
            loss_sum,
            staleness,
            rate,
            round,
            result,
        }
    }

    fn violations(began: Record, records: Vec<Record>) -> usize {
        let mut checker = GradientsOnce::default();
        for record in [vec![began], records].concat() {
            checker.read(&Line { at: Duration::ZERO, record });
        }
        checker.violations.len()
    }

    #[test]
    fn a_gradient_in_hand_is_computed_again_only_after_its_worker_is_lost() {
        let freed = Record::Freed { who: WorkerId(0), spans: Spans::new() };
        let again = |between| {
            violations(began(true, false), vec![computed(0, 0, 2), between, computed(1, 1, 2)])
        };

        assert_eq!(again(Record::Restarted), 1);
        assert_eq!(again(Record::Freed { who: WorkerId(2), spans: Spans::new() }), 1);
        assert_eq!(again(freed), 0);
        assert_eq!(again(Record::Crashed { who: WorkerId(0) }), 0);
        assert_eq!(again(Record::StartedOver), 0);
    }

    #[test]
    fn a_result_holds_its_gradients_until_a_newer_view_makes_it_without_them() {
        let start = [
            computed(0, 0, 1),
            computed(1, 1, 2),
            applied(0, 1, Spans::one(0, 2), Some((1, 1))),
            Record::Crashed { who: WorkerId(0) },
        ];
        let then = |more: Vec<Record>| violations(began(true, false), [&start[..], &more].concat());

        assert_eq!(then(vec![computed(1, 0, 1)]), 1);
        let newer = applied(1, 1, Spans::one(1, 2), Some((1, 2)));
        assert_eq!(then(vec![newer.clone(), computed(1, 0, 1)]), 0);
        assert_eq!(then(vec![newer, computed(2, 1, 2)]), 1);
    }

    #[test]
    fn a_gradient_that_a_lost_center_held_is_dead_and_one_on_its_way_to_it_is_not() {
        let waited = Record::Waited { who: WorkerId(1), whom: WorkerId(0), since: Duration::ZERO };
        let restored = Record::Restored { who: WorkerId(1), version: 0, reign: 2 };
        let pushed = [computed(1, 0, 2), applied(0, 1, Spans::one(0, 1), None)];
        let then =
            |more: Vec<Record>| violations(began(false, true), [&pushed[..], &more].concat());

        assert_eq!(then(vec![computed(2, 0, 1)]), 1);
        assert_eq!(then(vec![restored.clone(), computed(2, 0, 1)]), 0);
        assert_eq!(then(vec![restored.clone(), computed(2, 1, 2)]), 1);
        assert_eq!(then(vec![waited.clone(), computed(2, 0, 1)]), 1);
        assert_eq!(then(vec![waited, restored, computed(2, 0, 2)]), 0);
    }

    #[test]
    fn what_a_lost_worker_applied_alone_is_dead_as_far_as_it_is_freed() {
        let freed = Record::Freed { who: WorkerId(0), spans: Spans::one(1, 2) };
        let start =
            [computed(0, 0, 2), applied(0, 1, Spans::one(0, 1), None), computed(0, 2, 3), freed];
        let then = |more: Record| violations(began(false, false), [&start[..], &[more]].concat());

        assert_eq!(then(computed(1, 0, 1)), 1);
        assert_eq!(then(computed(1, 1, 3)), 0);
    }

    #[test]
    fn a_journal_that_does_not_name_samples_is_a_violation() {
        let (who, since) = (WorkerId(0), Duration::ZERO);
        let nameless = Record::Computed { who, since, samples: 1, round: None, spans: None };
        assert_eq!(violations(began(true, false), vec![nameless]), 1);
    }
}
