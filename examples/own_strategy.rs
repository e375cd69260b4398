//! A training algorithm of one's own, beside those of the table.
//!
//! `cargo run --release --example own_strategy -- compare slow-network --strategies ssgd,cpsgd,hybrid`

use std::process::ExitCode;

use paceline::{Coordination, Gradient, Recipe, Result, Share, Strategy, Worker};
use serde::{Deserialize, Serialize};

fn main() -> ExitCode {
    paceline::main_with([hybrid()])
}

fn hybrid() -> Recipe {
    let summary = "sums every step until the loss has halved, then averages every 4";
    Recipe::own("hybrid", summary, 0.2, |batch, _workers| Hybrid::new(batch, 4))
}

/// Sums gradients while the loss is high, when replicas would part fastest; once it has halved,
/// everyone learns alone and replicas are averaged now and then.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Hybrid {
    batch: u64,
    /// Local steps between averages.
    period: u64,
    /// The loss of the first round, and a slow average since: of everybody's samples, so that all
    /// members know the same.
    loss_first: Option<f64>,
    loss: f64,
}

impl Strategy for Hybrid {
    async fn round(&mut self, worker: &mut Worker) -> Result<()> {
        let shares = vec![self.batch; worker.view.members.len()];
        if !self.has_halved() {
            let mine = worker.gradient(Share::ByRank(shares)).await;
            let total = worker.sum(mine).await?;
            worker.descend(&total);
            self.remember(&total.sum.gradient);
            return Ok(());
        }
        let mut samples = 0;
        for _ in 0..self.period {
            if let Some(mine) = worker.gradient(Share::ByRank(shares.clone())).await {
                samples += mine.gradient.samples;
                worker.descend_alone(&mine);
            }
        }
        let average = worker.average(samples as f64).await?;
        worker.set_params(average.mean);
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

    /// Never false again once it is true: only rounds of the first kind change the loss. Momentum
    /// is each member's own after the first average, so there is no way back to common steps.
    fn has_halved(&self) -> bool {
        self.loss_first.is_some_and(|first| self.loss < 0.5 * first)
    }

    fn remember(&mut self, total: &Gradient) {
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
    use paceline::{Dice, Job, PrepareOptions, Prepared, Scenario, simulate};

    use super::*;

    fn prepared(seed: u64, workers: u32) -> Prepared {
        let (model, data) = ("softmax".into(), "blobs".into());
        let strategy = "hybrid".into();
        let job = Job { strategy, model, data, epochs: 4.0, seed, ..Job::default() };
        let options = PrepareOptions { recipes: &[hybrid()], ..PrepareOptions::new(workers) };
        job.prepare_with(options).expect("the job is valid")
    }

    #[test]
    fn it_learns() {
        let cluster = Scenario::default();
        let prepared = prepared(1, cluster.workers);

        let outcome = simulate(&prepared, &cluster, 1, vec![]).expect("it ends").result;

        assert!(outcome.accuracy > 0.9, "{outcome:?}");
    }

    #[test]
    fn mishaps_lose_no_sample_and_members_agree() {
        for seed in 0..100 {
            let mut dice = Dice::keyed(&[seed]);
            let crash = |dice: &mut Dice| {
                let (worker, at) = (dice.below(4) as u32, dice.between(0.0, 0.2));
                Crash { worker, at, back_after: Some(0.02) }
            };
            let cluster = Scenario {
                crashes: vec![crash(&mut dice), crash(&mut dice)],
                joins: vec![Join { at: dice.between(0.0, 0.2), workers: 1 }],
                ..Scenario::default()
            };
            let mut prepared = prepared(seed, 4);
            prepared.plan.fingerprints = true;
            let mut agreement = ReplicasAgree::default();

            let run = simulate(&prepared, &cluster, 1, vec![&mut agreement]);

            let outcome = run.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).result;
            let ledger = (outcome.ledger.lost, outcome.ledger.repeated);
            assert_eq!(ledger, (0, 0), "seed {seed}: samples lost, samples repeated");
            assert!(agreement.violations.is_empty(), "seed {seed}: {:?}", agreement.violations);
        }
    }
}
