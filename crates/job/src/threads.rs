//! Runs a job on real threads of this process.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_learn::Vector;
use paceline_net::{Hub, Setting};
use paceline_runtime::cluster::Desk;
use paceline_runtime::{Executor, Halt, Line, Manner, Reader, Spans, WorkerId, train as live};

use crate::job::Prepared;
use crate::observe::Observer;
use crate::outcome::{Failure, Outcome};

/// How the threads are to behave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadSetting {
    /// Emulated speeds of the workers, repeated if there are more of them; 4 is four times as fast
    /// as 1. Empty: everyone as fast as it can.
    pub speeds: Vec<f64>,
}

/// A run's outcome, and the parameters it ended with.
pub struct Trained {
    pub outcome: Outcome,
    pub params: Option<Vector>,
}

/// Trains on threads. When `stop` is set, all finish their round and the job ends there.
pub fn train(
    prepared: &Prepared,
    setting: ThreadSetting,
    stop: Arc<AtomicBool>,
    readers: Vec<&mut dyn Reader>,
) -> Result<Trained, Failure> {
    if let Some(speed) = setting.speeds.iter().find(|speed| !(speed.is_finite() && **speed > 0.0)) {
        return Err(Failure::Usage(format!(
            "speeds: {speed} is no speed: give numbers above zero"
        )));
    }
    let fastest = setting.speeds.iter().copied().fold(0.0, f64::max);
    if let Some(slow) = setting.speeds.iter().find(|speed| fastest / **speed > RATIO_MAX) {
        return Err(Failure::Usage(format!(
            "speeds: {fastest} is more than {RATIO_MAX} times {slow}: nobody would wait for that"
        )));
    }
    let manner = prepared.strategy().manner();
    let compute = prepared.task.compute(prepared.plan.seed);
    let pace = pace(prepared, &setting.speeds);
    let (hub, lines) = Hub::new(Setting {
        seed: prepared.plan.seed,
        workers: prepared.workers,
        compute,
        samples_total: prepared.plan.samples_total,
        center_applies: manner == Manner::Central { applies: true },
        pace,
    });
    let mut observer = Observer::new(prepared, manner, hub.shelves(), readers);
    let started = Instant::now();
    let workers: Vec<_> =
        (0..prepared.workers).map(|id| seat(prepared, &hub, WorkerId(id))).collect();
    (0..prepared.workers).for_each(|id| hub.hello(WorkerId(id)));
    let stopped = watch(&mut observer, &hub, &lines, &stop, &workers);
    for worker in workers {
        match worker.join() {
            Ok(Ok(())) => {}
            Ok(Err(sentence)) => return Err(Failure::Failed(sentence)),
            Err(_) => return Err(Failure::Failed("a worker's thread panicked; see above".into())),
        }
    }
    while let Ok(line) = lines.try_recv() {
        let _ = observer.observe(&line);
    }
    let seconds = started.elapsed().as_secs_f64();
    let (mut outcome, params) = observer.conclude(prepared, stopped);
    outcome.real_seconds = Some(seconds);
    Ok(Trained { outcome, params })
}

/// How many times faster than another a worker may be emulated.
const RATIO_MAX: f64 = 10_000.0;

type Worker = JoinHandle<Result<(), String>>;

fn seat(prepared: &Prepared, hub: &Arc<Hub>, id: WorkerId) -> Worker {
    let (cluster, prepared) = (hub.seat(id), prepared.clone());
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
                Err(Halt::Stuck(stuck)) => Err(format!("worker {id} could not go on: {stuck}")),
                _ => Ok(()),
            }
        })
        .expect("the system has a thread left")
}

/// Reads the journal until every worker has ended; gives whether the job was stopped early.
fn watch(
    observer: &mut Observer<'_>,
    hub: &Hub,
    lines: &Receiver<Line>,
    stop: &AtomicBool,
    workers: &[Worker],
) -> bool {
    let mut stopped = false;
    loop {
        let broken_off = match lines.recv_timeout(Duration::from_millis(20)) {
            Ok(line) => observer.observe(&line).is_break(),
            Err(RecvTimeoutError::Timeout) if workers.iter().all(JoinHandle::is_finished) => {
                return stopped;
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return stopped,
        };
        if !stopped && (broken_off || stop.load(Ordering::Relaxed)) {
            stopped = true;
            hub.stop();
        }
    }
}

/// An emulated batch takes at least this long, for the system wakes no sleeper to the microsecond.
const BATCH_MIN: Duration = Duration::from_millis(2);

/// Time per sample of each worker: slow enough that sharing the cores does not distort it.
fn pace(prepared: &Prepared, speeds: &[f64]) -> Vec<Duration> {
    if speeds.is_empty() {
        return vec![];
    }
    let compute = prepared.task.compute(prepared.plan.seed);
    let (mut desk, mut cost) = (Desk::default(), Duration::MAX);
    let samples = prepared.batch.min(prepared.plan.samples_total);
    for _ in 0..5 {
        let since = Instant::now();
        compute(&prepared.plan.initial, &Spans::one(0, samples), &mut desk);
        cost = cost.min(since.elapsed() / samples as u32);
    }
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get()) as f64;
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    let shared = cost.mul_f64(1.3 * (f64::from(prepared.workers) / cores).max(1.0));
    let base = shared.max(BATCH_MIN / samples as u32);
    let of = |id: u32| base.mul_f64(fastest / speeds[id as usize % speeds.len()]);
    (0..prepared.workers).map(of).collect()
}
