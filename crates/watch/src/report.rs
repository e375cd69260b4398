//! A run as one page (HTML, nothing else needed): what it was, how it learned, who did what when.

mod page;
mod panels;
mod shares;
mod workers;

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_runtime::{Line, Reader, Record, WorkerId};

use self::shares::Shares;
use crate::curves::Curves;
use crate::timeline::Timeline;
use crate::track::Track;

/// Reads a journal into all that the page draws. Its memory grows with the workers, not with the run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub curves: Curves,
    pub timeline: Timeline,
    /// One in so many of the frequent records is there; 0 and 1 if all are.
    keeping_one_in: u64,
    /// Bytes sent since the start.
    bytes: Track,
    bytes_total: u64,
    members: Track,
    staleness: Track,
    shares: Shares,
    /// Samples in each worker's gradients.
    computed: BTreeMap<WorkerId, u64>,
}

/// What a journal does not tell, in words.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub title: String,
    /// What was asked for, by name.
    pub about: Vec<(String, String)>,
    /// What came of it, by name.
    pub figures: Vec<(String, String)>,
    /// What went wrong, or how far the figures can be trusted.
    pub remarks: Vec<String>,
    /// How long others waited for a worker, in all.
    pub waited_for: BTreeMap<WorkerId, Duration>,
}

impl Report {
    /// The page.
    pub fn html(&self, facts: &Facts) -> String {
        page::html(self, facts)
    }

    /// One in so many gradients, exchanges and updates was in the journal.
    pub fn keeping_one_in(&self) -> u64 {
        self.keeping_one_in.max(1)
    }

    /// Bytes sent; an estimate if the journal was thinned.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total
    }

    fn seconds(&self) -> f64 {
        self.timeline.now().as_secs_f64()
    }

    fn sent(&mut self, at: Duration, bytes: u64) {
        let bytes = bytes.saturating_mul(self.keeping_one_in());
        self.bytes_total = self.bytes_total.saturating_add(bytes);
        self.bytes.add(at, self.bytes_total as f64);
    }
}

impl Reader for Report {
    fn read(&mut self, line: &Line) {
        self.curves.read(line);
        self.timeline.read(line);
        self.shares.read(line);
        match &line.record {
            Record::View { members, .. } => self.members.add(line.at, members.len() as f64),
            Record::Computed { who, samples, .. } => {
                let samples = samples.saturating_mul(self.keeping_one_in());
                let all = self.computed.entry(*who).or_default();
                *all = all.saturating_add(samples);
            }
            Record::Exchanged { bytes, .. } | Record::Sent { bytes, .. } => {
                self.sent(line.at, *bytes);
            }
            Record::Applied { staleness, .. } => self.staleness.add(line.at, *staleness as f64),
            Record::Thinned { keeping_one_in } => self.keeping_one_in = *keeping_one_in,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
