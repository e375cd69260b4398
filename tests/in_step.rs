//! `sums = "auto"` takes fewer events than `"messages"`, and writes the same journal line by line.
//!
//! Each seed draws a cluster with equal links, and sometimes faults; `IN_STEP_SEEDS=1000` tries more of them.

use std::sync::Arc;

use paceline::learn::{Dice, Noise, Quadratic};
use paceline::runtime::{Line, Reader};
use paceline::sim::scenario::{Churn, Crash, Cut, Join, Leave, Link, Pause, RingModel, Size};
use paceline::{Job, PrepareOptions, Scenario, SimulateOptions, Task, recipes, simulate};

#[derive(Default)]
struct Lines(Vec<String>);

impl Reader for Lines {
    fn read(&mut self, line: &Line) {
        self.0.push(format!("{:?} {:?}", line.at, line.record));
    }
}

/// The journal, the bytes on the wires and the number of events.
fn run(strategy: &str, scenario: &Scenario, size: usize) -> (Vec<String>, u64, u64) {
    let model = Arc::new(Quadratic { curvature: vec![0.1; size], noise: 0.1 });
    let (train, test) = (Arc::new(Noise { len: 300 }), Arc::new(Noise { len: 1 }));
    let job = Job {
        strategy: strategy.into(),
        epochs: 2.0,
        batch: Some(4),
        learning_rate: Some(0.01),
        ..Job::default()
    };
    let task = Some(Task { model, train, validation: None, test });
    let prepared = job
        .prepare_with(PrepareOptions { task, ..PrepareOptions::new(scenario.workers) })
        .expect("the job is valid");
    let mut lines = Lines::default();
    let options = SimulateOptions { threads: 1, readers: vec![&mut lines], ..Default::default() };
    match simulate(&prepared, scenario, options) {
        Ok(simulated) => (lines.0, simulated.bytes_on_wires, simulated.events),
        // All workers have crashed.
        Err(error) => ([lines.0, vec![error.to_string()]].concat(), 0, 0),
    }
}

#[test]
fn auto_writes_the_same_journal_as_messages() {
    let seeds = std::env::var("IN_STEP_SEEDS").map_or(60, |it| it.parse().expect("a number"));
    let mut saved = 0;
    for seed in 0..seeds {
        let mut dice = Dice::keyed(&[seed, 77]);
        let recipes = recipes();
        let strategy = &recipes[dice.below(recipes.len() as u64) as usize].name;
        let mut scenario = draw(&mut dice);
        let size = [1, 40, 3000][dice.below(3) as usize];

        scenario.network.sums = RingModel::Auto;
        let (auto, auto_bytes, auto_events) = run(strategy, &scenario, size);
        scenario.network.sums = RingModel::Messages;
        let (messages, bytes, events) = run(strategy, &scenario, size);

        let apart = auto.iter().zip(&messages).find(|(auto, messages)| auto != messages);
        assert!(apart.is_none(), "seed {seed}, {strategy}: {apart:#?}\n{scenario:?}");
        assert_eq!((auto.len(), auto_bytes), (messages.len(), bytes), "seed {seed}, {strategy}");
        saved += u64::from(auto_events < events);
    }
    assert!(saved > seeds / 5, "{saved} of {seeds} runs were in step for a while");
}

#[test]
fn equal_members_take_one_event_for_each_step() {
    let mut scenario = Scenario { workers: 50, ..Scenario::default() };
    let (auto, _, auto_events) = run("ssgd", &scenario, 40);
    scenario.network.sums = RingModel::Messages;
    let (messages, _, events) = run("ssgd", &scenario, 40);

    assert_eq!(auto, messages);
    assert!(10 * auto_events < events, "{auto_events} instead of {events}");
}

/// Round numbers, so that events often happen at the same time.
fn draw(dice: &mut Dice) -> Scenario {
    let mut scenario = Scenario { workers: 1 + dice.below(9) as u32, ..Scenario::default() };
    let n = u64::from(scenario.workers);
    scenario.compute.seconds_per_sample = 1e-4;
    scenario.compute.seconds_per_gradient = [0.0, 1e-4][dice.below(2) as usize];
    scenario.compute.seconds_per_param = 0.0;
    if dice.below(4) == 0 {
        scenario.compute.relative = (0..n).map(|_| 1.0 + dice.below(2) as f64).collect();
    }
    scenario.network.latency = [0.0, 1e-4, 4e-4, 1e-3][dice.below(4) as usize];
    scenario.network.bytes_per_second = [1e5, 1e6, 1e8, 1e15][dice.below(4) as usize];
    scenario.coordinator.gathering = [0.0, 1e-4, 5e-3][dice.below(3) as usize];
    let when = |dice: &mut Dice| dice.below(200) as f64 * 1e-4;
    let worker = |dice: &mut Dice| dice.below(n) as u32;
    if dice.below(3) == 0 {
        let back_after = [None, Some(1e-3)][dice.below(2) as usize];
        let (worker, at) = (worker(dice), when(dice));
        scenario.crashes = vec![Crash { worker, at, at_event: None, back_after }];
    }
    if dice.below(4) == 0 {
        scenario.leaves = vec![Leave { worker: worker(dice), at: when(dice) }];
    }
    if dice.below(4) == 0 {
        scenario.joins = vec![Join { at: when(dice), workers: 1 + dice.below(2) as u32 }];
    }
    if dice.below(6) == 0 {
        let workers = 1 + dice.below(9) as u32;
        scenario.sizes = vec![Size { at: when(dice), at_epoch: None, workers }];
    }
    // On a slow network, nothing would ever be done in such a short life.
    if dice.below(8) == 0 && scenario.network.bytes_per_second > 1e7 {
        let (lifetime_mean, back_after_mean) = (0.02, 0.002);
        let churn = Churn { lifetime_mean, back_after_mean, members_min: 1, leave_chance: 0.5 };
        scenario.churn = Some(churn);
    }
    match dice.below(12) {
        0 => {
            let (workers, from) = (vec![worker(dice)], when(dice));
            let direction = Default::default();
            scenario.cuts =
                vec![Cut { workers, from, to: from + 1e-3, coordinator: false, direction }];
        }
        1 => {
            let (worker, bytes_per_second) = (worker(dice), 1e5);
            scenario.network.links = vec![Link { worker, bytes_per_second, latency: 0.0 }];
        }
        2 => {
            let (worker, from) = (worker(dice), when(dice));
            scenario.pauses = vec![Pause { worker, from, to: from + 1e-3 }];
        }
        _ => {}
    }
    scenario
}
