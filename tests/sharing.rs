//! Equal replicas are one vector: a thousand simulated workers with equal replicas take the memory of one.

use std::collections::BTreeSet;
use std::sync::Arc;

use paceline::runtime::wire::Shelf;
use paceline::runtime::{Executor, Spans, train};
use paceline::sim::scenario::RingModel;
use paceline::sim::{SimCluster, SimConfig};
use paceline::{Job, Scenario};

#[test]
fn replicas_that_are_equal_are_shared_and_not_copied() {
    for (recipe, workers) in [("ssgd", 1000), ("cpsgd", 20), ("qsgd", 20)] {
        let (replicas, momenta) = distinct(recipe, workers);
        assert_eq!(replicas, 1, "{recipe}");
        // With local steps, each replica has its own momentum.
        assert_eq!(momenta, if recipe == "cpsgd" { 20 } else { 1 }, "{recipe}");
    }
}

/// The number of distinct replicas and of distinct optimizer states at the end.
fn distinct(recipe: &str, workers: u32) -> (usize, usize) {
    let job = Job { strategy: recipe.into(), epochs: 5.0, batch: Some(2), ..Job::default() };
    let prepared = job.prepare(workers).expect("the job is valid");
    let plan = Arc::new(prepared.plan.clone());
    let mut scenario = Scenario { workers, ..Scenario::default() };
    scenario.network.sums = RingModel::ClosedForm;
    scenario.compute.jitter = 0.5;
    let options = SimConfig {
        seed: 1,
        compute: prepared.task.compute(1),
        threads: 1,
        samples_total: plan.samples_total,
        samples_per_epoch: plan.samples_per_epoch,
        coordination: prepared.strategy().coordination(),
        done: Spans::new(),
    };
    let cluster = SimCluster::new(scenario, options);
    let shelves = cluster.shelves();
    let ended = Executor::new(Box::new(cluster))
        .run(&mut |port| Box::pin(train(plan.clone(), port, prepared.strategy())));
    assert_eq!(ended, Ok(()));
    let shelves = shelves.lock().expect("no thread panicked");
    let values: Vec<_> =
        shelves.iter().filter(|((_, shelf), _)| *shelf == Shelf::Replica).collect();
    assert_eq!(values.len(), workers as usize);
    let count =
        |of: &dyn Fn(usize) -> usize| (0..values.len()).map(of).collect::<BTreeSet<_>>().len();
    (
        count(&|i| Arc::as_ptr(&values[i].1.params) as usize),
        count(&|i| Arc::as_ptr(values[i].1.optimizer.ours().expect("it is ours")) as usize),
    )
}
