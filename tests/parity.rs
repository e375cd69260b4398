//! The simulator and threads agree: the same strategy code computes the same bits on both clusters.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use paceline::learn::{Batch, Gradient, Model, Noise, Quadratic, Score, Scratch, Vector};
use paceline::runtime::journal::fingerprint;
use paceline::runtime::{Replay, WorkerId};
use paceline::{
    Job, Line, PrepareOptions, Prepared, Reader, Record, Scenario, SimulateOptions, Task,
    TrainOptions, Trained, simulate, train,
};

fn job(strategy: &str) -> Prepared {
    let job = Job { strategy: strategy.into(), epochs: 2.0, seed: 5, ..Job::default() };
    job.prepare(4).expect("the job is valid")
}

/// A very uneven cluster, which must not change the result of recipes that read no clock.
fn uneven() -> Scenario {
    let mut scenario = Scenario { workers: 4, ..Scenario::default() };
    scenario.compute.relative = vec![1.0, 2.5, 1.0, 4.0];
    scenario.compute.jitter = 0.5;
    scenario
}

fn on_threads(prepared: &Prepared, speeds: &[f64], readers: Vec<&mut dyn Reader>) -> Trained {
    let options = TrainOptions { speeds: speeds.to_vec(), readers, ..TrainOptions::default() };
    let trained = train(prepared, options);
    let trained = trained.expect("training on threads ends");
    let ledger = trained.result.ledger;
    assert_eq!((ledger.done, ledger.lost, ledger.repeated), (prepared.plan.samples_total, 0, 0));
    trained
}

#[test]
fn recipes_that_read_no_clock_end_with_the_same_bits_simulated_and_on_threads() {
    for name in ["ssgd", "qsgd", "dynamic", "pipe", "cpsgd", "adpsgd", "diloco"] {
        let prepared = job(name);
        let real = on_threads(&prepared, &[], vec![]).params.expect("there are params");

        let simulated =
            simulate(&prepared, &uneven(), SimulateOptions { threads: 2, ..Default::default() })
                .expect("it ends");

        let simulated = simulated.params.expect("there are params");
        assert_eq!(fingerprint(&real), fingerprint(&simulated), "{name}");
    }
}

/// Collects (samples, loss, accuracy) of each evaluation.
#[derive(Default)]
struct Scores(Vec<(u64, f64, f64)>);

impl Reader for Scores {
    fn read(&mut self, line: &Line) {
        if let Record::Scored { samples, loss, accuracy } = line.record {
            self.0.push((samples, loss, accuracy));
        }
    }
}

/// Also if an epoch ends long before the previous one is evaluated: each evaluation uses the replica of its epoch.
#[test]
fn every_epoch_gets_the_same_score_simulated_and_on_threads() {
    for name in ["ssgd", "cpsgd", "pipe"] {
        let job = Job {
            strategy: name.into(),
            epochs: 30.0,
            samples: Some(64),
            batch: Some(4),
            ..Job::default()
        };
        let prepared = job.prepare(4).expect("the job is valid");
        let (mut real, mut simulated) = (Scores::default(), Scores::default());

        on_threads(&prepared, &[], vec![&mut real]);
        simulate(
            &prepared,
            &uneven(),
            SimulateOptions { threads: 2, readers: vec![&mut simulated], ..Default::default() },
        )
        .expect("it ends");

        assert_eq!(real.0, simulated.0, "{name}");
        let samples: Vec<u64> = real.0.iter().map(|(samples, ..)| *samples).collect();
        assert!(samples.is_sorted_by(|a, b| a < b), "{name}: {samples:?}");
        assert_eq!(samples.last(), Some(&prepared.plan.samples_total), "{name}");
    }
}

/// Collects each worker's entry to the exchange of each round.
#[derive(Default)]
struct Recorder(Replay);

impl Reader for Recorder {
    fn read(&mut self, line: &Line) {
        if let Record::Entered { who, round, samples, compute, .. } = &line.record {
            self.0.entries.insert((*who, *round), (*samples, *compute));
        }
    }
}

#[test]
fn recipes_that_read_the_clock_end_with_the_same_bits_when_its_readings_are_replayed() {
    for name in ["abs", "dbs", "lb-bsp", "local-dbs"] {
        let prepared = job(name);
        let mut recorder = Recorder::default();
        let real = on_threads(&prepared, &[1.0, 1.0, 2.0, 4.0], vec![&mut recorder]);

        let even = |round| {
            let of = |who| recorder.0.entries.get(&(WorkerId(who), round)).map_or(0, |e| e.0);
            (1..4).all(|who| of(who) == of(0))
        };
        let mut rounds = recorder.0.entries.keys().map(|(_, round)| *round);
        assert!(rounds.any(|round| !even(round)), "{name}: speeds made no difference");
        let prepared = prepared.replaying(recorder.0);
        let simulated =
            simulate(&prepared, &uneven(), SimulateOptions::default()).expect("it ends");

        let (real, simulated) = (real.params.expect("params"), simulated.params.expect("params"));
        assert_eq!(fingerprint(&real), fingerprint(&simulated), "{name}");
    }
}

#[test]
fn asynchronous_recipes_account_for_every_sample_and_learn_alike_on_threads() {
    for name in ["gossip-pull", "gossip-push", "easgd", "async", "ssp"] {
        let job = Job { strategy: name.into(), epochs: 10.0, seed: 5, ..Job::default() };
        let prepared = job.prepare(4).expect("the job is valid");
        // With emulated speeds, no worker is starved on a busy machine; its stale replica would count for a quarter.
        let real = on_threads(&prepared, &[1.0, 1.0, 2.0, 4.0], vec![]).result;

        let simulated =
            simulate(&prepared, &uneven(), SimulateOptions { threads: 2, ..Default::default() })
                .expect("it ends")
                .result;

        let difference = (real.accuracy - simulated.accuracy).abs();
        assert!(
            difference < 0.04,
            "{name}: {} on threads, {} simulated",
            real.accuracy,
            simulated.accuracy
        );
    }
}

#[test]
fn a_stopped_job_ends_after_the_round_without_losing_samples() {
    for name in ["ssgd", "abs", "adpsgd", "gossip-pull", "async"] {
        let job = Job { strategy: name.into(), epochs: 1000.0, ..Job::default() };
        let prepared = job.prepare(4).expect("the job is valid");
        let stop = Arc::new(AtomicBool::new(false));
        let mut stopper = StopAfter { stop: stop.clone(), lines: 2000 };

        let trained = train(
            &prepared,
            TrainOptions { stop, readers: vec![&mut stopper], ..Default::default() },
        );

        let outcome = trained.expect("it ends").result;
        assert!(outcome.samples > 0 && outcome.samples < prepared.plan.samples_total, "{name}");
        assert_eq!(outcome.ledger.repeated, 0, "{name}");
    }
}

struct StopAfter {
    stop: Arc<AtomicBool>,
    lines: u32,
}

impl Reader for StopAfter {
    fn read(&mut self, _: &Line) {
        self.lines = self.lines.saturating_sub(1);
        if self.lines == 0 {
            self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

/// A model whose evaluation lasts until the job is stopped.
struct Endless {
    model: Quadratic,
    stop: Arc<AtomicBool>,
}

impl Model for Endless {
    fn params(&self) -> usize {
        self.model.params()
    }

    fn initial(&self, seed: u64) -> Vector {
        self.model.initial(seed)
    }

    fn gradient(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch, into: &mut Gradient) {
        self.model.gradient(params, batch, scratch, into);
    }

    fn evaluate(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch) -> Score {
        let since = Instant::now();
        while !self.stop.load(std::sync::atomic::Ordering::Relaxed) {
            assert!(since.elapsed() < Duration::from_secs(60), "the job is not stopped");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.model.evaluate(params, batch, scratch)
    }
}

#[test]
fn an_evaluation_delays_neither_training_nor_stopping() {
    let stop = Arc::new(AtomicBool::new(false));
    let model = Quadratic { curvature: vec![0.5; 4], noise: 0.1 };
    let model = Arc::new(Endless { model, stop: stop.clone() });
    let task = Task {
        model,
        train: Arc::new(Noise { len: 50 }),
        validation: None,
        test: Arc::new(Noise { len: 1 }),
    };
    let job = Job { strategy: "ssgd".into(), epochs: 1e5, ..Job::default() };
    let prepared = job
        .prepare_with(PrepareOptions { task: Some(task), ..PrepareOptions::new(2) })
        .expect("the job is valid");
    // The first epoch ends long before this many lines are written.
    let mut stopper = StopAfter { stop: stop.clone(), lines: 2000 };

    let trained =
        train(&prepared, TrainOptions { stop, readers: vec![&mut stopper], ..Default::default() });

    let outcome = trained.expect("it ends").result;
    assert!(outcome.stopped && outcome.samples > 50, "{outcome:?}");
}

/// A model that panics at some samples.
struct Faulty(Quadratic);

impl Model for Faulty {
    fn params(&self) -> usize {
        self.0.params()
    }

    fn initial(&self, seed: u64) -> Vector {
        self.0.initial(seed)
    }

    fn gradient(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch, into: &mut Gradient) {
        assert!(!batch.keys.iter().any(|key| key % 97 == 0), "this model is faulty on purpose");
        self.0.gradient(params, batch, scratch, into);
    }

    fn evaluate(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch) -> Score {
        self.0.evaluate(params, batch, scratch)
    }
}

#[test]
fn a_model_that_panics_ends_the_run_with_a_message_and_does_not_hang_it() {
    for strategy in ["ssgd", "abs", "gossip-pull", "async"] {
        let model = Arc::new(Faulty(Quadratic { curvature: vec![0.5; 4], noise: 0.1 }));
        let task = Task {
            model,
            train: Arc::new(Noise { len: 500 }),
            validation: None,
            test: Arc::new(Noise { len: 1 }),
        };
        let job = Job { strategy: strategy.into(), batch: Some(4), epochs: 2.0, ..Job::default() };
        let prepared = job
            .prepare_with(PrepareOptions { task: Some(task), ..PrepareOptions::new(3) })
            .expect("the job is valid");

        let failed = train(&prepared, TrainOptions::default()).err();

        let message = failed.expect("the run fails").to_string();
        assert!(message.contains("is stuck"), "{strategy}: {message}");
    }
}
