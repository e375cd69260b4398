//! The learning rate as a function of the samples processed, not of rounds, whose number depends on the
//! cluster's size.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use crate::error::ScheduleError;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    pub base: f32,
    pub shape: Shape,
    /// The fraction of the job's samples over which the rate rises linearly from a tenth of the shape's rate to
    /// all of it.
    #[serde(default)]
    pub warm_up: f64,
    /// Set if the job was resumed with another number of samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stretched: Option<Stretched>,
}

/// The rest of a schedule is stretched over the samples that remain, so that the rate continues where it was. A
/// schedule that was complete stays at its last rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stretched {
    /// How many samples had been processed by then.
    pub samples: u64,
    /// Which fraction of the schedule that was.
    pub progress: f64,
}

/// How far a schedule had come in a run that is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleBefore {
    pub samples: u64,
    /// Of the job as it was then.
    pub samples_total: u64,
    pub stretched: Option<Stretched>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Shape {
    Constant,
    /// Multiplied by `factor` at each of these fractions of the job.
    Step {
        at: Vec<f64>,
        factor: f32,
    },
    /// Half a cosine from the base down to this fraction of it.
    Cosine {
        floor: f32,
    },
    /// Rises from a hundredth of the base, is constant, and falls to a hundredth again, over 30, 40 and 30 % of the
    /// job (docstring of the authors' code of Ye et al. 2020).
    OneCycle,
}

const WARM_UP_FROM: f64 = 0.1;

impl Schedule {
    /// The learning rate after `samples` of the job's `total`.
    pub fn rate(&self, samples: u64, total: u64) -> f32 {
        let progress = self.progress(samples, total);
        let shaped = f64::from(self.base) * self.shape.level(progress);
        if progress >= self.warm_up {
            return shaped as f32;
        }
        let warmth = WARM_UP_FROM + (1.0 - WARM_UP_FROM) * (progress / self.warm_up);
        (shaped * warmth) as f32
    }

    /// The fraction of the schedule that is over after `samples` of the job's `total`.
    pub fn progress(&self, samples: u64, total: u64) -> f64 {
        let part = |samples: u64, total: u64| match total {
            0 => 0.0,
            total => (samples as f64 / total as f64).min(1.0),
        };
        match self.stretched {
            None => part(samples, total),
            Some(Stretched { samples: before, progress }) => {
                let rest = part(samples.saturating_sub(before), total.saturating_sub(before));
                progress + (1.0 - progress) * rest
            }
        }
    }

    /// Continues where an earlier run had come to: stretched, if the job's number of samples has changed, now or before.
    pub fn resume(&mut self, before: ScheduleBefore, total: u64) {
        let ScheduleBefore { samples, samples_total, stretched } = before;
        self.stretched = stretched;
        if total != samples_total {
            let progress = self.progress(samples, samples_total);
            self.stretched = Some(Stretched { samples, progress });
        }
    }

    /// The fraction of the job's samples over which the rate rises at the start.
    pub fn rise(&self) -> f64 {
        if self.shape == Shape::OneCycle { 0.3 } else { self.warm_up }
    }

    /// Whether all values are in range and fit together.
    pub fn check(&self) -> Result<(), ScheduleError> {
        let fraction = |name, value: f64| match (0.0..=1.0).contains(&value) {
            true => Ok(()),
            false => Err(ScheduleError::NotAFraction { name, value }),
        };
        let positive = |name, value: f32| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false if value > 0.0 => Err(ScheduleError::Infinite { name, value }),
            false => Err(ScheduleError::NotPositive { name, value }),
        };
        positive("the learning rate", self.base)?;
        fraction("warm_up", self.warm_up)?;
        match &self.shape {
            Shape::Constant => Ok(()),
            Shape::Step { at, factor } => {
                positive("the factor of a step", *factor)?;
                at.iter().try_for_each(|at| fraction("the position of a step", *at))?;
                match at.windows(2).find(|pair| pair[0] >= pair[1]) {
                    Some(pair) => {
                        Err(ScheduleError::StepsOutOfOrder { before: pair[0], after: pair[1] })
                    }
                    None => Ok(()),
                }
            }
            Shape::Cosine { floor } => fraction("the floor of a cosine", f64::from(*floor)),
            Shape::OneCycle if self.warm_up > 0.0 => Err(ScheduleError::WarmUpOfOneCycle),
            Shape::OneCycle => Ok(()),
        }
    }
}

impl Shape {
    /// The rate at this fraction of the job, relative to the base.
    fn level(&self, progress: f64) -> f64 {
        const LOW: f64 = 0.01;
        const RAMP: f64 = 0.3;
        match self {
            Shape::Constant => 1.0,
            Shape::Step { at, factor } => {
                let passed = at.iter().filter(|at| progress >= **at);
                passed.fold(1.0, |level, _| level * f64::from(*factor))
            }
            Shape::Cosine { floor } => {
                let floor = f64::from(*floor);
                floor + (1.0 - floor) * 0.5 * (1.0 + cosine_of_half_turns(progress))
            }
            Shape::OneCycle => {
                let from_either_end = progress.min(1.0 - progress);
                (LOW + (1.0 - LOW) * (from_either_end / RAMP)).min(1.0)
            }
        }
    }
}

/// cos(pi x) for x in 0..=1, by basic arithmetic only: the cosine of the C library may differ in
/// the last bit from machine to machine, and replicas would then differ too.
fn cosine_of_half_turns(x: f64) -> f64 {
    if x > 0.5 {
        return -cosine_of_half_turns(1.0 - x);
    }
    let square = (PI * x) * (PI * x);
    // Horner's rule on 1 - s/2! + s^2/4! - ... + s^10/20!; the remaining terms are below 1e-16.
    (1..=10).rev().fold(1.0, |sum, n| {
        let n = f64::from(n);
        1.0 - square / ((2.0 * n - 1.0) * (2.0 * n)) * sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(shape: Shape) -> Schedule {
        Schedule { base: 0.5, shape, warm_up: 0.0, stretched: None }
    }

    /// Checks the rates at some thousandths of the job.
    fn assert_rates(schedule: &Schedule, expected: &[(u64, f32)]) {
        schedule.check().unwrap();
        for (samples, rate) in expected {
            let got = schedule.rate(*samples, 1000);
            assert!((got - rate).abs() < 1e-6, "{schedule:?} at {samples}: {got}, not {rate}");
        }
    }

    #[test]
    fn constant_is_exactly_the_base() {
        assert_eq!(schedule(Shape::Constant).rate(7, 1000), 0.5);
        assert_eq!(schedule(Shape::Constant).rate(0, 0), 0.5);
    }

    #[test]
    fn steps_multiply_the_rate_from_their_position_on() {
        let steps = schedule(Shape::Step { at: vec![0.5, 0.75], factor: 0.1 });

        assert_rates(&steps, &[(0, 0.5), (499, 0.5), (500, 0.05), (750, 0.005), (2000, 0.005)]);
    }

    #[test]
    fn cosine_falls_from_the_base_to_its_floor() {
        let cosine = schedule(Shape::Cosine { floor: 0.2 });

        assert_rates(
            &cosine,
            &[(0, 0.5), (250, 0.441_421_36), (500, 0.3), (1000, 0.1), (9999, 0.1)],
        );
    }

    #[test]
    fn cosine_of_half_turns_is_accurate() {
        for i in 0..=1000 {
            let x = f64::from(i) / 1000.0;
            assert!((cosine_of_half_turns(x) - (PI * x).cos()).abs() < 1e-15);
        }
    }

    /// Ye et al. 2020, docstring of the authors' code. The code itself has a typo in the tail: e - 0.7 e instead of
    /// e - 0.7 E.
    #[test]
    fn one_cycle_rises_is_constant_and_falls() {
        let cycle = schedule(Shape::OneCycle);

        let rates =
            [(0, 0.005), (150, 0.2525), (300, 0.5), (699, 0.5), (850, 0.2525), (1000, 0.005)];
        assert_rates(&cycle, &rates);
    }

    #[test]
    fn warm_up_rises_from_a_tenth_to_the_shape() {
        let warm = Schedule { warm_up: 0.2, ..schedule(Shape::Constant) };

        assert_rates(&warm, &[(0, 0.05), (100, 0.275), (200, 0.5), (900, 0.5)]);
    }

    /// A cosine over 1000 samples, continued at some sample over 2000.
    #[test]
    fn a_stretched_schedule_continues_at_its_rate_and_ends_with_its_last() {
        let cosine = schedule(Shape::Cosine { floor: 0.2 });
        for samples in [0, 250, 500, 1000] {
            let progress = cosine.progress(samples, 1000);
            let stretched = Some(Stretched { samples, progress });
            let longer = Schedule { stretched, ..cosine.clone() };

            assert_eq!(longer.rate(samples, 2000), cosine.rate(samples, 1000));
            assert!((longer.rate(2000, 2000) - 0.1).abs() < 1e-6);
            let between = longer.rate(samples + (2000 - samples) / 2, 2000);
            let expected = cosine.rate(samples + (1000 - samples) / 2, 1000);
            assert!((between - expected).abs() < 1e-6, "{samples}: {between}, not {expected}");
        }
    }

    #[test]
    fn check_says_which_value_is_wrong() {
        let step = |at: &[f64]| schedule(Shape::Step { at: at.to_vec(), factor: 0.1 });
        let cases = [
            (Schedule { base: 0.0, ..schedule(Shape::Constant) }, "learning rate is 0"),
            (Schedule { base: f32::NAN, ..schedule(Shape::Constant) }, "learning rate is NaN"),
            (Schedule { warm_up: 1.5, ..schedule(Shape::Constant) }, "warm_up is 1.5"),
            (Schedule { warm_up: 0.1, ..schedule(Shape::OneCycle) }, "has its own warm-up"),
            (step(&[0.5, 0.25]), "out of order"),
            (step(&[50.0]), "position of a step is 50"),
            (schedule(Shape::Cosine { floor: -0.1 }), "floor of a cosine is -0.1"),
        ];

        for (schedule, reason) in cases {
            let error = schedule.check().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
