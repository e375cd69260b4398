//! Runs whose hosts are threads of Python: on threads of this process, or simulated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use paceline_job::checkpoint::Saving;
use paceline_job::journal_file::JournalFile;
use paceline_job::{
    Error, Prepared, RunResult, SimulateOptions, TrainOptions, scenarios, simulate_hosted,
    train_hosted,
};
use paceline_learn::Vector;
use paceline_runtime::{HostLine, Reader};
use paceline_sim::Scenario;
use pyo3::prelude::*;

use crate::errors::{exception, failed, refused};
use crate::flat::Flat;
use crate::line::Line;
use crate::news::{News, NewsReader};
use crate::spec::Spec;

/// A run on its own thread.
#[pyclass(frozen, module = "paceline._paceline")]
pub struct Run {
    lines: Mutex<Receiver<HostLine>>,
    engine: Mutex<Option<JoinHandle<Result<Ended, Error>>>>,
    stop: Arc<AtomicBool>,
    news: News,
    sizes: (usize, usize),
}

/// What a run ends with. A worker of a cluster does not know the result: its coordinator does.
#[derive(Default)]
pub struct Ended {
    pub result: Option<RunResult>,
    pub params: Option<Arc<Vector>>,
}

/// What a run ended with: its result as JSON (null if it is not known here), and the parameters of the deployed model.
#[pyclass(frozen, get_all, module = "paceline._paceline")]
pub struct Outcome {
    pub json: String,
    pub params: Option<Py<Flat>>,
}

impl Outcome {
    pub fn new(
        py: Python<'_>,
        result: Option<&RunResult>,
        params: Option<Arc<Vector>>,
    ) -> PyResult<Outcome> {
        let json = serde_json::to_string(&result).map_err(|error| failed(error.to_string()))?;
        let params = params.map(|params| Py::new(py, Flat::read_only(Vector::clone(&params))));
        Ok(Outcome { json, params: params.transpose()? })
    }
}

/// How often a thread that waits looks for signals.
const LOOK_AROUND: Duration = Duration::from_millis(50);

#[pymethods]
impl Run {
    /// The line of the next worker that starts; `None` if none has for a moment.
    pub fn accept(&self, py: Python<'_>) -> PyResult<Option<Line>> {
        let received = py.detach(|| {
            let lines = self.lines.lock().expect("no holder panics");
            lines.recv_timeout(LOOK_AROUND)
        });
        py.check_signals()?;
        match received {
            Ok(line) => Ok(Some(Line::new(line, self.news.clone(), self.sizes))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                py.detach(|| std::thread::sleep(LOOK_AROUND));
                Ok(None)
            }
        }
    }

    /// Whether the run has ended.
    pub fn has_ended(&self) -> bool {
        self.news.known().has_ended
    }

    /// Asks that the job end after this round.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until the run has ended; once.
    pub fn outcome(&self, py: Python<'_>) -> PyResult<Outcome> {
        while !self.has_ended() {
            py.detach(|| std::thread::sleep(LOOK_AROUND / 10));
            py.check_signals()?;
        }
        let engine = self.engine.lock().expect("no holder panics").take();
        let engine = engine.ok_or_else(|| failed("the outcome of a run is asked for once"))?;
        let ended = py.detach(|| engine.join());
        match ended {
            Ok(Ok(Ended { result, params })) => Outcome::new(py, result.as_ref(), params),
            Ok(Err(error)) => Err(exception(&error)),
            Err(_) => Err(failed("the engine panicked; see above")),
        }
    }
}

/// Starts a job on threads of this process, with one host for each worker. `speeds` belong to hosts.
#[pyfunction]
#[pyo3(signature = (spec, initial, journal=None, faults=None))]
pub fn threads(
    spec: &str,
    initial: &Bound<'_, Flat>,
    journal: Option<String>,
    faults: Option<String>,
) -> PyResult<Run> {
    let spec = Spec::read(spec)?;
    let prepared = spec.prepare(spec.hosted(initial.get())?)?;
    let saving = spec.saving();
    let faults = faults.map(|text| scenario(&text, spec.workers)).transpose()?;
    start(sizes(&prepared), (journal, saving), move |stop, (readers, saving), lines| {
        let options = TrainOptions { stop, readers, saving, faults, ..Default::default() };
        let host = move |line| drop(lines.send(line));
        let trained = train_hosted(&prepared, options, host)?;
        Ok(Ended { result: Some(trained.result), params: trained.params })
    })
}

/// Starts a simulated job, with one host for each worker. `scenario`: a name, a path, or JSON.
#[pyfunction]
#[pyo3(signature = (spec, initial, scenario, journal=None))]
pub fn simulate(
    spec: &str,
    initial: &Bound<'_, Flat>,
    scenario: &str,
    journal: Option<String>,
) -> PyResult<Run> {
    let spec = Spec::read(spec)?;
    let prepared = spec.prepare(spec.hosted(initial.get())?)?;
    let cluster = crate::run::scenario(scenario, spec.workers)?;
    start(sizes(&prepared), (journal, None), move |stop, (readers, _), lines| {
        let options = SimulateOptions { threads: 1, stop, readers };
        let host = move |line| drop(lines.send(line));
        let simulated = simulate_hosted(&prepared, &cluster, options, host)?;
        Ok(Ended { result: Some(simulated.result), params: simulated.params })
    })
}

/// The scenario of that name, in that file, or in that JSON text, with this many workers.
pub fn scenario(text: &str, workers: u32) -> PyResult<Scenario> {
    let scenario = match text.trim_start().starts_with('{') {
        true => {
            serde_json::from_str(text).map_err(|error| refused(format!("scenario: {error}")))?
        }
        false => scenarios::load(text).map_err(|error| exception(&error.into()))?,
    };
    Ok(Scenario { workers, ..scenario })
}

fn sizes(prepared: &Prepared) -> (usize, usize) {
    (prepared.plan.layout.params, prepared.plan.initial.len())
}

/// What gets the lines of a run's journal, and where it is saved.
pub type Files<'a> = (Vec<&'a mut dyn Reader>, Option<&'a Saving>);

/// Starts a run on its own thread. `sizes`: the learned parameters, and all numbers of a replica.
pub fn start(
    sizes: (usize, usize),
    (journal, saving): (Option<String>, Option<Saving>),
    run: impl FnOnce(Arc<AtomicBool>, Files<'_>, Sender<HostLine>) -> Result<Ended, Error>
    + Send
    + 'static,
) -> PyResult<Run> {
    let (sender, lines) = mpsc::channel();
    let (stop, news) = (Arc::<AtomicBool>::default(), News::default());
    let mut file = journal.map(JournalFile::create).transpose();
    let mut file = match &mut file {
        Ok(file) => file.take(),
        Err(error) => return Err(failed(error.to_string())),
    };
    let (known, wish) = (news.clone(), stop.clone());
    let engine = std::thread::Builder::new()
        .name("paceline".to_owned())
        .spawn(move || {
            let _end = EndOnDrop(known.clone());
            let mut reader = NewsReader(known);
            let mut readers: Vec<&mut dyn Reader> = vec![&mut reader];
            readers.extend(file.iter_mut().map(|file| file as &mut dyn Reader));
            let ended = run(wish, (readers, saving.as_ref()), sender);
            let written = file.map_or(Ok(()), JournalFile::finish);
            let ended = ended?;
            written?;
            Ok(ended)
        })
        .map_err(|error| failed(format!("cannot start a thread: {error}")))?;
    let (lines, engine) = (Mutex::new(lines), Mutex::new(Some(engine)));
    Ok(Run { lines, engine, stop, news, sizes })
}

/// Says that a run has ended, also if it panicked.
struct EndOnDrop(News);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}
