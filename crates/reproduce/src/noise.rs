//! How noisy a step is after the batch has changed: pure noise through the real optimizer and the
//! real factors (Lin et al. 2019, section 3).

use paceline_learn::vector::norm_squared;
use paceline_learn::{Dice, Gradient, Layout, Optimizer, OptimizerState, Rescale, Rescaler};

const MOMENTUM: f32 = 0.9;
const BATCH: f64 = 64.0;
/// So many independent coordinates: a variance then has a standard error of 1 %.
const COORDINATES: usize = 20_000;
/// The memory is steady by now: 0.9 ^ (2 x 60) is 3e-6.
const BEFORE: u64 = 60;
/// Longer than any ramp and its aftermath.
const AFTER: u64 = 220;
const STEADY: usize = 60;

/// The noisiest step after the batch grows `k` times, relative to a step of the new steady state.
pub fn peak(rescale: Rescale, k: f64, seed: u64) -> f64 {
    let optimizer = Optimizer::sgd(MOMENTUM);
    let mut rescaler = Rescaler::new(rescale, BATCH);
    let mut state = OptimizerState::default();
    let mut step = |round: u64, batch: f64| {
        let mut dice = Dice::keyed(&[seed, round]);
        let strength = batch.sqrt();
        let sum = (0..COORDINATES).map(|_| (strength * dice.normal()) as f32).collect();
        let gradient = Gradient { sum, loss_sum: 0.0, samples: batch as u64 };
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
    // A single step's variance is known to 1 %: the mean of neighbours is not pulled up by chance.
    let pairs = after.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let first = after[0];
    pairs.fold(first, f64::max) / steady
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3.43 for a growth by 4 at once, none to speak of with the ramp.
    #[test]
    fn growth_at_once_is_noisy_and_growth_along_a_ramp_is_not() {
        assert!((peak(Rescale::Linear, 4.0, 1) - 3.43).abs() < 0.15);
        assert!(peak(Rescale::Smooth, 4.0, 1) < 1.06);
    }
}
