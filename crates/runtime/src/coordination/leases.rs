//! Leases of samples to asynchronous workers, from the coordinator's ledger.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::messages::Lease;
use crate::ids::WorkerId;
use crate::ledger::Ledger;
use crate::spans::Spans;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leases {
    ledger: Ledger,
    holders: Holders,
    /// Who held the samples that were applied last, the newest last. If the center is lost with them, they may still be in
    /// those workers' hands: the answer of the lost server has not arrived.
    applied: VecDeque<(WorkerId, u64, u64)>,
    /// Whether a center can be lost with applied samples.
    has_center: bool,
    /// Requests (worker, number, samples) that wait until samples are free, or all are done.
    waiting: VecDeque<(WorkerId, u64, u64)>,
    /// The center is lost: which samples are done is unknown until a new server says so.
    restoring: bool,
    stopped: bool,
}

/// Far more than there are answers on their way at any time.
const APPLIED_MAX: usize = 1 << 14;

impl Leases {
    pub fn new(total: u64, has_center: bool) -> Leases {
        Leases {
            ledger: Ledger::new(total),
            holders: Holders::default(),
            applied: VecDeque::new(),
            has_center,
            waiting: VecDeque::new(),
            restoring: false,
            stopped: false,
        }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn is_done(&self) -> bool {
        !self.restoring && (self.stopped || self.ledger.is_done())
    }

    pub fn ask(&mut self, who: WorkerId, request: u64, samples: u64) {
        self.waiting.push_back((who, request, samples));
    }

    /// `spans` were applied, by the worker that holds them or by a server on its behalf.
    pub fn done(&mut self, spans: &Spans) {
        let held = self.holders.take(spans, None);
        if self.has_center {
            self.applied.extend(held);
            let old = self.applied.len().saturating_sub(APPLIED_MAX);
            self.applied.drain(..old);
        }
        self.ledger.finish(spans);
    }

    pub fn give_back(&mut self, who: WorkerId, spans: &Spans) {
        // The rest was applied, or freed before.
        for (_, from, to) in self.holders.take(spans, Some(who)) {
            self.ledger.release(&Spans::one(from, to));
        }
    }

    /// Whether a worker has samples that it has neither applied nor given back.
    pub fn has_leased_to(&self, who: WorkerId) -> bool {
        self.holders.0.values().any(|(_, holder)| *holder == who)
    }

    /// Frees and returns the leases of a worker that is gone.
    pub fn forget(&mut self, who: WorkerId) -> Spans {
        self.waiting.retain(|(waiting, ..)| *waiting != who);
        self.applied.retain(|(holder, ..)| *holder != who);
        let freed = self.holders.forget(who);
        self.ledger.release(&freed);
        freed
    }

    pub fn center_lost(&mut self) {
        self.restoring = true;
    }

    /// Exactly these samples are applied. What workers hold besides stays theirs, and what the lost center had applied
    /// is theirs again; it is returned: a worker that no longer has the gradients must say so.
    pub fn restored(&mut self, done: Spans) -> Vec<(WorkerId, Spans)> {
        self.holders.take(&done, None);
        let mut undone = self.ledger.done().clone();
        undone.subtract(&done);
        self.ledger.restore(done);
        for (who, from, to) in std::mem::take(&mut self.applied).into_iter().rev() {
            let theirs = undone.overlap(&Spans::one(from, to));
            undone.subtract(&theirs);
            self.holders.give(who, &theirs);
            self.ledger.hold(&theirs);
        }
        self.restoring = false;
        self.holders.by_worker().into_iter().collect()
    }

    /// Ends the job where it is: no more samples are leased.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The answer to the oldest request, if it can be answered now.
    pub fn next_answer(&mut self) -> Option<(WorkerId, u64, Lease)> {
        if self.restoring {
            return None;
        }
        let &(who, request, samples) = self.waiting.front()?;
        let lease = if self.is_done() {
            Lease::Over
        } else {
            let spans = self.ledger.deal(samples);
            if spans.is_empty() {
                return None;
            }
            self.holders.give(who, &spans);
            Lease::Yours { spans, count: self.ledger.done().len() }
        };
        self.waiting.pop_front();
        Some((who, request, lease))
    }
}

/// Who holds which positions: by the first position of each interval, its end and its holder. A server reports what it
/// applied for others, so holders are found by position; there may be thousands of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Holders(BTreeMap<u64, (u64, WorkerId)>);

impl Holders {
    fn give(&mut self, who: WorkerId, spans: &Spans) {
        self.0.extend(spans.intervals().iter().map(|(from, to)| (*from, (*to, who))));
    }

    /// Takes positions from their holders, or from one of them; returns who held which.
    fn take(&mut self, spans: &Spans, of: Option<WorkerId>) -> Vec<(WorkerId, u64, u64)> {
        let mut taken = vec![];
        for &(from, to) in spans.intervals() {
            let before = self.0.range(..from).next_back();
            let first = before.filter(|(_, (end, _))| *end > from).map_or(from, |(at, _)| *at);
            let held: Vec<_> = self.0.range(first..to).map(|(at, held)| (*at, *held)).collect();
            for (start, (end, who)) in held {
                if of.is_some_and(|it| it != who) {
                    continue;
                }
                self.0.remove(&start);
                if start < from {
                    self.0.insert(start, (from, who));
                }
                if to < end {
                    self.0.insert(to, (end, who));
                }
                taken.push((who, start.max(from), end.min(to)));
            }
        }
        taken
    }

    /// Takes all that a worker holds.
    fn forget(&mut self, who: WorkerId) -> Spans {
        let mut held = Spans::new();
        self.0.retain(|from, (to, holder)| {
            if *holder == who {
                held.insert(*from, *to);
            }
            *holder != who
        });
        held
    }

    fn by_worker(&self) -> BTreeMap<WorkerId, Spans> {
        let mut workers: BTreeMap<WorkerId, Spans> = BTreeMap::new();
        for (from, (to, who)) in &self.0 {
            workers.entry(*who).or_default().insert(*from, *to);
        }
        workers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_lost_center_had_applied_is_its_workers_again_until_they_return_it() {
        let (a, b) = (WorkerId(0), WorkerId(1));
        let mut leases = Leases::new(12, true);
        leases.ask(a, 1, 4);
        leases.ask(b, 1, 4);
        assert!(leases.next_answer().is_some() && leases.next_answer().is_some());
        leases.done(&Spans::one(0, 4));
        leases.done(&Spans::one(4, 8));
        leases.center_lost();

        // The newest copy of the center holds what worker 0 had pushed, and not what worker 1 had.
        let missing = leases.restored(Spans::one(0, 4));

        assert_eq!(missing, [(b, Spans::one(4, 8))]);
        leases.ask(a, 2, 12);
        let leased = |leases: &mut Leases| match leases.next_answer() {
            Some((_, _, Lease::Yours { spans, .. })) => spans,
            other => panic!("{other:?}"),
        };
        assert_eq!(leased(&mut leases), Spans::one(8, 12), "worker 1 may still have them in hand");
        leases.give_back(b, &Spans::one(4, 8));
        leases.ask(a, 3, 12);
        assert_eq!(leased(&mut leases), Spans::one(4, 8));
    }
}
