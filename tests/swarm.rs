//! A swarm of seeds: each draws a random cluster with faults, a strategy and its parts, and checkers watch the run.
//!
//! `SWARM_SEEDS=5000 cargo test --release --test swarm` runs more seeds, `SWARM_SEED=17` a single one.

use std::sync::Arc;

use paceline::learn::{Dataset, Noise, Optimizer, Quadratic, Rescale, Shape, blobs, net};
use paceline::runtime::codec::Codec;
use paceline::sim::checkers::{
    Custody, GradientsOnce, Learning, Liveness, ReplicasAgree, Traffic, Updates, Work,
};
use paceline::sim::scenario::{
    Churn, Crash, Cut, DeadLink, Direction, During, Join, Kill, Leave, Link, Pause, Rack,
    RingModel, Straggler,
};
use paceline::strategies::parts::{Adaptive, Every, Outer, Period, Shares};
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
        if count > 10_000 && seed.is_multiple_of(10_000) {
            eprintln!("seeds from {seed}");
        }
        let tried = std::panic::catch_unwind(|| try_seed(seed));
        if let Err(why) = tried.unwrap_or_else(|_| Err("the run panicked".to_owned())) {
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
    let mut job = draw_job(&mut dice, seed);
    let task = draw_task(&mut dice, &mut job);
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
    // Hosts that read data ahead have samples dealt ahead.
    prepared.plan.rounds_ahead = job.seed % 3;
    let (mut replicas_agree, mut traffic) = (ReplicasAgree::default(), Traffic::default());
    let (mut custody, mut gradients_once) = (Custody::default(), GradientsOnce::default());
    let mut liveness = Liveness::new(scenario, work(job, scenario, &prepared.plan));
    let mut learning = Learning::new(updates(job), f64::from(CURVATURE));
    let mut trace = Trace;
    let mut readers: Vec<&mut dyn Reader> = vec![
        &mut replicas_agree,
        &mut traffic,
        &mut custody,
        &mut gradients_once,
        &mut liveness,
        &mut learning,
    ];
    if std::env::var_os("SWARM_TRACE").is_some() {
        eprintln!("{}", about());
        readers.push(&mut trace);
    }
    let simulated =
        simulate(&prepared, scenario, SimulateOptions { threads, readers, ..Default::default() })
            .map_err(|failure: Error| format!("{failure}\n{}", about()))?;
    let ledger = simulated.result.ledger;
    if ledger.lost + ledger.repeated > 0 || ledger.done != prepared.plan.samples_total {
        return Err(format!("{ledger:?} of {}\n{}", prepared.plan.samples_total, about()));
    }
    let violations = [
        &replicas_agree.violations,
        &custody.violations,
        &gradients_once.violations,
        &liveness.violations,
    ];
    if let Some(violation) = violations.into_iter().flatten().next() {
        return Err(format!("{violation}\n{}", about()));
    }
    if only_the_coordinator_fails(scenario) && simulated.result.started_over > 0 {
        return Err(format!("no worker failed, and yet the job started over\n{}", about()));
    }
    if std::env::var_os("SWARM_STATS").is_some() {
        let choices = job.choices.as_ref().expect("the choices are drawn");
        let (kind, longest) = (choices.strategy.name(), liveness.longest);
        eprintln!("{kind} seed {}: {longest:.3} of the longest time without progress", job.seed);
    }
    check_learning(job, &learning, &simulated).map_err(|why| format!("{why}\n{}", about()))?;
    let used = simulated.result.utilization.iter().all(|part| (0.0..=1.0).contains(part));
    if !used {
        return Err(format!("{:?}\n{}", simulated.result.utilization, about()));
    }
    Ok((simulated, traffic.bytes))
}

/// Whether nothing happens to workers and to their links: then nothing that they have learned may be given up.
fn only_the_coordinator_fails(scenario: &Scenario) -> bool {
    let is_still = scenario.crashes.is_empty() && scenario.leaves.is_empty();
    let is_connected = scenario.cuts.is_empty() && scenario.dead_links.is_empty();
    is_still && is_connected && scenario.pauses.is_empty() && scenario.churn.is_none()
}

/// Compares what was learned with what follows from the journal.
fn check_learning(job: &Job, learning: &Learning, simulated: &Simulated) -> Result<(), String> {
    if job.optimizer.is_none() {
        return Ok(());
    }
    let choices = job.choices.as_ref().expect("the choices are drawn");
    // The last worker may die after it has said that it has finished, and before it hears that the job is over.
    let Some(params) = &simulated.params else { return Ok(()) };
    if choices.strategy == StrategyKind::ParameterServer && simulated.center.is_none() {
        return Ok(());
    }
    let all: Vec<f32> = match choices.strategy {
        // The center knows only what workers had learned before their last exchange, and some have only one.
        StrategyKind::ElasticAverage => {
            simulated.replicas.values().flat_map(|replica| replica.iter().copied()).collect()
        }
        _ => params.to_vec(),
    };
    let x = all.iter().map(|x| f64::from(*x)).sum::<f64>() / all.len() as f64;
    let (mut low, mut high) = learning.expected().into_inner();
    if let Outer::SlowMo { rate, momentum } | Outer::Diloco { rate, momentum } = choices.outer {
        // An outer step is shorter at first, and longer when its momentum has grown. When nothing is left to learn after
        // the first one, its momentum still moves the parameters on.
        (low, high) = (low.powf(2.5) - f64::from(rate * momentum), high.powf(0.6));
    }
    let slack = match choices.codec {
        Codec::Dense => 1e-4,
        Codec::Half => 2e-3,
        Codec::Qsgd { .. } => 0.03,
        // Residuals hold a part of the gradients back, and add it to a sum of other samples.
        Codec::TopK { .. } => return Ok(()),
    };
    if (low - slack..=high + slack).contains(&x) {
        return Ok(());
    }
    Err(format!("the parameters are {x:.4} of the initial ones, not {low:.4} to {high:.4}"))
}

fn updates(job: &Job) -> Updates {
    match job.choices.as_ref().map(|choices| choices.strategy) {
        Some(StrategyKind::PeriodicAverage) => Updates::Averages,
        Some(
            StrategyKind::GossipPull | StrategyKind::GossipPush | StrategyKind::ElasticAverage,
        ) => Updates::OneReplica,
        _ => Updates::Gradients,
    }
}

/// What a worker does at most between two updates.
fn work(job: &Job, scenario: &Scenario, plan: &paceline::runtime::Plan) -> Work {
    let joins: u32 = scenario.joins.iter().map(|join| join.workers).sum();
    let members = u64::from(scenario.workers + joins);
    let is_push = updates(job) == Updates::OneReplica;
    Work {
        gradients: STEPS_MAX as u32,
        // A single worker may get the whole batch.
        samples: members * job.batch.expect("the batch is drawn"),
        // Parameters, the state of the optimizer, and what else a newcomer adopts.
        bytes: 3 * 4 * plan.initial.len() as u64 + 1000,
        unanswered: if is_push { plan.samples_total } else { 0 },
    }
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
        let (worker, at) = (dice.below(n) as u32, when(dice));
        scenario.leaves.push(Leave { worker, at });
        if dice.below(3) == 0 {
            // It dies while it says goodbye.
            let at = at + dice.between(0.0, 0.05 * end);
            scenario.crashes.push(Crash { worker, at, at_event: None, back_after: None });
        }
    }
    for _ in 0..dice.below(3) {
        scenario.joins.push(Join { at: when(dice), workers: 1 + dice.below(2) as u32 });
    }
    if dice.below(8) == 0 {
        // A storm: many at once, or one after another.
        let (at, apart) = (when(dice), [0.0, 1e-4, 2e-3][dice.below(3) as usize]);
        let joins = 4 + dice.below(8);
        let storm = (0..joins).map(|i| Join { at: at + apart * i as f64, workers: 1 });
        scenario.joins.extend(storm);
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

/// The parameters of a quadratic without noise become smaller as the journal says, see [`Learning`].
const CURVATURE: f32 = 0.5;

fn draw_task(dice: &mut Dice, job: &mut Job) -> Task {
    let quadratic = |noise| {
        let model = Arc::new(Quadratic { curvature: vec![CURVATURE; 12], noise });
        let (train, test) = (Arc::new(Noise { len: 150 }), Arc::new(Noise { len: 1 }));
        Task { model, train, validation: None, test }
    };
    match dice.below(4) {
        0 => quadratic(0.1),
        1 => {
            let data = Arc::new(blobs(150, 4, 3, job.seed, 0.5));
            let model = Arc::new(net::softmax(data.features(), data.classes()));
            Task { model, train: data.clone(), validation: None, test: data }
        }
        _ => {
            job.learning_rate = Some([0.02, 0.1][dice.below(2) as usize]);
            (job.schedule, job.optimizer) = (Shape::Constant, Some(Optimizer::sgd(0.0)));
            quadratic(0.0)
        }
    }
}

/// The most local steps between two averages, whatever the period.
const STEPS_MAX: u64 = 6;

fn adaptive(steps_first: u64) -> Period {
    let mut period = Period::adaptive(steps_first);
    if let Period::Adaptive(Adaptive { steps_max, .. }) = &mut period {
        *steps_max = STEPS_MAX;
    }
    period
}

/// Draws any valid combination of parts.
fn draw_job(dice: &mut Dice, seed: u64) -> Job {
    // First, because most parts are only valid with some kinds: all kinds are to be drawn equally often.
    let strategy = StrategyKind::ALL[dice.below(7) as usize];
    loop {
        let pick = |dice: &mut Dice, n: u64| dice.below(n) as usize;
        let every = [Every::Epoch, Every::Round][pick(dice, 2)];
        let by_speed = Shares::BySpeed { every, smoothing: 0.5 };
        let choices = Choices {
            strategy,
            shares: [Shares::Even, by_speed, Shares::Open][pick(dice, 3)],
            period: [
                Period::Constant { steps: 1 },
                Period::Constant { steps: 3 },
                adaptive(2),
                Period::Decreasing { first: 4 },
                Period::PostLocal { steps: 3 },
                Period::Qsr { steps_min: 1, growth: 0.1, steps_max: STEPS_MAX },
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
