//! What a job did before it was resumed, small enough for a checkpoint and for one line of the journal.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{number, seconds};

/// The history of a job up to a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Past {
    /// How long the job has run, without the time between runs.
    #[serde(with = "seconds")]
    pub time: Duration,
    pub bytes_sent: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes_evaluated: u64,
    /// Samples in all gradients that were computed.
    pub samples_computed: u64,
    /// The fewest samples of one entry of `losses`.
    pub samples_per_loss: u64,
    pub losses: Vec<PastLoss>,
    pub scores: Vec<PastScore>,
    /// On held-out samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub validations: Vec<PastScore>,
}

/// The training loss over some samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PastLoss {
    /// When the last of them was applied.
    #[serde(with = "seconds")]
    pub at: Duration,
    /// How many samples had been applied by then.
    pub samples: u64,
    /// The mean loss, and the weight of the mean.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    pub weight: f64,
    /// The last learning rate.
    pub rate: f32,
}

/// An evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PastScore {
    #[serde(with = "seconds")]
    pub at: Duration,
    pub samples: u64,
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    #[serde(deserialize_with = "number")]
    pub accuracy: f64,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// A longer history is thinned: neighboring losses are merged, and every other score is dropped.
const ENTRIES_MAX: usize = 512;

impl Past {
    pub fn new(samples_per_loss: u64) -> Past {
        Past { samples_per_loss: samples_per_loss.max(1), ..Past::default() }
    }

    pub fn is_empty(&self) -> bool {
        *self == Past::new(self.samples_per_loss) || self.samples_per_loss == 0
    }

    /// Adds the loss of samples that were just applied. Samples without weight have no loss.
    pub fn add_loss(&mut self, new: PastLoss) {
        if new.weight == 0.0 || !new.loss.is_finite() {
            return;
        }
        let before = self.losses.iter().rev().nth(1).map_or(0, |loss| loss.samples);
        match self.losses.last_mut() {
            Some(last) if last.samples.saturating_sub(before) < self.samples_per_loss => {
                *last = last.and(new);
            }
            _ => self.losses.push(new),
        }
        if self.losses.len() > ENTRIES_MAX {
            self.samples_per_loss = self.samples_per_loss.saturating_mul(2);
            let merged = |pair: &[PastLoss]| pair.iter().copied().reduce(PastLoss::and);
            self.losses = self.losses.chunks(2).filter_map(merged).collect();
        }
    }

    pub fn add_score(&mut self, score: PastScore) {
        push_thinned(&mut self.scores, score);
    }

    pub fn add_validation(&mut self, score: PastScore) {
        push_thinned(&mut self.validations, score);
    }
}

fn push_thinned(scores: &mut Vec<PastScore>, score: PastScore) {
    scores.push(score);
    if scores.len() > ENTRIES_MAX {
        // The newest one has an even place, and stays.
        *scores = scores.iter().step_by(2).copied().collect();
    }
}

impl PastLoss {
    fn and(self, later: PastLoss) -> PastLoss {
        let weight = self.weight + later.weight;
        let loss = self.loss + (later.loss - self.loss) * (later.weight / weight);
        PastLoss { loss, weight, ..later }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(samples: u64, loss: f64) -> PastLoss {
        let at = Duration::from_secs(samples);
        PastLoss { at, samples, loss, weight: 1.0, rate: 0.5 }
    }

    #[test]
    fn losses_are_means_over_enough_samples() {
        let mut past = Past::new(20);

        for (samples, value) in [(10, 4.0), (20, 2.0), (30, 1.0), (40, f64::NAN)] {
            past.add_loss(loss(samples, value));
        }

        let means: Vec<_> = past.losses.iter().map(|loss| (loss.samples, loss.loss)).collect();
        assert_eq!(means, [(20, 3.0), (30, 1.0)]);
    }

    #[test]
    fn a_long_history_stays_small_and_keeps_its_end() {
        let mut past = Past::new(1);
        for samples in 1..=10_000 {
            past.add_loss(loss(samples, 7.0));
            let (at, loss, accuracy) = (Duration::ZERO, 1.0, 0.5);
            past.add_score(PastScore { at, samples, loss, accuracy });
        }

        assert!(past.losses.len() <= ENTRIES_MAX && past.scores.len() <= ENTRIES_MAX);
        assert!(past.losses.iter().all(|loss| (loss.loss - 7.0).abs() < 1e-9));
        let ends = (past.losses.last(), past.scores.last());
        assert_eq!(ends.0.map(|loss| loss.samples), Some(10_000));
        assert_eq!(ends.1.map(|score| score.samples), Some(10_000));
    }

    #[test]
    fn it_can_be_stored_as_json() {
        let mut past = Past::new(20);
        past.add_loss(loss(10, 4.0));
        let (at, samples, loss) = (Duration::from_millis(1_500), 10, 1.0);
        past.add_score(PastScore { at, samples, loss, accuracy: 0.25 });

        let text = serde_json::to_string(&past).expect("it is plain data");

        assert_eq!(serde_json::from_str::<Past>(&text).expect("it can be read"), past);
    }
}
