//! Statistics of a run at regular intervals, about twenty per epoch, for dashboards.

use std::time::Duration;

use paceline_runtime::journal::weight_of;
use paceline_runtime::{Line, Record, SampleTally};

const INTERVALS_PER_EPOCH: u64 = 20;

/// After this many intervals their length doubles, so that output files stay small.
const INTERVALS_MAX: u64 = 10_000;

/// Statistics of one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    /// Samples applied since the start of the run.
    pub samples: u64,
    /// The mean training loss per sample, or per unit of weight.
    pub loss: f64,
    pub rate: f64,
    pub samples_per_second: f64,
    /// Compute time as a fraction of the members' total time.
    pub utilization: f64,
    /// Bytes sent since the start of the run.
    pub bytes_total: u64,
}

/// Reads a journal and computes the statistics of each interval.
#[derive(Default)]
pub(crate) struct Intervals {
    tally: SampleTally,
    members: usize,
    bytes_total: u64,
    finished: u64,
    /// The length of an interval in samples.
    width: u64,
    current: Current,
}

/// Sums over the current interval.
#[derive(Default)]
struct Current {
    start: Duration,
    samples: u64,
    loss_sum: f64,
    weight: f64,
    compute: Duration,
}

impl Intervals {
    /// Reads a line; returns an interval if the line completes it.
    pub fn read(&mut self, line: &Line) -> Option<Interval> {
        let new = self.tally.read(line);
        let times = self.tally.keeping_one_in();
        match &line.record {
            Record::Began { .. } => {
                self.width = (self.tally.samples_per_epoch / INTERVALS_PER_EPOCH).max(1);
            }
            Record::View { members, .. } => self.members = members.len(),
            Record::Computed { since, .. } => {
                let times = u32::try_from(times).unwrap_or(u32::MAX);
                let compute = line.at.saturating_sub(*since).saturating_mul(times);
                self.current.compute = self.current.compute.saturating_add(compute);
            }
            Record::Exchanged { bytes, .. }
            | Record::Interrupted { bytes, .. }
            | Record::Sent { bytes, .. } => {
                self.bytes_total = self.bytes_total.saturating_add(bytes.saturating_mul(times));
            }
            Record::Applied { spans, loss_sum, weight, rate, .. } if new > 0 => {
                let count = spans.len() as f64;
                self.current.samples += new;
                self.current.loss_sum += loss_sum / count * new as f64;
                self.current.weight += weight_of(spans.len(), *weight) / count * new as f64;
                // Samples that are applied at the same instant belong to the same interval.
                if self.current.samples >= self.width && line.at > self.current.start {
                    return Some(self.finish_interval(line.at, f64::from(*rate)));
                }
            }
            _ => {}
        }
        None
    }

    fn finish_interval(&mut self, at: Duration, rate: f64) -> Interval {
        let next = Current { start: at, ..Current::default() };
        let ended = std::mem::replace(&mut self.current, next);
        let seconds = (at - ended.start).as_secs_f64();
        let member_seconds = seconds * self.members.max(1) as f64;
        self.finished += 1;
        if self.finished.is_multiple_of(INTERVALS_MAX) {
            self.width = self.width.saturating_mul(2);
        }
        Interval {
            samples: self.tally.samples(),
            loss: ended.loss_sum / ended.weight,
            rate,
            samples_per_second: ended.samples as f64 / seconds,
            // A gradient counts in the interval in which it ends, also if it started before.
            utilization: (ended.compute.as_secs_f64() / member_seconds).min(1.0),
            bytes_total: self.bytes_total,
        }
    }
}
