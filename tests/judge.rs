//! Time to a target: which model is judged, how often, and on what.

use std::sync::Arc;
use std::time::Duration;

use paceline::learn::{Noise, Quadratic};
use paceline::strategies::parts::Period;
use paceline::{
    Call, Choices, Coordination, Interrupt, Job, Line, Message, Optimizer, PrepareOptions,
    Prepared, Reader, Recipe, Record, RunResult, Scenario, Server, Shape, Share, SimulateOptions,
    Strategy, StrategyKind, Task, TrainOptions, Vector, Worker, scenarios, simulate, train,
};
use serde::{Deserialize, Serialize};

const SIZE: usize = 12;

/// A quadratic without noise, from all ones: its loss is 3, and 0 at zero.
fn quadratic() -> Task {
    Task {
        model: Arc::new(Quadratic { curvature: vec![0.5; SIZE], noise: 0.0 }),
        train: Arc::new(Noise { len: 2_000 }),
        validation: Some(Arc::new(Noise { len: 1 })),
        test: Arc::new(Noise { len: 1 }),
    }
}

/// Workers compute gradients, but their replicas and the center are put where the test wants them: worker i's replica at
/// `replicas` times 1 for an even i, and at `replicas_odd` for an odd one.
#[derive(Clone, Serialize, Deserialize)]
struct Placed {
    batch: u64,
    /// Where the center is put; without one there is only the mean of the replicas.
    center: Option<f32>,
    replicas: f32,
    replicas_odd: f32,
}

impl Strategy for Placed {
    async fn round(&mut self, worker: &mut Worker) -> Result<(), Interrupt> {
        let place = if worker.rank().is_multiple_of(2) { self.replicas } else { self.replicas_odd };
        worker.set_params(Arc::new(Vector::filled(place, SIZE))).await;
        worker.publish().await;
        let share = Share::Leased { samples: self.batch, ahead: false };
        let Some(mine) = worker.gradient(share).await else { return Ok(()) };
        worker.descend_alone(&mine).await;
        worker.set_params(Arc::new(Vector::filled(place, SIZE))).await;
        worker.publish().await;
        if let Some(center) = self.center {
            worker.call(Message::of(Arc::new(Vector::filled(center, SIZE)))).await?;
        }
        Ok(())
    }

    async fn serve(&mut self, server: &mut Server) -> Result<(), Interrupt> {
        loop {
            if let Call::Message { from, message } = server.next().await? {
                server.draw_towards(from, &message.vectors[0], 1.0);
            }
        }
    }

    fn coordination(&self) -> Coordination {
        match self.center {
            Some(_) => Coordination::Centered { applies_samples: false },
            None => Coordination::Asynchronous,
        }
    }

    fn nominal_batch(&self, members: usize) -> f64 {
        (self.batch * members as u64) as f64
    }
}

fn placed(target: Job, center: Option<f32>, [replicas, replicas_odd]: [f32; 2]) -> Prepared {
    let make = move |batch, _| Placed { batch, center, replicas, replicas_odd };
    let recipe = Recipe::own("placed", "models where the test wants them", 0.01, make);
    let job = Job { strategy: "placed".into(), epochs: 2.0, ..target };
    let task = Some(quadratic());
    let options = PrepareOptions { recipes: &[recipe], task, ..PrepareOptions::new(4) };
    job.prepare_with(options).expect("the job is valid")
}

fn simulated(prepared: &Prepared) -> RunResult {
    let scenario = Scenario { workers: 4, ..Scenario::default() };
    simulate(prepared, &scenario, SimulateOptions::default()).expect("the run ends").result
}

/// Slow enough that all threads take part before the samples run out.
fn paced() -> TrainOptions<'static> {
    let pace = Some(Duration::from_micros(100));
    TrainOptions { speeds: vec![1.0], pace, ..TrainOptions::default() }
}

fn validation() -> Job {
    Job { target_loss: Some(0.5), ..Job::default() }
}

fn training() -> Job {
    Job { target_training_loss: Some(0.5), ..Job::default() }
}

#[test]
fn a_strategy_with_a_center_is_judged_by_its_center() {
    let good_center = |target| placed(target, Some(0.0), [1.0, 1.0]);
    let good_replicas = |target| placed(target, Some(1.0), [0.0, 0.0]);

    assert!(simulated(&good_center(validation())).seconds_to_target.is_some());
    assert_eq!(simulated(&good_center(training())).seconds_to_target, None);
    assert_eq!(simulated(&good_replicas(validation())).seconds_to_target, None);
    assert!(simulated(&good_replicas(training())).seconds_to_target.is_some());
    let real = |prepared| train(&prepared, paced()).expect("training ends").result;
    assert!(real(good_center(validation())).seconds_to_target.is_some());
    assert_eq!(real(good_replicas(validation())).seconds_to_target, None);
}

#[test]
fn a_strategy_without_a_center_is_judged_by_the_mean_of_its_replicas() {
    let good_mean = |target| placed(target, None, [1.0, -1.0]);
    let good_half = |target| placed(target, None, [0.0, 2.0]);

    assert!(simulated(&good_mean(validation())).seconds_to_target.is_some());
    assert_eq!(simulated(&good_mean(training())).seconds_to_target, None);
    assert_eq!(simulated(&good_half(validation())).seconds_to_target, None);
    let real = train(&good_mean(validation()), paced()).expect("training ends");
    assert!(real.result.seconds_to_target.is_some());
    assert!(real.result.bytes_evaluated > 0, "three replicas are read for each evaluation");
}

/// The times and samples of all evaluations on the validation part.
#[derive(Default)]
struct Validations(Vec<u64>);

impl Reader for Validations {
    fn read(&mut self, line: &Line) {
        if let Record::Validated { samples, .. } = line.record {
            self.0.push(samples);
        }
    }
}

fn averaging(period: u64, target: Job) -> Prepared {
    let period = Period::Constant { steps: period };
    let choices = Choices { period, ..Choices::of(StrategyKind::PeriodicAverage) };
    let job = Job {
        choices: Some(choices),
        epochs: 8.0,
        schedule: Shape::Constant,
        learning_rate: Some(0.02),
        optimizer: Some(Optimizer::sgd(0.0)),
        ..target
    };
    let options = PrepareOptions { task: Some(quadratic()), ..PrepareOptions::new(4) };
    job.prepare_with(options).expect("the job is valid")
}

/// Without noise all replicas are equal, so that averaging every step and every 32 steps (more than an epoch) learn alike; with
/// a network that costs nothing they take the same time, too.
#[test]
fn equal_curves_reach_a_target_at_the_same_time_whatever_the_length_of_a_round() {
    let mut scenario = Scenario { workers: 4, ..Scenario::default() };
    (scenario.network.latency, scenario.network.bytes_per_second) = (0.0, 1e15);
    let time = |period, target| {
        let prepared = averaging(period, target);
        let run = simulate(&prepared, &scenario, SimulateOptions::default());
        let result = run.expect("the run ends").result;
        (result.seconds_to_target.expect("the target is reached"), result.seconds())
    };

    let ((short, total), (long, total_long)) = (time(1, validation()), time(32, validation()));

    assert!((total_long / total - 1.0).abs() < 1e-3, "{total} s and {total_long} s");
    let interval = total / (8.0 * 20.0);
    assert!((long - short).abs() <= interval, "{short} s and {long} s");
    // The training loss is known when a round ends.
    let round = 32.0 * 64.0 / 2_000.0 * total / 8.0;
    let (short, long) = (time(1, training()).0, time(32, training()).0);
    assert!((-interval..=round).contains(&(long - short)), "{short} s and {long} s");
}

#[test]
fn every_twentieth_of_an_epoch_is_judged_also_within_long_rounds() {
    let scenario = Scenario { workers: 4, ..Scenario::default() };
    for period in [1, 32] {
        let mut validations = Validations::default();
        let options = SimulateOptions { readers: vec![&mut validations], ..Default::default() };
        simulate(&averaging(period, validation()), &scenario, options).expect("the run ends");

        let samples = validations.0;
        let widest = samples.windows(2).map(|two| two[1] - two[0]).max();
        // An interval of 100 samples ends within a step of 64.
        assert!(widest <= Some(164), "period {period}: {widest:?} of {} ", samples.len());
    }
}

/// Neither the target nor the evaluations for it change what is learned, and when.
#[test]
fn a_target_changes_nothing_in_the_run() {
    for strategy in ["ssgd", "cpsgd", "diloco", "gossip-pull", "easgd", "async", "abs"] {
        let hash = |target_loss| {
            let job = Job { strategy: strategy.into(), epochs: 2.0, target_loss, ..Job::default() };
            let prepared = job.prepare(4).expect("the job is valid");
            let result = simulated(&prepared);
            (result.journal_hash, result.validation_loss.to_bits(), result.accuracy.to_bits())
        };

        assert_eq!(hash(None), hash(Some(0.5)), "{strategy}");
    }
}

#[test]
fn a_target_without_held_out_samples_is_refused() {
    let job = Job { target_loss: Some(0.3), validation: 0.0, ..Job::default() };
    let message = job.prepare(4).err().expect("it is refused").to_string();
    assert!(message.contains("held out"), "{message}");
    let job = Job { target_training_loss: Some(0.3), validation: 0.0, ..Job::default() };
    assert!(job.prepare(4).is_ok());
}

/// Windows of ten rounds, which were seven epochs for `cpsgd`, had 3.02, 8.60, 14.7, 4.96 and 4.71 s.
#[test]
fn under_equal_windows_of_training_loss_averaging_strategies_are_not_held_up() {
    let scenario = scenarios::named("stragglers").expect("it is built in");
    for (strategy, expected) in
        [("ssgd", 2.9), ("cpsgd", 4.5), ("diloco", 6.0), ("adpsgd", 3.6), ("local-dbs", 3.6)]
    {
        let target_training_loss = Some(0.3);
        let (strategy, validation) = (strategy.to_owned(), 0.0);
        let job = Job { strategy, validation, target_training_loss, ..Job::default() };
        let prepared = job.prepare(scenario.workers).expect("the job is valid");

        let run = simulate(&prepared, &scenario, SimulateOptions::default()).expect("it ends");

        let seconds = run.result.seconds_to_target.expect("the target is reached");
        let is_near = (seconds / expected - 1.0).abs() < 0.1;
        assert!(is_near, "{}: {seconds} s instead of about {expected}", job.strategy);
    }
}
