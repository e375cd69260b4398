//! A gradient that carries its sample count.

use crate::vector::{Vector, add};

/// The sum of the gradients of some samples. Gradients of different batches are simply added; only
/// [`Optimizer::descend`](crate::Optimizer::descend) divides, once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradient {
    pub sum: Vector,
    pub loss_sum: f64,
    pub samples: u64,
}

impl Gradient {
    pub fn zero(size: usize) -> Gradient {
        Gradient { sum: vec![0.0; size], loss_sum: 0.0, samples: 0 }
    }

    pub fn add(&mut self, other: &Gradient) {
        if self.sum.is_empty() {
            self.sum.resize(other.sum.len(), 0.0);
        }
        add(&mut self.sum, &other.sum);
        self.loss_sum += other.loss_sum;
        self.samples += other.samples;
    }
}
