//! The factor on the learning rate when the total batch changes.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rescale {
    /// The factor is 1 for every batch.
    None,
    /// Batch / reference. It is constant, because shares are adjusted so that the total batch does not change.
    FixedBatch,
    /// Batch / reference, immediately after a change (Goyal et al. 2017).
    Linear,
    /// Batch / reference, after a linear ramp if the batch has grown, and immediately if it has shrunk: Dynamic SGD
    /// (Lin et al. 2019, eq. 6).
    Smooth,
    /// As `Smooth`, but exactly as in eq. 6, with a ramp after shrinking too.
    SmoothLiteral,
    /// As large as the noise of the gradients allows: AdaScale (Johnson et al. 2020). The schedule still counts
    /// samples, not the paper's scale-invariant steps.
    Adascale,
}

/// Statistics of a round's gradients from which AdaScale estimates their noise. g_i is the mean gradient
/// of member i.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    pub members: u64,
    /// The mean over members of |g_i|^2.
    pub mean_of_squares: f64,
    /// |mean of g_i|^2.
    pub square_of_mean: f64,
}

/// Tracks the nominal batch round by round. It is plain data, so that it can be sent to newcomers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rescaler {
    rescale: Rescale,
    batch_reference: f64,
    /// `None` before the first round.
    ramp: Option<Ramp>,
    noise: GradientNoise,
}

/// The transition of the effective batch, in samples, from one nominal batch to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Ramp {
    from: f64,
    to: f64,
    current: f64,
    round: u64,
    rounds: u64,
}

/// Moving averages over rounds. Only their ratio is used, so they need no bias correction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct GradientNoise {
    /// The variance of one sample's gradient, summed over coordinates.
    variance: f64,
    /// |true gradient|^2
    signal: f64,
}

impl Rescaler {
    /// `batch_reference` is the batch that the schedule's rate is for.
    pub fn new(rescale: Rescale, batch_reference: f64) -> Rescaler {
        assert!(batch_reference > 0.0, "the reference batch is above 0");
        Rescaler { rescale, batch_reference, ramp: None, noise: GradientNoise::default() }
    }

    /// The factor for this round. Must be called once per round, before the update, because it advances the
    /// ramp.
    pub fn factor(&mut self, nominal_batch: f64) -> f32 {
        assert!(nominal_batch > 0.0, "the nominal batch is above 0");
        let ramp = self.ramp.get_or_insert_with(|| Ramp::constant(nominal_batch));
        if nominal_batch != ramp.to {
            ramp.start_to(nominal_batch, self.rescale);
        }
        let batch = ramp.advance();
        let factor = match self.rescale {
            Rescale::None => 1.0,
            Rescale::FixedBatch | Rescale::Linear | Rescale::Smooth | Rescale::SmoothLiteral => {
                batch / self.batch_reference
            }
            Rescale::Adascale => self.noise.gain(batch, self.batch_reference),
        };
        factor as f32
    }

    /// Updates the estimate of the gradients' noise. Only AdaScale uses it, and it needs at least two members,
    /// because a single gradient has no variance.
    pub fn observe(&mut self, parts: &Parts) {
        if self.rescale != Rescale::Adascale || parts.members < 2 {
            return;
        }
        let ramp = self.ramp.as_ref().expect("`factor` is called before `observe` in every round");
        self.noise.observe(parts, ramp.to / parts.members as f64);
    }
}

impl Ramp {
    fn constant(batch: f64) -> Ramp {
        Ramp { from: batch, to: batch, current: batch, round: 0, rounds: 0 }
    }

    /// Starts a new ramp to `batch` from the current value.
    fn start_to(&mut self, batch: f64, rescale: Rescale) {
        let ratio = batch / self.current;
        let rounds = match rescale {
            Rescale::Smooth if ratio > 1.0 => (8.0 * ratio).ceil(),
            Rescale::SmoothLiteral => (8.0 * ratio).round().max(1.0),
            _ => 0.0,
        };
        *self = Ramp { from: self.current, to: batch, round: 0, rounds: rounds as u64, ..*self };
    }

    fn advance(&mut self) -> f64 {
        self.current = if self.round < self.rounds {
            self.from + self.round as f64 / self.rounds as f64 * (self.to - self.from)
        } else {
            self.to
        };
        self.round = (self.round + 1).min(self.rounds);
        self.current
    }
}

impl GradientNoise {
    /// Unbiased estimates, clipped, then averaged, as in the paper.
    fn observe(&mut self, parts: &Parts, batch_per_member: f64) {
        const VARIANCE_MIN: f64 = 1e-6;
        let members = parts.members as f64;
        let variance = members / (members - 1.0) * (parts.mean_of_squares - parts.square_of_mean);
        let signal = parts.square_of_mean - variance / members;
        if !(variance.is_finite() && signal.is_finite()) {
            return;
        }
        let keep = (1.0 - members / 1000.0).max(0.0);
        let variance = variance.max(VARIANCE_MIN) * batch_per_member;
        self.variance = keep * self.variance + (1.0 - keep) * variance;
        self.signal = keep * self.signal + (1.0 - keep) * signal.max(0.0);
    }

    /// The number of steps with the reference batch that one step with `batch` is worth:
    /// (v / reference + s) / (v / batch + s), where v is the variance of a sample and s the signal.
    ///
    /// With n members of the reference batch each, this is the paper's gain, from 1 (no noise) to n
    /// (only noise). The variance is averaged per sample, not per member, so that the estimate stays valid
    /// when members or shares change. Before the first observation the gain is the lower bound, because a
    /// low rate does no harm.
    fn gain(&self, batch: f64, batch_reference: f64) -> f64 {
        let linear = batch / batch_reference;
        let (low, high) = (linear.min(1.0), linear.max(1.0));
        if self.variance == 0.0 {
            return low;
        }
        let small = self.variance / batch_reference + self.signal;
        let large = self.variance / batch + self.signal;
        (small / large).clamp(low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(rescaler: &mut Rescaler, batch: f64, rounds: usize) -> Vec<f32> {
        (0..rounds).map(|_| rescaler.factor(batch)).collect()
    }

    #[test]
    fn the_first_round_has_no_ramp() {
        for rescale in [Rescale::Linear, Rescale::Smooth, Rescale::SmoothLiteral] {
            assert_eq!(Rescaler::new(rescale, 64.0).factor(256.0), 4.0);
        }
    }

    #[test]
    fn none_and_a_fixed_batch_have_constant_factors() {
        let mut none = Rescaler::new(Rescale::None, 64.0);
        assert_eq!([64.0, 256.0, 32.0].map(|batch| none.factor(batch)), [1.0; 3]);
        let mut fixed = Rescaler::new(Rescale::FixedBatch, 64.0);
        assert_eq!([256.0, 256.0, 256.0].map(|batch| fixed.factor(batch)), [4.0; 3]);
    }

    #[test]
    fn linear_follows_the_batch_immediately() {
        let mut rescaler = Rescaler::new(Rescale::Linear, 64.0);
        assert_eq!([64.0, 256.0, 32.0].map(|batch| rescaler.factor(batch)), [1.0, 4.0, 0.5]);
    }

    /// Lin et al. 2019, eq. 6 with T = 8 k: gamma is 1 at t0, linear, and k from t0 + T on.
    #[test]
    fn the_ramp_is_linear_and_ends_at_the_ratio() {
        for ratio in [2.0, 3.0, 4.0, 16.0] {
            let mut rescaler = Rescaler::new(Rescale::Smooth, 32.0);
            factors(&mut rescaler, 32.0, 5);

            let length = (8.0 * ratio) as usize;
            let ramp = factors(&mut rescaler, 32.0 * ratio, length + 3);

            for (t, gamma) in ramp.iter().enumerate() {
                let part = (t as f64 / length as f64).min(1.0);
                assert!((f64::from(*gamma) - (1.0 + part * (ratio - 1.0))).abs() < 1e-6);
            }
            assert_eq!((ramp[0], ramp[length]), (1.0, ratio as f32));
            assert!(ramp[length - 1] < ratio as f32);
        }
    }

    #[test]
    fn a_change_during_a_ramp_starts_from_the_current_value() {
        let mut rescaler = Rescaler::new(Rescale::Smooth, 32.0);
        rescaler.factor(32.0);
        let up = factors(&mut rescaler, 64.0, 9);
        assert_eq!(up[8], 1.5);

        let further = factors(&mut rescaler, 96.0, 17);

        assert_eq!((further[0], further[8], further[16]), (1.5, 2.25, 3.0));
    }

    #[test]
    fn shrinking_is_immediate_except_in_the_literal_form() {
        let shrink = |rescale| {
            let mut rescaler = Rescaler::new(rescale, 64.0);
            rescaler.factor(64.0);
            factors(&mut rescaler, 32.0, 6)
        };

        assert_eq!(shrink(Rescale::Smooth), [0.5; 6]);
        assert_eq!(shrink(Rescale::SmoothLiteral), [1.0, 0.875, 0.75, 0.625, 0.5, 0.5]);
    }

    /// Lin et al. 2019: growth by k and shrinking by 1/k cancel, to the bit, after both ramps.
    #[test]
    fn growing_and_shrinking_back_returns_to_the_start() {
        for rescale in [Rescale::Linear, Rescale::Smooth, Rescale::SmoothLiteral] {
            for (batch, grown) in [(96.0, 160.0), (30.0, 210.0), (33.0, 528.0)] {
                let mut rescaler = Rescaler::new(rescale, 70.0);
                let start = rescaler.factor(batch);

                factors(&mut rescaler, grown, 200);
                let end = factors(&mut rescaler, batch, 200)[199];

                assert_eq!(start.to_bits(), end.to_bits());
            }
        }
    }

    fn adascale(members: u64, batch: f64, reference: f64, parts: (f64, f64)) -> f32 {
        let mut rescaler = Rescaler::new(Rescale::Adascale, reference);
        let (mean_of_squares, square_of_mean) = parts;
        rescaler.factor(members as f64 * batch);
        rescaler.observe(&Parts { members, mean_of_squares, square_of_mean });
        rescaler.factor(members as f64 * batch)
    }

    /// Johnson et al. 2020: the gain is 1 without noise, and S if there is only noise.
    #[test]
    fn the_gain_of_adascale_is_from_one_to_the_number_of_members() {
        assert!((adascale(4, 32.0, 32.0, (1.0, 1.0)) - 1.0).abs() < 1e-5);
        assert_eq!(adascale(4, 32.0, 32.0, (4.0, 1.0)), 4.0);
    }

    /// S = 4, sigma^2 = 3, mu^2 = 1: |g_i|^2 = 4 and |mean|^2 = 1.75, gain = (3 + 1) / (3/4 + 1).
    #[test]
    fn adascale_has_the_gain_of_the_paper() {
        assert!((adascale(4, 32.0, 32.0, (4.0, 1.75)) - 4.0 / 1.75).abs() < 1e-6);
    }

    /// Two members with batches of 64 and half the variance have the gain of four members with 32.
    #[test]
    fn adascale_depends_on_the_total_batch_only() {
        assert!((adascale(2, 64.0, 32.0, (2.5, 1.75)) - 4.0 / 1.75).abs() < 1e-6);
    }

    #[test]
    fn adascale_has_the_smallest_gain_before_it_has_estimated_the_noise() {
        let mut rescaler = Rescaler::new(Rescale::Adascale, 32.0);
        assert_eq!(rescaler.factor(128.0), 1.0);

        rescaler.observe(&Parts { members: 1, mean_of_squares: 5.0, square_of_mean: 5.0 });
        rescaler.observe(&Parts { members: 4, mean_of_squares: f64::NAN, square_of_mean: 1.0 });

        assert_eq!((rescaler.factor(128.0), rescaler.factor(16.0)), (1.0, 0.5));
    }
}
