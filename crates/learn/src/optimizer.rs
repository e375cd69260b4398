//! The optimizers: SGD with momentum, and AdamW.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::OptimizerError;
use crate::gradient::Gradient;
use crate::layout::Layout;
use crate::vector::{Vector, norm_squared};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    pub rule: Rule,
    /// The largest norm of the mean gradient; a longer gradient is scaled to this norm.
    #[serde(default)]
    pub clip_norm: Option<f32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Rule {
    /// u <- momentum u + (g + weight_decay w); w <- w - rate u (Lin et al. 2019, eq. 3: the momentum
    /// does not contain the rate, so a change of rate needs no correction).
    Sgd {
        momentum: f32,
        #[serde(default)]
        nesterov: bool,
        #[serde(default)]
        weight_decay: f32,
    },
    /// Loshchilov and Hutter 2019, algorithm 2: the weight decay is not part of the moments.
    Adamw {
        #[serde(default = "beta1")]
        beta1: f32,
        #[serde(default = "beta2")]
        beta2: f32,
        #[serde(default = "epsilon")]
        epsilon: f32,
        #[serde(default = "weight_decay")]
        weight_decay: f32,
    },
}

// The defaults of AdamW are those of PyTorch.
fn beta1() -> f32 {
    0.9
}

fn beta2() -> f32 {
    0.999
}

fn epsilon() -> f32 {
    1e-8
}

fn weight_decay() -> f32 {
    0.01
}

/// The weight of a step's statistics in the running averages of the buffers; the usual default for batch norm.
const BUFFER_MOMENTUM: f32 = 0.1;

/// The state of an optimizer between steps: vectors as long as the gradient.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OptimizerState {
    pub slots: Vec<Vector>,
    pub steps: u64,
}

impl Optimizer {
    pub fn sgd(momentum: f32) -> Optimizer {
        let rule = Rule::Sgd { momentum, nesterov: false, weight_decay: 0.0 };
        Optimizer { rule, clip_norm: None }
    }

    /// SGD without momentum: w <- w - rate g.
    pub fn plain() -> Optimizer {
        Optimizer::sgd(0.0)
    }

    /// Whether all hyperparameters are in range.
    pub fn check(&self) -> Result<(), OptimizerError> {
        let fraction = |name, value: f32| match (0.0..1.0).contains(&value) {
            true => Ok(()),
            false => Err(OptimizerError::NotAFraction { name, value }),
        };
        let not_negative = |name, value: f32| match value.is_finite() && value >= 0.0 {
            true => Ok(()),
            false => Err(OptimizerError::Negative { name, value }),
        };
        match self.rule {
            Rule::Sgd { momentum, weight_decay, .. } => {
                fraction("momentum", momentum)?;
                not_negative("weight_decay", weight_decay)?;
            }
            Rule::Adamw { beta1, beta2, epsilon, weight_decay } => {
                fraction("beta1", beta1)?;
                fraction("beta2", beta2)?;
                not_negative("weight_decay", weight_decay)?;
                if !(epsilon.is_finite() && epsilon > 0.0) {
                    return Err(OptimizerError::Epsilon(epsilon));
                }
            }
        }
        match self.clip_norm {
            Some(clip) if !(clip.is_finite() && clip > 0.0) => Err(OptimizerError::ClipNorm(clip)),
            _ => Ok(()),
        }
    }

    /// Applies one step along the mean of `gradient`. A gradient without samples changes nothing.
    ///
    /// Buffers, which follow the params, move a fixed fraction of the way to the statistics that follow the
    /// gradient. Values beyond the end of the gradient are unchanged.
    pub fn descend(
        &self,
        params: &mut [f32],
        state: &mut OptimizerState,
        gradient: &Gradient,
        rate: f32,
        layout: &Layout,
    ) {
        let Some(step) = self.step(state, gradient, rate, layout) else { return };
        state.steps = step.number;
        state.slots.resize_with(self.slots(), || Vector::zeros(step.sum.len()));
        for (span, decays) in spans(step.sum.len(), &layout.undecayed) {
            step.apply(span, decays, params, &mut state.slots);
        }
        step.update_buffers(params);
    }

    /// As [`descend`](Self::descend), but returns new vectors instead of changing the given ones.
    ///
    /// Copying everything first would read the memory twice, so blocks are copied and changed while they are in
    /// the L1 cache.
    pub fn descended(
        &self,
        params: &[f32],
        state: &OptimizerState,
        gradient: &Gradient,
        rate: f32,
        layout: &Layout,
    ) -> (Vector, OptimizerState) {
        const BLOCK: usize = 2048;
        let Some(step) = self.step(state, gradient, rate, layout) else {
            return (params.into(), state.clone());
        };
        let mut after = Vector::with_capacity(params.len());
        // Not `vec![..; n]`: a clone of an empty vector does not keep its capacity.
        let empty = |_| Vector::with_capacity(step.sum.len());
        let mut slots: Vec<Vector> = (0..self.slots()).map(empty).collect();
        for (span, decays) in spans(step.sum.len(), &layout.undecayed) {
            for start in span.clone().step_by(BLOCK) {
                let block = start..span.end.min(start + BLOCK);
                after.extend_from_slice(&params[block.clone()]);
                for (i, slot) in slots.iter_mut().enumerate() {
                    match state.slots.get(i) {
                        Some(before) => slot.extend_from_slice(&before[block.clone()]),
                        None => slot.resize(block.end, 0.0),
                    }
                }
                step.apply(block, decays, &mut after, &mut slots);
            }
        }
        after.extend_from_slice(&params[step.sum.len()..]);
        step.update_buffers(&mut after);
        (after, OptimizerState { slots, steps: step.number })
    }

    /// The number of vectors in its state.
    fn slots(&self) -> usize {
        match self.rule {
            Rule::Sgd { momentum: 0.0, .. } => 0,
            Rule::Sgd { .. } => 1,
            Rule::Adamw { .. } => 2,
        }
    }

    /// The next step; `None` if the gradient has no samples, or none that weighs anything.
    fn step<'a>(
        &'a self,
        state: &OptimizerState,
        gradient: &'a Gradient,
        rate: f32,
        layout: &Layout,
    ) -> Option<Step<'a>> {
        let (sum, statistics) = gradient.sum.split_at(layout.params.min(gradient.sum.len()));
        let weight = gradient.weight();
        let mean = (weight > 0.0).then(|| self.scale_to_mean(sum, weight))?;
        assert!(
            state.slots.iter().all(|slot| slot.len() == sum.len()),
            "the optimizer's state has the length of this model's params"
        );
        let (number, unclipped) = (state.steps + 1, 1.0 / gradient.samples as f32);
        Some(Step { rule: &self.rule, number, sum, statistics, mean, unclipped, rate })
    }

    /// The factor from the gradient's sum to its clipped mean: 1 / weight, or less if the mean is clipped.
    fn scale_to_mean(&self, sum: &[f32], weight: f64) -> f32 {
        let mean = 1.0 / weight;
        let Some(clip) = self.clip_norm else { return mean as f32 };
        let norm = norm_squared(sum).sqrt() * mean;
        let clip = f64::from(clip);
        if norm > clip { (mean * (clip / norm)) as f32 } else { mean as f32 }
    }
}

/// A step along a gradient.
struct Step<'a> {
    rule: &'a Rule,
    number: u64,
    sum: &'a [f32],
    statistics: &'a [f32],
    /// The factor from the sum to the clipped mean, and from the statistics to their mean, which is not clipped.
    mean: f32,
    unclipped: f32,
    rate: f32,
}

impl Step<'_> {
    /// Updates a range of the params, either all or none of which have weight decay.
    fn apply(&self, span: Range<usize>, decays: bool, params: &mut [f32], slots: &mut [Vector]) {
        let &Step { mean, rate, number, .. } = self;
        let (weights, sum) = (&mut params[span.clone()], &self.sum[span.clone()]);
        let decay_if = |weight_decay| if decays { weight_decay } else { 0.0 };
        match (self.rule, slots) {
            (&Rule::Sgd { momentum, nesterov, weight_decay }, slots) => {
                let step = Sgd { mean, rate, momentum, nesterov, decay: decay_if(weight_decay) };
                match slots {
                    [memory] => step.descend(weights, &mut memory[span], sum),
                    _ => step.descend_without_memory(weights, sum),
                }
            }
            (&Rule::Adamw { beta1, beta2, epsilon, weight_decay }, [first, second]) => {
                let decay = decay_if(weight_decay);
                let full1 = (1.0 - power(beta1, number)) as f32;
                let full2 = (1.0 - power(beta2, number)) as f32;
                let step = Adamw { mean, rate, beta1, beta2, epsilon, decay, full1, full2 };
                step.descend(weights, &mut first[span.clone()], &mut second[span], sum);
            }
            (Rule::Adamw { .. }, _) => unreachable!("AdamW keeps two moments"),
        }
    }

    /// Moves the buffers towards their statistics.
    fn update_buffers(&self, params: &mut [f32]) {
        for (buffer, statistic) in params[self.sum.len()..].iter_mut().zip(self.statistics) {
            *buffer += BUFFER_MOMENTUM * (self.unclipped * statistic - *buffer);
        }
    }
}

/// One step of SGD, for params with the same decay.
struct Sgd {
    mean: f32,
    rate: f32,
    momentum: f32,
    nesterov: bool,
    decay: f32,
}

impl Sgd {
    fn descend(&self, weights: &mut [f32], memory: &mut [f32], sum: &[f32]) {
        let Sgd { mean, rate, momentum, decay, .. } = *self;
        let triples = weights.iter_mut().zip(memory).zip(sum);
        if self.nesterov {
            for ((w, u), g) in triples {
                let g = mean * g + decay * *w;
                *u = momentum * *u + g;
                *w -= rate * (g + momentum * *u);
            }
        } else {
            for ((w, u), g) in triples {
                *u = momentum * *u + (mean * g + decay * *w);
                *w -= rate * *u;
            }
        }
    }

    fn descend_without_memory(&self, weights: &mut [f32], sum: &[f32]) {
        for (w, g) in weights.iter_mut().zip(sum) {
            *w -= self.rate * (self.mean * g + self.decay * *w);
        }
    }
}

/// One step of AdamW, for params with the same decay.
struct Adamw {
    mean: f32,
    rate: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    decay: f32,
    /// Bias corrections, 1 - beta^steps: the total weight of the gradients in each moment.
    full1: f32,
    full2: f32,
}

impl Adamw {
    fn descend(&self, weights: &mut [f32], first: &mut [f32], second: &mut [f32], sum: &[f32]) {
        let Adamw { mean, rate, beta1, beta2, epsilon, decay, full1, full2 } = *self;
        for (((w, m), v), g) in weights.iter_mut().zip(first).zip(second).zip(sum) {
            let g = mean * g;
            *m = beta1 * *m + (1.0 - beta1) * g;
            *v = beta2 * *v + (1.0 - beta2) * (g * g);
            let direction = (*m / full1) / ((*v / full2).sqrt() + epsilon);
            *w -= rate * (direction + decay * *w);
        }
    }
}

/// Cuts 0..len into ranges with and without weight decay, so that the inner loops need no condition.
fn spans(len: usize, undecayed: &[Range<usize>]) -> impl Iterator<Item = (Range<usize>, bool)> {
    let mut start = 0;
    let end = std::iter::once(len..len);
    undecayed.iter().cloned().chain(end).flat_map(move |part| {
        let part = part.start.min(len)..part.end.min(len);
        assert!(start <= part.start, "ranges without decay are ascending and do not overlap");
        let before = start..part.start;
        start = part.end;
        [(before, true), (part, false)]
    })
}

/// base^n by multiplications only, because `powi` may round differently on other machines.
fn power(base: f32, n: u64) -> f64 {
    let (mut result, mut square, mut rest) = (1.0, f64::from(base), n);
    while rest > 0 {
        if rest & 1 == 1 {
            result *= square;
        }
        square *= square;
        rest >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dice;

    fn gradient(sum: &[f32], samples: u64) -> Gradient {
        Gradient { sum: sum.into(), samples, ..Gradient::default() }
    }

    /// The params after one step along each of these gradients.
    fn after(optimizer: &Optimizer, start: &[f32], gradients: &[&[f32]], rate: f32) -> Vector {
        let (mut params, mut state) = (Vector::from(start), OptimizerState::default());
        for sum in gradients {
            optimizer.descend(&mut params, &mut state, &gradient(sum, 1), rate, &Layout::plain());
        }
        params
    }

    #[test]
    fn plain_sgd_uses_the_mean_and_has_no_state() {
        let (mut params, mut state) = (vec![1.0, 2.0], OptimizerState::default());

        Optimizer::plain().descend(
            &mut params,
            &mut state,
            &gradient(&[4.0, -8.0], 4),
            0.5,
            &Layout::plain(),
        );

        assert_eq!(params, [0.5, 3.0]);
        assert_eq!((state.slots.len(), state.steps), (0, 1));
    }

    /// u: 1, then 0.5 + 1 = 1.5; w: -1, then -2.5.
    #[test]
    fn momentum_accumulates_gradients_without_the_rate() {
        assert_eq!(after(&Optimizer::sgd(0.5), &[0.0], &[&[1.0], &[1.0]], 1.0), [-2.5]);
    }

    /// Step 1: u = 1, move 1 + 0.5 = 1.5. Step 2: u = 1.5, move 1 + 0.75 = 1.75.
    #[test]
    fn nesterov_looks_one_momentum_ahead() {
        let rule = Rule::Sgd { momentum: 0.5, nesterov: true, weight_decay: 0.0 };
        let optimizer = Optimizer { rule, clip_norm: None };

        assert_eq!(after(&optimizer, &[0.0], &[&[1.0], &[1.0]], 1.0), [-3.25]);
    }

    #[test]
    fn weight_decay_skips_undecayed_params_and_values_beyond_the_gradient() {
        let rule = Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.5 };
        let optimizer = Optimizer { rule, clip_norm: None };
        let (mut params, mut state) = (vec![8.0; 6], OptimizerState::default());
        let layout = Layout { undecayed: vec![1..2, 3..4], ..Layout::plain() };

        optimizer.descend(&mut params, &mut state, &gradient(&[0.0; 5], 1), 0.5, &layout);

        assert_eq!(params, [6.0, 8.0, 6.0, 8.0, 6.0, 8.0]);
    }

    #[test]
    fn a_gradient_without_samples_changes_nothing() {
        let (mut params, mut state) = (vec![1.0], OptimizerState::default());

        Optimizer::sgd(0.9).descend(
            &mut params,
            &mut state,
            &gradient(&[5.0], 0),
            1.0,
            &Layout::plain(),
        );
        Optimizer::sgd(0.9).descend(
            &mut params,
            &mut state,
            &Gradient::default(),
            1.0,
            &Layout::plain(),
        );

        assert_eq!((params, state), (vec![1.0], OptimizerState::default()));
    }

    /// Four tokens in two samples: the mean gradient is (1, -2), and the mean statistic 8 / 2.
    #[test]
    fn gradients_are_divided_by_their_weight_and_statistics_by_their_samples() {
        let layout = Layout { params: 2, ..Layout::plain() };
        let (mut params, mut state) = (vec![1.0, 2.0, 3.0], OptimizerState::default());
        let weighted = Gradient { weight: Some(4.0), ..gradient(&[4.0, -8.0, 8.0], 2) };
        Optimizer::plain().descend(&mut params, &mut state, &weighted, 0.5, &layout);
        assert_eq!(params, [0.5, 3.0, 3.1]);

        let masked = Gradient { weight: Some(0.0), ..weighted };
        Optimizer::plain().descend(&mut params, &mut state, &masked, 0.5, &layout);
        assert_eq!((params, state.steps), (vec![0.5, 3.0, 3.1], 1));
    }

    #[test]
    fn clipping_scales_down_only_a_mean_gradient_that_is_too_long() {
        let mut optimizer = Optimizer::plain();
        let descend = |optimizer: &Optimizer| {
            let (mut params, mut state) = (vec![0.0; 2], OptimizerState::default());
            optimizer.descend(
                &mut params,
                &mut state,
                &gradient(&[6.0, 8.0], 2),
                1.0,
                &Layout::plain(),
            );
            params
        };

        optimizer.clip_norm = Some(2.5);
        assert_eq!(descend(&optimizer), [-1.5, -2.0]);
        optimizer.clip_norm = Some(5.0);
        assert_eq!(descend(&optimizer), [-3.0, -4.0]);
    }

    /// Computed by hand, with beta1 = 1/2, beta2 = 3/4, epsilon = 1, rate 0.1, decay 0.01, w = 1, gradients
    /// 2 and -1.
    /// Step 1: m = 1, v = 1, corrected 2 and 4; w = 1 - 0.1 (2 / 3 + 0.01) = 0.9323333.
    /// Step 2: m = 0, v = 1; w = 0.9323333 - 0.1 (0 + 0.01 x 0.9323333) = 0.9314010.
    #[test]
    fn adamw_matches_steps_computed_by_hand() {
        let rule = Rule::Adamw { beta1: 0.5, beta2: 0.75, epsilon: 1.0, weight_decay: 0.01 };
        let optimizer = Optimizer { rule, clip_norm: None };

        let one = after(&optimizer, &[1.0], &[&[2.0]], 0.1);
        let two = after(&optimizer, &[1.0], &[&[2.0], &[-1.0]], 0.1);

        assert!((one[0] - 0.932_333_3).abs() < 1e-6, "{one:?}");
        assert!((two[0] - 0.931_401).abs() < 1e-6, "{two:?}");
    }

    /// 3 moves a tenth of the way to the mean statistic 8 / 2, independently of the rule, the rate and clipping.
    #[test]
    fn buffers_depend_only_on_their_statistics() {
        let adamw = Rule::Adamw { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 };
        let sgd = Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.1 };
        let layout = Layout { params: 1, ..Layout::plain() };
        for rule in [adamw, sgd] {
            let optimizer = Optimizer { rule, clip_norm: Some(0.1) };
            let (mut params, mut state) = (vec![3.0, 3.0], OptimizerState::default());

            optimizer.descend(&mut params, &mut state, &gradient(&[2.0, 8.0], 2), 0.1, &layout);

            assert_eq!((params[1], state.slots[0].len()), (3.1, 1));
            assert!(params[0] < 3.0);
        }
    }

    /// With every rule, over several blocks, ranges and steps.
    #[test]
    fn descended_returns_the_bits_of_descend() {
        let adamw = Rule::Adamw { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 };
        let sgd = |momentum| Rule::Sgd { momentum, nesterov: momentum > 0.5, weight_decay: 0.1 };
        let mut dice = Dice::keyed(&[5]);
        let mut noise = |len| (0..len).map(|_| dice.normal() as f32).collect::<Vector>();
        let layout = Layout { params: 5000, undecayed: vec![0..3, 2047..4500], ..Layout::plain() };
        for rule in [sgd(0.0), sgd(0.5), sgd(0.9), adamw] {
            let optimizer = Optimizer { rule, clip_norm: Some(3.0) };
            let (mut params, mut state) = (noise(5020), OptimizerState::default());
            for samples in [3, 0, 2] {
                let gradient = gradient(&noise(5010), samples);
                let returned = optimizer.descended(&params, &state, &gradient, 0.1, &layout);
                optimizer.descend(&mut params, &mut state, &gradient, 0.1, &layout);
                assert_eq!(returned, (params.clone(), state.clone()), "{optimizer:?}");
            }
        }
    }

    #[test]
    fn powers_are_exact_if_f64_can_hold_them() {
        assert_eq!((power(0.5, 20), power(3.0, 5), power(0.9, 0)), (0.5f64.powi(20), 243.0, 1.0));
    }

    #[test]
    fn check_names_the_hyperparameter_that_is_out_of_range() {
        assert_eq!(Optimizer::sgd(0.9).check(), Ok(()));
        let momentum = OptimizerError::NotAFraction { name: "momentum", value: 1.0 };
        assert_eq!(Optimizer::sgd(1.0).check(), Err(momentum));
        let clipped = Optimizer { clip_norm: Some(0.0), ..Optimizer::plain() };
        assert!(clipped.check().unwrap_err().to_string().contains("clip_norm is 0"));
    }
}
