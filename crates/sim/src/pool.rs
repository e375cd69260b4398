//! Gradients on all cores: what they cost in virtual time never depends on how long they really took.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use paceline_learn::{Gradient, Vector};
use paceline_runtime::Spans;
use paceline_runtime::edge::{Compute, Workspace};

/// Below so many multiplications handing a gradient to another thread costs more than it saves.
const WORTH_A_THREAD: u64 = 100_000;

thread_local! {
    static DESK: RefCell<Workspace> = RefCell::default();
}

pub struct Pool {
    compute: Compute,
    threads: Option<rayon::ThreadPool>,
}

/// A gradient that is being computed, or will be when it is asked for.
pub enum Computing {
    /// Not before: whoever asks uses it at once, while it is still in the cache, and what a worker that
    /// dies meanwhile was computing nobody asks for.
    Here(Box<dyn FnOnce() -> Gradient>),
    Elsewhere(Receiver<Gradient>),
}

impl Pool {
    /// With fewer than two threads everything is computed here.
    pub fn new(compute: Compute, threads: usize) -> Pool {
        let build = || {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|i| format!("gradient-{i}"))
                .build()
                .ok()
        };
        Pool { compute, threads: if threads > 1 { build() } else { None } }
    }

    pub fn start(&self, params: Arc<Vector>, spans: Spans) -> Computing {
        let worth = params.len() as u64 * spans.len() >= WORTH_A_THREAD;
        let compute = self.compute.clone();
        let work = move || DESK.with_borrow_mut(|workspace| compute(&params, &spans, workspace));
        match &self.threads {
            Some(threads) if worth => {
                let (reply, gradient) = mpsc::channel();
                // A cluster that was dropped meanwhile needs no answer.
                threads.spawn(move || drop(reply.send(work())));
                Computing::Elsewhere(gradient)
            }
            _ => Computing::Here(Box::new(work)),
        }
    }
}

impl Computing {
    pub fn finish(self) -> Gradient {
        match self {
            Computing::Here(work) => work(),
            Computing::Elsewhere(gradient) => gradient.recv().expect("a model does not panic"),
        }
    }
}
