//! Every recipe learns, without faults and with workers that crash and come back.

use paceline::{Job, RunResult, SimulateOptions, recipes, scenarios, simulate};

fn outcome(strategy: &str, scenario: &str) -> RunResult {
    let cluster = scenarios::named(scenario).expect("the scenario exists");
    let job = Job { strategy: strategy.into(), epochs: 30.0, ..Job::default() };
    let prepared = job.prepare(cluster.workers).expect("the job is valid");
    simulate(&prepared, &cluster, SimulateOptions { threads: 2, ..Default::default() })
        .expect("the run ends")
        .result
}

#[test]
fn every_recipe_reaches_93_percent_and_stays_within_2_points_on_spot_machines() {
    for recipe in recipes() {
        let uniform = outcome(&recipe.name, "uniform");
        let spot = outcome(&recipe.name, "spot");

        let name = &recipe.name;
        assert!(uniform.accuracy >= 0.93, "{name}: {} on uniform", uniform.accuracy);
        let least = uniform.accuracy - 0.02;
        assert!(spot.accuracy >= least, "{name}: {} on spot, at least {least}", spot.accuracy);
        for (run, ledger) in [("uniform", uniform.ledger), ("spot", spot.ledger)] {
            assert_eq!((ledger.lost, ledger.repeated), (0, 0), "{name} on {run}");
        }
    }
}
