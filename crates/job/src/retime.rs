//! Train once, time often: a recipe that reads no clock learns the same on every network, so the losses and
//! scores of one run can be replayed on another cluster without computing a gradient.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::task::Part;
use paceline_learn::Gradient;
use paceline_runtime::edge::Compute;
use paceline_runtime::journal::weight_of;
use paceline_runtime::{Line, Reader, Record, Replay, Spans};

/// What a run learned, independent of time: losses by sample, scores, and measurements of its strategy.
#[derive(Clone, Debug, Default)]
pub struct Training {
    /// By the first sample of those that were applied together: their end, and loss and weight of one of them.
    losses: BTreeMap<u64, (u64, f64, f64)>,
    /// Loss and accuracy on the test set, by the samples applied until then.
    scores: BTreeMap<u64, (f64, f64)>,
    /// The same on the validation part.
    validations: BTreeMap<u64, (f64, f64)>,
    /// The variance of the replicas, by round.
    variances: BTreeMap<u64, f64>,
}

impl Reader for Training {
    fn read(&mut self, line: &Line) {
        match &line.record {
            Record::Applied { spans, loss_sum, weight, .. } if !spans.is_empty() => {
                let loss = loss_sum / spans.len() as f64;
                let weight = weight_of(spans.len(), *weight) / spans.len() as f64;
                for (from, to) in spans.intervals() {
                    self.losses.insert(*from, (*to, loss, weight));
                }
            }
            Record::Scored { samples, loss, accuracy } => {
                self.scores.insert(*samples, (*loss, *accuracy));
            }
            Record::Validated { samples, loss, accuracy } => {
                self.validations.insert(*samples, (*loss, *accuracy));
            }
            Record::Note { name, value, round: Some(round), .. } if name == "variance" => {
                self.variances.insert(*round, *value);
            }
            _ => {}
        }
    }
}

impl Training {
    /// Zero gradients, with the losses of the recorded run.
    pub(crate) fn compute(self: &Arc<Training>, params: usize) -> Compute {
        let training = self.clone();
        Arc::new(move |_, spans, _| {
            let mut gradient = Gradient::zero(params);
            let (loss_sum, weight) = training.loss_of(spans);
            gradient.count(spans.len(), weight);
            gradient.loss_sum = loss_sum;
            gradient
        })
    }

    /// The losses of these samples and their weights, added up.
    fn loss_of(&self, spans: &Spans) -> (f64, f64) {
        let (mut sum, mut weights) = (0.0, spans.len() as f64);
        for (from, to) in spans.intervals() {
            let first = self.losses.range(..=from).next_back().map_or(*from, |(start, _)| *start);
            for (start, (end, loss, weight)) in self.losses.range(first..*to) {
                let overlap = (*end).min(*to).saturating_sub((*start).max(*from));
                sum += overlap as f64 * loss;
                weights += overlap as f64 * (weight - 1.0);
            }
        }
        (sum, weights)
    }

    /// Loss and accuracy after `samples` samples, or at the last evaluation before.
    pub(crate) fn score(&self, on: Part, samples: u64) -> (f64, f64) {
        let scores = match on {
            Part::Test => &self.scores,
            Part::Validation => &self.validations,
        };
        let last = scores.range(..=samples).next_back();
        last.map_or((f64::NAN, f64::NAN), |(_, score)| *score)
    }

    pub(crate) fn replay(&self) -> Replay {
        Replay { means: self.variances.clone(), ..Replay::default() }
    }
}
