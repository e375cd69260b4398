//! Jobs whose replicas, optimizers and data live with hosts: one thread for each worker, which answers what the worker asks.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use paceline_runtime::wire::AnyOptimizerState;
use paceline_runtime::{HostLine, Owner};

use crate::error::{JobError, RunError};
use crate::job::Prepared;

/// The hosts of a run. Each worker that starts gets one, also those that join later.
#[derive(Clone)]
pub(crate) struct Hosts {
    host: Arc<dyn Fn(HostLine) + Send + Sync>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Hosts {
    pub fn new(host: impl Fn(HostLine) + Send + Sync + 'static) -> Hosts {
        Hosts { host: Arc::new(host), threads: Arc::default() }
    }

    pub fn start(&self, line: HostLine) {
        let host = self.host.clone();
        let thread = std::thread::Builder::new()
            .name(format!("host-{}", line.worker))
            .spawn(move || host(line))
            .expect("the system can start another thread");
        self.threads.lock().expect("no holder panics").push(thread);
    }

    /// Waits until all hosts have ended. They do when their lines end, which the run's cluster holds.
    pub fn join(self) -> Result<(), RunError> {
        self.join_those(|_| true)
    }

    /// As [`join`](Self::join), without waiting: after a failure, workers may wait for each other for ever, and hosts for them.
    pub fn join_ended(self) -> Result<(), RunError> {
        self.join_those(JoinHandle::is_finished)
    }

    fn join_those(self, which: impl Fn(&JoinHandle<()>) -> bool) -> Result<(), RunError> {
        let threads = std::mem::take(&mut *self.threads.lock().expect("no holder panics"));
        let ended: Vec<_> = threads.into_iter().filter(which).map(JoinHandle::join).collect();
        if ended.iter().any(Result::is_err) { Err(RunError::HostPanicked) } else { Ok(()) }
    }
}

/// Where reading takes real time, a host knows its samples this many rounds ahead: enough for its next share even if that is twice as large as this one.
pub(crate) const ROUNDS_AHEAD: u64 = 2;

/// The same job, with replicas that hosts hold.
pub(crate) fn hosted(prepared: &Prepared) -> Prepared {
    let mut prepared = prepared.clone();
    prepared.plan.replicas = Owner::Theirs;
    prepared
}

/// Whether those who hold the replicas can load the optimizers' states that the job is resumed with.
pub(crate) fn check_resumed(prepared: &Prepared) -> Result<(), JobError> {
    let parts = prepared.plan.resumed.iter().flat_map(|snapshot| snapshot.workers.values());
    for part in parts {
        match (&part.shared.optimizer, prepared.plan.replicas) {
            (AnyOptimizerState::Theirs(_), Owner::Ours) => return Err(JobError::SavedByHosts),
            (AnyOptimizerState::Ours(_), Owner::Theirs) => return Err(JobError::SavedWithoutHosts),
            _ => {}
        }
    }
    Ok(())
}
