//! The noise of a step after a change of batch size, measured by feeding pure noise to the real optimizer
//! and rescaler (Lin et al. 2019, section 3).

use paceline_learn::vector::norm_squared;
use paceline_learn::{Dice, Gradient, Layout, Optimizer, OptimizerState, Rescale, Rescaler};

const MOMENTUM: f32 = 0.9;
const BATCH: f64 = 64.0;
/// With this many independent coordinates the variance has a standard error of 1 %.
const COORDINATES: usize = 20_000;
/// Rounds after which the momentum buffer is in its steady state: 0.9 ^ (2 x 60) is 3e-6.
const BEFORE: u64 = 60;
/// Longer than any ramp and its effect on momentum.
const AFTER: u64 = 220;
const STEADY: usize = 60;

/// The variance of the noisiest step after the batch grows by a factor of `k`, relative to the new steady state.
pub fn peak(rescale: Rescale, k: f64, seed: u64) -> f64 {
    let optimizer = Optimizer::sgd(MOMENTUM);
    let mut rescaler = Rescaler::new(rescale, BATCH);
    let mut state = OptimizerState::default();
    let mut step = |round: u64, batch: f64| {
        let mut dice = Dice::keyed(&[seed, round]);
        let strength = batch.sqrt();
        let sum = (0..COORDINATES).map(|_| (strength * dice.normal()) as f32).collect();
        let gradient = Gradient { sum, samples: batch as u64, ..Gradient::default() };
        let mut params = vec![0.0; COORDINATES];
        let rate = rescaler.factor(batch);
        optimizer.descend(&mut params, &mut state, &gradient, rate, &Layout::plain());
        norm_squared(&params)
    };
    for round in 0..BEFORE {
        step(round, BATCH);
    }
    let after: Vec<f64> = (BEFORE..BEFORE + AFTER).map(|round| step(round, k * BATCH)).collect();
    let steady = after[after.len() - STEADY..].iter().sum::<f64>() / STEADY as f64;
    // A single variance has an error of 1 %, which would bias the maximum; means of neighbors reduce that.
    let pairs = after.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let first = after[0];
    pairs.fold(first, f64::max) / steady
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected peak after growth by 4 is 3.43 without the ramp and about 1 with it.
    #[test]
    fn growth_is_noisy_without_the_ramp_and_not_with_it() {
        assert!((peak(Rescale::Linear, 4.0, 1) - 3.43).abs() < 0.15);
        assert!(peak(Rescale::Smooth, 4.0, 1) < 1.06);
    }
}
