//! Computes gradients on all cores; their cost in virtual time does not depend on how long they really take.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use paceline_learn::{Gradient, Vector};
use paceline_runtime::Spans;
use paceline_runtime::edge::{Compute, Workspace};

/// With fewer multiplications, handing a gradient to another thread costs more than it saves.
const WORTH_A_THREAD: u64 = 100_000;

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

pub struct Pool {
    compute: Compute,
    threads: Option<rayon::ThreadPool>,
}

/// A gradient that is computed on another thread, or on this one when it is requested.
pub enum Computing {
    /// Lazy, because the result is used at once, while it is still in the cache. The gradient of a worker that
    /// dies in the meantime is never requested.
    Here(Box<dyn FnOnce() -> Gradient>),
    Elsewhere(Receiver<Gradient>),
}

impl Pool {
    /// With fewer than two threads, everything is computed on the calling thread.
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
        let work =
            move || WORKSPACE.with_borrow_mut(|workspace| compute(&params, &spans, workspace));
        match &self.threads {
            Some(threads) if worth => {
                let (reply, gradient) = mpsc::channel();
                // Sending fails if the cluster was dropped in the meantime; then nobody needs the result.
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
