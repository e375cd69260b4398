//! Evaluates a trained model on a test set: loss, accuracy and confusion matrix.

use paceline_learn::kernels::loops::highest;
use paceline_learn::{Batch, Dataset, Model, Scratch};
use rayon::prelude::*;

use crate::error::InferenceError;

/// The score of a model's predictions: one class per sample or, in a text, the next character at each position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    pub answers: u64,
    pub correct: u64,
    /// In nats, over all predictions.
    pub loss_sum: f64,
    /// How often a class (row) was predicted as each class (column).
    pub confusion: Vec<Vec<u64>>,
}

/// A class that was predicted as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confused {
    pub class: usize,
    pub taken_for: usize,
    pub times: u64,
}

/// Evaluates the whole test set on all cores; the result does not depend on their number.
pub fn evaluate(
    model: &dyn Model,
    params: &[f32],
    test: &dyn Dataset,
) -> Result<Evaluation, InferenceError> {
    let micro_batch = model.micro_batch_max().max(1) as u64;
    let parts: Vec<_> = (0..test.len().div_ceil(micro_batch))
        .into_par_iter()
        .map_init(Default::default, |(batch, scratch): &mut (Batch, Scratch), part| {
            let from = part * micro_batch;
            let to = test.len().min(from + micro_batch);
            batch.fill(test, (from..to).map(|index| (0, index)));
            evaluate_batch(model, params, batch, scratch, test.classes())
        })
        .collect();
    let mut whole = Evaluation::new(test.classes());
    for part in parts {
        whole.add(part?);
    }
    Ok(whole)
}

fn evaluate_batch(
    model: &dyn Model,
    params: &[f32],
    batch: &Batch,
    scratch: &mut Scratch,
    classes: usize,
) -> Result<Evaluation, InferenceError> {
    let logits = model.outputs(params, batch, scratch);
    let labels = logits.len().checked_div(classes).and_then(|rows| labels_of(batch, rows));
    let labels = labels.ok_or(InferenceError::NoClasses)?;
    let mut evaluation = Evaluation::new(classes);
    for (logits, label) in logits.chunks_exact(classes).zip(labels) {
        let predicted = highest(logits);
        evaluation.answers += 1;
        evaluation.correct += u64::from(predicted == label);
        evaluation.loss_sum += loss(logits, label);
        evaluation.confusion[label][predicted] += 1;
    }
    Ok(evaluation)
}

/// The labels or, if there is a prediction for all positions of each sample except the last, the tokens that
/// follow these positions.
fn labels_of(batch: &Batch, predictions: usize) -> Option<Vec<usize>> {
    let Batch { features, inputs, labels, .. } = batch;
    if predictions == batch.len() {
        Some(labels.iter().map(|label| *label as usize).collect())
    } else if predictions == batch.len() * features.saturating_sub(1) {
        let next = inputs.chunks_exact(*features).flat_map(|tokens| &tokens[1..]);
        Some(next.map(|token| *token as usize).collect())
    } else {
        None
    }
}

/// Cross-entropy: -log of the predicted probability of the label.
fn loss(logits: &[f32], label: usize) -> f64 {
    let highest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - highest).exp()).sum();
    sum.ln() + highest - f64::from(logits[label])
}

impl Evaluation {
    fn new(classes: usize) -> Evaluation {
        Evaluation { confusion: vec![vec![0; classes]; classes], ..Evaluation::default() }
    }

    fn add(&mut self, part: Evaluation) {
        self.answers += part.answers;
        self.correct += part.correct;
        self.loss_sum += part.loss_sum;
        for (sums, part) in self.confusion.iter_mut().zip(part.confusion) {
            sums.iter_mut().zip(part).for_each(|(sum, times)| *sum += times);
        }
    }

    /// In nats.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.answers as f64
    }

    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.answers as f64
    }

    /// The confused pairs, the most frequent first.
    pub fn confused(&self) -> Vec<Confused> {
        let mut pairs = Vec::new();
        for (class, row) in self.confusion.iter().enumerate() {
            for (taken_for, times) in row.iter().copied().enumerate() {
                if class != taken_for && times > 0 {
                    pairs.push(Confused { class, taken_for, times });
                }
            }
        }
        pairs.sort_by_key(|pair| std::cmp::Reverse(pair.times));
        pairs
    }
}

#[cfg(test)]
mod tests {
    use paceline_learn::net::mlp;
    use paceline_learn::{Quadratic, digits, texts};

    use super::*;
    use crate::write::stand_in::Bigrams;

    #[test]
    fn the_score_equals_the_one_in_journals() {
        let (_, test) = digits();
        let model = mlp(64, &[32], 10);
        let params = model.initial(3);
        let mut batch = Batch::new();
        batch.fill(&test, (0..test.len()).map(|index| (0, index)));
        let score = model.evaluate(&params, &batch, &mut Scratch::default());

        let evaluation = evaluate(&model, &params, &test).unwrap();

        assert_eq!((evaluation.correct, evaluation.answers), (score.correct, score.samples));
        assert!((evaluation.loss() - score.loss()).abs() < 1e-5);
        let diagonal: u64 = (0..10).map(|class| evaluation.confusion[class][class]).sum();
        let all: u64 = evaluation.confusion.iter().flatten().sum();
        assert_eq!((diagonal, all), (evaluation.correct, 360));
    }

    /// The model predicts b after a, and a after b, with probability e / (e + 1).
    #[test]
    fn every_character_of_a_text_except_the_first_is_predicted() {
        let (_, test) = texts("ab".repeat(50).as_bytes(), 4).unwrap();
        let model = Bigrams { context: 4, logits: vec![vec![0.0, 1.0], vec![1.0, 0.0]] };

        let evaluation = evaluate(&model, &[], &test).unwrap();

        assert_eq!((evaluation.answers, evaluation.accuracy()), (4 * test.len(), 1.0));
        let expected = (1.0 + (-1f64).exp()).ln();
        assert!((evaluation.loss() - expected).abs() < 1e-6, "{}", evaluation.loss());
    }

    #[test]
    fn confused_pairs_are_sorted_by_frequency() {
        let confusion = vec![vec![5, 1, 0], vec![0, 2, 7], vec![3, 0, 9]];
        let evaluation = Evaluation { confusion, ..Evaluation::default() };

        let pairs = evaluation.confused();

        let pairs: Vec<_> = pairs.iter().map(|p| (p.class, p.taken_for, p.times)).collect();
        assert_eq!(pairs, [(1, 2, 7), (2, 0, 3), (0, 1, 1)]);
    }

    #[test]
    fn a_model_without_classes_is_refused() {
        let (_, test) = digits();
        let model = Quadratic { curvature: vec![1.0; 4], noise: 0.0 };

        assert_eq!(evaluate(&model, &[0.0; 4], &test), Err(InferenceError::NoClasses));
    }
}
