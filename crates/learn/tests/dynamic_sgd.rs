//! Verifies Dynamic SGD (Lin et al. 2019): the batch can grow without a peak in the noise of momentum steps.

use paceline_learn::{
    Dice, Gradient, Layout, Optimizer, OptimizerState, Rescale, Rescaler, Vector,
};

const MOMENTUM: f64 = 0.9;
const BATCH: f64 = 64.0;

/// The factors of `rounds` rounds after the batch has changed from BATCH to k BATCH.
fn factors_after_change(rescale: Rescale, k: f64, rounds: usize) -> Vec<f64> {
    let mut rescaler = Rescaler::new(rescale, BATCH);
    assert_eq!(rescaler.factor(BATCH), 1.0);
    (0..rounds).map(|_| f64::from(rescaler.factor(k * BATCH))).collect()
}

/// Lin et al. 2019, eq. 6.
fn gamma(k: f64, ramp: f64, t: f64) -> f64 {
    if t < ramp { 1.0 + t / ramp * (k - 1.0) } else { k }
}

/// The variance of the i-th step after the change (starting with 1), relative to that of a step before it, if
/// gradients are pure noise: gamma_i^2 [mu^(2i) + (1 - mu^(2i)) / k].
fn variance(k: f64, i: usize, gamma: f64) -> f64 {
    let remembered = MOMENTUM.powi(2 * i as i32);
    gamma * gamma * (remembered + (1.0 - remembered) / k)
}

/// The largest variance of a step after the change, relative to the new steady state, which is k times the old
/// one.
fn peak(k: f64, gammas: &[f64]) -> f64 {
    let relative = gammas.iter().enumerate().map(|(i, gamma)| variance(k, i + 1, *gamma) / k);
    relative.fold(0.0, f64::max)
}

fn assert_close(got: f64, expected: f64, tolerance: f64) {
    assert!((got - expected).abs() <= tolerance, "{got} instead of {expected} +- {tolerance}");
}

fn noise(dice: &mut Dice, len: usize, samples: f64) -> Gradient {
    let strength = samples.sqrt();
    let sum = (0..len).map(|_| (strength * dice.normal()) as f32).collect();
    Gradient { sum, samples: samples as u64, ..Gradient::default() }
}

/// Lin et al. 2019, eq. 6: gamma multiplies the rate, so without a change (k = 1) the result has the bits of plain
/// SGD.
#[test]
fn without_a_change_of_batch_dynamic_sgd_is_plain_sgd() {
    let optimizer = Optimizer::sgd(0.9);
    let run = |rescale: Option<Rescale>| {
        let mut rescaler = rescale.map(|rescale| Rescaler::new(rescale, BATCH));
        let (mut params, mut state) = (vec![1.0; 10], OptimizerState::default());
        for round in 0..50 {
            let gradient = noise(&mut Dice::keyed(&[1, round]), 10, BATCH);
            let factor = rescaler.as_mut().map_or(1.0, |rescaler| rescaler.factor(BATCH));
            optimizer.descend(&mut params, &mut state, &gradient, 0.1 * factor, &Layout::plain());
        }
        params
    };

    assert_eq!(run(Some(Rescale::Smooth)), run(None));
    assert_eq!(run(Some(Rescale::SmoothLiteral)), run(None));
}

/// Lin et al. 2019, eq. 3 and 4: momentum that does not contain the rate is equivalent to momentum that contains it
/// and is rescaled by rate_t / rate_(t-1).
#[test]
fn the_two_forms_of_momentum_agree() {
    let optimizer = Optimizer::sgd(MOMENTUM as f32);
    let mut rescaler = Rescaler::new(Rescale::Smooth, BATCH);
    let (mut params, mut state) = (vec![0.0; 20], OptimizerState::default());
    let (mut inside, mut velocity) = (vec![0.0f64; 20], vec![0.0f64; 20]);
    let mut rate_before = 0.0;

    for round in 0..100 {
        let batch = [BATCH, 4.0 * BATCH, 2.0 * BATCH][round / 34];
        let gradient = noise(&mut Dice::keyed(&[2, round as u64]), 20, batch);
        let rate = 0.1 * rescaler.factor(batch);
        optimizer.descend(&mut params, &mut state, &gradient, rate, &Layout::plain());

        let rate = f64::from(rate);
        let correction = if round == 0 { 1.0 } else { rate / rate_before };
        for ((w, v), g) in inside.iter_mut().zip(&mut velocity).zip(&gradient.sum) {
            *v = MOMENTUM * *v * correction + rate * (f64::from(*g) / batch);
            *w -= *v;
        }
        rate_before = rate;
    }

    for (outside, inside) in params.iter().zip(&inside) {
        assert_close(f64::from(*outside), *inside, 1e-5);
    }
}

/// Lin et al. 2019, eq. 5: only the momentum is delayed. Without momentum, a smooth step equals the immediate step
/// as soon as the ramp is over.
#[test]
fn without_momentum_the_ramp_has_no_effect_after_its_end() {
    let steps = |rescale| -> Vec<Vector> {
        let mut state = OptimizerState::default();
        let factors = factors_after_change(rescale, 4.0, 40);
        let step = |(round, factor): (usize, &f64)| {
            let mut params = Vector::zeros(5);
            let gradient = noise(&mut Dice::keyed(&[3, round as u64]), 5, 4.0 * BATCH);
            let rate = 0.1 * *factor as f32;
            Optimizer::plain().descend(&mut params, &mut state, &gradient, rate, &Layout::plain());
            params
        };
        factors.iter().enumerate().map(step).collect()
    };

    let (smooth, immediate) = (steps(Rescale::Smooth), steps(Rescale::Linear));

    let differing = smooth.iter().zip(&immediate).take_while(|(smooth, jump)| smooth != jump);
    assert_eq!(differing.count(), 32);
    assert_eq!(smooth[32..], immediate[32..]);
}

/// The closed formula agrees with the recursion of eq. 3 for all factors.
#[test]
fn the_variance_of_a_step_agrees_with_the_formula() {
    for k in [0.125, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0] {
        for rescale in [Rescale::Linear, Rescale::Smooth, Rescale::SmoothLiteral] {
            let stationary = 1.0 / (1.0 - MOMENTUM * MOMENTUM);
            let mut memory = stationary;
            for (i, gamma) in factors_after_change(rescale, k, 200).into_iter().enumerate() {
                memory = MOMENTUM * MOMENTUM * memory + 1.0 / k;
                let step = gamma * gamma * memory / stationary;
                assert_close(step / variance(k, i + 1, gamma), 1.0, 1e-12);
            }
        }
    }
}

/// The peaks after growth by k: immediate, with a ramp of 8 rounds, and with a ramp of 8 k rounds. The first step
/// in the table has t - t0 = 1; our first round after a change still has gamma = 1, which only lowers the peaks.
#[test]
fn the_peaks_after_growth_agree_with_the_table() {
    let table = [
        (2.0, 1.81, 1.19, 1.03),
        (4.0, 3.43, 1.56, 1.00),
        (8.0, 6.67, 2.30, 1.00),
        (16.0, 13.15, 3.78, 1.00),
    ];

    for (k, immediate, short, long) in table {
        let ramp = |length: f64| -> Vec<f64> {
            (1..400).map(|t| gamma(k, length, f64::from(t))).collect()
        };
        let ours = factors_after_change(Rescale::Smooth, k, 400);
        assert_close(peak(k, &factors_after_change(Rescale::Linear, k, 400)), immediate, 0.006);
        assert_close(peak(k, &ramp(8.0)), short, 0.006);
        assert_close(peak(k, &ramp(8.0 * k)), long, 0.006);
        assert_close(peak(k, &ours[1..]), long, 0.006);
        assert!(peak(k, &ours) <= peak(k, &ours[1..]) + 1e-9);
    }
}

/// The peaks after shrinking: an immediate change never overshoots; a ramp exactly as in eq. 6 does, and more so
/// because its first round has gamma = 1 (2.4, 6.3 and 18.6). That is why `smooth` shrinks immediately.
#[test]
fn the_peaks_after_shrinking_agree_with_the_table() {
    for (k, from_one) in [(0.5, 1.82), (0.25, 2.45), (0.125, 1.00)] {
        let literal = factors_after_change(Rescale::SmoothLiteral, k, 400);
        assert_close(peak(k, &factors_after_change(Rescale::Smooth, k, 400)), 1.0, 1e-9);
        assert_close(peak(k, &literal[1..]), from_one, 0.006);
        assert_close(peak(k, &literal), variance(k, 1, 1.0) / k, 1e-9);
        assert!(peak(k, &literal) > from_one);
    }
}

/// Runs the real optimizer with the real factors on pure noise in 20,000 independent coordinates. A variance then
/// has a relative standard error of sqrt(2 / 20,000) = 1 %, and a ratio of two has 1.4 %; the tolerance is five
/// times that.
#[test]
fn real_steps_are_as_noisy_as_the_formula_says() {
    const COORDINATES: usize = 20_000;
    const K: f64 = 4.0;
    let optimizer = Optimizer::sgd(MOMENTUM as f32);
    for rescale in [Rescale::Linear, Rescale::Smooth] {
        let mut rescaler = Rescaler::new(rescale, BATCH);
        // The momentum starts in its steady state: variance 1 / (BATCH (1 - mu^2)).
        let spread = (BATCH * (1.0 - MOMENTUM * MOMENTUM)).recip().sqrt();
        let mut dice = Dice::keyed(&[4]);
        let memory = (0..COORDINATES).map(|_| (spread * dice.normal()) as f32).collect();
        let mut state = OptimizerState { slots: vec![memory], steps: 0 };
        let mut variance_of_step = |factor: f32, batch: f64| {
            let mut params = vec![0.0; COORDINATES];
            let gradient = noise(&mut dice, COORDINATES, batch);
            optimizer.descend(&mut params, &mut state, &gradient, factor, &Layout::plain());
            paceline_learn::vector::norm_squared(&params) / COORDINATES as f64
        };
        let before = variance_of_step(rescaler.factor(BATCH), BATCH);

        for i in 1..=20 {
            let factor = rescaler.factor(K * BATCH);
            let step = variance_of_step(factor, K * BATCH) / before;
            assert_close(step / variance(K, i, f64::from(factor)), 1.0, 0.07);
        }
    }
}
