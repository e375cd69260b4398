//! The ledger of samples: which positions of the job are free, dealt, or done.
//!
//! Position k is the (k mod |D|)-th sample of epoch k / |D|. Every member of an exchange holds the
//! same ledger and changes it alike, so that dealing needs no message; asynchronous strategies lease
//! from the one copy at the coordinator.
//!
//! A position that is dealt to a synchronous member lies in the member's lane until a result holds it. When a
//! result comes without that member, which is therefore lost or has left, its lane is free again.
//!
//! The end of a lane may be dealt ahead: nobody computes it yet, but its member can read it already. A share is first taken from there.

use std::collections::{BTreeMap, VecDeque};

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
    /// What is dealt to each member, in the order in which the member computes it.
    lanes: BTreeMap<WorkerId, Lane>,
    /// How many positions at the end of each lane are dealt ahead of the shares.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    ahead: BTreeMap<WorkerId, u64>,
    #[serde(skip)]
    taken_below: TakenBelow,
}

/// Every position below this one is done or dealt. Thousands of workers leave thousands of gaps between what is done, and
/// they need not be looked at for each lease. It follows from the rest, so it is neither saved nor compared.
#[derive(Clone, Copy, Debug, Default)]
struct TakenBelow(u64);

impl PartialEq for TakenBelow {
    fn eq(&self, _: &TakenBelow) -> bool {
        true
    }
}

/// Positions in the order in which they were dealt: ones that are free again come after later ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lane(VecDeque<(u64, u64)>);

impl Lane {
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(from, to)| to - from).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(&mut self, spans: &Spans) {
        for &(from, to) in spans.intervals() {
            match self.0.back_mut() {
                Some((_, end)) if *end == from => *end = to,
                _ => self.0.push_back((from, to)),
            }
        }
    }

    /// Takes the first `count` positions out of the lane, or all there are.
    fn take(&mut self, count: u64) -> Spans {
        let taken = self.get(0, count);
        let mut left = count;
        while let Some((from, to)) = self.0.front_mut().filter(|_| left > 0) {
            let taken = left.min(*to - *from);
            (*from, left) = (*from + taken, left - taken);
            if from == to {
                self.0.pop_front();
            }
        }
        taken
    }

    /// The `count` positions after the first `skip`, or as many as there are.
    pub fn get(&self, mut skip: u64, count: u64) -> Spans {
        let (mut spans, mut left) = (Spans::new(), count);
        for &(from, to) in &self.0 {
            let skipped = skip.min(to - from);
            skip -= skipped;
            let taken = left.min(to - from - skipped);
            spans.insert(from + skipped, from + skipped + taken);
            left -= taken;
            if left == 0 {
                break;
            }
        }
        spans
    }

    /// Takes the last `count` positions out of the lane, or all there are.
    fn take_last(&mut self, count: u64) -> Spans {
        let (mut taken, mut left) = (Spans::new(), count);
        while let Some((from, to)) = self.0.back_mut().filter(|_| left > 0) {
            let some = left.min(*to - *from);
            (*to, left) = (*to - some, left - some);
            taken.insert(*to, *to + some);
            if from == to {
                self.0.pop_back();
            }
        }
        taken
    }

    fn positions(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }
}

impl Ledger {
    pub fn new(total: u64) -> Ledger {
        Ledger {
            total,
            done: Spans::new(),
            dealt: Spans::new(),
            lanes: BTreeMap::new(),
            ahead: BTreeMap::new(),
            taken_below: TakenBelow::default(),
        }
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

    /// How many positions are dealt and not done.
    pub fn dealt(&self) -> u64 {
        self.dealt.len()
    }

    /// Whether positions are left for another share: free ones, or ones that are only dealt ahead.
    pub fn has_free(&self) -> bool {
        let ahead: u64 = self.ahead.values().sum();
        self.done.len().saturating_add(self.dealt.len()) < self.total.saturating_add(ahead)
    }

    /// Deals the first `count` free positions, or all of them if there are fewer.
    pub fn deal(&mut self, count: u64) -> Spans {
        let mut taken = Spans::new();
        let mut left = count;
        // This makes it short: only the few intervals above it are walked.
        let mut from = self.done.low_water().max(self.taken_below.0);
        while left > 0 && from < self.total {
            match self.next_taken(from) {
                Some((start, end)) if start <= from => from = end,
                next => {
                    let to =
                        from.saturating_add(left).min(next.map_or(self.total, |(start, _)| start));
                    taken.insert(from, to);
                    left -= to - from;
                    from = to;
                }
            }
        }
        self.dealt.add(&taken);
        self.taken_below = TakenBelow(from);
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
        self.has_freed(spans.intervals().first().map(|(from, _)| *from));
    }

    pub fn release_all(&mut self) {
        self.dealt = Spans::new();
        self.lanes.clear();
        self.ahead.clear();
        self.taken_below = TakenBelow::default();
    }

    /// Positions that are free belong to a worker again.
    pub fn hold(&mut self, spans: &Spans) {
        self.dealt.add(spans);
    }

    /// Exactly these are done; all others that were thought done are free again.
    pub fn restore(&mut self, done: Spans) {
        self.dealt.subtract(&done);
        self.done = done;
        self.taken_below = TakenBelow::default();
    }

    /// Positions from this one on may be free again.
    fn has_freed(&mut self, from: Option<u64>) {
        let freed = from.unwrap_or(u64::MAX);
        self.taken_below = TakenBelow(self.taken_below.0.min(freed));
    }

    /// Whether each of these members has a lane, be it empty.
    pub fn has_lanes_of(&self, members: &[WorkerId]) -> bool {
        members.iter().all(|member| self.lanes.contains_key(member))
    }

    /// What `worker` may draw from.
    pub fn lane(&self, worker: WorkerId) -> Option<&Lane> {
        self.lanes.get(&worker)
    }

    /// Deals the next positions: to each member its share, in the order of members. What was dealt ahead to a member comes first.
    /// Then deals ahead, until every member's lane holds `rounds` more shares of the same size.
    pub fn deal_shares(&mut self, members: &[WorkerId], shares: &[u64], rounds: u64) {
        self.deal_to(members.iter().copied().zip(shares.iter().copied()), rounds);
    }

    /// Deals the next `total` positions to these members, evenly; see [`deal_shares`](Self::deal_shares).
    pub fn deal_evenly(&mut self, members: &[WorkerId], total: u64, rounds: u64) {
        let share = |rank| even_share(total, members.len(), rank);
        self.deal_to(members.iter().enumerate().map(|(rank, who)| (*who, share(rank))), rounds);
    }

    fn deal_to(&mut self, shares: impl Iterator<Item = (WorkerId, u64)> + Clone, rounds: u64) {
        let mut missing = Vec::new();
        for (member, share) in shares.clone() {
            let ahead = self.ahead_of(member);
            if ahead > 0 {
                self.ahead.insert(member, ahead.saturating_sub(share));
            }
            missing.push((member, share.saturating_sub(ahead)));
        }
        for (member, missing) in missing {
            let mut fresh = self.deal(missing);
            // If no position is free: what is dealt ahead to others is as good as free, because nobody has begun to compute it.
            fresh.add(&self.take_ahead(missing - fresh.len()));
            self.lanes.entry(member).or_default().push(&fresh);
        }
        // Round by round, so that equal shares are dealt as they would be one round after the other.
        for round in 1..=rounds {
            for (member, share) in shares.clone() {
                let ahead = self.ahead_of(member);
                let fresh = self.deal(round.saturating_mul(share).saturating_sub(ahead));
                self.lanes.entry(member).or_default().push(&fresh);
                self.ahead.insert(member, ahead + fresh.len());
            }
        }
        self.ahead.retain(|_, ahead| *ahead > 0);
    }

    fn ahead_of(&self, member: WorkerId) -> u64 {
        self.ahead.get(&member).copied().unwrap_or(0)
    }

    /// Takes `count` positions that are dealt ahead out of their lanes, the longest first, or all there are.
    fn take_ahead(&mut self, count: u64) -> Spans {
        let mut taken = Spans::new();
        while taken.len() < count
            && let Some((member, ahead)) = self.ahead.iter_mut().max_by_key(|(_, ahead)| **ahead)
            && *ahead > 0
        {
            let some = (*ahead).min(count - taken.len());
            *ahead -= some;
            let lane = self.lanes.get_mut(member).expect("who has positions ahead has a lane");
            taken.add(&lane.take_last(some));
        }
        taken
    }

    /// Fills every member's lane up to several rounds of its expected samples. Towards the end of the job
    /// lanes get shorter, because no other member can use what lies in one; but a lane always holds two rounds:
    /// the one that is being summed, and the next.
    pub fn fill_lanes(&mut self, expected: impl Iterator<Item = (WorkerId, u64)> + Clone) {
        let expected_total: u64 = expected.clone().map(|(_, samples)| samples).sum();
        let left = self.total - self.done.len();
        let rounds = (left / (4 * expected_total.max(1))).clamp(2, LANE_ROUNDS);
        for (worker, samples_expected) in expected {
            let has = self.lanes.get(&worker).map_or(0, Lane::len);
            let fresh = self.deal((rounds * samples_expected).saturating_sub(has));
            self.lanes.entry(worker).or_default().push(&fresh);
        }
    }

    /// A result holds the first `counts` positions of its contributors' lanes: they are done, and are
    /// returned. The lanes of all others are free again. `None` if a contributor says that it computed more than
    /// was dealt to it.
    pub fn take(&mut self, counts: impl Iterator<Item = (WorkerId, u64)>) -> Option<Spans> {
        let mut lanes = std::mem::take(&mut self.lanes);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for (worker, count) in counts {
            let mut lane = lanes.remove(&worker).unwrap_or_default();
            if lane.len() - self.ahead_of(worker) < count {
                return None;
            }
            taken.extend(lane.take(count).intervals());
            self.lanes.insert(worker, lane);
        }
        self.ahead.retain(|worker, _| self.lanes.contains_key(worker));
        for (from, to) in lanes.values().flat_map(Lane::positions) {
            self.dealt.remove(from, to);
            self.has_freed(Some(from));
        }
        // In order, so that each is added at the end of the others.
        taken.sort_unstable();
        let mut spans = Spans::new();
        taken.into_iter().for_each(|(from, to)| spans.insert(from, to));
        self.finish(&spans);
        Some(spans)
    }

    /// The members are others: the lanes of those that left are free again.
    pub fn keep_lanes(&mut self, members: &[WorkerId]) {
        let of = |(worker, _): &(&WorkerId, &mut Lane)| members.binary_search(worker).is_err();
        let left: Vec<WorkerId> =
            self.lanes.iter_mut().filter(of).map(|(worker, _)| *worker).collect();
        for worker in left {
            let lane = self.lanes.remove(&worker).unwrap_or_default();
            self.ahead.remove(&worker);
            for (from, to) in lane.positions() {
                self.dealt.remove(from, to);
                self.has_freed(Some(from));
            }
        }
    }

    /// Puts positions that are dealt into a member's lane, as they were in a snapshot of an older format.
    pub fn put_into_lane(&mut self, worker: WorkerId, spans: &Spans) {
        self.lanes.entry(worker).or_default().push(spans);
    }
}

/// What the member of this rank gets when a total is divided evenly: the first ranks get one more if there is a remainder.
pub fn even_share(total: u64, members: usize, rank: usize) -> u64 {
    let members = members as u64;
    total / members + u64::from((rank as u64) < total % members)
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

    /// Any worker may ask for any number. The largest one overflowed: it got nothing, and every request behind it waited.
    #[test]
    fn a_worker_that_asks_for_more_than_there_is_gets_what_is_left() {
        let mut ledger = Ledger::new(10);
        ledger.deal(3);

        assert_eq!(ledger.deal(u64::MAX).intervals(), [(3, 10)]);
        assert!(ledger.deal(u64::MAX).is_empty());

        ledger.finish(&Spans::one(0, u64::MAX));
        assert!(!ledger.has_free() && ledger.deal(1).is_empty());
    }

    #[test]
    fn every_sample_is_done_once_whatever_the_counts_and_whoever_is_lost() {
        for seed in 0..200 {
            let mut dice = Dice::keyed(&[seed]);
            let mut members: Vec<WorkerId> = (0..1 + dice.below(5) as u32).map(WorkerId).collect();
            let mut ledger = Ledger::new(50 + dice.below(200));
            let mut seen = Spans::new();
            let mut rounds = 0;
            while !ledger.is_done() {
                let expected: Vec<_> = members.iter().map(|w| (*w, 1 + dice.below(9))).collect();
                if dice.below(2) == 0 {
                    ledger.fill_lanes(expected.iter().copied());
                } else {
                    let shares: Vec<_> = expected.iter().map(|(_, share)| *share).collect();
                    ledger.deal_shares(&members, &shares, dice.below(4));
                }
                if members.len() > 1 && dice.below(10) == 0 {
                    members.remove(dice.below(members.len() as u64) as usize);
                }
                let counts: Vec<_> = members
                    .iter()
                    .map(|w| (*w, ledger.lane(*w).map_or(0, Lane::len) - ledger.ahead_of(*w)))
                    .map(|(w, dealt)| (w, dice.below(1 + dealt)))
                    .collect();
                let spans = ledger.take(counts.into_iter()).expect("no count is above its share");
                assert!(seen.overlap(&spans).is_empty(), "seed {seed}");
                seen.add(&spans);
                if dice.below(10) == 0 {
                    ledger.keep_lanes(&members[..1]);
                }
                rounds += 1;
                assert!(rounds < 100_000, "seed {seed} ends");
            }
            assert_eq!(seen.intervals(), [(0, ledger.total())], "seed {seed}");
        }
    }

    #[test]
    fn equal_shares_that_are_dealt_ahead_are_dealt_as_they_would_be_round_by_round() {
        let members = [WorkerId(0), WorkerId(1), WorkerId(2)];
        let (mut plain, mut early) = (Ledger::new(50), Ledger::new(50));
        while !plain.is_done() {
            plain.deal_shares(&members, &[4, 2, 1], 0);
            early.deal_shares(&members, &[4, 2, 1], 2);

            for (member, share) in members.into_iter().zip([4, 2, 1]) {
                let drawn = |ledger: &Ledger| ledger.lane(member).map(|lane| lane.get(0, share));
                assert_eq!(drawn(&plain), drawn(&early));
            }
            assert_eq!(plain.has_free(), early.has_free());
            let counts: Vec<_> = members.iter().map(|who| (*who, plain.lanes[who].len())).collect();
            plain.take(counts.iter().copied());
            early.take(counts.into_iter());
        }
        assert!(early.is_done());
    }

    #[test]
    fn what_is_dealt_ahead_stays_with_its_member_and_goes_to_others_when_nothing_else_is_left() {
        let [a, b] = [WorkerId(0), WorkerId(1)];
        let mut ledger = Ledger::new(26);
        ledger.deal_shares(&[a, b], &[4, 4], 2);
        let ahead = |ledger: &Ledger, who| ledger.lane(who).map(|lane: &Lane| lane.get(4, 8));
        let (of_a, of_b) = (ahead(&ledger, a), ahead(&ledger, b));
        ledger.take([(a, 4), (b, 4)].into_iter());

        // Other shares: everybody begins with what it knew.
        ledger.deal_shares(&[a, b], &[6, 2], 2);
        assert_eq!(ledger.lane(a).map(|lane| lane.get(0, 8)), of_a);
        assert_eq!(ledger.lane(b).map(|lane| lane.get(0, 8)), of_b);
        ledger.take([(a, 6), (b, 2)].into_iter());
        assert!(ledger.has_free() && ledger.ahead[&b] == 6, "{ledger:?}");

        // 10 positions are left, 6 of them in the lane of b; a takes what b does not need.
        ledger.deal_shares(&[a, b], &[8, 2], 2);
        assert_eq!([a, b].map(|who| ledger.lanes[&who].len()), [8, 2]);
        assert!(!ledger.has_free());
        ledger.take([(a, 8), (b, 2)].into_iter());
        assert!(ledger.is_done());
    }

    #[test]
    fn a_lost_member_frees_its_positions_when_a_result_comes_without_it() {
        let [a, b] = [WorkerId(0), WorkerId(1)];
        let mut ledger = Ledger::new(12);
        ledger.deal_shares(&[a, b], &[2, 2], 0);
        ledger.deal_shares(&[a, b], &[2, 2], 0);

        let taken = ledger.take([(a, 2)].into_iter()).expect("a has drawn that many");

        assert_eq!(taken.intervals(), [(0, 2)]);
        ledger.deal_shares(&[a], &[5], 0);
        let lane = ledger.lane(a).expect("a has a lane");
        assert_eq!(lane.0, [(4, 6), (2, 4), (6, 9)], "what was dealt first comes first");
        assert_eq!(lane.get(2, 3).intervals(), [(2, 4), (6, 7)]);
        assert_eq!(ledger.take([(a, 8)].into_iter()), None, "more than the lane holds");
    }
}
