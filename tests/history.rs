//! The same seed produces the same journal: tests/history.txt keeps the hash of each recipe's journal, and a refactoring
//! must not change any.
//!
//! If a change of behaviour is intended: `UPDATE=1 cargo test --test history`, and say so in the commit message.

use paceline::learn::Path;
use paceline::sim::scenario::{Crash, Join, Leave};
use paceline::{Job, Scenario, SimulateOptions, recipes, simulate};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/history.txt");

#[test]
fn no_journal_hash_has_changed() {
    let mut history = String::from("# recipe, seed, hash of the journal\n");
    for recipe in recipes() {
        for seed in [1, 2] {
            history += &format!("{} {seed} {}\n", recipe.name, hash(&recipe.name, seed, 1));
        }
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PATH, &history).expect("tests/history.txt can be written");
    }
    let kept = std::fs::read_to_string(PATH).expect("tests/history.txt exists");
    let changed: Vec<_> =
        history.lines().zip(kept.lines()).filter(|(now, before)| now != before).collect();
    assert!(changed.is_empty() && history.len() == kept.len(), "now, before: {changed:#?}");
}

#[test]
fn the_journal_is_the_same_for_any_number_of_compute_threads() {
    for recipe in recipes() {
        let one = hash(&recipe.name, 3, 1);
        assert_eq!(one, hash(&recipe.name, 3, 2), "{}", recipe.name);
        assert_eq!(one, hash(&recipe.name, 3, 5), "{}", recipe.name);
    }
}

/// The journal's hash on an uneven cluster with a crash, a leave and a join.
fn hash(strategy: &str, seed: u64, threads: usize) -> String {
    let mut scenario = Scenario { workers: 5, ..Scenario::default() };
    scenario.compute.relative = vec![1.0, 1.0, 2.0, 1.0, 3.0];
    scenario.compute.jitter = 0.2;
    scenario.crashes = vec![Crash { worker: 1, at: 0.03, at_event: None, back_after: Some(0.02) }];
    scenario.leaves = vec![Leave { worker: 3, at: 0.06 }];
    scenario.joins = vec![Join { at: 0.02, workers: 1 }];
    // Large enough to be computed on other threads, so that their number could matter.
    let job = Job {
        strategy: strategy.into(),
        seed,
        epochs: 2.0,
        batch: Some(48),
        kernels: Some(Path::Portable),
        ..Job::default()
    };
    let prepared = job.prepare(scenario.workers).expect("the job is valid");
    simulate(&prepared, &scenario, SimulateOptions { threads, ..Default::default() })
        .expect("the run ends")
        .result
        .journal_hash
}
