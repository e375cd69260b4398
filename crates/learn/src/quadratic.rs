//! The noisy quadratic model, on which statements about gradient noise can be verified analytically.

use std::f64::consts::TAU;

use crate::dataset::Batch;
use crate::dice::Dice;
use crate::gradient::Gradient;
use crate::model::{Model, Score, Scratch};
use crate::vector::{Vector, add_scaled};

/// The loss of a sample is 1/2 sum h_i x_i^2 + n . x, where n is normal with standard deviation
/// `noise` in each coordinate and depends only on the sample's key.
#[derive(Clone, Debug, PartialEq)]
pub struct Quadratic {
    pub curvature: Vec<f32>,
    pub noise: f32,
}

impl Quadratic {
    fn loss(&self, params: &[f32]) -> f64 {
        let terms = self.curvature.iter().zip(params);
        terms.map(|(h, x)| 0.5 * f64::from(*h) * f64::from(*x) * f64::from(*x)).sum()
    }
}

impl Model for Quadratic {
    fn params(&self) -> usize {
        self.curvature.len()
    }

    /// All ones for every seed, so that the initial loss is known.
    fn initial(&self, _seed: u64) -> Vector {
        Vector::filled(1.0, self.size())
    }

    fn gradient(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch, into: &mut Gradient) {
        let samples = batch.len() as f32;
        for ((sum, h), x) in into.sum.iter_mut().zip(&self.curvature).zip(params) {
            *sum += samples * (h * x);
        }
        into.loss_sum += batch.len() as f64 * self.loss(params);
        into.samples += batch.len() as u64;
        if self.noise != 0.0 {
            let drawn = &mut scratch.floats([self.params()].into_iter())[0];
            for key in &batch.keys {
                draw(*key, drawn);
                add_scaled(&mut into.sum, self.noise, drawn);
                let slope: f64 =
                    drawn.iter().zip(params).map(|(n, x)| f64::from(*n) * f64::from(*x)).sum();
                into.loss_sum += f64::from(self.noise) * slope;
            }
        }
    }

    /// The loss without noise. There are no classes, so `correct` is 0.
    fn evaluate(&self, params: &[f32], batch: &Batch, _scratch: &mut Scratch) -> Score {
        let samples = batch.len() as u64;
        Score { loss_sum: samples as f64 * self.loss(params), correct: 0, samples }
    }
}

/// Fills `into` with the normal numbers of one sample. Both numbers of each pair (Box and Muller) are used, which
/// halves the number of logarithms.
fn draw(key: u64, into: &mut [f32]) {
    let mut dice = Dice::keyed(&[key]);
    for pair in into.chunks_mut(2) {
        let radius = (-2.0 * (1.0 - dice.unit()).ln()).sqrt();
        let (sine, cosine) = (TAU * dice.unit()).sin_cos();
        pair[0] = (radius * cosine) as f32;
        if let Some(second) = pair.get_mut(1) {
            *second = (radius * sine) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blobs::Noise;

    fn gradient_of(model: &Quadratic, params: &[f32], samples: u64) -> Gradient {
        let mut batch = Batch::new();
        batch.fill(&Noise { len: samples }, (0..samples).map(|index| (0, index)));
        let mut gradient = Gradient::zero(model.size());
        model.gradient(params, &batch, &mut Scratch::default(), &mut gradient);
        gradient
    }

    #[test]
    fn without_noise_the_gradient_is_curvature_times_params() {
        let model = Quadratic { curvature: vec![1.0, 4.0], noise: 0.0 };

        let gradient = gradient_of(&model, &[2.0, -1.0], 8);

        assert_eq!(gradient.sum, [16.0, -32.0]);
        assert_eq!((gradient.loss_sum, gradient.samples), (8.0 * 4.0, 8));
    }

    /// 2,000 samples x 5 coordinates: mean and variance have standard errors of 0.01 and 0.014. The bounds
    /// are five standard errors.
    #[test]
    fn the_noise_is_normal_with_the_given_deviation() {
        let model = Quadratic { curvature: vec![0.0; 5], noise: 1.0 };
        let mut drawn = vec![0.0; 5];
        let (mut sum, mut square_sum) = (0.0, 0.0);

        for key in 0..2000 {
            draw(crate::mix(key), &mut drawn);
            sum += drawn.iter().map(|x| f64::from(*x)).sum::<f64>();
            square_sum += crate::vector::norm_squared(&drawn);
        }

        assert!((sum / 10_000.0).abs() < 0.05);
        assert!((square_sum / 10_000.0 - 1.0).abs() < 0.07);
        assert_ne!(gradient_of(&model, &[0.0; 5], 1).sum, [0.0; 5]);
    }
}
