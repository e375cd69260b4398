//! Runs a job on real threads of this process.

use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_learn::Vector;
use paceline_net::{News, ThreadConfig, ThreadHub};
use paceline_runtime::cluster::Shelves;
use paceline_runtime::{
    Coordination, Executor, Halt, Reader, Saves, Snapshot, WorkerId, train as live,
};

use crate::checkpoint::{Saved, Saving, Writer};
use crate::error::{Error, JobError, RunError};
use crate::evaluator::Evaluator;
use crate::job::Prepared;
use crate::observe::Observer;
use crate::pace;
use crate::run_result::RunResult;

/// How the threads are to behave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadOptions {
    /// Emulated speeds of the workers, repeated if there are more of them; 4 is four times as fast
    /// as 1. Empty: everyone as fast as it can.
    pub speeds: Vec<f64>,
    /// The time per sample of the fastest, if speeds are emulated; left out, it is measured.
    pub pace: Option<Duration>,
}

/// A run's outcome, and the parameters it ended with.
pub struct Trained {
    pub result: RunResult,
    pub params: Option<Arc<Vector>>,
    /// What came of its checkpoints; `None` if it made none.
    pub saved: Option<Saved>,
}

const WORKERS_MAX: u32 = 1024;

/// Trains on threads. When `stop` is set, all finish their round and the job ends there.
pub fn train(
    prepared: &Prepared,
    setting: ThreadOptions,
    stop: Arc<AtomicBool>,
    readers: Vec<&mut dyn Reader>,
) -> Result<Trained, Error> {
    train_saving(prepared, setting, stop, None, readers)
}

/// As [`train`], with checkpoints: from time to time, when the job is stopped, and at its end.
pub fn train_saving(
    prepared: &Prepared,
    setting: ThreadOptions,
    stop: Arc<AtomicBool>,
    saving: Option<&Saving>,
    readers: Vec<&mut dyn Reader>,
) -> Result<Trained, Error> {
    pace::check_speeds(&setting.speeds)?;
    if prepared.workers > WORKERS_MAX {
        let workers = prepared.workers;
        return Err(JobError::TooManyThreads { workers, most: WORKERS_MAX }.into());
    }
    let coordination = prepared.strategy().coordination();
    let mut prepared = prepared.clone();
    let writer = saving.map(|saving| Writer::start(saving, &prepared, &setting.speeds));
    let writer = writer.transpose()?;
    let every_rounds = saving.and_then(|saving| saving.checkpoints.rounds);
    prepared.plan.saves = saving.map(|_| Saves { every_rounds });
    let prepared = &prepared;
    let compute = prepared.task.compute(prepared.plan.seed);
    let pace = paces(prepared, &setting);
    let done = |snapshot: &Arc<Snapshot>| snapshot.done.clone();
    let (hub, news) = ThreadHub::new(ThreadConfig {
        seed: prepared.plan.seed,
        workers: prepared.workers,
        compute,
        samples_total: prepared.plan.samples_total,
        center_applies: coordination == Coordination::Centered { applies_samples: true },
        done: prepared.plan.resumed.as_ref().map(done).unwrap_or_default(),
        pace,
    });
    let (judge, shelves) = (Evaluator::aside(prepared.task.clone()), Arc::default());
    let observer = Observer::new(prepared, (coordination, judge), Arc::clone(&shelves), readers);
    let started = Instant::now();
    let workers: Vec<_> =
        (0..prepared.workers).map(|id| attach(prepared, &hub, WorkerId(id))).collect();
    (0..prepared.workers).for_each(|id| hub.hello(WorkerId(id)));
    let wishes = saving.map(|saving| Wishes::new(saving, coordination));
    let mut watch = Watch { observer, shelves, hub, writer, wishes, stopped: false };
    watch.until_all_ended(&news, &stop, &workers);
    for worker in workers {
        match worker.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Err(RunError::WorkerPanicked.into()),
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    while let Ok(news) = news.try_recv() {
        let _ = watch.take_in(news);
    }
    let saved = watch.writer.map(Writer::finish);
    let (mut result, params) = watch.observer.conclude(prepared, watch.stopped, &stop);
    result.real_seconds = Some(seconds);
    result.stopped = stop.load(Ordering::Relaxed) && result.samples < prepared.plan.samples_total;
    Ok(Trained { result, params, saved })
}

pub(crate) type Worker = JoinHandle<Result<(), RunError>>;

/// A thread on which a worker lives its whole life.
pub(crate) fn attach(prepared: &Prepared, hub: &Arc<ThreadHub>, id: WorkerId) -> Worker {
    let (cluster, prepared) = (hub.attach(id), prepared.clone());
    std::thread::Builder::new()
        .name(format!("worker-{id}"))
        .spawn(move || {
            let plan = Arc::new(prepared.plan.clone());
            let mut executor = Executor::new(Box::new(cluster));
            let ended = executor.run(
                &mut |port| Box::pin(live(plan.clone(), port, prepared.strategy())),
                // The cluster passes the lines of all workers on, in order.
                &mut |_| ControlFlow::Continue(()),
            );
            match ended {
                Err(Halt::Stuck(stuck)) => Err(RunError::WorkerStuck { worker: id, stuck }),
                _ => Ok(()),
            }
        })
        .expect("the system has a thread left")
}

/// Whoever looks after a run while it lasts.
struct Watch<'a> {
    observer: Observer<'a>,
    /// What the workers had published when they said what has been taken in: by now they may be further.
    shelves: Arc<Mutex<Shelves>>,
    hub: Arc<ThreadHub>,
    writer: Option<Writer>,
    wishes: Option<Wishes>,
    stopped: bool,
}

impl Watch<'_> {
    fn until_all_ended(&mut self, news: &Receiver<News>, stop: &AtomicBool, workers: &[Worker]) {
        loop {
            let broken_off = match news.recv_timeout(Duration::from_millis(20)) {
                Ok(news) => self.take_in(news).is_break() || self.observer.hear().is_break(),
                Err(RecvTimeoutError::Timeout) if workers.iter().all(JoinHandle::is_finished) => {
                    return;
                }
                Err(RecvTimeoutError::Timeout) => self.observer.hear().is_break(),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if !self.stopped && (broken_off || stop.load(Ordering::Relaxed)) {
                self.stopped = true;
                self.hub.stop();
            }
            if let Some(writer) = &mut self.writer {
                writer.pass_on();
            }
            let rounds = self.observer.account.rounds();
            if self.wishes.as_mut().is_some_and(|wishes| wishes.is_due(rounds)) {
                self.hub.save();
            }
        }
    }

    fn take_in(&mut self, news: News) -> ControlFlow<()> {
        match (news, &mut self.writer) {
            (News::Line(line), _) => return self.observer.observe(&line),
            (News::Published { who, shelf, value }, _) => {
                self.shelves.lock().expect("nobody panics here").insert((who, shelf), value);
            }
            // All that led to the snapshot has been observed: if learning has come apart, the
            // checkpoints from before are worth more than this one.
            (News::Snapshot(snapshot), Some(writer)) if self.observer.is_astray() => {
                writer.refuse(&snapshot);
            }
            (News::Snapshot(mut snapshot), Some(writer)) => {
                let points = &self.observer.account.curve.points;
                let loss = |point: Option<&(Duration, f64)>| point.map(|(_, loss)| *loss);
                snapshot.losses = (loss(points.first()), loss(points.last()));
                writer.offer(snapshot);
            }
            (News::Snapshot(_), None) => {}
        }
        ControlFlow::Continue(())
    }
}

/// When a checkpoint is to be asked for.
struct Wishes {
    now: Arc<AtomicBool>,
    period: Option<Duration>,
    last: Instant,
    /// Asynchronous workers have no common round to go by.
    rounds: Option<u64>,
    rounds_last: Option<u64>,
}

/// How often checkpoints are made, unless the user says otherwise.
const PERIOD: Duration = Duration::from_secs(5 * 60);

impl Wishes {
    fn new(saving: &Saving, coordination: Coordination) -> Wishes {
        let (rounds, minutes) = (saving.checkpoints.rounds, saving.checkpoints.minutes);
        let period = minutes.map(|minutes| Duration::from_secs_f64(60.0 * minutes));
        Wishes {
            now: saving.now.clone(),
            period: period.or(rounds.is_none().then_some(PERIOD)),
            last: Instant::now(),
            rounds: rounds.map(NonZero::get).filter(|_| coordination != Coordination::Synchronous),
            rounds_last: None,
        }
    }

    fn is_due(&mut self, rounds: u64) -> bool {
        let last = *self.rounds_last.get_or_insert(rounds);
        let is_due = self.now.swap(false, Ordering::Relaxed)
            || self.period.is_some_and(|period| self.last.elapsed() >= period)
            || self.rounds.is_some_and(|every| rounds >= last + every);
        if is_due {
            (self.last, self.rounds_last) = (Instant::now(), Some(rounds));
        }
        is_due
    }
}

/// Time per sample of each worker; nothing if everyone is as fast as it can.
fn paces(prepared: &Prepared, setting: &ThreadOptions) -> Vec<Duration> {
    if setting.speeds.is_empty() {
        return vec![];
    }
    let (batch, workers) = (prepared.batch, prepared.workers);
    let fastest =
        setting.pace.unwrap_or_else(|| pace::fastest(pace::measure(prepared), batch, workers));
    let relative = pace::relative(&setting.speeds, workers);
    relative.into_iter().map(|factor| fastest.mul_f64(factor)).collect()
}
