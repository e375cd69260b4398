//! How many samples a run has applied, each counted once.

use std::collections::{BTreeMap, BTreeSet};

use paceline_runtime::{Line, Record, WorkerId};

/// Counts a journal's samples. Its memory grows with the workers, not with the run.
#[derive(Clone, Debug)]
pub(crate) struct Counter {
    pub samples_per_epoch: u64,
    /// One in so many of the frequent records is there; it stands for the others.
    pub keeping_one_in: u64,
    /// Every member records the same samples.
    together: bool,
    samples: u64,
    /// Where all exchange together: the samples in each worker's replica.
    counts: BTreeMap<WorkerId, u64>,
    /// Samples applied before the job was resumed, or had to start over; these count again.
    before: u64,
    /// Workers whose samples went back to the coordinator; what they say no longer counts.
    freed: BTreeSet<WorkerId>,
}

impl Default for Counter {
    fn default() -> Counter {
        Counter {
            samples_per_epoch: 1,
            keeping_one_in: 1,
            together: false,
            samples: 0,
            counts: BTreeMap::new(),
            before: 0,
            freed: BTreeSet::new(),
        }
    }
}

impl Counter {
    /// Samples applied so far. What was lost with a center counts again when it is applied again.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    pub fn epochs(&self, samples: u64) -> f64 {
        samples as f64 / self.samples_per_epoch as f64
    }

    /// Reads a line; gives how many samples it adds that nobody has counted yet.
    pub fn read(&mut self, line: &Line) -> u64 {
        match &line.record {
            Record::Began { samples_per_epoch, together, .. } => {
                self.samples_per_epoch = (*samples_per_epoch).max(1);
                self.together = *together;
            }
            Record::Applied { who, spans, .. } => {
                let new = self.new_of(*who, spans.len().saturating_mul(self.keeping_one_in));
                self.samples += new;
                return new;
            }
            Record::Resumed { spans, .. } => {
                (self.samples, self.before) = (spans.len(), spans.len());
            }
            Record::Settled { who, adopted: Some(giver), .. } => {
                let count = self.counts.get(giver).copied().unwrap_or(self.before);
                self.counts.insert(*who, count);
            }
            Record::StartedOver => {
                self.before = self.samples;
                self.counts.clear();
            }
            Record::Freed { who, .. } => drop(self.freed.insert(*who)),
            Record::Thinned { keeping_one_in } => self.keeping_one_in = *keeping_one_in,
            _ => {}
        }
        0
    }

    /// How many of the samples that `who` applied nobody has counted yet.
    fn new_of(&mut self, who: WorkerId, samples: u64) -> u64 {
        if !self.together {
            return if self.freed.contains(&who) { 0 } else { samples };
        }
        let count = self.counts.entry(who).or_insert(self.before);
        *count = count.saturating_add(samples);
        count.saturating_sub(self.samples)
    }
}
