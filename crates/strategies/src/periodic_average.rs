//! Periodic averaging: every worker trains alone for some steps, then all replicas become their mean.
//!
//! With a constant period this is CPSGD (local SGD). ADPSGD (Jiang and Agrawal 2020, arXiv
//! 2007.06134) adapts the period so that the replicas' variance stays in proportion to the learning
//! rate: often while it is large, rarely when it is small. An outer step makes it SlowMo or DiLoCo.

use std::sync::Arc;

use paceline_learn::Vector;
use paceline_runtime::{Coordination, Interrupt, Strategy, Worker};
use serde::{Deserialize, Serialize};

use crate::epoch;
use crate::parts::{Batches, Clock, Outer, OuterStep, Period};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeriodicAverage {
    pub batches: Arc<Batches>,
    pub period: Period,
    pub outer: OuterStep,
}

impl Strategy for PeriodicAverage {
    async fn round(&mut self, worker: &mut Worker) -> Result<(), Interrupt> {
        let steps = self.period.steps(&clock_of_decay(worker));
        let (samples, made) = self.learn_alone(worker, steps).await;

        let nominal = self.nominal_batch(worker.members().len()) * steps as f64;
        let weight = samples as f64 * worker.members().len() as f64 / nominal;
        let average = worker.average(weight).await?;
        if self.period.reads_variance() {
            // The paper bounds the variance of parameters; the drift of buffers is unrelated to the rate.
            let drift = worker.drift_from(&average.mean).await;
            let variance = worker.mean_of(drift).await?;
            self.period.follow(&clock(worker), variance);
            worker.note("variance", variance);
        }
        worker.note("period", made as f64);
        let (efforts, epoch) = (worker.efforts(&average.sum), epoch(worker));
        worker.agree(&mut self.batches, &average.sum, |batches| batches.follow(efforts, epoch));
        // Without an outer step the mean stays one vector that all members share.
        let next = match self.outer.outer {
            Outer::None => average.mean,
            _ => {
                let anchor = &worker.anchor().await[..worker.plan.layout.params];
                Arc::new(self.outer.step(anchor, (*average.mean).clone(), worker.rate()))
            }
        };
        worker.set_params(next).await;
        Ok(())
    }

    fn coordination(&self) -> Coordination {
        Coordination::Synchronous
    }

    fn nominal_batch(&self, members: usize) -> f64 {
        self.batches.nominal(members) as f64
    }

    fn vectors(&mut self) -> Vec<(&'static str, &mut Arc<Vector>)> {
        vec![("outer.momentum", &mut self.outer.momentum)]
    }
}

impl PeriodicAverage {
    /// Makes local steps until the period ends or all samples of the job are dealt. Returns the number of this
    /// worker's samples, and the number of steps that all made.
    async fn learn_alone(&self, worker: &mut Worker, steps: u64) -> (u64, u64) {
        let mut samples = 0;
        for made in 0..steps {
            if !worker.has_free_samples() {
                return (samples, made);
            }
            if let Some(mine) = worker.gradient(self.batches.share(worker.members())).await {
                samples += mine.gradient.samples;
                worker.descend_alone(&mine).await;
            }
        }
        (samples, steps)
    }
}

fn clock(worker: &Worker) -> Clock {
    Clock {
        samples: worker.samples_seen(),
        samples_total: worker.plan.samples_total,
        samples_per_epoch: worker.plan.samples_per_epoch,
        rate: worker.rate(),
        rate_first: worker.rate_at_peak(),
        members: worker.members().len(),
    }
}

/// A learning rate that is still warming up has not begun to decay.
fn clock_of_decay(worker: &Worker) -> Clock {
    let clock = clock(worker);
    if worker.is_warming_up() { Clock { rate: clock.rate_first, ..clock } } else { clock }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_runtime::AnyStrategy;

    #[test]
    fn the_outer_momentum_is_saved_as_a_vector_and_not_as_text() {
        let mut strategy = PeriodicAverage {
            batches: Arc::new(Batches::even(8)),
            period: Period::adaptive(4),
            outer: OuterStep::new(Outer::Diloco { rate: 0.7, momentum: 0.9 }),
        };
        strategy.outer.momentum = Arc::new([0.1, -2.5e-8].into());

        let memory = strategy.save();
        assert_eq!(*memory.vectors["outer.momentum"], [0.1, -2.5e-8]);
        assert!(!memory.json.to_string().contains("e-8"), "{}", memory.json);

        strategy.outer.momentum = Arc::default();
        strategy.load(memory).expect("it was just saved");
        assert_eq!(*strategy.outer.momentum, [0.1, -2.5e-8]);
    }
}
