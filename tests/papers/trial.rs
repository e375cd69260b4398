//! Runs a job on a simulated cluster and extracts facts from its journal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paceline::job::recipes::Make;
use paceline::learn::{Noise, Quadratic, blobs, net};
use paceline::runtime::Spans;
use paceline::sim::scenario::RingModel;
use paceline::{
    Dataset, Job, Line, Optimizer, PrepareOptions, Prepared, Reader, Recipe, Record, Scenario,
    Shape, SimulateOptions, Simulated, Task, Vector, simulate,
};

use crate::probe::{Probe, REPLICA, Start};

/// A recipe with plain SGD at a constant learning rate; each test changes what it needs.
pub fn job(strategy: &str) -> Job {
    Job {
        strategy: strategy.into(),
        batch: Some(8),
        learning_rate: Some(0.1),
        schedule: Shape::Constant,
        optimizer: Some(Optimizer::plain()),
        ..Job::default()
    }
}

/// The time of a sample on a worker of relative pace 1, in virtual seconds.
pub const SAMPLE: f64 = 1e-3;

/// Workers of these paces; exchanges, updates and the fixed part of gradients take no time.
pub fn cluster(relative: &[f64]) -> Scenario {
    let mut scenario = Scenario { workers: relative.len() as u32, ..Scenario::default() };
    scenario.compute.seconds_per_sample = SAMPLE;
    scenario.compute.seconds_per_gradient = 0.0;
    scenario.compute.seconds_per_param = 0.0;
    scenario.compute.relative = relative.to_vec();
    scenario.network.latency = 0.0;
    scenario.network.bytes_per_second = 1e15;
    scenario
}

/// The same cluster, but a sum takes `seconds` after all members have entered it.
pub fn with_exchange(mut scenario: Scenario, seconds: f64) -> Scenario {
    scenario.network.latency = seconds / f64::from(2 * (scenario.workers - 1));
    scenario.network.sums = RingModel::ClosedForm;
    scenario
}

/// A linear model on `samples` points in four classes.
pub fn points(samples: usize, seed: u64) -> Task {
    let train = Arc::new(blobs(samples, 4, 4, seed, 0.5));
    let model = Arc::new(net::softmax(train.features(), train.classes()));
    Task { model, validation: None, test: train.clone(), train }
}

/// A quadratic with these curvatures and noisy gradients.
pub fn quadratic(curvature: Vec<f32>, noise: f32, samples: u64) -> Task {
    let model = Arc::new(Quadratic { curvature, noise });
    Task {
        model,
        train: Arc::new(Noise { len: samples }),
        validation: None,
        test: Arc::new(Noise { len: 1 }),
    }
}

pub fn prepare(job: &Job, scenario: &Scenario, task: &Task) -> Prepared {
    let mut prepared = job
        .prepare_with(PrepareOptions {
            task: Some(task.clone()),
            ..PrepareOptions::new(scenario.workers)
        })
        .expect("the job is valid");
    prepared.plan.fingerprints = true;
    prepared
}

/// Runs a job unchanged.
pub fn run(job: &Job, scenario: &Scenario, task: &Task) -> Run {
    Run::of(prepare(job, scenario, task), scenario)
}

/// Runs a job with a probe in every replica.
pub fn run_probed(job: &Job, scenario: &Scenario, task: &Task, start: Start) -> Run {
    let bare = prepare(job, scenario, task);
    let (plan, inner) = (bare.plan.clone(), bare.clone());
    let make = move |_, _| Box::new(Probe { inner: inner.strategy(), start }) as _;
    let optimizer = plan.optimizer.clone();
    let probed = Recipe {
        name: job.strategy.clone(),
        summary: String::new(),
        paper: String::new(),
        make: Make::Own(Arc::new(make)),
        learning_rate: plan.schedule.base,
        optimizer,
    };
    let job = Job { choices: None, ..job.clone() };
    let prepared = job.prepare_with(PrepareOptions {
        recipes: &[probed],
        task: Some(task.clone()),
        ..PrepareOptions::new(scenario.workers)
    });
    let mut prepared = prepared.expect("the job is valid");
    prepared.plan = plan;
    Run::of(prepared, scenario)
}

/// A run and its journal.
pub struct Run {
    pub prepared: Prepared,
    pub simulated: Simulated,
    pub lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    pub at: Duration,
    pub version: u64,
    pub spans: Spans,
    pub staleness: u64,
    pub rate: f32,
}

/// A worker's entry to an exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entered {
    pub at: Duration,
    pub round: u64,
    pub samples: u64,
}

#[derive(Default)]
struct Lines(Vec<Line>);

impl Reader for Lines {
    fn read(&mut self, line: &Line) {
        self.0.push(line.clone());
    }
}

impl Run {
    fn of(prepared: Prepared, scenario: &Scenario) -> Run {
        let mut lines = Lines::default();
        let simulated = simulate(
            &prepared,
            scenario,
            SimulateOptions { readers: vec![&mut lines], ..Default::default() },
        );
        let simulated = simulated.unwrap_or_else(|failure| panic!("{failure}"));
        Run { prepared, simulated, lines: lines.0 }
    }

    pub fn params(&self) -> &Vector {
        self.simulated.params.as_ref().expect("a run ends with params")
    }

    pub fn seconds(&self) -> f64 {
        self.simulated.result.seconds()
    }

    /// What a worker applied. The journal has one line for the result of an exchange; each member takes it when the
    /// exchange ends for it.
    pub fn applied(&self, by: u32) -> Vec<Applied> {
        let update = |at, record: &Record| match record {
            Record::Applied { version, spans, staleness, rate, .. } => {
                let (version, staleness, rate) = (*version, *staleness, *rate);
                Some(Applied { at, version, spans: spans.clone(), staleness, rate })
            }
            _ => None,
        };
        let results: BTreeMap<(u64, u64), &Record> = self
            .lines
            .iter()
            .filter_map(|line| match &line.record {
                Record::Applied { result: Some(name), .. } => {
                    Some(((name.exchange, name.view), &line.record))
                }
                _ => None,
            })
            .collect();
        self.collect(|at, record| match record {
            Record::Applied { who, result: None, .. } if who.0 == by => update(at, record),
            Record::Exchanged { who, view, exchange, .. } if who.0 == by => {
                results.get(&(*exchange, *view)).and_then(|record| update(at, record))
            }
            _ => None,
        })
    }

    pub fn entered(&self, by: u32) -> Vec<Entered> {
        self.collect(|at, record| match record {
            Record::Entered { who, round, samples, .. } if who.0 == by => {
                Some(Entered { at, round: *round, samples: *samples })
            }
            _ => None,
        })
    }

    /// The times at which a worker's rounds ended.
    pub fn committed(&self, by: u32) -> Vec<Duration> {
        self.collect(|at, record| match record {
            Record::Committed { who, .. } if who.0 == by => Some(at),
            _ => None,
        })
    }

    /// The number of each of a worker's rounds, with its replica's fingerprint after it.
    pub fn fingerprints(&self, by: u32) -> Vec<(u64, u64)> {
        self.collect(|_, record| match record {
            Record::Committed { who, round, fingerprint } if who.0 == by => {
                Some((*round, fingerprint.expect("plan.fingerprints is set")))
            }
            _ => None,
        })
    }

    pub fn notes(&self, by: u32, wanted: &str) -> Vec<f64> {
        self.collect(|_, record| match record {
            Record::Note { who, name, value, .. } if who.0 == by && name == wanted => Some(*value),
            _ => None,
        })
    }

    /// A probed worker's replica: at the start, and after each round.
    pub fn replicas(&self, by: u32) -> Vec<Vector> {
        let numbers: Vec<f32> = self.notes(by, REPLICA).iter().map(|x| *x as f32).collect();
        numbers.chunks(self.prepared.plan.initial.len()).map(Vector::from).collect()
    }

    /// Whether the updates of a worker contain every sample of the job exactly once.
    pub fn applies_every_sample_once(&self, worker: u32) -> bool {
        let mut seen = Spans::new();
        let once = self.applied(worker).iter().all(|applied| {
            let fresh = seen.overlap(&applied.spans).is_empty();
            seen.add(&applied.spans);
            fresh
        });
        once && seen == Spans::one(0, self.prepared.plan.samples_total)
    }

    /// The largest difference of any update of a probed worker with plain SGD from a serial computation:
    /// x_(t+1) = x_t - rate x mean gradient at x_(t - staleness) over exactly the update's samples.
    pub fn error_against_serial(&self, worker: u32) -> f64 {
        let (applied, replicas) = (self.applied(worker), self.replicas(worker));
        // The first round of a pipeline fills it and leaves the replica unchanged.
        let replicas = &replicas[replicas.len() - applied.len() - 1..];
        assert_eq!(replicas[0], *self.prepared.plan.initial);
        let updates = applied.iter().zip(replicas.windows(2)).enumerate();
        let errors = updates.filter(|(_, (update, _))| !update.spans.is_empty());
        let errors = errors.map(|(t, (update, x))| {
            let at = &replicas[t - update.staleness as usize];
            let gradient = self.mean_gradient(at, &update.spans);
            let step = |(x, g): (&f32, &f64)| (f64::from(*x) - f64::from(update.rate) * g) as f32;
            let serial: Vector = x[0].iter().zip(&gradient).map(step).collect();
            distance(&serial, &x[1])
        });
        errors.fold(0.0, f64::max)
    }

    pub fn collect<T>(&self, pick: impl Fn(Duration, &Record) -> Option<T>) -> Vec<T> {
        self.lines.iter().filter_map(|line| pick(line.at, &line.record)).collect()
    }

    pub fn workers(&self) -> std::ops::Range<u32> {
        0..self.prepared.workers
    }

    /// The mean gradient over the samples at these positions, computed serially.
    pub fn mean_gradient(&self, params: &[f32], spans: &Spans) -> Vec<f64> {
        let compute = self.prepared.task.compute(self.prepared.plan.seed);
        let gradient = compute(&Arc::new(params.into()), spans, &mut Default::default());
        let samples = gradient.samples as f64;
        gradient.sum.iter().map(|sum| f64::from(*sum) / samples).collect()
    }
}

/// The largest difference of two vectors in any coordinate.
pub fn distance(x: &[f32], y: &[f32]) -> f64 {
    assert_eq!(x.len(), y.len());
    x.iter().zip(y).map(|(x, y)| f64::from((x - y).abs())).fold(0.0, f64::max)
}

/// The mean and its standard error.
pub fn mean(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}
