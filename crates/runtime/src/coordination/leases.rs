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
    /// Requests (worker, number, samples) that wait until samples are free, or all are done.
    waiting: VecDeque<(WorkerId, u64, u64)>,
    /// The center is lost: which samples are done is unknown until a new server says so.
    restoring: bool,
    stopped: bool,
}

impl Leases {
    pub fn new(total: u64) -> Leases {
        Leases {
            ledger: Ledger::new(total),
            holders: Holders::default(),
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
        self.holders.take(spans, None);
        self.ledger.finish(spans);
    }

    pub fn give_back(&mut self, who: WorkerId, spans: &Spans) {
        // The rest was applied, or freed before.
        let returned = self.holders.take(spans, Some(who));
        self.ledger.release(&returned);
    }

    /// Frees and returns the leases of a worker that is gone.
    pub fn forget(&mut self, who: WorkerId) -> Spans {
        self.waiting.retain(|(waiting, ..)| *waiting != who);
        let freed = self.holders.forget(who);
        self.ledger.release(&freed);
        freed
    }

    pub fn center_lost(&mut self) {
        self.restoring = true;
    }

    /// Exactly these samples are applied. What workers hold besides stays theirs, and is returned: a worker may
    /// believe that some of it was applied to the center that is lost.
    pub fn restored(&mut self, done: Spans) -> Vec<(WorkerId, Spans)> {
        self.holders.take(&done, None);
        self.ledger.restore(done);
        self.restoring = false;
        self.holders.by_worker().into_iter().collect()
    }

    /// Ends the job where it is: no more samples are leased.
    pub fn stop(&mut self) {
        self.stopped = true;
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

    /// Takes positions from their holders, or from one of them, and returns those that were held.
    fn take(&mut self, spans: &Spans, of: Option<WorkerId>) -> Spans {
        let mut taken = Spans::new();
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
                taken.insert(start.max(from), end.min(to));
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
