//! Evaluates replicas on the test set and on the validation part: inline where time is virtual, in the background of a real run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_learn::Vector;
use paceline_runtime::edge::Workspace;
use paceline_runtime::{Line, Record};

use crate::pace::cores;
use crate::task::{Part, Task};

pub enum Evaluator {
    /// The run waits; its virtual time does not pass.
    Inline(Setup),
    /// The run continues and gets the score later.
    Background(Background),
}

/// What an evaluation needs.
pub struct Setup {
    task: Task,
    workspaces: Vec<Workspace>,
    threads: usize,
}

/// A thread that evaluates requests in order.
pub struct Background {
    setup: Setup,
    requests: Sender<EvalRequest>,
    scores: Receiver<Line>,
    thread: JoinHandle<()>,
    waiting: usize,
    /// How many threads it may use; at 0 it gives up.
    threads: Arc<AtomicUsize>,
}

/// Parameters to evaluate, and when the run had them.
pub struct EvalRequest {
    pub on: Part,
    pub at: Duration,
    pub samples: u64,
    pub params: Arc<Vector>,
}

/// Validations are skipped while this many evaluations wait: the run would have to wait for them at its end.
const VALIDATIONS_WAITING: usize = 16;
/// Replicas that wait to be evaluated may take this much memory; beyond it, epochs are skipped.
const BYTES_WAITING: usize = 256 << 20;
/// This many may always wait, however large they are.
const WAITING_MIN: usize = 4;
/// The last evaluation of a stopped job is given up after this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many evaluations of so many bytes may wait, and how many of them may be on the validation part alone.
pub fn waiting_max(bytes: usize) -> (usize, usize) {
    let all = (BYTES_WAITING / bytes.max(1)).max(WAITING_MIN);
    (all, all.min(VALIDATIONS_WAITING))
}

impl Evaluator {
    pub fn inline(task: Task, threads: usize) -> Evaluator {
        Evaluator::Inline(Setup { task, workspaces: Vec::new(), threads })
    }

    pub fn background(task: Task) -> Evaluator {
        let (requests, incoming) = mpsc::channel::<EvalRequest>();
        let (score, scores) = mpsc::channel();
        // The workers need the cores; one thread is enough while they train.
        let threads = Arc::new(AtomicUsize::new(1));
        let setup = || Setup { task: task.clone(), workspaces: Vec::new(), threads: cores() };
        let (mut own, may) = (setup(), threads.clone());
        let thread = std::thread::Builder::new().name("evaluator".into()).spawn(move || {
            for request in incoming {
                let Some(line) = own.evaluate(&request, || may.load(Ordering::Relaxed)) else {
                    return;
                };
                if score.send(line).is_err() {
                    return;
                }
            }
        });
        let thread = thread.expect("the system can start another thread");
        let setup = setup();
        Evaluator::Background(Background { setup, requests, scores, thread, waiting: 0, threads })
    }

    /// Requests an evaluation. An inline evaluator returns the score at once.
    pub fn request(&mut self, request: EvalRequest) -> Option<Line> {
        match self {
            Evaluator::Inline(setup) => {
                let threads = setup.threads;
                setup.evaluate(&request, || threads)
            }
            Evaluator::Background(background) => {
                let bytes = size_of_val(request.params.as_slice());
                let (all_max, validations_max) = waiting_max(bytes);
                let waiting_max = match request.on {
                    Part::Validation => validations_max,
                    Part::Test => all_max,
                };
                if background.waiting < waiting_max && background.requests.send(request).is_ok() {
                    background.waiting += 1;
                }
                None
            }
        }
    }

    /// The scores that have arrived since.
    pub fn poll(&mut self) -> Vec<Line> {
        let Evaluator::Background(background) = self else { return vec![] };
        let lines: Vec<Line> = background.scores.try_iter().collect();
        background.waiting -= lines.len();
        lines
    }

    /// Waits for pending evaluations, now that all cores are free for them, and returns their scores and an inline
    /// evaluator. If `stop` is set, returns without waiting for them.
    pub fn finish(self, stop: impl Fn() -> bool) -> (Vec<Line>, Evaluator) {
        let Background { setup, requests, scores, thread, threads, .. } = match self {
            Evaluator::Inline(setup) => return (vec![], Evaluator::Inline(setup)),
            Evaluator::Background(background) => background,
        };
        drop(requests);
        let mut lines = Vec::new();
        loop {
            threads.store(if stop() { 0 } else { cores() }, Ordering::Relaxed);
            match scores.recv_timeout(Duration::from_millis(20)) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // A model that panicked has printed why.
        let _ = thread.join();
        (lines, Evaluator::Inline(setup))
    }

    /// Requests the last evaluation of a stopped run, which must not take long.
    pub fn request_briefly(&mut self, request: EvalRequest) -> Option<Line> {
        let Evaluator::Inline(setup) = self else { return self.request(request) };
        let since = Instant::now();
        let threads = setup.threads;
        setup.evaluate(&request, || if since.elapsed() < PATIENCE { threads } else { 0 })
    }
}

/// The line of an evaluation.
pub fn line(on: Part, at: Duration, samples: u64, (loss, accuracy): (f64, f64)) -> Line {
    let record = match on {
        Part::Validation => Record::Validated { samples, loss, accuracy },
        Part::Test => Record::Scored { samples, loss, accuracy },
    };
    Line { at, record }
}

impl Setup {
    fn evaluate(&mut self, request: &EvalRequest, threads: impl Fn() -> usize) -> Option<Line> {
        let EvalRequest { on, at, samples, params } = request;
        let data = match on {
            Part::Validation => self.task.validation.clone()?,
            Part::Test => self.task.test.clone(),
        };
        let score = self.task.evaluate_on(&*data, params, &mut self.workspaces, threads)?;
        Some(line(*on, *at, *samples, (score.loss(), score.accuracy())))
    }
}
