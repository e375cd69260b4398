//! Workers of a real cluster: this process joins a coordinator, or is one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use paceline_job::processes::{
    Addresses, CoordinateOptions, Coordinating, HostProgram, JoinOptions, StatePlace, Token,
    WorkerSignals, described, join_hosted,
};
use paceline_job::{TrainOptions, recipes};
use pyo3::prelude::*;

use crate::errors::{exception, failed, refused};
use crate::flat::Flat;
use crate::line::Line;
use crate::run::{Ended, Outcome, Run, start};
use crate::spec::Spec;

/// This process as a worker of a cluster.
#[pyclass(frozen, module = "paceline._paceline")]
pub struct Member {
    run: Run,
    signals: WorkerSignals,
    addresses: Addresses,
}

#[pymethods]
impl Member {
    /// The line of the next life of this worker; `None` if none has begun for a moment.
    fn accept(&self, py: Python<'_>) -> PyResult<Option<Line>> {
        self.run.accept(py)
    }

    /// Whether this worker has left the cluster.
    fn has_ended(&self) -> bool {
        self.run.has_ended()
    }

    /// Waits until this worker has left the cluster; raises if it failed.
    fn outcome(&self, py: Python<'_>) -> PyResult<Outcome> {
        self.run.outcome(py)
    }

    /// Leaves in good order, at the next boundary between rounds.
    fn leave(&self) {
        self.signals.leave.store(true, Ordering::Relaxed);
    }

    /// Asks for a checkpoint.
    fn save(&self) {
        self.signals.save.store(true, Ordering::Relaxed);
    }

    /// Where this worker's connections lead, as (host, port).
    fn addresses(&self) -> Vec<(String, u16)> {
        let address = |at: SocketAddr| (at.ip().to_string(), at.port());
        self.addresses.all().into_iter().map(address).collect()
    }
}

/// The coordinator of a job, on a thread of this process.
#[pyclass(frozen, module = "paceline._paceline")]
pub struct Office {
    run: Run,
    #[pyo3(get)]
    port: u16,
}

#[pymethods]
impl Office {
    /// Whether the job is over.
    fn has_ended(&self) -> bool {
        self.run.has_ended()
    }

    /// Asks that the job end after this round.
    fn stop(&self) {
        self.run.stop();
    }

    /// Waits until the job is over.
    fn outcome(&self, py: Python<'_>) -> PyResult<Outcome> {
        self.run.outcome(py)
    }
}

/// The job of a coordinator, as JSON.
#[pyfunction]
pub fn look(py: Python<'_>, coordinator: &str, token: &str, insecure: bool) -> PyResult<String> {
    let token = parse(token)?;
    let job = py.detach(|| described(coordinator, &token, insecure));
    let job = job.map_err(|error| exception(&error))?;
    serde_json::to_string(&job).map_err(|error| failed(error.to_string()))
}

/// Joins a coordinator as a worker with a host. `data`: a number that differs if what members must have in common differs.
#[pyfunction]
pub fn member(
    spec: &str,
    initial: &Bound<'_, Flat>,
    coordinator: String,
    token: &str,
    insecure: bool,
    data: u64,
) -> PyResult<Member> {
    let spec = Spec::read(spec)?;
    let token = parse(token)?;
    let task = spec.hosted(initial.get())?;
    let sizes = (task.model.params(), task.model.size());
    let (signals, addresses) = (WorkerSignals::default(), Addresses::default());
    let options = JoinOptions {
        coordinator,
        token,
        advertise: None,
        data_dir: None,
        rescue,
        insecure,
        signals: signals.clone(),
        say,
    };
    let program = HostProgram { task, data, addresses: addresses.clone() };
    let run = start(sizes, (None, None), move |_, _, lines| {
        join_hosted(options, program, move |line| drop(lines.send(line)))?;
        Ok(Ended::default())
    })?;
    Ok(Member { run, signals, addresses })
}

/// Coordinates a job for `spec.workers` workers, which find its token in the folder `state`.
#[pyfunction]
#[pyo3(signature = (spec, state, listen, patience, journal=None))]
pub fn coordinate(
    py: Python<'_>,
    spec: &str,
    state: PathBuf,
    listen: &str,
    patience: f64,
    journal: Option<String>,
) -> PyResult<Office> {
    let spec = Spec::read(spec)?;
    let listen = listen.parse().map_err(|_| refused(format!("{listen} is no address")))?;
    let patience = Duration::try_from_secs_f64(patience).map_err(|_| {
        refused(format!("a patience of {patience} seconds: give a number above zero"))
    })?;
    let options = CoordinateOptions {
        listen,
        state: StatePlace::Folder(state),
        authority: None,
        members_first: spec.workers,
        // A launcher starts no other one for a worker that dies: those that are left go on.
        members_min: 1,
        members_max: None,
        patience,
        insecure: false,
        token_uses: spec.workers.saturating_mul(16).max(64),
        token_lasts: Duration::from_secs(7 * 24 * 3600),
        stop: Arc::default(),
        say,
    };
    let recipes = recipes();
    let opened = py.detach(|| Coordinating::open(&spec.job, None, &recipes, options));
    let mut coordinating = opened.map_err(|error| exception(&error))?;
    let port = coordinating.address().port();
    let saving = spec.saving();
    let run = start((0, 0), (journal, saving), move |stop, (readers, saving), _| {
        let Some(prepared) = coordinating.first_worker(&stop)? else { return Ok(Ended::default()) };
        let options = TrainOptions { stop, saving, readers, ..TrainOptions::default() };
        let trained = coordinating.train(&prepared, options)?;
        Ok(Ended { result: Some(trained.result), params: None })
    })?;
    Ok(Office { run, port })
}

/// A new folder for what was learned, if the coordinator is gone for good.
fn rescue() -> std::io::Result<PathBuf> {
    let folder = PathBuf::from(format!("paceline-runs/rescued-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn parse(token: &str) -> PyResult<Token> {
    token.trim().parse().map_err(|error| refused(format!("the token of the coordinator: {error}")))
}

fn say(message: &str) {
    eprintln!("paceline: {message}");
}
