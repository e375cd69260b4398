//! The period: the number of local steps between averages.

use serde::{Deserialize, Serialize};

/// The progress of a job; equal on all members.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// Samples applied so far, by all members.
    pub samples: u64,
    pub samples_total: u64,
    pub samples_per_epoch: u64,
    /// The current learning rate.
    pub rate: f32,
    /// The learning rate before its first drop: the base or the peak of the schedule.
    pub rate_first: f32,
    pub members: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Period {
    Constant {
        steps: u64,
    },
    Adaptive(Adaptive),
    /// Large early, small later, similar to AdaComm (Wang and Joshi 2018): the period is proportional to the square
    /// root of the loss, which is assumed to fall linearly over the job.
    Decreasing {
        first: u64,
    },
    /// Lin et al. 2018: one step until the first drop of the learning rate, then `steps`.
    PostLocal {
        steps: u64,
    },
    /// The quadratic synchronization rule, Gu et al. 2024: (growth / learning rate)^2 within
    /// bounds.
    Qsr {
        steps_min: u64,
        growth: f32,
        #[serde(default = "steps_max_default")]
        steps_max: u64,
    },
}

/// Jiang and Agrawal 2020 (ADPSGD): a first phase measures the replicas' variance per learning rate at a fixed period;
/// from then on, the period is adapted to keep it at that value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adaptive {
    pub steps_first: u64,
    #[serde(default = "steps_max_default")]
    pub steps_max: u64,
    /// The current period; 0 means `steps_first`.
    #[serde(default)]
    pub steps: u64,
    /// The paper's C2: the mean of the measurements so far.
    #[serde(default)]
    pub variance_per_rate: f64,
    #[serde(default)]
    pub samplings: u64,
    /// The number of members whose variance was measured; 0 until the warm-up is over.
    #[serde(default)]
    pub members: usize,
}

impl Period {
    pub fn adaptive(steps_first: u64) -> Period {
        Period::Adaptive(Adaptive {
            steps_first,
            steps_max: steps_max_default(),
            steps: steps_first,
            variance_per_rate: 0.0,
            samplings: 0,
            members: 0,
        })
    }

    /// The number of local steps until the next average: at least one.
    pub fn steps(&self, clock: &Clock) -> u64 {
        let steps = match self {
            Period::Constant { steps } => *steps,
            Period::Adaptive(_) if clock.samples < warm_up(clock) => 1,
            Period::Adaptive(adaptive) => adaptive.steps_now(),
            Period::Decreasing { first } => {
                let left = 1.0 - clock.samples as f64 / clock.samples_total.max(1) as f64;
                (*first as f64 * left.max(0.0).sqrt()).ceil() as u64
            }
            Period::PostLocal { steps } if clock.rate < clock.rate_first => *steps,
            Period::PostLocal { .. } => 1,
            Period::Qsr { steps_min, growth, steps_max } => {
                let ratio = f64::from(*growth) / f64::from(clock.rate);
                ((ratio * ratio) as u64).max(*steps_min).min(*steps_max)
            }
        };
        steps.max(1)
    }

    /// Whether [`Period::follow`] needs the variance, which takes an exchange to compute.
    pub fn reads_variance(&self) -> bool {
        matches!(self, Period::Adaptive(_))
    }

    /// Adapts the period after an average. `variance` is the mean over members of |replica - mean|^2 just before it,
    /// the same number on all members; `clock` is the progress at the end of the round.
    pub fn follow(&mut self, clock: &Clock, variance: f64) {
        if let Period::Adaptive(adaptive) = self {
            adaptive.follow(clock, variance);
        }
    }
}

impl Adaptive {
    fn steps_now(&self) -> u64 {
        let steps = if self.steps == 0 { self.steps_first } else { self.steps };
        steps.min(self.steps_max)
    }

    fn follow(&mut self, clock: &Clock, variance: f64) {
        let rate = f64::from(clock.rate);
        // One replica has no variance, and without a learning rate there is nothing to divide by.
        let informative = clock.members > 1 && rate > 0.0 && variance.is_finite();
        if !informative || clock.samples < warm_up(clock) {
            return;
        }
        if self.members == 0 {
            // The last step of the warm-up ends after it, but its period was still one.
            self.members = clock.members;
            return;
        }
        if self.members != clock.members {
            self.variance_per_rate *= spread(clock.members) / spread(self.members);
            self.members = clock.members;
        }

        let sampling = clock.samples < clock.samples_total / 4;
        let target = rate * self.variance_per_rate;
        if sampling {
            self.samplings += 1;
            self.variance_per_rate +=
                (variance / rate - self.variance_per_rate) / self.samplings as f64;
        } else if target > 0.0 && variance < 0.7 * target {
            self.steps = (self.steps_now() + 1).min(self.steps_max);
        } else if target > 0.0 && variance > 1.3 * target {
            self.steps = self.steps_now().saturating_sub(1).max(1);
        }
    }
}

/// The number of samples at the start with an average after every step, because replicas diverge fastest then: the
/// first epoch, but at most 1.25 % of the job.
fn warm_up(clock: &Clock) -> u64 {
    clock.samples_per_epoch.min(clock.samples_total / 80)
}

/// The variance of n independent replicas around their own mean, relative to that around the true mean.
fn spread(members: usize) -> f64 {
    1.0 - 1.0 / members as f64
}

/// In effect no limit, but a number that every file format can store.
fn steps_max_default() -> u64 {
    u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_learn::Dice;

    /// Replicas whose gradients are pure noise: each step is -rate x N(0, noise^2) in every dimension.
    struct Trial {
        steps_total: u64,
        members: usize,
        dimensions: usize,
        rate: fn(u64) -> f32,
        noise: fn(u64) -> f64,
    }

    /// One average.
    struct Average {
        step: u64,
        steps: u64,
        variance_per_rate: f64,
    }

    /// 1,500 degrees of freedom: S has a relative standard deviation of 4 %, far inside the dead
    /// band.
    const TRIAL: Trial =
        Trial { steps_total: 8000, members: 16, dimensions: 100, rate: |_| 0.1, noise: |_| 1.0 };

    impl Trial {
        fn clock(&self, step: u64) -> Clock {
            let members = self.members as u64;
            Clock {
                samples: step * members,
                samples_total: self.steps_total * members,
                samples_per_epoch: self.steps_total * members / 10,
                rate: (self.rate)(step),
                rate_first: (self.rate)(0),
                members: self.members,
            }
        }

        /// The averages of a run that starts with the given period.
        fn run(&self, period: &mut Period, seed: u64) -> Vec<Average> {
            let mut dice = Dice::keyed(&[seed]);
            let (mut step, mut averages) = (0, Vec::new());
            while step < self.steps_total {
                let steps = period.steps(&self.clock(step));
                // The sum of normally distributed steps is normally distributed.
                let square = |step| (f64::from((self.rate)(step)) * (self.noise)(step)).powi(2);
                let size = (step..step + steps).map(square).sum::<f64>().sqrt();
                let mut replicas = vec![vec![0.0; self.dimensions]; self.members];
                replicas.iter_mut().flatten().for_each(|x| *x -= size * dice.normal());
                step += steps;
                let (clock, variance) = (self.clock(step), variance(&replicas));
                period.follow(&clock, variance);
                let variance_per_rate = variance / f64::from(clock.rate);
                averages.push(Average { step, steps, variance_per_rate });
            }
            averages
        }
    }

    fn variance(replicas: &[Vec<f64>]) -> f64 {
        let n = replicas.len() as f64;
        let of_dimension = |d: usize| {
            let mean = replicas.iter().map(|x| x[d]).sum::<f64>() / n;
            replicas.iter().map(|x| (x[d] - mean) * (x[d] - mean)).sum::<f64>() / n
        };
        (0..replicas[0].len()).map(of_dimension).sum()
    }

    fn state(period: &Period) -> &Adaptive {
        let Period::Adaptive(adaptive) = period else { panic!("this period does not adapt") };
        adaptive
    }

    fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
        let (count, sum) = numbers.fold((0, 0.0), |(count, sum), x| (count + 1, sum + x));
        sum / f64::from(count)
    }

    /// Derived from Jiang and Agrawal 2020: on noise S = rate^2 p d noise^2 (1 - 1/n), so C2 is 7.5
    /// here. 474 samplings of 300 degrees of freedom have a standard error of 0.4 %.
    #[test]
    fn the_target_is_the_variance_at_the_first_period() {
        let mut period = Period::adaptive(4);
        Trial { dimensions: 20, ..TRIAL }.run(&mut period, 1);

        let adaptive = state(&period);
        assert!((adaptive.variance_per_rate / 7.5 - 1.0).abs() < 0.02, "{adaptive:?}");
        assert_eq!(adaptive.samplings, (2000 - 100) / 4 - 1);
    }

    /// Jiang and Agrawal 2020: the first epoch averages after every step. Its small variances are
    /// not part of C2.
    #[test]
    fn the_warm_up_averages_every_step_and_is_not_measured() {
        let mut period = Period::adaptive(4);
        let averages = TRIAL.run(&mut period, 2);

        for Average { step, steps, .. } in &averages {
            assert_eq!(*steps, if *step <= 100 { 1 } else { 4 }, "until step {step}");
        }
        let sampled = averages.iter().filter(|a| a.step > 100 && a.step < 2000);
        let expected = mean(sampled.map(|a| a.variance_per_rate));
        assert!((state(&period).variance_per_rate / expected - 1.0).abs() < 1e-9);

        let short = Clock { samples: 500, samples_per_epoch: 500, ..TRIAL.clock(0) };
        assert_eq!(period.steps(&short), 4, "a first epoch below 1.25 % ends the warm-up");
    }

    /// Derived from Jiang and Agrawal 2020: with a constant rate and noise the period stays in the
    /// dead band.
    #[test]
    fn steady_noise_keeps_the_first_period() {
        let mut period = Period::adaptive(4);
        let averages = Trial { steps_total: 6000, ..TRIAL }.run(&mut period, 3);
        assert!(averages.iter().filter(|a| a.step > 75).all(|a| a.steps == 4));
    }

    /// Derived from Jiang and Agrawal 2020: at a tenth of the rate S falls 100-fold and its target
    /// tenfold; the period grows by one per average to about 0.7 x 10 x 4 = 28.
    #[test]
    fn the_period_grows_after_a_drop_of_the_rate() {
        let trial = Trial { rate: |step| if step < 4000 { 0.1 } else { 0.01 }, ..TRIAL };
        let averages = trial.run(&mut Period::adaptive(4), 4);

        let after: Vec<u64> = averages.iter().filter(|a| a.step > 4004).map(|a| a.steps).collect();
        let climb: Vec<u64> = (4..=24).collect();
        assert!(after.windows(climb.len()).any(|steps| steps == climb), "{after:?}");
        let last = after[after.len() - 1];
        assert!((28..=33).contains(&last), "{after:?}");
    }

    /// Derived from Jiang and Agrawal 2020: after a second drop the period should be 280, and growing by one per average
    /// is too slow.
    #[test]
    fn after_a_second_drop_the_period_grows_too_slowly() {
        let rate = |step| [0.1, 0.1, 0.01, 0.001][(step as usize / 2000).min(3)];
        let averages = Trial { rate, ..TRIAL }.run(&mut Period::adaptive(4), 5);

        let last = &averages[averages.len() - 1];
        assert!((60..=75).contains(&last.steps), "{}", last.steps);
        assert!(last.variance_per_rate < 0.5 * 37.5);
        let average_period = 8000.0 / averages.len() as f64;
        assert!((6.4..7.0).contains(&average_period), "derived: 6.7, not {average_period}");
    }

    /// Jiang and Agrawal 2020, against CPSGD with period 8, at a similar number of averages: about
    /// half the variance while the rate is large, more variance later.
    #[test]
    fn adaptive_spends_its_averages_where_the_rate_is_large() {
        let rate = |step| [0.1, 0.1, 0.01, 0.001][(step as usize / 2000).min(3)];
        let trial = Trial { rate, ..TRIAL };
        let adaptive = trial.run(&mut Period::adaptive(4), 6);
        let constant = trial.run(&mut Period::Constant { steps: 8 }, 6);

        let early = |averages: &[Average]| {
            mean(averages.iter().filter(|a| a.step < 4000).map(|a| a.variance_per_rate))
        };
        let late = |averages: &[Average]| {
            mean(averages.iter().filter(|a| a.step > 5000).map(|a| a.variance_per_rate))
        };
        assert!(adaptive.len() < constant.len() * 5 / 4);
        assert!((0.4..0.6).contains(&(early(&adaptive) / early(&constant))));
        assert!(late(&adaptive) > 2.0 * late(&constant));
    }

    /// Derived from Jiang and Agrawal 2020: twice the noise is four times S; the period falls by
    /// one per average, not below one.
    #[test]
    fn the_period_falls_to_one_with_more_noise() {
        let trial = Trial { noise: |step| if step < 4000 { 1.0 } else { 2.0 }, ..TRIAL };
        let averages = trial.run(&mut Period::adaptive(4), 7);

        let after: Vec<u64> = averages.iter().filter(|a| a.step > 4000).map(|a| a.steps).collect();
        assert_eq!(after[..4], [4, 3, 2, 1]);
        assert!(after.iter().all(|steps| (1..=4).contains(steps)));
        assert!(after[3..].iter().filter(|steps| **steps == 1).count() > 3 * after.len() / 4);
    }

    /// Derived from Jiang and Agrawal 2020: the variance of a single replica is 0, which must not change the period.
    #[test]
    fn a_single_member_keeps_the_first_period() {
        let mut period = Period::adaptive(4);
        let averages = Trial { members: 1, ..TRIAL }.run(&mut period, 8);

        assert!(averages.iter().filter(|a| a.step > 100).all(|a| a.steps == 4));
        assert_eq!(state(&period).samplings, 0);
    }

    #[test]
    fn without_measurements_or_with_infinite_variance_the_period_stays() {
        let mut period = Period::adaptive(4);
        let late = TRIAL.clock(6000);
        for variance in [0.0, 1.0, 1e9, f64::NAN, f64::INFINITY] {
            period.follow(&late, variance);
            period.follow(&Clock { rate: 0.0, ..late }, variance);
        }
        assert_eq!(period.steps(&late), 4);
        assert_eq!(state(&period).variance_per_rate, 0.0);
    }

    /// The mean of n replicas follows them, so S is proportional to 1 - 1/n, and so must be its target.
    #[test]
    fn the_target_follows_the_number_of_members() {
        let trial = Trial { dimensions: 200, ..TRIAL };
        let mut period = Period::adaptive(4);
        trial.run(&mut period, 9);
        let before = state(&period).variance_per_rate;

        let alone = Clock { members: 1, ..trial.clock(4000) };
        period.follow(&alone, 0.0);
        let few = Clock { members: 4, ..trial.clock(4000) };
        let steady = 0.1 * 0.1 * 4.0 * 200.0 * (1.0 - 1.0 / 4.0);
        period.follow(&few, steady);

        let adaptive = state(&period);
        let ratio = (1.0 - 1.0 / 4.0) / (1.0 - 1.0 / 16.0);
        assert!((adaptive.variance_per_rate / before / ratio - 1.0).abs() < 1e-12);
        assert!((0.1 * adaptive.variance_per_rate / steady - 1.0).abs() < 0.02);
        assert_eq!((adaptive.members, period.steps(&few)), (4, 4));
    }

    #[test]
    fn the_period_stays_within_its_bounds() {
        let bounded = Adaptive { steps_max: 6, ..state(&Period::adaptive(4)).clone() };
        let mut period = Period::Adaptive(bounded);
        let trial = Trial { rate: |step| if step < 4000 { 0.1 } else { 0.01 }, ..TRIAL };
        let averages = trial.run(&mut period, 10);
        assert_eq!(averages.iter().map(|a| a.steps).max(), Some(6));
    }

    /// Wang and Joshi 2018, with a loss that falls linearly.
    #[test]
    fn decreasing_goes_from_first_to_one() {
        let period = Period::Decreasing { first: 16 };
        let at = |step| period.steps(&TRIAL.clock(step));
        assert_eq!([0, 2000, 6000, 7999, 8000, 9000].map(at), [16, 14, 8, 1, 1, 1]);
    }

    /// Lin et al. 2018: local steps begin after the first drop of the learning rate.
    #[test]
    fn post_local_starts_with_the_first_drop() {
        let period = Period::PostLocal { steps: 8 };
        let at = |rate| period.steps(&Clock { rate, ..TRIAL.clock(0) });
        assert_eq!([0.1, 0.01, 0.001].map(at), [1, 8, 8]);
    }

    /// Gu et al. 2024: max(steps_min, floor((growth / rate)^2)).
    #[test]
    fn qsr_grows_with_the_inverse_square_of_the_rate() {
        let period = Period::Qsr { steps_min: 4, growth: 0.2, steps_max: 1000 };
        let at = |rate| period.steps(&Clock { rate, ..TRIAL.clock(0) });
        assert_eq!([0.8, 0.1, 0.04, 0.015, 0.001, 0.0].map(at), [4, 4, 25, 177, 1000, 1000]);
    }

    #[test]
    fn a_period_has_at_least_one_step() {
        let clock =
            Clock { samples_total: 0, samples_per_epoch: 0, rate: f32::NAN, ..TRIAL.clock(0) };
        let periods = [
            Period::Constant { steps: 0 },
            Period::adaptive(0),
            Period::Decreasing { first: 0 },
            Period::PostLocal { steps: 0 },
            Period::Qsr { steps_min: 0, growth: 0.0, steps_max: 0 },
        ];
        for period in periods {
            assert_eq!(period.steps(&clock), 1, "{period:?}");
            assert_eq!(period.reads_variance(), matches!(period, Period::Adaptive(_)));
        }
    }

    #[test]
    fn a_job_may_omit_defaults_and_a_checkpoint_keeps_all_fields() {
        let named: Period =
            serde_json::from_str(r#"{"kind": "adaptive", "steps_first": 4}"#).unwrap();
        assert_eq!(named.steps(&TRIAL.clock(4000)), 4);

        let mut period = named;
        TRIAL.run(&mut period, 11);
        let saved = serde_json::to_string(&period).unwrap();
        assert_eq!(serde_json::from_str::<Period>(&saved).unwrap(), period);
    }
}
