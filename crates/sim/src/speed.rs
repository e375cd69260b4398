//! How long a worker takes, as a function of (seed, worker, time), so that compared strategies meet the same cluster.

use std::time::Duration;

use paceline_learn::Dice;
use paceline_runtime::WorkerId;
use rustc_hash::FxHashMap;

use crate::scenario::{Disturbance, Pace, seconds};

pub struct Speed {
    seed: u64,
    pace: Pace,
    workers: u32,
    disturbed: FxHashMap<WorkerId, Disturbed>,
}

/// A worker's chain of disturbances, evaluated up to interval `next`.
#[derive(Clone, Copy, Default)]
struct Disturbed {
    next: u64,
    until: u64,
    factor: f64,
}

const JITTER: u64 = 11;
const DISTURBANCE: u64 = 12;
const STRAGGLER: u64 = 13;

impl Speed {
    pub fn new(seed: u64, pace: Pace, workers: u32) -> Speed {
        Speed { seed, pace, workers, disturbed: FxHashMap::default() }
    }

    /// The time of a gradient that starts now, and of what this worker has updated and encoded since the last one; a change of speed takes effect with the next gradient.
    pub fn cost(
        &mut self,
        who: WorkerId,
        now: Duration,
        samples: u64,
        (updates, params): (u32, usize),
        encoded: u64,
    ) -> Duration {
        let pace = &self.pace;
        let computing = pace.seconds_per_gradient + samples as f64 * pace.seconds_per_sample;
        let updating = f64::from(updates) * params as f64 * pace.seconds_per_param;
        let encoding = encoded as f64 * pace.seconds_per_encoded;
        let handing_over = pace.seconds_per_handover;
        seconds((computing + updating + encoding) * self.factor(who, now) + handing_over)
    }

    /// The time in which a server updates `numbers` numbers of its center.
    pub fn serving(&self, who: WorkerId, numbers: usize) -> Duration {
        let relative = &self.pace.relative;
        let factor = relative[who.0 as usize % relative.len()];
        seconds(numbers as f64 * self.pace.seconds_per_param * factor)
    }

    fn factor(&mut self, who: WorkerId, now: Duration) -> f64 {
        let pace = &self.pace;
        let mut factor = pace.relative[who.0 as usize % pace.relative.len()];
        let at = now.as_secs_f64();
        if pace.jitter > 0.0 {
            let slot = (at / pace.jitter_every) as u64;
            let mut dice = Dice::keyed(&[self.seed, u64::from(who.0), slot, JITTER]);
            factor *= 1.0 + pace.jitter * dice.unit();
        }
        let traced = pace.traces.iter().filter(|t| t.worker == who.0 && t.at <= at);
        if let Some(trace) = traced.max_by(|a, b| a.at.total_cmp(&b.at)) {
            factor *= trace.factor;
        }
        if let Some(straggler) = &pace.straggler {
            let slot = (at / straggler.every) as u64;
            let mut dice = Dice::keyed(&[self.seed, slot, STRAGGLER]);
            if dice.below(u64::from(self.workers)) == u64::from(who.0 % self.workers) {
                factor *= straggler.factor;
            }
        }
        if let Some(disturbance) = self.pace.disturbance.clone() {
            factor *= self.disturbance(who, at, &disturbance);
        }
        factor
    }

    fn disturbance(&mut self, who: WorkerId, at: f64, disturbance: &Disturbance) -> f64 {
        let interval = (at / disturbance.every) as u64;
        let state = self.disturbed.entry(who).or_default();
        while state.next <= interval {
            let mut dice = Dice::keyed(&[self.seed, u64::from(who.0), state.next, DISTURBANCE]);
            if state.until <= state.next && dice.unit() < disturbance.chance {
                let (least, most) = disturbance.lasts;
                let lasts = u64::from(least) + dice.below(u64::from(most - least) + 1);
                state.until = state.next + lasts;
                state.factor = dice.between(disturbance.factor.0, disturbance.factor.1);
            }
            state.next += 1;
        }
        if interval < state.until { state.factor } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handing_over_costs_a_slow_worker_no_more_than_a_fast_one() {
        let pace = Pace {
            seconds_per_sample: 1e-3,
            seconds_per_gradient: 0.0,
            seconds_per_handover: 1e-4,
            relative: vec![1.0, 4.0],
            ..Pace::default()
        };
        let mut speed = Speed::new(1, pace, 2);

        let costs = [0, 1].map(|id| speed.cost(WorkerId(id), Duration::ZERO, 16, (0, 10), 0));

        assert_eq!(costs, [16_100, 64_100].map(Duration::from_micros));
    }
}
