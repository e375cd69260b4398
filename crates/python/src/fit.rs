//! Training with a gradient that is a function of Python: numpy, JAX, anything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_job::{Error, RunResult, SimulateOptions, TrainOptions, simulate, train};
use paceline_learn::{Batch, Gradient, Layout, Model, Score, Scratch, Vector};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use serde::Deserialize;

use crate::errors::{exception, failed, refused};
use crate::flat::Flat;
use crate::run::{Outcome, scenario};
use crate::spec::Spec;

/// Where and how [`fit`] runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    on: On,
    #[serde(default)]
    scenario: Option<String>,
    #[serde(default)]
    speeds: Vec<f64>,
    /// Samples that are evaluated at the end of each epoch.
    #[serde(default)]
    test: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum On {
    Simulate,
    Threads,
}

/// How often the thread that waits looks for signals.
const LOOK_AROUND: Duration = Duration::from_millis(50);

/// Trains. `gradient(params, indices)` returns (sum of gradients, sum of losses, weight or None);
/// `evaluate(params, indices)` returns (sum of losses, correct).
#[pyfunction]
#[pyo3(signature = (spec, place, initial, gradient, evaluate=None))]
pub fn fit(
    py: Python<'_>,
    spec: &str,
    place: &str,
    initial: &Bound<'_, Flat>,
    gradient: Py<PyAny>,
    evaluate: Option<Py<PyAny>>,
) -> PyResult<Outcome> {
    let spec = Spec::read(spec)?;
    let place: Place = serde_json::from_str(place).map_err(|error| refused(error.to_string()))?;
    let initial = initial.get().copied();
    let layout = spec.layout(initial.len())?;
    let stop = Arc::<AtomicBool>::default();
    let failure = Arc::<Mutex<Option<PyErr>>>::default();
    let model = Arc::new(Called {
        layout,
        initial,
        gradient,
        evaluate,
        stop: stop.clone(),
        failure: failure.clone(),
    });
    let prepared = spec.prepare(spec.task(model, place.test)?)?;
    let cluster = match place.on {
        On::Simulate => {
            Some(scenario(place.scenario.as_deref().unwrap_or("uniform"), spec.workers)?)
        }
        On::Threads => None,
    };
    let (saving, wish) = (spec.saving(), stop.clone());
    let run = move || -> Result<(RunResult, Option<Arc<Vector>>), Error> {
        Ok(match cluster {
            Some(cluster) => {
                let options = SimulateOptions { stop: wish, ..Default::default() };
                let simulated = simulate(&prepared, &cluster, options)?;
                (simulated.result, simulated.params)
            }
            None => {
                let (speeds, saving) = (place.speeds, saving.as_ref());
                let options = TrainOptions { speeds, saving, stop: wish, ..Default::default() };
                let trained = train(&prepared, options)?;
                (trained.result, trained.params)
            }
        })
    };
    let engine = std::thread::Builder::new().name("paceline".to_owned()).spawn(run);
    let engine = engine.map_err(|error| failed(format!("cannot start a thread: {error}")))?;
    let mut interrupted = None;
    while !engine.is_finished() {
        py.detach(|| std::thread::sleep(LOOK_AROUND / 10));
        if let Err(signal) = py.check_signals() {
            // The engine ends after its round; nothing of it is left behind.
            stop.store(true, Ordering::Relaxed);
            interrupted = Some(signal);
        }
    }
    let ended = py.detach(|| engine.join());
    if let Some(error) = failure.lock().expect("no holder panics").take().or(interrupted) {
        return Err(error);
    }
    match ended {
        Ok(Ok((result, params))) => Outcome::new(py, Some(&result), params),
        Ok(Err(error)) => Err(exception(&error)),
        Err(_) => Err(failed("the engine panicked; see above")),
    }
}

/// A model whose gradient is called. The first exception ends the run, and is what `fit` raises.
struct Called {
    layout: Layout,
    initial: Vector,
    gradient: Py<PyAny>,
    evaluate: Option<Py<PyAny>>,
    stop: Arc<AtomicBool>,
    failure: Arc<Mutex<Option<PyErr>>>,
}

impl Called {
    fn has_failed(&self) -> bool {
        self.failure.lock().expect("no holder panics").is_some()
    }

    fn fail(&self, error: PyErr) {
        self.failure.lock().expect("no holder panics").get_or_insert(error);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The sum of gradients, the sum of losses, and the weight of these samples.
    fn call(&self, params: &[f32], batch: &Batch) -> PyResult<(Vector, f64, Option<f64>)> {
        Python::attach(|py| {
            let params = Py::new(py, Flat::read_only(Vector::from(params)))?;
            let answer = self.gradient.bind(py).call1((params, batch.labels.clone()))?;
            let (sums, loss, weight): (Bound<'_, PyAny>, f64, Option<f64>) = answer.extract()?;
            let buffer = PyBuffer::<f32>::get(&sums)?;
            let (len, size) = (buffer.item_count(), self.initial.len());
            if len != size {
                return Err(refused(format!(
                    "gradient() returned {len} numbers for {size} parameters: return the sum of the \
                     samples' gradients, one number for each parameter"
                )));
            }
            let mut sum = Vector::zeros(size);
            buffer.copy_to_slice(py, &mut sum)?;
            Ok((sum, loss, weight))
        })
    }

    fn score(&self, evaluate: &Py<PyAny>, params: &[f32], batch: &Batch) -> PyResult<Score> {
        Python::attach(|py| {
            let params = Py::new(py, Flat::read_only(Vector::from(params)))?;
            let answer = evaluate.bind(py).call1((params, batch.labels.clone()))?;
            let (loss_sum, correct): (f64, u64) = answer.extract()?;
            Ok(Score { loss_sum, correct, samples: batch.len() as u64 })
        })
    }
}

impl Model for Called {
    fn params(&self) -> usize {
        self.layout.params
    }

    fn buffers(&self) -> usize {
        self.initial.len() - self.layout.params
    }

    fn initial(&self, _seed: u64) -> Vector {
        self.initial.clone()
    }

    fn gradient(&self, params: &[f32], batch: &Batch, _: &mut Scratch, into: &mut Gradient) {
        let samples = batch.len() as u64;
        match if self.has_failed() { None } else { Some(self.call(params, batch)) } {
            Some(Ok((sum, loss_sum, weight))) => {
                let part = Gradient { sum, loss_sum, ..Gradient::default() };
                into.add(&part);
                match weight {
                    Some(weight) => into.count(samples, weight),
                    None => into.samples += samples,
                }
            }
            // The run ends after this round, and its parameters are not used.
            failed => {
                into.samples += samples;
                if let Some(Err(error)) = failed {
                    self.fail(error);
                }
            }
        }
    }

    fn evaluate(&self, params: &[f32], batch: &Batch, _: &mut Scratch) -> Score {
        let Some(evaluate) = self.evaluate.as_ref().filter(|_| !self.has_failed()) else {
            return Score::default();
        };
        self.score(evaluate, params, batch).unwrap_or_else(|error| {
            self.fail(error);
            Score::default()
        })
    }

    fn layout(&self) -> Layout {
        self.layout.clone()
    }

    fn kernels(&self) -> &'static str {
        "python"
    }

    /// A share is one call.
    fn micro_batch_max(&self) -> usize {
        1 << 24
    }
}
