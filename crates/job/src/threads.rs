//! Runs a job on real threads of this process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_learn::Vector;
use paceline_net::{ThreadConfig, ThreadHub};
use paceline_runtime::edge::ClusterOutput;
use paceline_runtime::{Executor, Reader, SavePlan, Snapshot, WorkerId, train as run_worker};

use crate::checkpoint::{Saved, Saving, Writer};
use crate::error::{Error, JobError, RunError};
use crate::job::Prepared;
use crate::pace;
use crate::run::evaluator::Evaluator;
use crate::run::observer::Observer;
use crate::run::{Deployed, Next, Running, SaveRequests, Watch};
use crate::run_result::RunResult;

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
    let TrainOptions { speeds, pace, stop, saving, readers } = options;
    pace::check_speeds(&speeds)?;
    if prepared.workers > WORKERS_MAX {
        let workers = prepared.workers;
        return Err(JobError::TooManyThreads { workers, most: WORKERS_MAX }.into());
    }
    let coordination = prepared.strategy().coordination();
    let mut prepared = prepared.clone();
    let writer = saving.map(|saving| Writer::start(saving, &prepared, &speeds));
    let writer = writer.transpose()?;
    let every_rounds = saving.and_then(|saving| saving.checkpoints.rounds);
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
        pace,
    });
    let evaluator = Evaluator::background(prepared.task.clone());
    let observer = Observer::new(prepared, (coordination, evaluator), readers);
    let started = Instant::now();
    let workers = (0..prepared.workers).map(|id| start_worker(prepared, &hub, WorkerId(id)));
    let mut run = ThreadRun { workers: workers.collect(), hub: hub.clone(), outputs };
    let save_requests = saving.map(|saving| SaveRequests::new(saving, coordination));
    let mut watch = Watch { observer, writer, save_requests, stopped: false };
    watch.until_ended(&mut run, &stop)?;
    let hub = run.hub.clone();
    let joined = run.join();
    let seconds = started.elapsed().as_secs_f64();
    // Also after a failure: the last snapshot is what the user can resume from.
    let saved = watch.writer.map(Writer::finish);
    joined?;
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
pub(crate) fn start_worker(prepared: &Prepared, hub: &Arc<ThreadHub>, id: WorkerId) -> Worker {
    let (cluster, prepared) = (hub.attach(id), prepared.clone());
    // Before the thread starts: the coordinator must not hear of its death before it knows the worker.
    hub.hello(id);
    std::thread::Builder::new()
        .name(format!("worker-{id}"))
        .spawn(move || {
            let plan = Arc::new(prepared.plan.clone());
            let mut executor = Executor::new(Box::new(cluster));
            let ended = executor
                .run(&mut |port| Box::pin(run_worker(plan.clone(), port, prepared.strategy())));
            ended.map_err(|stuck| RunError::WorkerStuck { worker: id, stuck })
        })
        .expect("the system can start another thread")
}

/// A run on threads.
struct ThreadRun {
    workers: Vec<Worker>,
    hub: Arc<ThreadHub>,
    outputs: Receiver<ClusterOutput>,
}

impl ThreadRun {
    fn join(self) -> Result<(), RunError> {
        for worker in self.workers {
            match worker.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(RunError::WorkerPanicked),
            }
        }
        Ok(())
    }
}

impl Running for ThreadRun {
    fn next(&mut self) -> Result<Next, RunError> {
        Ok(match self.outputs.recv_timeout(Duration::from_millis(20)) {
            Ok(output) => Next::Output(output),
            Err(RecvTimeoutError::Disconnected) => Next::Ended,
            Err(RecvTimeoutError::Timeout) if self.workers.iter().all(JoinHandle::is_finished) => {
                // The last worker may have put something out since.
                self.outputs.try_recv().map_or(Next::Ended, Next::Output)
            }
            Err(RecvTimeoutError::Timeout) => Next::Idle,
        })
    }

    fn stop(&mut self) {
        self.hub.stop();
    }

    fn save(&mut self) {
        self.hub.save();
    }
}

/// Time per sample of each worker; empty if no speeds are emulated.
fn paces(prepared: &Prepared, speeds: &[f64], pace: Option<Duration>) -> Vec<Duration> {
    if speeds.is_empty() {
        return vec![];
    }
    let (batch, workers) = (prepared.batch, prepared.workers);
    let fastest = pace.unwrap_or_else(|| pace::fastest(pace::measure(prepared), batch, workers));
    let relative = pace::relative(speeds, workers);
    relative.into_iter().map(|factor| fastest.mul_f64(factor)).collect()
}
