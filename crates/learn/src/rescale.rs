//! The factor on the learning rate when the total batch changes.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rescale {
    /// The rate stays, whatever the batch.
    None,
    /// The total batch is kept by other shares, so the rate stays: that of this batch / reference.
    FixedBatch,
    /// Batch / reference at once (Goyal et al. 2017).
    Linear,
    /// A linear ramp after growth, at once after shrinking: Dynamic SGD (Lin et al. 2019, eq. 6).
    Smooth,
    /// As `Smooth`, but eq. 6 to the letter: a ramp after shrinking too.
    SmoothLiteral,
    /// As much as the noise of the gradients allows: AdaScale (Johnson et al. 2020). The schedule's
    /// clock stays the samples seen; the paper's scale-invariant steps are not kept.
    Adascale,
}

/// What a round's gradients tell about their noise, for AdaScale. g_i is the mean gradient of
/// member i.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    pub members: u64,
    /// The mean over members of |g_i|^2.
    pub mean_of_squares: f64,
    /// |mean of g_i|^2.
    pub square_of_mean: f64,
}

/// Follows the nominal batch, round by round. Plain data: it can be rolled back and sent to
/// newcomers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rescaler {
    rescale: Rescale,
    batch_reference: f64,
    /// None before the first round.
    ramp: Option<Ramp>,
    noise: GradientNoise,
}

/// The way of the effective batch, in samples, from one nominal batch to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Ramp {
    from: f64,
    to: f64,
    current: f64,
    round: u64,
    rounds: u64,
}

/// Averages over rounds. Only their ratio is used, so they need no correction for starting at zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct GradientNoise {
    /// The variance of one sample's gradient, summed over coordinates.
    variance: f64,
    /// |true gradient|^2
    signal: f64,
}

impl Rescaler {
    /// `batch_reference` is the batch for which the schedule's rate is meant.
    pub fn new(rescale: Rescale, batch_reference: f64) -> Rescaler {
        assert!(batch_reference > 0.0, "a batch has samples");
        Rescaler { rescale, batch_reference, ramp: None, noise: GradientNoise::default() }
    }

    /// The factor for this round. Call it once per round, before the round's update: it advances
    /// the ramp.
    pub fn factor(&mut self, nominal_batch: f64) -> f32 {
        assert!(nominal_batch > 0.0, "a round has samples");
        let ramp = self.ramp.get_or_insert_with(|| Ramp::level(nominal_batch));
        if nominal_batch != ramp.to {
            ramp.turn_to(nominal_batch, self.rescale);
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

    /// Learns how noisy this round's gradients were. Only AdaScale cares, and only from two members
    /// on: one gradient alone shows no variance.
    pub fn observe(&mut self, parts: &Parts) {
        if self.rescale != Rescale::Adascale || parts.members < 2 {
            return;
        }
        let ramp = self.ramp.as_ref().expect("a round asks for its factor before it has gradients");
        self.noise.observe(parts, ramp.to / parts.members as f64);
    }
}

impl Ramp {
    fn level(batch: f64) -> Ramp {
        Ramp { from: batch, to: batch, current: batch, round: 0, rounds: 0 }
    }

    /// Starts towards `batch` from wherever the ramp is now.
    fn turn_to(&mut self, batch: f64, rescale: Rescale) {
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

    /// How many steps with the reference batch one step with `batch` is worth:
    /// (v / reference + s) / (v / batch + s), with v the variance of a sample and s the signal.
    ///
    /// With n members of the reference batch each this is the paper's gain, from 1 (no noise) to n
    /// (noise alone). Averaging the variance of a sample, not of a member, keeps the estimate good
    /// when members or shares change. Before anything is known the gain is the smaller end: a rate
    /// too low does no harm.
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
    fn the_first_round_is_at_its_batch_at_once() {
        for rescale in [Rescale::Linear, Rescale::Smooth, Rescale::SmoothLiteral] {
            assert_eq!(Rescaler::new(rescale, 64.0).factor(256.0), 4.0);
        }
    }

    #[test]
    fn none_leaves_the_rate_alone_and_a_fixed_batch_keeps_its_own() {
        let mut none = Rescaler::new(Rescale::None, 64.0);
        assert_eq!([64.0, 256.0, 32.0].map(|batch| none.factor(batch)), [1.0; 3]);
        let mut fixed = Rescaler::new(Rescale::FixedBatch, 64.0);
        assert_eq!([256.0, 256.0, 256.0].map(|batch| fixed.factor(batch)), [4.0; 3]);
    }

    #[test]
    fn linear_follows_the_batch_at_once() {
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
    fn a_change_during_a_ramp_restarts_from_where_it_is() {
        let mut rescaler = Rescaler::new(Rescale::Smooth, 32.0);
        rescaler.factor(32.0);
        let up = factors(&mut rescaler, 64.0, 9);
        assert_eq!(up[8], 1.5);

        let further = factors(&mut rescaler, 96.0, 17);

        assert_eq!((further[0], further[8], further[16]), (1.5, 2.25, 3.0));
    }

    #[test]
    fn shrinking_is_at_once_unless_taken_to_the_letter() {
        let shrink = |rescale| {
            let mut rescaler = Rescaler::new(rescale, 64.0);
            rescaler.factor(64.0);
            factors(&mut rescaler, 32.0, 6)
        };

        assert_eq!(shrink(Rescale::Smooth), [0.5; 6]);
        assert_eq!(shrink(Rescale::SmoothLiteral), [1.0, 0.875, 0.75, 0.625, 0.5, 0.5]);
    }

    /// Lin et al. 2019: growth by k and shrinking by 1/k cancel, to the bit, once both ramps are
    /// over.
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

    /// Johnson et al. 2020: the gain is 1 without noise, S when there is nothing else.
    #[test]
    fn adascale_goes_from_one_to_the_number_of_members() {
        assert!((adascale(4, 32.0, 32.0, (1.0, 1.0)) - 1.0).abs() < 1e-5);
        assert_eq!(adascale(4, 32.0, 32.0, (4.0, 1.0)), 4.0);
    }

    /// S = 4, sigma^2 = 3, mu^2 = 1: |g_i|^2 = 4 and |mean|^2 = 1.75, gain = (3 + 1) / (3/4 + 1).
    #[test]
    fn adascale_gives_the_gain_of_the_paper() {
        assert!((adascale(4, 32.0, 32.0, (4.0, 1.75)) - 4.0 / 1.75).abs() < 1e-6);
    }

    /// Two members of 64 with half the variance are worth four of 32: the total batch is what
    /// counts.
    #[test]
    fn adascale_depends_on_the_total_batch_only() {
        assert!((adascale(2, 64.0, 32.0, (2.5, 1.75)) - 4.0 / 1.75).abs() < 1e-6);
    }

    #[test]
    fn adascale_is_careful_until_it_has_seen_noise() {
        let mut rescaler = Rescaler::new(Rescale::Adascale, 32.0);
        assert_eq!(rescaler.factor(128.0), 1.0);

        rescaler.observe(&Parts { members: 1, mean_of_squares: 5.0, square_of_mean: 5.0 });
        rescaler.observe(&Parts { members: 4, mean_of_squares: f64::NAN, square_of_mean: 1.0 });

        assert_eq!((rescaler.factor(128.0), rescaler.factor(16.0)), (1.0, 0.5));
    }
}
