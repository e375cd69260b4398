//! Replicas of several members whose mean is evaluated, kept until all of them are here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paceline_learn::Vector;

use crate::ids::WorkerId;

/// One member's replica after `samples` samples of the job; the mean of those of `parts` members is evaluated.
#[derive(Debug)]
pub struct Part {
    pub by: WorkerId,
    pub at: Duration,
    pub samples: u64,
    pub parts: usize,
    pub replica: Arc<Vector>,
}

/// Parts that wait for those of other members.
#[derive(Debug, Default)]
pub struct Parts {
    waiting: BTreeMap<u64, Waiting>,
    /// An evaluation after so many samples was requested: older ones would come too late.
    judged: u64,
}

#[derive(Debug, Default)]
struct Waiting {
    at: Duration,
    replicas: BTreeMap<WorkerId, Arc<Vector>>,
}

/// Beyond this much memory no further evaluation is begun: a fast member may be many intervals ahead of a slow one.
const BYTES_MAX: usize = 256 << 20;

impl Parts {
    /// Keeps a part. If it is the last one, returns all replicas in the order of their members' ids, and the time at which
    /// the slowest member had its own.
    pub fn add(&mut self, part: Part) -> Option<(Duration, Vec<Arc<Vector>>)> {
        let Part { by, at, samples, parts, replica } = part;
        if samples <= self.judged
            || !self.waiting.contains_key(&samples) && self.bytes() > BYTES_MAX
        {
            return None;
        }
        let known = self.waiting.entry(samples).or_default();
        if known.replicas.values().any(|other| other.len() != replica.len()) {
            // No member of this job sends such a replica.
            return None;
        }
        known.at = known.at.max(at);
        known.replicas.insert(by, replica);
        if known.replicas.len() < parts {
            return None;
        }
        let whole = self.waiting.remove(&samples)?;
        // A member that had no samples, or was lost, never hands in its part of an earlier one.
        self.skip_to(samples);
        Some((whole.at, whole.replicas.into_values().collect()))
    }

    /// Drops what would be evaluated after so many samples or fewer.
    pub fn skip_to(&mut self, samples: u64) {
        self.judged = self.judged.max(samples);
        self.waiting = self.waiting.split_off(&(self.judged + 1));
    }

    /// Forgets everything: the job starts over.
    pub fn clear(&mut self) {
        *self = Parts::default();
    }

    fn bytes(&self) -> usize {
        let replicas = self.waiting.values().flat_map(|waiting| waiting.replicas.values());
        replicas.map(|replica| size_of_val(replica.as_slice())).sum()
    }
}

/// The bytes of all replicas but the first one, which the member that evaluates them need not be sent.
pub fn bytes_fetched(replicas: &[Arc<Vector>]) -> u64 {
    replicas.iter().skip(1).map(|replica| size_of_val(replica.as_slice()) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(by: u32, samples: u64, length: usize) -> Part {
        let (by, at) = (WorkerId(by), Duration::from_secs(u64::from(10 - by)));
        Part { by, at, samples, parts: 2, replica: Arc::new(Vector::filled(by.0 as f32, length)) }
    }

    #[test]
    fn parts_are_whole_when_the_slowest_member_has_handed_in_its_own() {
        let mut parts = Parts::default();

        assert!(parts.add(part(1, 100, 3)).is_none());
        assert!(parts.add(part(1, 200, 3)).is_none(), "it is ahead of the other one");
        let (at, replicas) = parts.add(part(0, 100, 3)).expect("both are here");

        assert_eq!((at, replicas.len()), (Duration::from_secs(10), 2));
        assert_eq!((replicas[0][0], replicas[1][0]), (0.0, 1.0), "in the order of ids");
        assert!(parts.add(part(0, 200, 3)).is_some());
    }

    #[test]
    fn parts_that_come_too_late_or_do_not_fit_are_dropped() {
        let mut parts = Parts::default();
        assert!(parts.add(part(0, 100, 3)).is_none());
        assert!(parts.add(part(1, 100, 4)).is_none(), "of another length");
        parts.skip_to(100);
        assert!(parts.add(part(1, 100, 3)).is_none(), "the end of the round was evaluated");

        assert!(parts.add(part(0, 200, 3)).is_none());
        parts.clear();
        assert!(parts.add(part(0, 50, 3)).is_none());
        assert!(parts.add(part(1, 50, 3)).is_some(), "a job that starts over counts anew");
        assert!(parts.add(part(1, 200, 3)).is_none(), "the other part was of the time before");
    }

    #[test]
    fn a_member_that_is_far_ahead_does_not_fill_the_memory() {
        let mut parts = Parts::default();
        let length = 16 << 20;
        for interval in 1..100 {
            assert!(parts.add(part(1, interval, length)).is_none());
        }
        assert!(parts.bytes() <= BYTES_MAX + 4 * length, "{}", parts.bytes());
        for interval in 1..=4 {
            assert!(parts.add(part(0, interval, length)).is_some(), "interval {interval}");
        }
    }
}
