//! Runs a job on real threads of this process.

mod faults;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_learn::Vector;
use paceline_net::{StartHost, ThreadCluster, ThreadConfig, ThreadHub};
use paceline_runtime::edge::ClusterOutput;
use paceline_runtime::{
    Executor, HostLine, Reader, SavePlan, Snapshot, Stuck, WorkerId, train as run_worker,
};
use paceline_sim::Scenario;

use crate::checkpoint::{Saved, Saving, Writer};
use crate::error::{Error, JobError, RunError, ScenarioError};
use crate::hosts::{Hosts, ROUNDS_AHEAD, check_resumed, hosted};
use crate::job::Prepared;
use crate::pace;
use crate::run::evaluator::Evaluator;
use crate::run::observer::Observer;
use crate::run::{Deployed, Next, Request, Requests, Running, SaveRequests, Watch};
use crate::run_result::RunResult;
use faults::Faults;

/// Options of [`train`].
#[derive(Default)]
pub struct TrainOptions<'a> {
    /// Emulated speeds of the workers, repeated if there are more workers; 4 is four times as fast
    /// as 1. Empty: every worker runs at full speed.
    pub speeds: Vec<f64>,
    /// The time per sample of the fastest worker, if speeds are emulated; measured if omitted.
    pub pace: Option<Duration>,
    /// When it is set, all workers finish their round and the job ends there.
    pub stop: Arc<AtomicBool>,
    /// Where and when checkpoints are written: periodically, when the job is stopped, and at its end.
    pub saving: Option<&'a Saving>,
    /// Faults that workers and the coordinator suffer while they train, in real time. Of a scenario, its crashes,
    /// leaves, joins, sizes, pauses and churn count, and when its coordinator is killed or away; its pace and
    /// network do not.
    pub faults: Option<Scenario>,
    /// What the user asks of single workers meanwhile.
    pub requests: Option<Requests>,
    /// They get every line of the journal.
    pub readers: Vec<&'a mut dyn Reader>,
}

/// The result of a run, and the parameters it ended with.
pub struct Trained {
    pub result: RunResult,
    /// The center, or the mean of the replicas.
    pub params: Option<Arc<Vector>>,
    /// The replica of each member at the end.
    pub replicas: BTreeMap<WorkerId, Arc<Vector>>,
    pub center: Option<Arc<Vector>>,
    /// Its checkpoints; `None` if it made none.
    pub saved: Option<Saved>,
}

const WORKERS_MAX: u32 = 1024;

/// Trains on threads of this process.
pub fn train(prepared: &Prepared, options: TrainOptions<'_>) -> Result<Trained, Error> {
    run(prepared, options, None)
}

/// Trains on threads of this process with replicas that hosts hold. `host` runs on a thread of its own for each worker that
/// starts, and answers what the worker asks until its line ends. A host has its own speed: none is emulated.
pub fn train_hosted(
    prepared: &Prepared,
    options: TrainOptions<'_>,
    host: impl Fn(HostLine) + Send + Sync + 'static,
) -> Result<Trained, Error> {
    let hosts = Hosts::new(host);
    let mut prepared = hosted(prepared);
    prepared.plan.rounds_ahead = ROUNDS_AHEAD;
    let trained = run(&prepared, options, Some(&hosts));
    if trained.is_ok() {
        hosts.join()?
    } else {
        hosts.join_ended()?
    }
    trained
}

fn run(
    prepared: &Prepared,
    options: TrainOptions<'_>,
    hosts: Option<&Hosts>,
) -> Result<Trained, Error> {
    let TrainOptions { speeds, pace, stop, saving, faults, requests, readers } = options;
    pace::check_speeds(&speeds)?;
    check_resumed(prepared)?;
    let faults = faults.map(|faults| Scenario { workers: prepared.workers, ..faults });
    if let Some(faults) = &faults {
        faults.check().map_err(ScenarioError::from)?;
        faults::check(faults)?;
    }
    if prepared.workers > WORKERS_MAX {
        let workers = prepared.workers;
        return Err(JobError::TooManyThreads { workers, most: WORKERS_MAX }.into());
    }
    let coordination = prepared.strategy().coordination();
    let mut prepared = prepared.clone();
    let writer = saving.map(|saving| Writer::start(saving, &prepared, &speeds));
    let writer = writer.transpose()?;
    let every_rounds = saving.and_then(|saving| saving.checkpoints.rounds);
    let members_min = faults.as_ref().and_then(|faults| faults.coordinator.members_min);
    prepared.plan.members_min = members_min.unwrap_or(1) as usize;
    prepared.plan.saves = saving.map(|_| SavePlan { every_rounds });
    let prepared = &prepared;
    let compute = prepared.task.compute(prepared.plan.seed);
    let pace = paces(prepared, &speeds, pace);
    let done = |snapshot: &Arc<Snapshot>| snapshot.done.clone();
    let (hub, outputs) = ThreadHub::new(ThreadConfig {
        seed: prepared.plan.seed,
        workers: prepared.workers,
        compute,
        samples_total: prepared.plan.samples_total,
        coordination,
        done: prepared.plan.resumed.as_ref().map(done).unwrap_or_default(),
        elapsed: prepared.past.time,
        pace,
        hosts: hosts.cloned().map(|hosts| -> StartHost { Box::new(move |line| hosts.start(line)) }),
        elastic: faults.as_ref().map(faults::elastic),
    });
    let evaluator = Evaluator::background(prepared.task.clone());
    let observer = Observer::new(prepared, (coordination, evaluator), readers);
    let started = Instant::now();
    let crew = Arc::new(Crew::new(prepared.clone(), hub.clone()));
    (0..prepared.workers).for_each(|_| _ = crew.start_worker());
    let can_lose_members = faults.is_some();
    let mut run = ThreadRun { crew: crew.clone(), outputs, can_lose_members };
    let fate = faults.map(|faults| crew.suffer(Faults::new(&faults, prepared.plan.seed)));
    let save_requests = saving.map(|saving| SaveRequests::new(saving, coordination));
    let mut watch = Watch { observer, writer, save_requests, requests, stopped: false };
    let ended = watch.until_ended(&mut run, &stop);
    crew.end();
    fate.map(JoinHandle::join);
    ended?;
    let joined = crew.join();
    let seconds = (prepared.past.time + started.elapsed()).as_secs_f64();
    // Also after a failure: the last snapshot is what the user can resume from.
    let saved = watch.writer.map(Writer::finish);
    joined?;
    if !hub.is_over() {
        return Err(RunError::Stuck(Stuck { waiting: vec![] }).into());
    }
    let deployed = Deployed::new(&hub.shelves(), &watch.observer.totals.members, coordination);
    let params = deployed.params();
    let mut result = watch.observer.conclude(prepared, watch.stopped, &stop, params.clone());
    result.real_seconds = Some(seconds);
    result.stopped = stop.load(Ordering::Relaxed) && result.samples < prepared.plan.samples_total;
    let Deployed { replicas, center } = deployed;
    Ok(Trained { result, params, replicas, center, saved })
}

pub(crate) type Worker = JoinHandle<Result<(), RunError>>;

/// Starts a thread on which a worker lives its whole life.
pub(crate) fn start_worker(prepared: &Prepared, cluster: ThreadCluster) -> Worker {
    let (id, life, prepared) = (cluster.id(), cluster.life(), prepared.clone());
    std::thread::Builder::new()
        .name(format!("worker-{id}"))
        .spawn(move || {
            let plan = Arc::new(prepared.plan.clone());
            let mut executor = Executor::new(Box::new(cluster));
            let ended = executor
                .run(&mut |port| Box::pin(run_worker(plan.clone(), port, prepared.strategy())));
            match ended {
                Err(stuck) if !life.is_killed() => Err(RunError::WorkerStuck { worker: id, stuck }),
                _ => Ok(()),
            }
        })
        .expect("the system can start another thread")
}

/// The workers of a run: those it began with, and those that joined.
struct Crew {
    prepared: Prepared,
    hub: Arc<ThreadHub>,
    workers: Mutex<Vec<Worker>>,
    /// Whether a worker may still join when no other one is left.
    expects: AtomicBool,
    ended: AtomicBool,
}

impl Crew {
    fn new(prepared: Prepared, hub: Arc<ThreadHub>) -> Crew {
        let (workers, expects, ended) = (Mutex::default(), false.into(), false.into());
        Crew { prepared, hub, workers, expects, ended }
    }

    /// A worker joins; `None` while the coordinator is away.
    fn start_worker(&self) -> Option<WorkerId> {
        let cluster = self.hub.join()?;
        let id = cluster.id();
        let worker = start_worker(&self.prepared, cluster);
        self.workers.lock().expect("no holder panics").push(worker);
        Some(id)
    }

    /// Starts the thread on which faults happen.
    fn suffer(self: &Arc<Crew>, faults: Faults) -> JoinHandle<()> {
        let crew = self.clone();
        self.expect(true);
        std::thread::Builder::new()
            .name("faults".to_owned())
            .spawn(move || faults.happen(&crew))
            .expect("the system can start another thread")
    }

    fn expect(&self, workers: bool) {
        self.expects.store(workers, Ordering::SeqCst);
    }

    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Whether no worker runs, and none will join.
    fn is_gone(&self) -> bool {
        let expects = self.expects.load(Ordering::SeqCst) && !self.hub.is_over();
        let workers = self.workers.lock().expect("no holder panics");
        !expects && workers.iter().all(JoinHandle::is_finished)
    }

    fn join(&self) -> Result<(), RunError> {
        for worker in std::mem::take(&mut *self.workers.lock().expect("no holder panics")) {
            match worker.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(RunError::WorkerPanicked),
            }
        }
        Ok(())
    }
}

/// A run on threads.
struct ThreadRun {
    crew: Arc<Crew>,
    outputs: Receiver<ClusterOutput>,
    can_lose_members: bool,
}

impl Running for ThreadRun {
    fn next(&mut self) -> Result<Next, RunError> {
        Ok(match self.outputs.recv_timeout(Duration::from_millis(20)) {
            Ok(output) => Next::Output(output),
            Err(RecvTimeoutError::Disconnected) => Next::Ended,
            Err(RecvTimeoutError::Timeout) if self.crew.is_gone() => {
                // The last worker may have put something out since.
                self.outputs.try_recv().map_or(Next::Ended, Next::Output)
            }
            Err(RecvTimeoutError::Timeout) => Next::Idle,
        })
    }

    fn stop(&mut self) {
        self.crew.hub.stop();
    }

    fn save(&mut self) {
        self.crew.hub.save();
    }

    fn put_out(&mut self, request: Request) -> Result<(), String> {
        if !self.can_lose_members {
            return Err("threads stay to the end, unless the run rehearses faults".to_owned());
        }
        match request {
            Request::Save => self.save(),
            Request::PutOut(who) => self.crew.hub.put_out(who),
            Request::Ban(who) => self.crew.hub.ban(who),
        }
        Ok(())
    }
}

/// Time per sample of each worker; empty if no speeds are emulated.
pub(crate) fn paces(prepared: &Prepared, speeds: &[f64], pace: Option<Duration>) -> Vec<Duration> {
    if speeds.is_empty() {
        return vec![];
    }
    let (batch, workers) = (prepared.batch, prepared.workers);
    let fastest = pace.unwrap_or_else(|| pace::fastest(pace::measure(prepared), batch, workers));
    let relative = pace::relative(speeds, workers);
    relative.into_iter().map(|factor| fastest.mul_f64(factor)).collect()
}
