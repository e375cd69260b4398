//! Runs what an experiment asks for: what is known is not run again, what reads no clock is trained
//! once and timed on every network, and several runs share the machine's cores.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use paceline_job::{Error, Job, PrepareOptions, Prepared, Recipe, Task, Training, simulate};
use paceline_runtime::cluster::{Entry, Tail};
use paceline_runtime::codec::Payload;
use paceline_runtime::{Line, Reader, Record};
use paceline_sim::Scenario;
use paceline_sim::scenario::Pace;

use crate::experiment::Best;
use crate::result::{Kept, Measurement, Results};
use crate::runs::{Run, Runs, SEED_TUNING, Tuning};
use crate::store::{Known, Store};

/// Whoever watches: told how much is ahead, and what has been done.
pub trait Progress: Sync {
    /// So many samples are still to be computed, at most.
    fn ahead(&self, samples: u64);
    fn computed(&self, samples: u64);
}

/// What all runs share.
pub struct Performance<'a> {
    pub recipes: &'a [Recipe],
    pub threads: usize,
    /// The code that ran, and how to run it again.
    pub commit: String,
    pub command: String,
    /// What computing costs here, in place of what the experiment says.
    pub pace: Option<Pace>,
    /// Whether what is known is run again.
    pub fresh: bool,
    pub progress: &'a dyn Progress,
}

/// Why the runs of an experiment could not be started or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerformError {
    #[error("{run}: {error}")]
    Job { run: String, error: Box<Error> },
    #[error("{run}: {problem}")]
    Cluster { run: String, problem: String },
    /// A text of the store, which has no error type yet.
    #[error("{0}")]
    Store(String),
}

impl PerformError {
    /// Whether the experiment is invalid, as opposed to a valid one that failed.
    pub fn is_usage(&self) -> bool {
        !matches!(self, PerformError::Store(_))
    }
}

/// Runs all; gives what came of those that ended, known ones included.
pub fn perform(
    runs: &Runs,
    setting: &Performance,
    store: &mut Store,
) -> Result<Results, PerformError> {
    let tasks = Tasks::default();
    let runs = &paced(runs, setting.pace.as_ref());
    let candidates: Vec<Run> =
        runs.tunings.iter().flat_map(|tuning| tuning.candidates.clone()).collect();
    let mut results = Results::default();
    let mut work = Work { setting, tasks: &tasks, store, failures: vec![] };
    let tuned = runs.tunings.iter().flat_map(|tuning| then(tuning, |run| work.known(run)));
    let later: Vec<Run> = runs.plain.iter().cloned().chain(tuned).collect();
    // What is wrong with the last run is told before the first one runs.
    for run in candidates.iter().chain(&later) {
        if work.known(run).is_none() {
            work.prepare(run)?;
        }
    }
    let samples_later = later.iter().map(|run| work.samples_ahead(run)).sum();
    let tuned = work.run_all(&candidates, samples_later)?;
    let mut rest = runs.plain.clone();
    for tuning in &runs.tunings {
        let (then, remark) = with_best_rate(tuning, &tuned);
        rest.extend(then);
        results.remarks.extend(remark);
    }
    for result in tuned.into_iter().chain(work.run_all(&rest, 0)?) {
        results.add(result);
    }
    results.failures = work.failures;
    Ok(results)
}

/// A run that is asked for, and whether it need not be run again.
pub struct Planned {
    pub run: Run,
    pub is_known: bool,
}

/// All runs, those for finding rates first.
pub fn plan(runs: &Runs, pace: Option<&Pace>, known: &Known) -> Vec<Planned> {
    let runs = paced(runs, pace);
    let candidates = runs.tunings.iter().flat_map(|tuning| tuning.candidates.clone());
    let then = runs.tunings.iter().flat_map(|tuning| then(tuning, |run| known.get(run)));
    let all = candidates.chain(runs.plain.iter().cloned()).chain(then);
    all.map(|run| Planned { is_known: known.get(&run).is_some(), run }).collect()
}

/// What follows a tuning; with its rate, if that is known already.
fn then<'a>(tuning: &Tuning, known: impl Fn(&Run) -> Option<&'a Measurement>) -> Vec<Run> {
    let candidates = tuning.candidates.iter().map(|run| known(run).cloned());
    let known: Option<Vec<Measurement>> = candidates.collect();
    known.map_or_else(|| tuning.then.clone(), |known| with_best_rate(tuning, &known).0)
}

/// The runs that take the best rate, and what is to be said of it.
fn with_best_rate(tuning: &Tuning, tuned: &[Measurement]) -> (Vec<Run>, Option<String>) {
    let first = &tuning.candidates[0];
    let name = first.name.replace(&format!("/{}", first.rate()), "");
    let Some(rate) = best_rate(tuning, tuned) else {
        return (vec![], Some(format!("no learning rate was found for {name}: all runs failed")));
    };
    let others = || tuning.candidates.iter().map(Run::rate).filter(|other| *other != rate);
    let is_inside = others().any(|other| other < rate) && others().any(|other| other > rate);
    let remark = format!("the best learning rate for {name}, {rate}, is at an end of its grid");
    let with_rate = |mut run: Run| {
        run.job.learning_rate = Some(rate);
        run
    };
    let then = tuning.then.iter().cloned().map(with_rate).collect();
    (then, (!is_inside).then_some(remark))
}

/// The runs on clusters that compute at this pace.
fn paced(runs: &Runs, pace: Option<&Pace>) -> Runs {
    let mut runs = runs.clone();
    let tunings = runs.tunings.iter_mut();
    let tuned = tunings.flat_map(|tuning| tuning.candidates.iter_mut().chain(&mut tuning.then));
    for run in runs.plain.iter_mut().chain(tuned) {
        let here = &mut run.scenario.compute;
        if let Some(pace) = pace {
            here.seconds_per_sample = pace.seconds_per_sample;
            here.seconds_per_gradient = pace.seconds_per_gradient;
            here.seconds_per_param = pace.seconds_per_param;
            here.seconds_per_handover = pace.seconds_per_handover;
        }
    }
    runs
}

/// The candidate that does best; none if all failed.
fn best_rate(tuning: &Tuning, results: &[Measurement]) -> Option<f32> {
    let of = |run: &Run| {
        let key = run.key();
        results.iter().find(|result| result.run == run.name && result.key == key)
    };
    let cost = |result: &&Measurement| match tuning.best {
        Best::Time => {
            let metric = |name| result.metric(name).expect("it is one of the metrics");
            (metric("target_time"), metric("loss"))
        }
        Best::Accuracy => (-result.metric("accuracy").expect("it is one of the metrics"), 0.0),
    };
    let candidates = tuning.candidates.iter().filter_map(of);
    let best = candidates.min_by(|a, b| {
        let (a, b) = (cost(a), cost(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    best.map(|result| result.rate)
}

/// Models and data, read once.
#[derive(Default)]
struct Tasks(Mutex<BTreeMap<String, Task>>);

impl Tasks {
    fn of(&self, job: &Job) -> Result<Task, Error> {
        let name = format!(
            "{} {} {:?} {:?} {:?} {}",
            // Some data are made up or changed by chance.
            job.model,
            job.data,
            job.samples,
            job.data_dir,
            job.kernels,
            job.seed
        );
        let mut tasks = self.0.lock().expect("nobody panics here");
        if let Some(task) = tasks.get(&name) {
            return Ok(task.clone());
        }
        let task = Task::of(job)?;
        tasks.insert(name, task.clone());
        Ok(task)
    }
}

struct Work<'a> {
    setting: &'a Performance<'a>,
    tasks: &'a Tasks,
    store: &'a mut Store,
    failures: Vec<String>,
}

/// What has been run so far.
struct Done<'a> {
    results: Vec<Measurement>,
    store: &'a mut Store,
    failures: Vec<String>,
    /// Why nothing more can be kept.
    full: Option<String>,
}

impl Done<'_> {
    fn take_in(&mut self, ended: Result<Measurement, String>) {
        match ended {
            Ok(result) => {
                self.full = self.full.take().or(self.store.add(&result).err());
                self.results.push(result);
            }
            Err(sentence) => self.failures.push(sentence),
        }
    }
}

/// A run, checked; its cluster with the bandwidth that it asks for.
struct Ready {
    run: Run,
    scenario: Scenario,
    prepared: Prepared,
}

/// Runs that learn the same, to be trained once.
type Alike = Vec<Ready>;

impl Work<'_> {
    fn known(&self, run: &Run) -> Option<&Measurement> {
        self.store.known().get(run).filter(|_| !self.setting.fresh)
    }

    /// At most; a guess where the task is not known yet.
    fn samples_ahead(&self, run: &Run) -> u64 {
        if self.known(run).is_some() {
            return 0;
        }
        let task = self.tasks.of(&run.job);
        task.map_or(0, |task| (run.job.epochs * task.train.len() as f64) as u64)
    }

    fn run_all(&mut self, runs: &[Run], later: u64) -> Result<Vec<Measurement>, PerformError> {
        let mut results = Vec::new();
        let mut alike: Vec<Alike> = Vec::new();
        let mut by_training: BTreeMap<String, usize> = BTreeMap::new();
        for run in runs {
            if let Some(known) = self.known(run) {
                results.push(known.clone());
                continue;
            }
            let ready = self.prepare(run)?;
            if !ready.prepared.is_retimable() || !run.is_steady() {
                alike.push(vec![ready]);
                continue;
            }
            let place = *by_training.entry(run.training_key()).or_insert(alike.len());
            if place == alike.len() {
                alike.push(vec![]);
            }
            alike[place].push(ready);
        }
        let samples = |alike: &Alike| alike[0].prepared.plan.samples_total;
        let now: u64 = alike.iter().map(samples).sum();
        self.setting.progress.ahead(now + later);
        // Long ones first, so that no core is left with one at the end.
        alike.sort_by_key(|alike| std::cmp::Reverse(samples(alike)));
        let queue = Mutex::new(VecDeque::from(alike));
        let done = Mutex::new(Done { results, store: self.store, failures: vec![], full: None });
        std::thread::scope(|scope| {
            for _ in 0..self.setting.threads.max(1) {
                scope.spawn(|| {
                    loop {
                        let next = queue.lock().expect("nobody panics here").pop_front();
                        let Some(alike) = next else { return };
                        run_alike(alike, self.setting, &|ended| {
                            let mut done = done.lock().expect("nobody panics here");
                            done.take_in(ended);
                            // Without a place to keep results there is no use in going on.
                            if done.full.is_some() {
                                queue.lock().expect("nobody panics here").clear();
                            }
                        });
                    }
                });
            }
        });
        let done = done.into_inner().expect("nobody panics here");
        let (results, failures, full) = (done.results, done.failures, done.full);
        self.failures.extend(failures);
        full.map_or(Ok(results), |sentence| Err(PerformError::Store(sentence)))
    }

    fn prepare(&self, run: &Run) -> Result<Ready, PerformError> {
        let told =
            |error: Error| PerformError::Job { run: run.name.clone(), error: Box::new(error) };
        let task = self.tasks.of(&run.job).map_err(told)?;
        let (workers, recipes) = (run.scenario.workers, self.setting.recipes);
        let options = PrepareOptions { workers, recipes, task: Some(task) };
        let mut prepared = run.job.prepare_with(options).map_err(told)?;
        prepared.ends_at_target = run.until_target;
        let scenario = with_bandwidth(run, &prepared);
        let scenario =
            scenario.map_err(|problem| PerformError::Cluster { run: run.name.clone(), problem })?;
        Ok(Ready { run: run.clone(), scenario, prepared })
    }
}

/// The cluster where a dense exchange takes `exchange` times as long as the slowest worker's gradient.
fn with_bandwidth(run: &Run, prepared: &Prepared) -> Result<Scenario, String> {
    let mut scenario = run.scenario.clone();
    let (Some(exchange), workers @ 2..) = (run.exchange, scenario.workers as usize) else {
        return Ok(scenario);
    };
    let pace = &scenario.compute;
    let params = prepared.plan.initial.len();
    // Chance makes a gradient longer by half of the most, on average.
    let slowest = pace.relative.iter().copied().fold(0.0, f64::max) * (1.0 + pace.jitter / 2.0);
    let gradient = pace.seconds_per_gradient
        + prepared.batch as f64 * pace.seconds_per_sample
        + params as f64 * pace.seconds_per_param;
    let entry = Entry::Sum { payload: Payload::Dense(vec![0.0; params]), tail: Tail::default() };
    let steps = entry.steps(workers);
    let gradient = slowest * gradient + pace.seconds_per_handover;
    let step = exchange * gradient / f64::from(steps.count);
    let network = &mut scenario.network;
    if step <= network.latency {
        return Err(format!(
            "exchange = {exchange} is less than the latency of {} steps: lower network.latency",
            steps.count
        ));
    }
    network.bytes_per_second = steps.bytes as f64 / (step - network.latency);
    // A worker's own link is then told relative to that.
    for link in &mut network.links {
        link.bytes_per_second *= network.bytes_per_second;
    }
    Ok(scenario)
}

/// The first is trained; the others are what it learned, timed on their own networks.
fn run_alike(alike: Alike, setting: &Performance, done: &dyn Fn(Result<Measurement, String>)) {
    let mut training: Option<Arc<Training>> = None;
    let several = alike.len() > 1;
    for Ready { run, scenario, prepared } in alike {
        let samples_per_epoch = prepared.plan.samples_per_epoch;
        let samples_total = prepared.plan.samples_total;
        let is_retimed = training.is_some();
        let prepared = match &training {
            Some(training) => prepared.retimed(training.clone()),
            None => prepared,
        };
        let (mut kept, mut recorded) = (Kept::default(), Training::default());
        let mut counted = Counted { progress: setting.progress, samples: 0 };
        let mut readers: Vec<&mut dyn Reader> = vec![&mut kept];
        if !is_retimed {
            readers.push(&mut counted);
            if several {
                readers.push(&mut recorded);
            }
        }
        let ended = simulate(&prepared, &scenario, 1, readers);
        if !is_retimed {
            // A run that ends early leaves nothing ahead.
            setting.progress.computed(samples_total.saturating_sub(counted.samples));
        }
        match ended {
            Ok(simulated) => {
                // Nobody draws the runs among which a rate is looked for.
                let is_drawn = run.job.seed != SEED_TUNING;
                let curves =
                    if is_drawn { kept.curves(samples_per_epoch) } else { BTreeMap::new() };
                let mut result = Measurement::new(&run, &simulated.result, curves);
                result.commit = setting.commit.clone();
                result.command =
                    format!("{} --only {:?} --seeds {}", setting.command, run.name, run.job.seed);
                result.retimed = is_retimed;
                done(Ok(result));
                if !is_retimed && several {
                    training = Some(Arc::new(recorded));
                }
            }
            Err(error) => {
                done(Err(format!("{}, seed {}: {error}", run.name, run.job.seed)));
            }
        }
    }
}

/// Tells of every gradient.
struct Counted<'a> {
    progress: &'a dyn Progress,
    samples: u64,
}

impl Reader for Counted<'_> {
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
    fn every_seed_has_data_of_its_own_where_they_come_from_chance() {
        let tasks = Tasks::default();
        let first = |seed| {
            let job = Job { data: "blobs".into(), model: "softmax".into(), seed, ..Job::default() };
            let train = tasks.of(&job).expect("it is sound").train;
            let mut row = vec![0.0; train.features()];
            train.read(0, 0, &mut row);
            row
        };

        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }
}
