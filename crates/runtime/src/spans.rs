//! Sets of positions, kept as sorted half-open intervals.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// A set of positions. Intervals are sorted, disjoint, not empty, and never touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Spans(Vec<(u64, u64)>);

/// Files and peers may hold anything: what is not a sorted list of disjoint intervals is refused.
impl<'de> Deserialize<'de> for Spans {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Spans, D::Error> {
        let intervals = Vec::<(u64, u64)>::deserialize(from)?;
        let is_sorted = intervals.windows(2).all(|pair| pair[0].1 < pair[1].0);
        if !is_sorted || intervals.iter().any(|(from, to)| from >= to) {
            return Err(D::Error::custom("positions must be sorted, disjoint intervals"));
        }
        Ok(Spans(intervals))
    }
}

impl Spans {
    pub fn new() -> Spans {
        Spans::default()
    }

    pub fn one(from: u64, to: u64) -> Spans {
        Spans(if from < to { vec![(from, to)] } else { vec![] })
    }

    pub fn len(&self) -> u64 {
        self.0.iter().map(|(from, to)| to - from).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn intervals(&self) -> &[(u64, u64)] {
        &self.0
    }

    pub fn positions(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|(from, to)| *from..*to)
    }

    /// Every position below this one is in the set.
    pub fn low_water(&self) -> u64 {
        match self.0.first() {
            Some((0, to)) => *to,
            _ => 0,
        }
    }

    pub fn contains(&self, position: u64) -> bool {
        let after = self.0.partition_point(|(from, _)| *from <= position);
        after > 0 && position < self.0[after - 1].1
    }

    pub fn insert(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        // Everything that touches [from, to) melts into one interval.
        let first = self.0.partition_point(|(_, end)| *end < from);
        let last = self.0.partition_point(|(start, _)| *start <= to);
        let merged = if first < last {
            (from.min(self.0[first].0), to.max(self.0[last - 1].1))
        } else {
            (from, to)
        };
        self.0.splice(first..last, [merged]);
    }

    pub fn remove(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let first = self.0.partition_point(|(_, end)| *end <= from);
        let last = self.0.partition_point(|(start, _)| *start < to);
        if first >= last {
            return;
        }
        let (left, right) = ((self.0[first].0, from), (to, self.0[last - 1].1));
        let kept = [left, right].into_iter().filter(|(a, b)| a < b);
        self.0.splice(first..last, kept.collect::<Vec<_>>());
    }

    pub fn add(&mut self, other: &Spans) {
        other.0.iter().for_each(|(from, to)| self.insert(*from, *to));
    }

    pub fn subtract(&mut self, other: &Spans) {
        other.0.iter().for_each(|(from, to)| self.remove(*from, *to));
    }

    pub fn minus(&self, other: &Spans) -> Spans {
        let mut rest = self.clone();
        rest.subtract(other);
        rest
    }

    /// What is in both. Cheap when `other` is small, however large this set is.
    pub fn overlap(&self, other: &Spans) -> Spans {
        let mut both = Vec::new();
        for &(from, to) in &other.0 {
            let first = self.0.partition_point(|(_, end)| *end <= from);
            let reached = self.0[first..].iter().take_while(|(start, _)| *start < to);
            both.extend(reached.map(|(start, end)| (from.max(*start), to.min(*end))));
        }
        Spans(both)
    }

    /// The positions below `end` that are not in the set.
    pub fn gaps(&self, end: u64) -> Spans {
        Spans::one(0, end).minus(self)
    }

    /// Takes the `count` lowest positions out of the set, or all there are.
    pub fn take(&mut self, count: u64) -> Spans {
        let mut taken = Vec::new();
        let mut left = count;
        let mut whole = 0;
        for (from, to) in &mut self.0 {
            if left == 0 {
                break;
            }
            let size = left.min(*to - *from);
            taken.push((*from, *from + size));
            *from += size;
            left -= size;
            whole += usize::from(*from == *to);
        }
        self.0.drain(..whole);
        Spans(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_learn::Dice;
    use std::collections::BTreeSet;

    #[test]
    fn spans_agree_with_a_plain_set_under_random_changes() {
        for seed in 0..200 {
            let mut dice = Dice::keyed(&[seed]);
            let (mut spans, mut plain) = (Spans::new(), BTreeSet::new());
            for _ in 0..60 {
                let from = dice.below(40);
                let to = from + dice.below(12);
                match dice.below(3) {
                    0 => {
                        spans.remove(from, to);
                        plain.retain(|p| !(from..to).contains(p));
                    }
                    1 => {
                        let taken = spans.take(to - from);
                        let expected: Vec<u64> =
                            plain.iter().copied().take((to - from) as usize).collect();
                        assert_eq!(taken.positions().collect::<Vec<_>>(), expected, "seed {seed}");
                        plain.retain(|p| !expected.contains(p));
                    }
                    _ => {
                        spans.insert(from, to);
                        plain.extend(from..to);
                    }
                }
                let ours: Vec<u64> = spans.positions().collect();
                assert_eq!(ours, plain.iter().copied().collect::<Vec<_>>(), "seed {seed}");
                assert!(spans.0.windows(2).all(|w| w[0].1 < w[1].0), "seed {seed}: {spans:?}");
                assert_eq!(spans.contains(from), plain.contains(&from), "seed {seed}");
                let both: Vec<u64> = spans.overlap(&Spans::one(from, to)).positions().collect();
                assert_eq!(both, plain.range(from..to).copied().collect::<Vec<_>>(), "seed {seed}");
            }
        }
    }
}
