//! A custom training algorithm, next to the built-in ones.
//!
//! `cargo run --release --example own_strategy -- compare slow-network --strategies ssgd,cpsgd,hybrid`

use std::process::ExitCode;

use paceline::{Coordination, Gradient, Interrupt, Recipe, Share, Strategy, Worker};
use serde::{Deserialize, Serialize};

fn main() -> ExitCode {
    paceline::main_with([hybrid()])
}

fn hybrid() -> Recipe {
    let summary = "sums every step until the loss has halved, then averages every 4";
    Recipe::own("hybrid", summary, 0.2, |batch, _workers| Hybrid::new(batch, 4))
}

/// Sums gradients while the loss is high, because replicas would diverge fastest then. Once the loss has halved, each
/// worker trains its own replica, and replicas are averaged periodically.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Hybrid {
    batch: u64,
    /// Local steps between averages.
    period: u64,
    /// The loss of the first round, and a moving average since. Both are over the samples of all members, so that all
    /// members make the same decision.
    loss_first: Option<f64>,
    loss: f64,
}

impl Strategy for Hybrid {
    async fn round(&mut self, worker: &mut Worker) -> Result<(), Interrupt> {
        let shares = vec![self.batch; worker.members().len()];
        if !self.has_halved() {
            let mine = worker.gradient(Share::ByRank(shares)).await;
            let total = worker.sum(mine).await?;
            worker.descend(&total).await;
            self.remember(&total.sum.gradient);
            return Ok(());
        }
        let mut samples = 0;
        for _ in 0..self.period {
            if let Some(mine) = worker.gradient(Share::ByRank(shares.clone())).await {
                samples += mine.gradient.samples;
                worker.descend_alone(&mine).await;
            }
        }
        let average = worker.average(samples as f64).await?;
        worker.set_params(average.mean).await;
        Ok(())
    }

    fn coordination(&self) -> Coordination {
        Coordination::Synchronous
    }

    fn nominal_batch(&self, members: usize) -> f64 {
        (self.batch * members as u64) as f64
    }
}

impl Hybrid {
    fn new(batch: u64, period: u64) -> Hybrid {
        Hybrid { batch, period, loss_first: None, loss: 0.0 }
    }

    /// Once true, it stays true, because only summing rounds change the loss. There must be no way back: after the first
    /// average, each member has its own momentum, so common steps would make replicas diverge.
    fn has_halved(&self) -> bool {
        self.loss_first.is_some_and(|first| self.loss < 0.5 * first)
    }

    fn remember(&mut self, total: &Gradient) {
        if total.samples == 0 {
            return;
        }
        let loss = total.loss_sum / total.samples as f64;
        let first = *self.loss_first.get_or_insert(loss);
        let before = if self.loss > 0.0 { self.loss } else { first };
        self.loss = before + 0.1 * (loss - before);
    }
}

/// `cargo test --example own_strategy`
#[cfg(test)]
mod tests {
    use paceline::sim::checkers::ReplicasAgree;
    use paceline::sim::scenario::{Crash, Join};
    use paceline::{Dice, Job, PrepareOptions, Prepared, Scenario, SimulateOptions, simulate};

    use super::*;

    fn prepare(seed: u64, workers: u32) -> Prepared {
        let (model, data) = ("softmax".into(), "blobs".into());
        let job =
            Job { strategy: "hybrid".into(), model, data, epochs: 4.0, seed, ..Job::default() };
        let options = PrepareOptions { recipes: &[hybrid()], ..PrepareOptions::new(workers) };
        job.prepare_with(options).expect("the job is valid")
    }

    #[test]
    fn hybrid_learns() {
        let cluster = Scenario::default();
        let prepared = prepare(1, cluster.workers);

        let result =
            simulate(&prepared, &cluster, SimulateOptions::default()).expect("it ends").result;

        assert!(result.accuracy > 0.9, "{result:?}");
    }

    #[test]
    fn faults_lose_no_sample_and_replicas_agree() {
        for seed in 0..100 {
            let mut dice = Dice::keyed(&[seed]);
            let crash = |dice: &mut Dice| {
                let (worker, at) = (dice.below(4) as u32, dice.between(0.0, 0.2));
                Crash { worker, at, at_event: None, back_after: Some(0.02) }
            };
            let cluster = Scenario {
                crashes: vec![crash(&mut dice), crash(&mut dice)],
                joins: vec![Join { at: dice.between(0.0, 0.2), workers: 1 }],
                ..Scenario::default()
            };
            let mut prepared = prepare(seed, 4);
            prepared.plan.fingerprints = true;
            let mut replicas_agree = ReplicasAgree::default();

            let run = simulate(
                &prepared,
                &cluster,
                SimulateOptions { readers: vec![&mut replicas_agree], ..Default::default() },
            );

            let result = run.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).result;
            let ledger = (result.ledger.lost, result.ledger.repeated);
            assert_eq!(ledger, (0, 0), "seed {seed}: samples lost, samples repeated");
            let violations = replicas_agree.violations;
            assert!(violations.is_empty(), "seed {seed}: {violations:?}");
        }
    }
}
