//! Hands out samples to asynchronous workers from the one ledger at the coordinator.

use std::collections::{BTreeMap, VecDeque};

use crate::cluster::{Lease, Ticket, WorkerId};
use crate::ledger::Ledger;
use crate::spans::Spans;

#[derive(Clone, Debug)]
pub struct Leases {
    ledger: Ledger,
    holders: BTreeMap<WorkerId, Spans>,
    /// Who asked when nothing was free; answered as soon as something is, or all is done.
    waiting: VecDeque<(WorkerId, Ticket, u64)>,
    /// The center is lost: what is done is not known until a new server has said so.
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

    pub fn ask(&mut self, who: WorkerId, ticket: Ticket, samples: u64) {
        self.waiting.push_back((who, ticket, samples));
    }

    /// These were applied, by `who` itself or by a server on behalf of another.
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
        // Only what is still this worker's: the rest was applied, or freed before.
        let returned = held.overlap(spans);
        held.subtract(&returned);
        self.ledger.release(&returned);
    }

    /// Frees what a worker that is gone had leased; says what that was.
    pub fn forget(&mut self, who: WorkerId) -> Spans {
        self.waiting.retain(|(waiting, ..)| *waiting != who);
        let freed = self.holders.remove(&who).unwrap_or_default();
        self.ledger.release(&freed);
        freed
    }

    pub fn center_lost(&mut self) {
        self.restoring = true;
    }

    pub fn restored(&mut self, done: Spans) {
        self.holders.values_mut().for_each(|held| held.subtract(&done));
        self.ledger.restore(done);
        self.restoring = false;
    }

    /// No more samples are handed out; the job ends where it is.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Answers those who can be answered now.
    pub fn answers(&mut self) -> Vec<(WorkerId, Ticket, Lease)> {
        let mut answers = Vec::new();
        while !self.restoring {
            let Some(&(who, ticket, samples)) = self.waiting.front() else { break };
            let lease = if self.is_done() {
                Lease::Over
            } else {
                let spans = self.ledger.deal(samples);
                if spans.is_empty() {
                    break;
                }
                self.holders.entry(who).or_default().add(&spans);
                Lease::Yours { spans, count: self.ledger.done().len() }
            };
            self.waiting.pop_front();
            answers.push((who, ticket, lease));
        }
        answers
    }
}
