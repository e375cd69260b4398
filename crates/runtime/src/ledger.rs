//! The ledger of samples: which positions of the job are free, dealt, or done.
//!
//! Position k is the (k mod |D|)-th sample of epoch k / |D|. Every member of an exchange holds the
//! same ledger and changes it alike, so that dealing needs no message; asynchronous strategies lease
//! from the one copy at the coordinator.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::WorkerId;
use crate::spans::Spans;

/// A lane holds at most this many rounds of samples: enough for batches that suddenly grow.
const LANE_ROUNDS: u64 = 8;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    total: u64,
    done: Spans,
    dealt: Spans,
    /// Open batches: each member draws from a lane of its own, in order.
    lanes: BTreeMap<WorkerId, Spans>,
}

impl Ledger {
    pub fn new(total: u64) -> Ledger {
        Ledger { total, done: Spans::new(), dealt: Spans::new(), lanes: BTreeMap::new() }
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Makes the job longer or shorter; no position beyond its end may be done or dealt.
    pub fn set_total(&mut self, total: u64) {
        assert!(
            self.done.gaps(total).len() + self.done.len() == total,
            "no position beyond the end of the job is done"
        );
        self.total = total;
    }

    pub fn done(&self) -> &Spans {
        &self.done
    }

    pub fn is_done(&self) -> bool {
        self.done.len() == self.total
    }

    pub fn has_free(&self) -> bool {
        self.done.len() + self.dealt.len() < self.total
    }

    /// Deals the first `count` free positions, or all of them if there are fewer.
    pub fn deal(&mut self, count: u64) -> Spans {
        let mut taken = Spans::new();
        let mut left = count;
        // The low-water mark makes this short: only the few intervals above it are walked.
        let mut from = self.done.low_water();
        while left > 0 && from < self.total {
            match self.next_taken(from) {
                Some((start, end)) if start <= from => from = end,
                next => {
                    let to = (from + left).min(next.map_or(self.total, |(start, _)| start));
                    taken.insert(from, to);
                    left -= to - from;
                    from = to;
                }
            }
        }
        self.dealt.add(&taken);
        taken
    }

    /// The first interval, done or dealt, that ends after `from`.
    fn next_taken(&self, from: u64) -> Option<(u64, u64)> {
        let next = |spans: &Spans| {
            let at = spans.intervals().partition_point(|(_, end)| *end <= from);
            spans.intervals().get(at).copied()
        };
        [next(&self.done), next(&self.dealt)].into_iter().flatten().min()
    }

    /// The gradient that holds these has been applied.
    pub fn finish(&mut self, spans: &Spans) {
        self.dealt.subtract(spans);
        self.done.add(spans);
    }

    /// Frees positions that were dealt and not done.
    pub fn release(&mut self, spans: &Spans) {
        self.dealt.subtract(spans);
    }

    pub fn release_all(&mut self) {
        self.dealt = Spans::new();
        self.lanes.clear();
    }

    /// Exactly these are done; all others that were thought done are free again.
    pub fn restore(&mut self, done: Spans) {
        self.dealt.subtract(&done);
        self.done = done;
    }

    /// Whether members draw from lanes.
    pub fn has_lanes(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// What `worker` may draw from, in order.
    pub fn lane(&self, worker: WorkerId) -> Option<&Spans> {
        self.lanes.get(&worker)
    }

    /// Fills every member's lane up to several rounds of its expected samples. Towards the end of the job
    /// lanes get shorter, because no other member can use what lies in one; but a lane always holds two rounds:
    /// the one that is being summed, and the next.
    pub fn fill_lanes(&mut self, expected: &[(WorkerId, u64)]) {
        let expected_total: u64 =
            expected.iter().map(|(_, samples_expected)| samples_expected).sum();
        let left = self.total - self.done.len();
        let rounds = (left / (4 * expected_total.max(1))).clamp(2, LANE_ROUNDS);
        for &(worker, samples_expected) in expected {
            let has = self.lanes.get(&worker).map_or(0, Spans::len);
            let fresh = self.deal((rounds * samples_expected).saturating_sub(has));
            self.lanes.entry(worker).or_default().add(&fresh);
        }
    }

    /// The first `counts` of every lane: what a finished sum holds.
    pub fn advance_lanes(&mut self, counts: &[(WorkerId, u64)]) -> Spans {
        let mut spans = Spans::new();
        for &(worker, count) in counts {
            let lane = self.lanes.entry(worker).or_default();
            let taken = lane.take(count);
            assert_eq!(taken.len(), count, "a worker draws only from its lane");
            spans.add(&taken);
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_learn::Dice;

    #[test]
    fn dealt_positions_are_the_first_free_ones_and_never_dealt_twice() {
        let mut ledger = Ledger::new(10);
        let first = ledger.deal(4);
        let second = ledger.deal(3);
        assert_eq!(first.intervals(), [(0, 4)]);
        assert_eq!(second.intervals(), [(4, 7)]);

        ledger.release(&first);
        ledger.finish(&second);

        assert_eq!(ledger.deal(6).intervals(), [(0, 4), (7, 9)]);
        assert_eq!(ledger.deal(6).intervals(), [(9, 10)]);
        assert!(!ledger.has_free() && !ledger.is_done());
    }

    #[test]
    fn lanes_hold_every_sample_once_whatever_the_counts() {
        for seed in 0..100 {
            let mut dice = Dice::keyed(&[seed]);
            let members: Vec<WorkerId> = (0..1 + dice.below(5) as u32).map(WorkerId).collect();
            let mut ledger = Ledger::new(50 + dice.below(200));
            let expected: Vec<_> = members.iter().map(|w| (*w, 1 + dice.below(9))).collect();
            let mut seen = Spans::new();
            let mut rounds = 0;
            while !ledger.is_done() {
                ledger.fill_lanes(&expected);
                let counts: Vec<_> = members
                    .iter()
                    .map(|w| (*w, dice.below(1 + ledger.lane(*w).map_or(0, Spans::len))))
                    .collect();
                let spans = ledger.advance_lanes(&counts);
                assert!(seen.overlap(&spans).is_empty(), "seed {seed}");
                seen.add(&spans);
                ledger.finish(&spans);
                if dice.below(10) == 0 {
                    ledger.release_all();
                }
                rounds += 1;
                assert!(rounds < 100_000, "seed {seed} ends");
            }
            assert_eq!(seen.intervals(), [(0, ledger.total())], "seed {seed}");
        }
    }
}
