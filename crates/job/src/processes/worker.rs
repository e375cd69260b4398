//! A worker process: prepares the job that its coordinator names, joins, trains, and joins anew when it was put out.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use paceline_identity::Credentials;
use paceline_learn::vector::mean;
use paceline_net::processes::frame::Limits;
use paceline_net::processes::message::{Conclude, Down, JobText, Saves, Secret, Up, VERSION};
use paceline_net::processes::{
    Clock, Ended, Evaluation, Gradients, Process, ProcessCluster, ProcessConfig, Shape, pipe,
};
use paceline_runtime::journal::fingerprint;
use paceline_runtime::{Executor, Owner, Plan, SavePlan, WorkerId, train as run_worker};

use crate::config::Job;
use crate::error::{Error, RunError, TaskError};
use crate::facts::data_hash;
use crate::hosts::ROUNDS_AHEAD;
use crate::job::{PrepareOptions, Prepared};
use crate::pace::cores;
use crate::recipes::Recipe;
use crate::run::evaluator::{EvalRequest, Evaluator, waiting_max};
use crate::task::{Part, Task};

/// What the user may ask of a worker process, at any time.
#[derive(Clone, Default)]
pub struct WorkerSignals {
    /// Leave in good order.
    pub leave: Arc<AtomicBool>,
    /// Have a checkpoint written.
    pub save: Arc<AtomicBool>,
}

/// A worker says that it lives at least this often.
const BEAT: Duration = Duration::from_millis(250);
/// How soon a signal is noticed.
const LOOK: Duration = Duration::from_millis(50);

/// Works for a coordinator that is at the other end of two pipes, until it is told that nothing is left to do.
pub fn work(
    from: impl Read + Send + 'static,
    to: impl Write + Send + 'static,
    recipes: &[Recipe],
    signals: WorkerSignals,
) -> Result<(), Error> {
    let (down, orders) = mpsc::channel();
    let limits = Limits { head: 64 << 20, body: u64::MAX };
    let take = pipe::into_queue(down);
    spawn("receive", move || drop(pipe::receive(from, limits, take)));
    let (up, words) = mpsc::channel();
    let sending = spawn("send", move || pipe::send_with_beats(words, BEAT, to));
    let worked = serve(&up, orders, recipes, &signals);
    if let Err(error) = &worked {
        drop(up.send(Up::Failed { why: error.to_string() }));
    }
    // What was said last must arrive.
    drop(up);
    let _ = sending.join();
    worked
}

pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(work).expect("the system can start another thread")
}

/// Works for a coordinator at the other end of two queues.
fn serve(
    up: &Sender<Up>,
    mut down: Receiver<Down>,
    recipes: &[Recipe],
    signals: &WorkerSignals,
) -> Result<(), Error> {
    let Ok(Down::Job(text)) = down.recv() else { return Err(RunError::CoordinatorGone.into()) };
    let pace = text.pace.clone();
    let prepared = prepare(text, recipes, None)?;
    let data = data_hash(&prepared.task);
    loop {
        let (listener, address) = listen(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        drop(up.send(Up::Hello { version: VERSION, data, address }));
        let Some((id, now, secret, patience)) = admitted(&down)? else { return Ok(()) };
        let pace = pace.get(id.0 as usize).copied().unwrap_or_default();
        let (security, up) = (None, up.clone());
        let gradients = Gradients::Ours { compute: prepared.compute(), pace };
        let clock = Clock::from(now);
        let life = Life { id, clock, secret, security, patience, gradients, listener, up, down };
        match life.live(&prepared, signals)? {
            (Ended::PutOut { banned: false, .. }, Some(stream)) => {
                if signals.leave.load(Ordering::Relaxed) {
                    return Ok(());
                }
                down = stream;
            }
            (Ended::PutOut { why, .. }, _) => return Err(RunError::PutOut { why }.into()),
            (Ended::Dismissed, _) => return Ok(()),
            (Ended::Disconnected, _) => return Err(RunError::CoordinatorGone.into()),
        }
    }
}

/// Listens for peers.
pub(super) fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), RunError> {
    let failed = |error: std::io::Error| RunError::Listen { why: error.to_string() };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// The time of a worker under one id.
pub(super) struct Life {
    pub id: WorkerId,
    pub clock: Clock,
    pub secret: Secret,
    pub security: Option<Credentials>,
    pub patience: Duration,
    pub gradients: Gradients,
    pub listener: TcpListener,
    pub up: Sender<Up>,
    pub down: Receiver<Down>,
}

impl Life {
    /// Trains, and stays until the coordinator needs nothing more of this worker.
    pub fn live(
        self,
        prepared: &Prepared,
        signals: &WorkerSignals,
    ) -> Result<(Ended, Option<Receiver<Down>>), Error> {
        let Life { id, clock, secret, security, patience, gradients, listener, up, down } = self;
        let plan = &prepared.plan;
        let (evaluations, requests) = mpsc::channel();
        let evaluating = Evaluating::start(prepared, requests, up.clone());
        let (process, cluster) = Process::start(ProcessConfig {
            me: id,
            clock,
            secret,
            security,
            patience,
            listener,
            shape: shape(plan),
            shares_memory: shares_memory(),
            gradients,
            coordination: prepared.strategy().coordination(),
            up: up.clone(),
            down,
            evaluations,
        })
        .map_err(|error| RunError::Listen { why: error.to_string() })?;
        live_in(id, prepared, (process, cluster), evaluating, &up, signals)
    }
}

/// Trains in this process, and stays until the coordinator needs nothing more of this worker.
pub(super) fn live_in(
    id: WorkerId,
    prepared: &Prepared,
    (process, cluster): (Process, ProcessCluster),
    evaluating: Evaluating,
    up: &Sender<Up>,
    signals: &WorkerSignals,
) -> Result<(Ended, Option<Receiver<Down>>), Error> {
    let watching = watch_signals(&process, up, signals);
    let plan = Arc::new(prepared.plan.clone());
    let mut executor = Executor::new(Box::new(cluster));
    let run =
        executor.run(&mut |port| Box::pin(run_worker(plan.clone(), port, prepared.strategy())));
    drop(executor);
    if let Err(stuck) = run
        && !process.has_ended()
    {
        // Its model panicked, and has printed why. The others go on without this process.
        return Err(RunError::WorkerStuck { worker: id, stuck }.into());
    }
    let mut evaluating = Some(evaluating);
    while let Ok(conclude) = process.conclusions.recv() {
        if let Some(evaluating) = evaluating.take() {
            evaluating.finish(conclude.is_brief);
        }
        let params = conclude_with(prepared, &process, conclude, up);
        drop(up.send(Up::Concluded { params }));
    }
    let ended = process.end();
    watching.store(false, Ordering::Relaxed);
    if let Some(evaluating) = evaluating {
        evaluating.finish(true);
    }
    Ok(ended)
}

/// Workers of one host read each other's memory unless the user wants to see what links alone do.
fn shares_memory() -> bool {
    std::env::var("PACELINE_SHARED_MEMORY").map_or(true, |value| value != "off")
}

/// Prepares the job that the coordinator names. `own`: the model and data of a program that holds them itself.
pub(super) fn prepare(
    text: JobText,
    recipes: &[Recipe],
    own: Option<&Task>,
) -> Result<Prepared, Error> {
    let JobText { json, workers_first, workers, saves, resumed, schedule, .. } = text;
    let job: Job = serde_json::from_str(&json)
        .map_err(|error| RunError::JobUnreadable { why: error.to_string() })?;
    if own.is_some() && !job.is_own()? {
        return Err(TaskError::NotOwn { model: job.model, data: job.data }.into());
    }
    let task = own.cloned();
    let options = PrepareOptions { recipes, task, ..PrepareOptions::new(workers_first) };
    let mut prepared = job.prepare_with(options)?;
    prepared.workers = workers;
    if let Some(before) = schedule {
        let total = prepared.plan.samples_total;
        prepared.plan.schedule.resume(before, total);
    }
    prepared.plan.members_min = text.members_min;
    prepared.plan.fingerprints = text.fingerprints;
    prepared.plan.saves = saves.map(|Saves { every_rounds }| SavePlan { every_rounds });
    if own.is_some() {
        prepared.plan.replicas = Owner::Theirs;
        prepared.plan.rounds_ahead = ROUNDS_AHEAD;
    }
    prepared.plan.resumed = resumed.map(|snapshot| Arc::new(snapshot.unpack()));
    Ok(prepared)
}

pub(super) fn shape(plan: &Plan) -> Shape {
    Shape {
        seed: plan.seed,
        params: plan.layout.params.min(plan.initial.len()),
        buffers: plan.initial.len().saturating_sub(plan.layout.params),
        codec: plan.codec,
    }
}

/// Waits until the coordinator has answered; `None` if nothing is left to do.
pub(super) fn admitted(
    down: &Receiver<Down>,
) -> Result<Option<(WorkerId, Duration, Secret, Duration)>, RunError> {
    loop {
        match down.recv() {
            Ok(Down::Welcome { id, now, secret, patience }) => {
                return Ok(Some((id, now, secret, patience)));
            }
            Ok(Down::Refused { why }) => return Err(RunError::Refused { why }),
            Ok(Down::Dismissed) => return Ok(None),
            // Orders to the worker that this process was before.
            Ok(_) => {}
            Err(_) => return Err(RunError::CoordinatorGone),
        }
    }
}

/// Passes on what the user asks for, until the flag that it returns is cleared.
fn watch_signals(process: &Process, up: &Sender<Up>, signals: &WorkerSignals) -> Arc<AtomicBool> {
    let watching = Arc::new(AtomicBool::new(true));
    let (leave, up, signals, flag) =
        (process.leaver(), up.clone(), signals.clone(), watching.clone());
    spawn("signals", move || {
        let mut has_left = false;
        while flag.load(Ordering::Relaxed) {
            if !has_left && signals.leave.load(Ordering::Relaxed) {
                has_left = true;
                leave();
            }
            if signals.save.swap(false, Ordering::Relaxed) {
                drop(up.send(Up::SaveWished));
            }
            std::thread::sleep(LOOK);
        }
    });
    watching
}

/// Evaluates what is deployed at the end of the job; returns a fingerprint of it.
fn conclude_with(
    prepared: &Prepared,
    process: &Process,
    conclude: Conclude,
    up: &Sender<Up>,
) -> Option<u64> {
    let Conclude { at, samples, of, shelf, is_brief, is_scored } = conclude;
    let params = mean(process.collect(of, shelf).iter())?;
    let name = fingerprint(&params);
    if !is_scored {
        let mut evaluator = Evaluator::inline(prepared.task.clone(), cores());
        for on in [Part::Validation, Part::Test] {
            let request = EvalRequest { on, at, samples, params: params.clone() };
            let line = match is_brief {
                true => evaluator.request_briefly(request),
                false => evaluator.request(request),
            };
            line.into_iter().for_each(|line| drop(up.send(Up::Line(line))));
        }
    }
    Some(name)
}

/// The thread that evaluates while the worker trains.
pub(super) struct Evaluating {
    thread: JoinHandle<()>,
    gives_up: Arc<AtomicBool>,
}

impl Evaluating {
    pub fn start(
        prepared: &Prepared,
        requests: Receiver<Evaluation>,
        up: Sender<Up>,
    ) -> Evaluating {
        let gives_up = Arc::new(AtomicBool::new(false));
        let (flag, task) = (gives_up.clone(), prepared.task.clone());
        let thread = spawn("evaluator", move || {
            let mut evaluator = Evaluator::inline(task, 1);
            let mut waiting = VecDeque::new();
            while let Some(next) = waiting.pop_front().or_else(|| requests.recv().ok()) {
                if flag.load(Ordering::Relaxed) {
                    return;
                }
                let Evaluation { at, samples, ends_epoch, replicas } = next;
                let parts: &[Part] = match ends_epoch {
                    true => &[Part::Validation, Part::Test],
                    false => &[Part::Validation],
                };
                if let Some(params) = mean(replicas.iter()) {
                    for &on in parts {
                        let request = EvalRequest { on, at, samples, params: params.clone() };
                        let line = evaluator.request(request);
                        line.into_iter().for_each(|line| drop(up.send(Up::Line(line))));
                    }
                }
                waiting.extend(requests.try_iter());
                skip_some(&mut waiting);
            }
        });
        Evaluating { thread, gives_up }
    }

    /// Waits for what is being evaluated; `gives_up`: only for the current one.
    fn finish(self, gives_up: bool) {
        self.gives_up.store(gives_up, Ordering::Relaxed);
        // A model that panicked has printed why.
        let _ = self.thread.join();
    }
}

/// Skips the oldest evaluations if too many wait: those on the validation part alone first.
fn skip_some(waiting: &mut VecDeque<Evaluation>) {
    let bytes = |it: &Evaluation| -> usize {
        it.replicas.iter().map(|replica| size_of_val(replica.as_slice())).sum()
    };
    let most = waiting.iter().map(bytes).max().unwrap_or(0);
    let (all_max, validations_max) = waiting_max(most);
    let validations =
        |waiting: &VecDeque<Evaluation>| waiting.iter().filter(|it| !it.ends_epoch).count();
    while validations(waiting) > validations_max {
        let oldest = waiting.iter().position(|it| !it.ends_epoch).expect("there are some");
        waiting.remove(oldest);
    }
    while waiting.len() > all_max {
        waiting.pop_front();
    }
}
