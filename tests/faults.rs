//! Training on threads while workers join, leave, are killed and stopped, in real time, and the coordinator with them.
//!
//! `cargo test --test faults` takes some seconds for each recipe; `FAULTS_SECONDS=600 cargo test --release --test faults`
//! spreads that time over all recipes. A seed decides when what happens, but not how far the workers are by then:
//! these runs are real, and no two are equal.

use std::time::{Duration, Instant};

use paceline::learn::Dice;
use paceline::sim::checkers::{Custody, ReplicasAgree};
use paceline::sim::scenario::{Churn, Crash, During, Join, Kill, Leave, Pause};
use paceline::{Job, Prepared, Reader, Scenario, TrainOptions, Trained, recipes, train};

/// A job of some tenths of a second on four workers of which one is slow.
fn prepare(strategy: &str, epochs: f64) -> Prepared {
    let job = Job {
        strategy: strategy.into(),
        data: "blobs".into(),
        model: "softmax".into(),
        epochs,
        ..Job::default()
    };
    let mut prepared = job.prepare(4).expect("the job is valid");
    prepared.plan.fingerprints = true;
    prepared
}

fn run(prepared: &Prepared, faults: Scenario) -> Trained {
    let (mut agree, mut custody) = (ReplicasAgree::default(), Custody::default());
    let readers: Vec<&mut dyn Reader> = vec![&mut agree, &mut custody];
    let options = TrainOptions {
        speeds: vec![4.0, 4.0, 2.0, 1.0],
        pace: Some(Duration::from_micros(20)),
        faults: Some(faults),
        readers,
        ..TrainOptions::default()
    };
    let trained = train(prepared, options).expect("the job ends");
    let (ledger, total) = (trained.result.ledger, prepared.plan.samples_total);
    assert_eq!((ledger.done, ledger.lost, ledger.repeated), (total, 0, 0), "{}", prepared.name);
    assert_eq!((agree.violations, custody.violations), (vec![], vec![]), "{}", prepared.name);
    trained
}

/// Random faults within about `seconds`.
fn chaos(seed: u64, seconds: f64) -> Scenario {
    let mut dice = Dice::keyed(&[seed, 99]);
    let mut faults = Scenario { workers: 4, ..Scenario::default() };
    faults.coordinator.patience = 0.05;
    faults.coordinator.gathering = 0.002;
    let when = |dice: &mut Dice| seconds * dice.between(0.05, 1.0);
    for _ in 0..3 {
        let (worker, at) = (dice.below(8) as u32, when(&mut dice));
        faults.crashes.push(Crash { worker, at, at_event: None, back_after: Some(0.02) });
        faults.joins.push(Join { at: when(&mut dice), workers: 1 });
        faults.leaves.push(Leave { worker: dice.below(6) as u32, at: when(&mut dice) });
        let (worker, from) = (dice.below(6) as u32, when(&mut dice));
        faults.pauses.push(Pause { worker, from, to: from + dice.between(0.01, 0.12) });
    }
    faults.coordinator.kills.push(Kill { at: when(&mut dice), back_after: 0.03 });
    let from = when(&mut dice);
    faults.coordinator.away.push(During { from, to: from + 0.04 });
    if dice.below(2) == 0 {
        let (lifetime_mean, back_after_mean) = (seconds, 0.02);
        let (members_min, leave_chance) = (2, 0.3);
        faults.churn = Some(Churn { lifetime_mean, back_after_mean, members_min, leave_chance });
    }
    faults
}

#[test]
fn every_recipe_survives_random_faults_on_threads() {
    let budget = std::env::var("FAULTS_SECONDS").ok().and_then(|text| text.parse::<f64>().ok());
    let names: Vec<String> = recipes().into_iter().map(|recipe| recipe.name).collect();
    let each = budget.unwrap_or(0.0) / names.len() as f64;
    for name in &names {
        let start = Instant::now();
        let (mut seed, mut losses) = (0, 0);
        while seed == 0 || start.elapsed().as_secs_f64() < each {
            println!("{name}, seed {seed}");
            let prepared = prepare(name, 12.0);
            let trained = run(&prepared, chaos(seed, 0.5));
            losses += trained.result.recovery.map_or(0, |recovery| recovery.losses);
            seed += 1;
        }
        println!("{name}: {seed} runs, {losses} workers lost, {:?}", start.elapsed());
    }
}
