//! A gradient that carries its sample count and its weight.

use crate::vector::{Vector, add};

/// The sum of the gradients of some samples. Gradients of different batches are simply added; only
/// [`Optimizer::descend`](crate::Optimizer::descend) divides, once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradient {
    pub sum: Vector,
    pub loss_sum: f64,
    pub samples: u64,
    /// What the sums are divided by, if that is not the number of samples: tokens, or samples that are not masked. See
    /// [`count`](Self::count).
    pub weight: Option<f64>,
}

impl Gradient {
    pub fn zero(size: usize) -> Gradient {
        Gradient { sum: Vector::zeros(size), ..Gradient::default() }
    }

    /// What the sums are divided by.
    pub fn weight(&self) -> f64 {
        weight_of(self.samples, self.weight)
    }

    /// Counts samples whose gradients and losses, which were added, have this weight together. A model whose samples all
    /// weigh the same only adds to `samples`.
    pub fn count(&mut self, samples: u64, weight: f64) {
        self.weight = joint_weight((self.samples, self.weight), (samples, Some(weight)));
        self.samples += samples;
    }

    pub fn add(&mut self, other: &Gradient) {
        if self.sum.is_empty() {
            self.sum.resize(other.sum.len(), 0.0);
        }
        add(&mut self.sum, &other.sum);
        self.loss_sum += other.loss_sum;
        self.weight = joint_weight((self.samples, self.weight), (other.samples, other.weight));
        self.samples += other.samples;
    }
}

/// The weight of some samples; each weighs 1 unless something else is said.
pub fn weight_of(samples: u64, weight: Option<f64>) -> f64 {
    weight.unwrap_or(samples as f64)
}

/// The weight of two sets of samples together; `None` if it is their number.
pub fn joint_weight(one: (u64, Option<f64>), other: (u64, Option<f64>)) -> Option<f64> {
    let weight = weight_of(one.0, one.1) + weight_of(other.0, other.1);
    (weight != one.0.saturating_add(other.0) as f64).then_some(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_and_are_left_out_where_they_are_the_number_of_samples() {
        let plain = Gradient { samples: 3, ..Gradient::zero(1) };
        let mut heavy = Gradient::zero(1);
        heavy.count(1, 2.0);
        heavy.count(1, 3.5);
        assert_eq!((heavy.samples, heavy.weight, plain.weight()), (2, Some(5.5), 3.0));

        let mut both = plain.clone();
        both.add(&heavy);
        assert_eq!((both.samples, both.weight), (5, Some(8.5)));
        both.count(3, 0.0);
        assert_eq!((both.samples, both.weight()), (8, 8.5));

        let mut even = plain.clone();
        even.add(&plain);
        even.count(2, 2.0);
        assert_eq!((even.samples, even.weight, even.weight()), (8, None, 8.0));
        let mut masked = Gradient::zero(1);
        masked.count(2, 0.0);
        assert_eq!(masked.weight, Some(0.0));
    }
}
