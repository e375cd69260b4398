//! Who evaluates: on the spot where time is virtual, or aside while real workers go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_learn::Vector;
use paceline_runtime::cluster::Workspace;
use paceline_runtime::{Line, Record};

use crate::pace::cores;
use crate::task::Task;

pub enum Evaluator {
    /// The run waits, and does not notice.
    Inline(Bench),
    /// The run goes on, and hears of it later.
    Background(Background),
}

/// Somebody who evaluates, and how many cores they may use.
pub struct Bench {
    task: Task,
    workspaces: Vec<Workspace>,
    hands: usize,
}

/// A thread that evaluates what it is asked to, in that order.
pub struct Background {
    bench: Bench,
    asked: Sender<EvalRequest>,
    answers: Receiver<Line>,
    thread: JoinHandle<()>,
    waiting: usize,
    /// How many cores it may use; at 0 it gives up.
    hands: Arc<AtomicUsize>,
}

/// What was learned by then.
pub struct EvalRequest {
    pub at: Duration,
    pub samples: u64,
    pub params: Arc<Vector>,
}

/// Of replicas that wait to be evaluated, so many bytes may be kept; after that epochs are passed over.
const BYTES_WAITING: usize = 256 << 20;
/// So many may always wait, however large they are.
const WAITING_MIN: usize = 4;
/// How long a job that was stopped is evaluated before it is left at that.
const PATIENCE: Duration = Duration::from_secs(5);

impl Evaluator {
    pub fn on_the_spot(task: Task, hands: usize) -> Evaluator {
        Evaluator::Inline(Bench { task, workspaces: Vec::new(), hands })
    }

    pub fn aside(task: Task) -> Evaluator {
        let (asked, questions) = mpsc::channel::<EvalRequest>();
        let (answer, answers) = mpsc::channel();
        // The workers have the cores; one is enough while they learn.
        let hands = Arc::new(AtomicUsize::new(1));
        let bench = || Bench { task: task.clone(), workspaces: Vec::new(), hands: cores() };
        let (mut own, may) = (bench(), hands.clone());
        let thread = std::thread::Builder::new().name("judge".into()).spawn(move || {
            for question in questions {
                let Some(line) = own.judge(&question, || may.load(Ordering::Relaxed)) else {
                    return;
                };
                if answer.send(line).is_err() {
                    return;
                }
            }
        });
        let thread = thread.expect("the system has a thread left");
        Evaluator::Background(Background {
            bench: bench(),
            asked,
            answers,
            thread,
            waiting: 0,
            hands,
        })
    }

    /// Asks for an evaluation; gives what is known at once.
    pub fn ask(&mut self, question: EvalRequest) -> Option<Line> {
        match self {
            Evaluator::Inline(bench) => {
                let hands = bench.hands;
                bench.judge(&question, || hands)
            }
            Evaluator::Background(aside) => {
                let bytes = size_of_val(question.params.as_slice());
                let waiting_max = (BYTES_WAITING / bytes.max(1)).max(WAITING_MIN);
                if aside.waiting < waiting_max && aside.asked.send(question).is_ok() {
                    aside.waiting += 1;
                }
                None
            }
        }
    }

    /// What has been evaluated since.
    pub fn answered(&mut self) -> Vec<Line> {
        let Evaluator::Background(aside) = self else { return vec![] };
        let lines: Vec<Line> = aside.answers.try_iter().collect();
        aside.waiting -= lines.len();
        lines
    }

    /// The run is over, and all cores are free for what was asked for before; gives that, and who evaluates
    /// from now on. Whoever says so with `stop` does not want to wait for it.
    pub fn finish(self, stop: impl Fn() -> bool) -> (Vec<Line>, Evaluator) {
        let Background { bench, asked, answers, thread, hands, .. } = match self {
            Evaluator::Inline(bench) => return (vec![], Evaluator::Inline(bench)),
            Evaluator::Background(aside) => aside,
        };
        drop(asked);
        let mut lines = Vec::new();
        loop {
            hands.store(if stop() { 0 } else { cores() }, Ordering::Relaxed);
            match answers.recv_timeout(Duration::from_millis(20)) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // A panic of the model has been told of on the way.
        let _ = thread.join();
        (lines, Evaluator::Inline(bench))
    }

    /// Asks for a last evaluation of a run that was stopped, which must not take long.
    pub fn ask_briefly(&mut self, question: EvalRequest) -> Option<Line> {
        let Evaluator::Inline(bench) = self else { return self.ask(question) };
        let since = Instant::now();
        let hands = bench.hands;
        bench.judge(&question, || if since.elapsed() < PATIENCE { hands } else { 0 })
    }
}

impl Bench {
    fn judge(&mut self, question: &EvalRequest, hands: impl Fn() -> usize) -> Option<Line> {
        let EvalRequest { at, samples, params } = question;
        let score = self.task.evaluate(params, &mut self.workspaces, hands)?;
        let (loss, accuracy) = (score.loss(), score.accuracy());
        Some(Line { at: *at, record: Record::Scored { samples: *samples, loss, accuracy } })
    }
}
