//! A swarm of seeds: each draws a random cluster with faults, a strategy and its parts, and checkers watch the run.
//!
//! `SWARM_SEEDS=5000 cargo test --release --test swarm` runs more seeds, `SWARM_SEED=17` a single one.

use std::sync::Arc;

use paceline::learn::{Dataset, Noise, Quadratic, Rescale, blobs, net};
use paceline::runtime::codec::Codec;
use paceline::sim::checkers::{Custody, ReplicasAgree, Traffic};
use paceline::sim::scenario::{
    Churn, Crash, Cut, DeadLink, Direction, During, Join, Kill, Leave, Link, Pause, Rack,
    RingModel, Straggler,
};
use paceline::strategies::parts::{Every, Outer, Period, Shares};
use paceline::{
    Choices, Dice, Error, Job, Line, PrepareOptions, Reader, Scenario, SimulateOptions, Simulated,
    StrategyKind, Task, simulate,
};

#[test]
fn a_swarm_of_seeds_loses_and_repeats_nothing() {
    let (first, count) = match (number("SWARM_SEED"), number("SWARM_SEEDS")) {
        (Some(seed), _) => (seed, 1),
        (None, count) => (0, count.unwrap_or(300)),
    };
    let mut failed = Vec::new();
    for seed in first..first + count {
        if let Err(why) = try_seed(seed) {
            eprintln!("seed {seed}: {why}\n    SWARM_SEED={seed} cargo test --test swarm");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "{} of {count} seeds failed: {failed:?}", failed.len());
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("the variable is a number"))
}

/// Runs one seed without faults, to know how long it takes, then with faults.
fn try_seed(seed: u64) -> Result<(), String> {
    let mut dice = Dice::keyed(&[seed, 77]);
    let calm = draw_cluster(&mut dice);
    let job = draw_job(&mut dice, seed);
    let task = draw_task(&mut dice, seed);
    let (quiet, reported) = run(&job, &calm, &task, 1)?;
    if quiet.bytes_on_wires != reported {
        let sent = quiet.bytes_on_wires;
        return Err(format!("the journal reports {reported} bytes, but {sent} crossed the links"));
    }
    let mut faulty = calm.clone();
    draw_faults(&mut dice, &mut faulty, quiet.result.seconds());
    let (with_faults, reported) = run(&job, &faulty, &task, 1)?;
    if with_faults.bytes_on_wires != reported {
        let sent = with_faults.bytes_on_wires;
        return Err(format!(
            "with faults the journal reports {reported} bytes, and {sent} crossed"
        ));
    }
    if seed.is_multiple_of(10) {
        let (again, _) = run(&job, &faulty, &task, 2)?;
        if again.result.journal_hash != with_faults.result.journal_hash {
            return Err("the journal with two threads differs from that with one".into());
        }
    }
    Ok(())
}

fn run(
    job: &Job,
    scenario: &Scenario,
    task: &Task,
    threads: usize,
) -> Result<(Simulated, u64), String> {
    let about = || format!("{:?}\n{scenario:?}", job.choices);
    let mut prepared = job
        .prepare_with(PrepareOptions {
            task: Some(task.clone()),
            ..PrepareOptions::new(scenario.workers)
        })
        .map_err(|message| format!("refused: {message}\n{}", about()))?;
    prepared.plan.fingerprints = true;
    let (mut replicas_agree, mut traffic) = (ReplicasAgree::default(), Traffic::default());
    let mut custody = Custody::default();
    let mut trace = Trace;
    let mut readers: Vec<&mut dyn Reader> = vec![&mut replicas_agree, &mut traffic, &mut custody];
    if std::env::var_os("SWARM_TRACE").is_some() {
        eprintln!("{}", about());
        readers.push(&mut trace);
    }
    let simulated = simulate(&prepared, scenario, SimulateOptions { threads, readers })
        .map_err(|failure: Error| format!("{failure}\n{}", about()))?;
    let ledger = simulated.result.ledger;
    if ledger.lost + ledger.repeated > 0 || ledger.done != prepared.plan.samples_total {
        return Err(format!("{ledger:?} of {}\n{}", prepared.plan.samples_total, about()));
    }
    if let Some(violation) = replicas_agree.violations.iter().chain(&custody.violations).next() {
        return Err(format!("{violation}\n{}", about()));
    }
    let used = simulated.result.utilization.iter().all(|part| (0.0..=1.0).contains(part));
    if !used {
        return Err(format!("{:?}\n{}", simulated.result.utilization, about()));
    }
    Ok((simulated, traffic.bytes))
}

/// Prints each line of the journal: `SWARM_TRACE=1 SWARM_SEED=17`.
struct Trace;

impl Reader for Trace {
    fn read(&mut self, line: &Line) {
        eprintln!("{:>12.6} {:?}", line.at.as_secs_f64(), line.record);
    }
}

fn draw_cluster(dice: &mut Dice) -> Scenario {
    let mut scenario: Scenario =
        Scenario { workers: 1 + dice.below(8) as u32, ..Scenario::default() };
    let n = scenario.workers;
    scenario.compute.seconds_per_sample = 1e-4;
    scenario.compute.seconds_per_gradient = [0.0, 1e-4][dice.below(2) as usize];
    scenario.compute.relative = (0..n).map(|_| dice.between(1.0, 4.0)).collect();
    scenario.compute.jitter = [0.0, 0.5][dice.below(2) as usize];
    if dice.below(4) == 0 {
        scenario.compute.straggler = Some(Straggler { every: 0.02, factor: 5.0 });
    }
    scenario.network.latency = [0.0, 1e-5, 1e-3][dice.below(3) as usize];
    scenario.network.bytes_per_second = [1e5, 1e6, 1e8][dice.below(3) as usize];
    if dice.below(4) == 0 {
        scenario.network.sums = RingModel::ClosedForm;
    } else if dice.below(4) == 0 {
        let workers = (0..n / 2).collect();
        scenario.network.racks = vec![Rack { workers, bytes_per_second: 2e5, latency: 1e-3 }];
    }
    if dice.below(4) == 0 {
        let worker = dice.below(u64::from(n)) as u32;
        scenario.network.links = vec![Link { worker, bytes_per_second: 1e5, latency: 1e-3 }];
    }
    scenario.coordinator.detection = dice.between(0.0, 0.01);
    scenario.coordinator.patience = dice.between(0.002, 0.02);
    scenario.coordinator.gathering = [0.0, 1e-4, 5e-3][dice.below(3) as usize];
    scenario
}

/// Adds faults at any time of the run, and some close to its end.
fn draw_faults(dice: &mut Dice, scenario: &mut Scenario, end: f64) {
    let n = u64::from(scenario.workers);
    let when = |dice: &mut Dice| match dice.below(4) {
        0 => end * dice.between(0.95, 1.01),
        _ => end * dice.between(0.0, 1.0),
    };
    for _ in 0..dice.below(4) {
        let (worker, at) = (dice.below(n + 1) as u32, when(dice));
        let back_after = (dice.below(2) == 0).then(|| dice.between(0.0, 0.2 * end));
        scenario.crashes.push(Crash { worker, at, at_event: None, back_after });
    }
    for _ in 0..dice.below(3) {
        scenario.leaves.push(Leave { worker: dice.below(n) as u32, at: when(dice) });
    }
    for _ in 0..dice.below(3) {
        scenario.joins.push(Join { at: when(dice), workers: 1 + dice.below(2) as u32 });
    }
    if dice.below(3) == 0 {
        let workers = (0..n as u32).filter(|_| dice.below(3) == 0).collect();
        let from = when(dice);
        let coordinator = dice.below(3) > 0;
        let direction = [Direction::Both, Direction::Out, Direction::In][dice.below(3) as usize];
        scenario.cuts.push(Cut {
            workers,
            from,
            to: from + dice.between(0.001, 0.1),
            coordinator,
            direction,
        });
    }
    if dice.below(3) == 0 {
        let from = when(dice);
        scenario.coordinator.away.push(During { from, to: from + dice.between(0.001, 0.1) });
    }
    if dice.below(5) == 0 {
        scenario.churn = Some(Churn {
            lifetime_mean: (end * dice.between(1.0, 4.0)).max(0.3) * (n + 1) as f64,
            back_after_mean: end * 0.1,
            members_min: 1,
            leave_chance: 0.3,
        });
    }
    if dice.below(3) == 0 {
        let (worker, from) = (dice.below(n) as u32, when(dice));
        scenario.pauses.push(Pause { worker, from, to: from + dice.between(0.001, 0.05) });
    }
    if n > 1 && dice.below(4) == 0 {
        let (a, from) = (dice.below(n - 1) as u32, when(dice));
        let b = a + 1 + dice.below(n - 1 - u64::from(a)) as u32;
        // Some last longer than any run.
        let to = from + [0.01, 0.1, 1e6][dice.below(3) as usize];
        scenario.dead_links.push(DeadLink { between: (a, b), from, to });
    }
    let coordinator = &mut scenario.coordinator;
    if dice.below(3) == 0 {
        coordinator.latency = Some(dice.between(0.0, 0.003));
        coordinator.jitter = dice.between(0.0, 0.005);
    }
    if dice.below(3) == 0 {
        for _ in 0..1 + dice.below(3) {
            coordinator.kills.push(Kill { at: when(dice), back_after: dice.between(0.0, 0.05) });
        }
    }
    if dice.below(4) == 0 {
        coordinator.loss = [0.01, 0.1, 0.3][dice.below(3) as usize];
    }
    // In the end, at least one worker must be there to finish the job.
    scenario.joins.push(Join { at: 2.0 * end + 1.0, workers: 1 });
}

fn draw_task(dice: &mut Dice, seed: u64) -> Task {
    if dice.below(2) == 0 {
        let model = Arc::new(Quadratic { curvature: vec![0.5; 12], noise: 0.1 });
        return Task {
            model,
            train: Arc::new(Noise { len: 150 }),
            test: Arc::new(Noise { len: 1 }),
        };
    }
    let data = Arc::new(blobs(150, 4, 3, seed, 0.5));
    let model = Arc::new(net::softmax(data.features(), data.classes()));
    Task { model, train: data.clone(), test: data }
}

/// Draws any valid combination of parts.
fn draw_job(dice: &mut Dice, seed: u64) -> Job {
    loop {
        let pick = |dice: &mut Dice, n: u64| dice.below(n) as usize;
        let every = [Every::Epoch, Every::Round][pick(dice, 2)];
        let by_speed = Shares::BySpeed { every, smoothing: 0.5 };
        let choices = Choices {
            strategy: StrategyKind::ALL[pick(dice, 7)],
            shares: [Shares::Even, by_speed, Shares::Open][pick(dice, 3)],
            period: [
                Period::Constant { steps: 1 },
                Period::Constant { steps: 3 },
                Period::adaptive(2),
                Period::Decreasing { first: 4 },
                Period::PostLocal { steps: 3 },
                Period::Qsr { steps_min: 1, growth: 0.1, steps_max: 6 },
            ][pick(dice, 6)]
            .clone(),
            rescale: [
                Rescale::None,
                Rescale::FixedBatch,
                Rescale::Linear,
                Rescale::Smooth,
                Rescale::Adascale,
            ][pick(dice, 5)],
            codec: [
                Codec::Dense,
                Codec::Half,
                Codec::Qsgd { bits: 4, bucket: 8 },
                Codec::TopK { fraction: 0.3 },
            ][pick(dice, 4)],
            outer: [
                Outer::None,
                Outer::SlowMo { rate: 1.0, momentum: 0.3 },
                Outer::Diloco { rate: 0.7, momentum: 0.5 },
            ][pick(dice, 3)]
            .clone(),
            lead_max: [None, Some(0), Some(2)][pick(dice, 3)],
            ..Choices::of(StrategyKind::AllReduce)
        };
        if choices.check().is_ok() {
            return Job {
                choices: Some(choices),
                epochs: dice.between(0.5, 3.0),
                batch: Some(1 + dice.below(8)),
                learning_rate: Some(0.002),
                seed,
                ..Job::default()
            };
        }
    }
}
