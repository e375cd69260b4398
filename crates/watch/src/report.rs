//! A run as a self-contained HTML page: configuration, results, training curves and worker timelines.

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

/// Reads a journal and collects the data of the page. Memory use grows with the number of workers, not with the length of the run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub curves: Curves,
    pub timeline: Timeline,
    /// In a thinned journal only one in this many frequent records is present; 0 or 1 means all of them.
    keeping_one_in: u64,
    /// Bytes sent since the start.
    bytes: Track,
    bytes_total: u64,
    members: Track,
    staleness: Track,
    shares: Shares,
    /// The number of samples for which each worker computed gradients.
    computed: BTreeMap<WorkerId, u64>,
}

/// Facts about a run that its page shows but the journal does not contain.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub title: String,
    /// The configuration, as names and values.
    pub about: Vec<(String, String)>,
    /// The results, as names and values.
    pub figures: Vec<(String, String)>,
    /// Warnings: failures, and limits of the results' accuracy.
    pub remarks: Vec<String>,
    /// The total time that other workers waited for a worker.
    pub waited_for: BTreeMap<WorkerId, Duration>,
}

impl Report {
    /// The whole page.
    pub fn html(&self, facts: &Facts) -> String {
        page::html(self, facts)
    }

    /// The journal contained one in this many gradients, exchanges and updates.
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
            Record::Exchanged { bytes, .. }
            | Record::Interrupted { bytes, .. }
            | Record::Sent { bytes, .. } => {
                self.sent(line.at, *bytes);
            }
            Record::Resumed { past: Some(past), .. } => self.bytes_total = past.bytes_sent,
            Record::Applied { staleness, .. } => self.staleness.add(line.at, *staleness as f64),
            Record::Thinned { keeping_one_in } => self.keeping_one_in = *keeping_one_in,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
