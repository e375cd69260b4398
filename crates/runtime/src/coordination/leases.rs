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
    holders: BTreeMap<WorkerId, Spans>,
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
            holders: BTreeMap::new(),
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

    /// `spans` were applied, by `who` itself or by a server on behalf of another worker.
    pub fn done(&mut self, who: WorkerId, spans: &Spans) {
        let own = self.holders.get_mut(&who);
        let is_own = own.is_some_and(|held| {
            let before = held.len();
            held.subtract(spans);
            before - held.len() == spans.len()
        });
        if !is_own {
            self.holders.values_mut().for_each(|held| held.subtract(spans));
        }
        self.ledger.finish(spans);
    }

    pub fn give_back(&mut self, who: WorkerId, spans: &Spans) {
        let Some(held) = self.holders.get_mut(&who) else { return };
        // The rest was applied, or freed before.
        let returned = held.overlap(spans);
        held.subtract(&returned);
        self.ledger.release(&returned);
    }

    /// Frees and returns the leases of a worker that is gone.
    pub fn forget(&mut self, who: WorkerId) -> Spans {
        self.waiting.retain(|(waiting, ..)| *waiting != who);
        let freed = self.holders.remove(&who).unwrap_or_default();
        self.ledger.release(&freed);
        freed
    }

    pub fn center_lost(&mut self) {
        self.restoring = true;
    }

    /// Exactly these samples are applied. What workers hold besides stays theirs, and is returned: a worker may
    /// believe that some of it was applied to the center that is lost.
    pub fn restored(&mut self, done: Spans) -> Vec<(WorkerId, Spans)> {
        self.holders.values_mut().for_each(|held| held.subtract(&done));
        self.ledger.restore(done);
        self.restoring = false;
        let held = self.holders.iter().filter(|(_, held)| !held.is_empty());
        held.map(|(who, held)| (*who, held.clone())).collect()
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
            self.holders.entry(who).or_default().add(&spans);
            Lease::Yours { spans, count: self.ledger.done().len() }
        };
        self.waiting.pop_front();
        Some((who, request, lease))
    }
}
