//! Dense networks: softmax regression is the one without hidden layers.

use std::ops::Range;

use crate::dataset::Batch;
use crate::dense_loops::{self as kernels, Shape};
use crate::dice::Dice;
use crate::gradient::Gradient;
use crate::model::{Model, Score, Scratch};
use crate::vector::Vector;

/// A multilayer perceptron with relu between its layers and cross-entropy at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mlp {
    pub features: usize,
    pub hidden: Vec<usize>,
    pub classes: usize,
}

/// Softmax regression: convex, so that it starts from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Softmax {
    pub features: usize,
    pub classes: usize,
}

/// Where a layer lies in the params: its weights, then its biases.
struct Layer {
    shape: Shape,
    weights: Range<usize>,
    biases: Range<usize>,
}

impl Mlp {
    fn depth(&self) -> usize {
        self.hidden.len() + 1
    }

    /// The width of the network after so many layers.
    fn width(&self, layers: usize) -> usize {
        match layers {
            0 => self.features,
            _ if layers == self.depth() => self.classes,
            _ => self.hidden[layers - 1],
        }
    }

    fn layer(&self, index: usize) -> Layer {
        let start: usize = (0..index).map(|i| (self.width(i) + 1) * self.width(i + 1)).sum();
        let shape = Shape { inputs: self.width(index), outputs: self.width(index + 1) };
        let weights = start..start + shape.inputs * shape.outputs;
        let biases = weights.end..weights.end + shape.outputs;
        Layer { shape, weights, biases }
    }

    /// What each layer gives for the batch; the last are the logits.
    fn forward<'a>(
        &self,
        params: &[f32],
        batch: &Batch,
        scratch: &'a mut Scratch,
    ) -> &'a mut [Vec<f32>] {
        assert_eq!(batch.features, self.features, "the model fits the data set");
        let lens = (1..=self.depth()).map(|layers| batch.len() * self.width(layers));
        let outputs = scratch.floats(lens);
        for index in 0..self.depth() {
            let layer = self.layer(index);
            let (before, after) = outputs.split_at_mut(index);
            let inputs = before.last().unwrap_or(&batch.inputs);
            let (weights, biases) = (&params[layer.weights], &params[layer.biases]);
            kernels::forward(layer.shape, weights, biases, inputs, &mut after[0]);
            if index + 1 < self.depth() {
                kernels::relu(&mut after[0]);
            }
        }
        outputs
    }
}

impl Model for Mlp {
    fn params(&self) -> usize {
        self.layer(self.depth() - 1).biases.end
    }

    /// Weights as He et al. 2015 want them, with variance 2 / inputs, and biases 0. Uniform, not
    /// normal: a logarithm and a cosine may differ in the last bit from machine to machine, and
    /// replicas must not.
    fn initial(&self, seed: u64) -> Vector {
        let mut params = vec![0.0; self.size()];
        for index in 0..self.depth() {
            let layer = self.layer(index);
            let mut dice = Dice::keyed(&[seed, index as u64]);
            let bound = (6.0 / layer.shape.inputs as f64).sqrt();
            for weight in &mut params[layer.weights] {
                *weight = dice.between(-bound, bound) as f32;
            }
        }
        params
    }

    fn gradient(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch, into: &mut Gradient) {
        let outputs = self.forward(params, batch, scratch);
        let logits = &mut outputs[self.depth() - 1];
        into.loss_sum += kernels::cross_entropy(logits, self.classes, &batch.labels);
        into.samples += batch.len() as u64;
        // From here on a layer's outputs are overwritten by the gradient in them, last layer first.
        for index in (0..self.depth()).rev() {
            let layer = self.layer(index);
            let (before, after) = outputs.split_at_mut(index);
            let deltas = &after[0];
            let inputs = before.last().unwrap_or(&batch.inputs);
            let weights = layer.weights.clone();
            kernels::add_weight_gradient(layer.shape, inputs, deltas, &mut into.sum[weights]);
            kernels::add_bias_gradient(deltas, &mut into.sum[layer.biases]);
            if let Some(activations) = before.last_mut() {
                kernels::backward(layer.shape, &params[layer.weights], deltas, activations);
            }
        }
    }

    fn evaluate(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch) -> Score {
        let outputs = self.forward(params, batch, scratch);
        let logits = &mut outputs[self.depth() - 1];
        let correct = kernels::count_correct(logits, self.classes, &batch.labels);
        let loss_sum = kernels::cross_entropy(logits, self.classes, &batch.labels);
        Score { loss_sum, correct, samples: batch.len() as u64 }
    }

    fn undecayed(&self) -> Vec<Range<usize>> {
        (0..self.depth()).map(|index| self.layer(index).biases).collect()
    }
}

impl Softmax {
    /// An empty list of hidden layers takes no memory, so this costs nothing.
    fn network(&self) -> Mlp {
        Mlp { features: self.features, hidden: Vec::new(), classes: self.classes }
    }
}

impl Model for Softmax {
    fn params(&self) -> usize {
        self.network().params()
    }

    fn initial(&self, _seed: u64) -> Vector {
        vec![0.0; self.size()]
    }

    fn gradient(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch, into: &mut Gradient) {
        self.network().gradient(params, batch, scratch, into);
    }

    fn evaluate(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch) -> Score {
        self.network().evaluate(params, batch, scratch)
    }

    fn undecayed(&self) -> Vec<Range<usize>> {
        self.network().undecayed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_are_weights_then_biases_of_each_layer() {
        let mlp = Mlp { features: 3, hidden: vec![5, 4], classes: 2 };

        assert_eq!(mlp.params(), (3 * 5 + 5) + (5 * 4 + 4) + (4 * 2 + 2));
        assert_eq!(mlp.undecayed(), [15..20, 40..44, 52..54]);
    }

    #[test]
    fn initial_weights_have_the_variance_of_he_and_biases_are_zero() {
        let mlp = Mlp { features: 200, hidden: vec![100], classes: 10 };

        let initial = mlp.initial(1);

        let variance = crate::vector::norm_squared(&initial[..20_000]) / 20_000.0;
        assert!((variance / 0.01 - 1.0).abs() < 0.05, "{variance}");
        assert!(
            mlp.undecayed().into_iter().all(|biases| initial[biases].iter().all(|b| *b == 0.0))
        );
        assert_ne!(initial, mlp.initial(2));
    }

    #[test]
    fn an_untrained_softmax_knows_nothing() {
        let softmax = Softmax { features: 2, classes: 4 };
        let mut batch = Batch::new();
        batch.fill(&crate::blobs(8, 2, 4, 1, 0.1), (0..8).map(|index| (0, index)));

        let score = softmax.evaluate(&softmax.initial(0), &batch, &mut Scratch::default());

        assert!((score.loss() - 4f64.ln()).abs() < 1e-6);
        assert_eq!(score.accuracy(), 0.25);
    }
}
