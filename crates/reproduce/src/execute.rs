//! Executes the runs of an experiment.
//!
//! Runs with a stored result are skipped. A strategy that does not read the clock is trained once and then only
//! timed on the other networks. Several runs execute in parallel, one per thread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use paceline_job::{
    Job, PrepareOptions, Prepared, Recipe, SimulateOptions, Task, Training, simulate,
};
use paceline_learn::Vector;
use paceline_runtime::codec::Payload;
use paceline_runtime::wire::{Entry, Tail};
use paceline_runtime::{Line, Reader, Record};
use paceline_sim::Scenario;
use paceline_sim::scenario::Pace;

use crate::error::{ExecuteError, RunFailure, StoreError};
use crate::experiment::Best;
use crate::result::{CurveRecorder, Measurement, Results};
use crate::runs::{Run, Runs, SEED_TUNING, Tuning};
use crate::store::{KnownResults, Store};

/// Receives the progress of all runs.
pub trait Progress: Sync {
    /// At most this many samples remain to be computed.
    fn ahead(&self, samples: u64);
    /// This many samples have been computed.
    fn computed(&self, samples: u64);
}

/// Settings that apply to all runs of an experiment.
pub struct RunContext<'a> {
    pub recipes: &'a [Recipe],
    /// The number of runs that execute in parallel.
    pub threads: usize,
    /// The version of the code, stored with every result.
    pub commit: String,
    /// The command line of the experiment, from which a result's own command is derived.
    pub command: String,
    /// The cost of computing, replacing that of the experiment's scenarios.
    pub pace: Option<Pace>,
    /// Whether to ignore stored results.
    pub fresh: bool,
    pub progress: &'a dyn Progress,
}

/// Executes all runs; returns their results, including stored ones. A run that fails is listed in `failures`.
pub fn execute(
    runs: &Runs,
    context: &RunContext,
    store: &mut Store,
) -> Result<Results, ExecuteError> {
    let tasks = Tasks::default();
    let runs = &with_pace(runs, context.pace.as_ref());
    let candidates: Vec<Run> =
        runs.tunings.iter().flat_map(|tuning| tuning.candidates.clone()).collect();
    let mut results = Results::default();
    let mut runner = Runner { context, tasks: &tasks, store, failures: vec![] };
    let tuned = runs.tunings.iter().flat_map(|tuning| follow_ups(tuning, |run| runner.known(run)));
    let later: Vec<Run> = runs.plain.iter().cloned().chain(tuned).collect();
    // All runs are checked before the first one starts.
    for run in candidates.iter().chain(&later) {
        if runner.known(run).is_none() {
            runner.prepare(run)?;
        }
    }
    let samples_later = later.iter().map(|run| runner.samples_ahead(run)).sum();
    let tuned = runner.run_all(&candidates, samples_later)?;
    let mut rest = runs.plain.clone();
    for tuning in &runs.tunings {
        let (then, remark) = with_best_rate(tuning, &tuned);
        rest.extend(then);
        results.remarks.extend(remark);
    }
    for result in tuned.into_iter().chain(runner.run_all(&rest, 0)?) {
        results.add(result);
    }
    results.failures = runner.failures;
    Ok(results)
}

/// A run of the experiment, and whether its result is stored.
pub struct Planned {
    pub run: Run,
    pub is_known: bool,
}

/// All runs of the experiment, those that tune learning rates first.
pub fn plan(runs: &Runs, pace: Option<&Pace>, known: &KnownResults) -> Vec<Planned> {
    let runs = with_pace(runs, pace);
    let candidates = runs.tunings.iter().flat_map(|tuning| tuning.candidates.clone());
    let tuned = runs.tunings.iter().flat_map(|tuning| follow_ups(tuning, |run| known.get(run)));
    let all = candidates.chain(runs.plain.iter().cloned()).chain(tuned);
    all.map(|run| Planned { is_known: known.get(&run).is_some(), run }).collect()
}

/// The runs that follow a tuning; with the best rate, if all candidates have stored results.
fn follow_ups<'a>(tuning: &Tuning, known: impl Fn(&Run) -> Option<&'a Measurement>) -> Vec<Run> {
    let candidates = tuning.candidates.iter().map(|run| known(run).cloned());
    let known: Option<Vec<Measurement>> = candidates.collect();
    known.map_or_else(|| tuning.then.clone(), |known| with_best_rate(tuning, &known).0)
}

/// The runs with the best learning rate, and a remark if that rate is doubtful.
fn with_best_rate(tuning: &Tuning, tuned: &[Measurement]) -> (Vec<Run>, Option<String>) {
    let first = &tuning.candidates[0];
    let name = first.name.replace(&format!("/{}", first.rate()), "");
    let Some(rate) = best_rate(tuning, tuned) else {
        return (vec![], Some(format!("no learning rate was found for {name}: all runs failed")));
    };
    let others = || tuning.candidates.iter().map(Run::rate).filter(|other| *other != rate);
    let is_inside = others().any(|other| other < rate) && others().any(|other| other > rate);
    let remark = format!("the best learning rate for {name}, {rate}, is at the edge of the grid");
    let with_rate = |mut run: Run| {
        run.job.learning_rate = Some(rate);
        run
    };
    let then = tuning.then.iter().cloned().map(with_rate).collect();
    (then, (!is_inside).then_some(remark))
}

/// The runs with the cost of computing replaced by `pace`.
fn with_pace(runs: &Runs, pace: Option<&Pace>) -> Runs {
    let mut runs = runs.clone();
    let tunings = runs.tunings.iter_mut();
    let tuned = tunings.flat_map(|tuning| tuning.candidates.iter_mut().chain(&mut tuning.then));
    for run in runs.plain.iter_mut().chain(tuned) {
        let here = &mut run.scenario.compute;
        if let Some(pace) = pace {
            here.seconds_per_sample = pace.seconds_per_sample;
            here.seconds_per_gradient = pace.seconds_per_gradient;
            here.seconds_per_param = pace.seconds_per_param;
            here.seconds_per_encoded = pace.seconds_per_encoded;
            here.seconds_per_handover = pace.seconds_per_handover;
        }
    }
    runs
}

/// The learning rate of the best candidate; `None` if all of them failed.
fn best_rate(tuning: &Tuning, results: &[Measurement]) -> Option<f32> {
    let of = |run: &Run| {
        let key = run.key();
        results.iter().find(|result| result.run == run.name && result.key == key)
    };
    let cost = |result: &&Measurement| match tuning.best {
        Best::Time => {
            let metric = |name| result.metric(name).expect("the metric exists");
            (metric("target_time"), metric("loss"))
        }
        Best::Accuracy => (-result.metric("accuracy").expect("the metric exists"), 0.0),
    };
    let candidates = tuning.candidates.iter().filter_map(of);
    let best = candidates.min_by(|a, b| {
        let (a, b) = (cost(a), cost(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    best.map(|result| result.rate)
}

/// Models and data sets, loaded once and shared by all runs.
#[derive(Default)]
struct Tasks(Mutex<BTreeMap<String, Task>>);

impl Tasks {
    /// The task of a job; `run` is the name of the run, for error messages.
    fn get(&self, run: &str, job: &Job) -> Result<Task, ExecuteError> {
        let key = format!(
            "{} {} {:?} {:?} {:?} {}",
            job.model,
            job.data,
            job.samples,
            job.data_dir,
            job.kernels,
            // Synthetic and augmented data depend on the seed.
            job.seed
        );
        let mut tasks = self.0.lock().expect(NOT_POISONED);
        if let Some(task) = tasks.get(&key) {
            return Ok(task.clone());
        }
        let invalid = |message| ExecuteError::Job { run: run.to_owned(), message };
        let task = Task::of(job).map_err(|error| invalid(error.to_string()))?;
        tasks.insert(key, task.clone());
        Ok(task)
    }
}

struct Runner<'a> {
    context: &'a RunContext<'a>,
    tasks: &'a Tasks,
    store: &'a mut Store,
    failures: Vec<RunFailure>,
}

/// The runs that have ended so far, shared by all threads.
struct Finished<'a> {
    results: Vec<Measurement>,
    store: &'a mut Store,
    failures: Vec<RunFailure>,
    /// The first error of the store; after it no result can be stored.
    store_error: Option<StoreError>,
}

impl Finished<'_> {
    fn record(&mut self, ended: Result<Measurement, RunFailure>) {
        match ended {
            Ok(result) => {
                self.store_error = self.store_error.take().or(self.store.add(&result).err());
                self.results.push(result);
            }
            Err(failure) => self.failures.push(failure),
        }
    }
}

/// A run whose job is checked and whose scenario has its bandwidth.
struct PreparedRun {
    run: Run,
    scenario: Scenario,
    prepared: Prepared,
}

/// Runs that share one training: they differ only in timing.
type SharedTraining = Vec<PreparedRun>;

impl Runner<'_> {
    fn known(&self, run: &Run) -> Option<&Measurement> {
        self.store.known().get(run).filter(|_| !self.context.fresh)
    }

    /// An upper bound of the samples that this run computes; 0 if its result is stored.
    fn samples_ahead(&self, run: &Run) -> u64 {
        if self.known(run).is_some() {
            return 0;
        }
        let task = self.tasks.get(&run.name, &run.job);
        task.map_or(0, |task| (run.job.epochs * task.train.len() as f64) as u64)
    }

    /// Executes the runs that have no stored result; `later` samples follow in another call.
    fn run_all(&mut self, runs: &[Run], later: u64) -> Result<Vec<Measurement>, ExecuteError> {
        let (results, mut trainings) = self.group_by_training(runs)?;
        let samples = |training: &SharedTraining| training[0].prepared.plan.samples_total;
        let now: u64 = trainings.iter().map(samples).sum();
        self.context.progress.ahead(now + later);
        // The longest first, so that no core is left with a long one at the end.
        trainings.sort_by_key(|training| std::cmp::Reverse(samples(training)));
        let queue = Mutex::new(VecDeque::from(trainings));
        let finished = Finished { results, store: self.store, failures: vec![], store_error: None };
        let finished = Mutex::new(finished);
        std::thread::scope(|scope| {
            for _ in 0..self.context.threads.max(1) {
                scope.spawn(|| {
                    loop {
                        let next = queue.lock().expect(NOT_POISONED).pop_front();
                        let Some(training) = next else { return };
                        run_training(training, self.context, &|ended| {
                            let mut finished = finished.lock().expect(NOT_POISONED);
                            finished.record(ended);
                            // Results that cannot be stored would be lost.
                            if finished.store_error.is_some() {
                                queue.lock().expect(NOT_POISONED).clear();
                            }
                        });
                    }
                });
            }
        });
        let Finished { results, failures, store_error, .. } =
            finished.into_inner().expect(NOT_POISONED);
        self.failures.extend(failures);
        store_error.map_or(Ok(results), |error| Err(error.into()))
    }

    /// Splits the runs into stored results and trainings that are still to be done.
    fn group_by_training(
        &self,
        runs: &[Run],
    ) -> Result<(Vec<Measurement>, Vec<SharedTraining>), ExecuteError> {
        let mut results = Vec::new();
        let mut trainings: Vec<SharedTraining> = Vec::new();
        let mut by_key: BTreeMap<String, usize> = BTreeMap::new();
        for run in runs {
            if let Some(known) = self.known(run) {
                results.push(known.clone());
                continue;
            }
            let prepared = self.prepare(run)?;
            if !prepared.prepared.is_retimable() || !run.is_steady() {
                trainings.push(vec![prepared]);
                continue;
            }
            let place = *by_key.entry(run.training_key()).or_insert(trainings.len());
            if place == trainings.len() {
                trainings.push(vec![]);
            }
            trainings[place].push(prepared);
        }
        Ok((results, trainings))
    }

    fn prepare(&self, run: &Run) -> Result<PreparedRun, ExecuteError> {
        let invalid = |message| ExecuteError::Job { run: run.name.clone(), message };
        let task = self.tasks.get(&run.name, &run.job)?;
        let checked = run.job.prepare_with(PrepareOptions {
            workers: run.scenario.workers,
            recipes: self.context.recipes,
            task: Some(task),
        });
        let mut prepared = checked.map_err(|error| invalid(error.to_string()))?;
        prepared.ends_at_target = run.until_target;
        let scenario = with_bandwidth(run, &prepared)?;
        Ok(PreparedRun { run: run.clone(), scenario, prepared })
    }
}

const NOT_POISONED: &str = "no thread panics while it holds the lock";

/// The scenario with the bandwidth for which a dense exchange takes `exchange` times as long as the slowest
/// worker's gradient.
fn with_bandwidth(run: &Run, prepared: &Prepared) -> Result<Scenario, ExecuteError> {
    let mut scenario = run.scenario.clone();
    let (Some(exchange), workers @ 2..) = (run.exchange, scenario.workers as usize) else {
        return Ok(scenario);
    };
    let pace = &scenario.compute;
    let params = prepared.plan.initial.len();
    // Jitter lengthens a gradient by half of its maximum on average.
    let slowest = pace.relative.iter().copied().fold(0.0, f64::max) * (1.0 + pace.jitter / 2.0);
    let gradient = pace.seconds_per_gradient
        + prepared.batch as f64 * pace.seconds_per_sample
        + params as f64 * pace.seconds_per_param;
    let entry =
        Entry::Sum { payload: Payload::dense(Vector::zeros(params)).into(), tail: Tail::default() };
    let steps = entry.steps(workers);
    let gradient = slowest * gradient + pace.seconds_per_handover;
    let step = exchange * gradient / f64::from(steps.count);
    let network = &mut scenario.network;
    if step <= network.latency {
        let (run, steps) = (run.name.clone(), steps.count);
        return Err(ExecuteError::ExchangeTooShort { run, exchange, steps });
    }
    network.bytes_per_second = steps.bytes as f64 / (step - network.latency);
    // Bandwidths of single links are relative to the network's.
    for link in &mut network.links {
        link.bytes_per_second *= network.bytes_per_second;
    }
    Ok(scenario)
}

/// Trains the first run; the others reuse its training and are only timed on their own networks.
fn run_training(
    runs: SharedTraining,
    context: &RunContext,
    ended: &dyn Fn(Result<Measurement, RunFailure>),
) {
    let mut training: Option<Arc<Training>> = None;
    let several = runs.len() > 1;
    for PreparedRun { run, scenario, prepared } in runs {
        let samples_per_epoch = prepared.plan.samples_per_epoch;
        let samples_total = prepared.plan.samples_total;
        let is_retimed = training.is_some();
        let prepared = match &training {
            Some(training) => prepared.retimed(training.clone()),
            None => prepared,
        };
        let (mut curves, mut recorded) = (CurveRecorder::default(), Training::default());
        let mut counter = ProgressCounter { progress: context.progress, samples: 0 };
        let mut readers: Vec<&mut dyn Reader> = vec![&mut curves];
        if !is_retimed {
            readers.push(&mut counter);
            if several {
                readers.push(&mut recorded);
            }
        }
        let simulated =
            simulate(&prepared, &scenario, SimulateOptions { readers, ..Default::default() });
        if !is_retimed {
            // A run may end before it has computed all of its samples.
            context.progress.computed(samples_total.saturating_sub(counter.samples));
        }
        match simulated {
            Ok(simulated) => {
                // Figures never show the runs that tune a learning rate.
                let is_drawn = run.job.seed != SEED_TUNING;
                let curves =
                    if is_drawn { curves.curves(samples_per_epoch) } else { BTreeMap::new() };
                let mut result = Measurement::new(&run, &simulated.result, curves);
                result.commit = context.commit.clone();
                result.command =
                    format!("{} --only {:?} --seeds {}", context.command, run.name, run.job.seed);
                result.retimed = is_retimed;
                ended(Ok(result));
                if !is_retimed && several {
                    training = Some(Arc::new(recorded));
                }
            }
            Err(failure) => {
                let (run, seed) = (run.name, run.job.seed);
                ended(Err(RunFailure { run, seed, message: failure.to_string() }));
            }
        }
    }
}

/// Reports the samples of every gradient.
struct ProgressCounter<'a> {
    progress: &'a dyn Progress,
    samples: u64,
}

impl Reader for ProgressCounter<'_> {
    fn read(&mut self, line: &Line) {
        if let Record::Computed { samples, .. } = &line.record {
            self.samples += samples;
            self.progress.computed(*samples);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synthetic_data_differ_between_seeds() {
        let tasks = Tasks::default();
        let first = |seed| {
            let job = Job { data: "blobs".into(), model: "softmax".into(), seed, ..Job::default() };
            let train = tasks.get("a run", &job).expect("the job is valid").train;
            let mut row = vec![0.0; train.features()];
            train.read(0, 0, &mut row);
            row
        };

        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }
}
