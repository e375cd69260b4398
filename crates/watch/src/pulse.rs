//! How a run goes, twenty times an epoch: the numbers that dashboards show.

use std::time::Duration;

use paceline_runtime::{Line, Record, SampleTally};

const BEATS_PER_EPOCH: u64 = 20;

/// After so many beats they come half as often, so that a file of them stays small.
const BEATS_MAX: u64 = 10_000;

/// What happened since the beat before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Beat {
    /// Samples applied since the start.
    pub samples: u64,
    /// Per sample.
    pub loss: f64,
    pub rate: f64,
    pub samples_per_second: f64,
    /// Compute time over all members' time.
    pub utilization: f64,
    /// Since the start.
    pub bytes_total: u64,
}

#[derive(Default)]
pub(crate) struct Pulse {
    tally: SampleTally,
    members: usize,
    bytes_total: u64,
    beats: u64,
    /// Samples between beats.
    width: u64,
    since: Since,
}

/// What is gathered for the next beat.
#[derive(Default)]
struct Since {
    at: Duration,
    samples: u64,
    loss_sum: f64,
    compute: Duration,
}

impl Pulse {
    /// Reads a line; gives a beat when enough samples have been applied.
    pub fn read(&mut self, line: &Line) -> Option<Beat> {
        let new = self.tally.read(line);
        let times = self.tally.keeping_one_in();
        match &line.record {
            Record::Began { .. } => {
                self.width = (self.tally.samples_per_epoch / BEATS_PER_EPOCH).max(1);
            }
            Record::View { members, .. } => self.members = members.len(),
            Record::Computed { since, .. } => {
                let times = u32::try_from(times).unwrap_or(u32::MAX);
                let compute = line.at.saturating_sub(*since).saturating_mul(times);
                self.since.compute = self.since.compute.saturating_add(compute);
            }
            Record::Exchanged { bytes, .. } | Record::Sent { bytes, .. } => {
                self.bytes_total = self.bytes_total.saturating_add(bytes.saturating_mul(times));
            }
            Record::Applied { spans, loss_sum, rate, .. } if new > 0 => {
                self.since.samples += new;
                self.since.loss_sum += loss_sum / spans.len() as f64 * new as f64;
                // Samples that are applied in one instant belong to one beat.
                if self.since.samples >= self.width && line.at > self.since.at {
                    return Some(self.beat(line.at, f64::from(*rate)));
                }
            }
            _ => {}
        }
        None
    }

    fn beat(&mut self, at: Duration, rate: f64) -> Beat {
        let since = std::mem::replace(&mut self.since, Since { at, ..Since::default() });
        let seconds = (at - since.at).as_secs_f64();
        let lives = seconds * self.members.max(1) as f64;
        self.beats += 1;
        if self.beats.is_multiple_of(BEATS_MAX) {
            self.width = self.width.saturating_mul(2);
        }
        Beat {
            samples: self.tally.samples(),
            loss: since.loss_sum / since.samples as f64,
            rate,
            samples_per_second: since.samples as f64 / seconds,
            // A gradient counts when it ends, so a beat may hear of more than its own time.
            utilization: (since.compute.as_secs_f64() / lives).min(1.0),
            bytes_total: self.bytes_total,
        }
    }
}
