//! One worker's line, as the user's thread uses it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_learn::vector::add_scaled;
use paceline_learn::{Gradient, Vector};
use paceline_runtime::HostLine;
use paceline_runtime::edge::{self, Answer};
use paceline_runtime::host::Waited;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::ask::{Ask, intervals};
use crate::errors::{failed, refused};
use crate::flat::{Flat, numbers_at};
use crate::news::{Fate, News};

/// A worker's line: what the worker asks comes out of it, and the host's answers go into it. One thread uses it.
#[pyclass(frozen, module = "paceline._paceline")]
pub struct Line {
    /// The worker's id.
    #[pyo3(get)]
    worker: u32,
    state: Mutex<State>,
    news: News,
    /// Learned parameters; buffers follow them.
    params: usize,
    size: usize,
    process: u32,
}

struct State {
    line: Option<HostLine>,
    /// The question that is not answered yet, with its vectors.
    asked: Option<edge::Ask>,
    /// The sum of the gradients of the pieces so far.
    sum: Vector,
}

/// How often a thread that waits looks for signals.
const LOOK_AROUND: Duration = Duration::from_millis(100);

impl Line {
    pub fn new(line: HostLine, news: News, (params, size): (usize, usize)) -> Line {
        let worker = line.worker.0;
        let state = State { line: Some(line), asked: None, sum: Vector::new() };
        let process = std::process::id();
        Line { worker, state: Mutex::new(state), news, params, size, process }
    }

    /// Uses the line, without the interpreter's lock.
    fn using<T: Send>(
        &self,
        py: Python<'_>,
        using: impl FnOnce(&mut State) -> PyResult<T> + Send,
    ) -> PyResult<T> {
        if std::process::id() != self.process {
            // No thread of the engine lives in a forked process: whoever waited here would wait for ever.
            return Err(failed(
                "this process was forked from the one that joined: only that one can train; do not use \
                 worker, model or loader in a data loader's workers",
            ));
        }
        py.detach(|| match self.state.try_lock() {
            Ok(mut state) => using(&mut state),
            Err(_) => {
                Err(failed("two threads use one worker at the same time: train on one thread"))
            }
        })
    }

    fn check_len(&self, flat: &Flat) -> PyResult<()> {
        let len = flat.with(<[f32]>::len);
        if len != self.size {
            let size = self.size;
            return Err(refused(format!("a vector of {len} numbers instead of {size}")));
        }
        Ok(())
    }
}

impl State {
    fn line(&mut self) -> PyResult<&mut HostLine> {
        self.line.as_mut().ok_or_else(|| failed("this worker has left the job"))
    }

    /// The question that is answered now, if it is of this kind.
    fn asked(&mut self, is_it: fn(&edge::Ask) -> bool) -> PyResult<edge::Ask> {
        match self.asked.take() {
            Some(ask) if is_it(&ask) => Ok(ask),
            other => {
                self.asked = other;
                Err(failed("this is no answer to what was asked last"))
            }
        }
    }
}

#[pymethods]
impl Line {
    /// Waits for the next question; `None` when the worker's life has ended.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Ask>> {
        loop {
            let waited = self.using(py, |state| {
                if state.asked.is_some() {
                    return Err(failed("the last question is not answered yet"));
                }
                Ok(match &mut state.line {
                    Some(line) => match line.next_within(LOOK_AROUND) {
                        Waited::Asked(ask) => {
                            let seen = Ask::of(&ask);
                            state.asked = Some(ask);
                            Some(Some(seen))
                        }
                        Waited::Nothing => None,
                        Waited::Ended => {
                            state.line = None;
                            Some(None)
                        }
                    },
                    None => Some(None),
                })
            })?;
            if let Some(ask) = waited {
                return Ok(ask);
            }
            py.check_signals()?;
        }
    }

    /// Why the line has ended: over, left or lost. Waits until it is known.
    fn fate(&self, py: Python<'_>) -> PyResult<&'static str> {
        loop {
            let who = paceline_runtime::WorkerId(self.worker);
            match py.detach(|| self.news.fate(who, LOOK_AROUND)) {
                Some(Fate::Over) => return Ok("over"),
                Some(Fate::Left) => return Ok("left"),
                Some(Fate::Lost) => return Ok("lost"),
                None => py.check_signals()?,
            }
        }
    }

    /// Adds the mean gradient of a piece, times its weight. `parts`: for each tensor, in the order of the replica, the address and the
    /// number of its numbers; an address of 0: it has no gradient.
    fn add(&self, py: Python<'_>, parts: Vec<(usize, usize)>, weight: f64) -> PyResult<()> {
        let (size, params) = (self.size, self.params);
        let lengths = parts.iter().try_fold(0_usize, |all, (_, len)| all.checked_add(*len));
        if lengths != Some(params) {
            return Err(refused(format!("gradients that do not have {params} numbers together")));
        }
        self.using(py, |state| {
            let scale = weight as f32;
            let is_first = state.sum.is_empty();
            if is_first {
                state.sum = state.line()?.room(size);
            }
            let mut rest = &mut state.sum[..params];
            for (address, len) in parts {
                let (into, behind) = std::mem::take(&mut rest).split_at_mut(len);
                rest = behind;
                numbers_at(address, len, |gradient| match gradient {
                    Some(gradient) if is_first => {
                        into.iter_mut().zip(gradient).for_each(|(sum, x)| *sum = x * scale);
                    }
                    Some(gradient) => add_scaled(into, scale, gradient),
                    None if is_first => into.fill(0.0),
                    None => {}
                })?;
            }
            Ok(())
        })
    }

    /// Answers `compute` with the sum of what was added; buffers come from `flat`. `weight`: what the sum is divided by, if it is not
    /// the number of samples. `took`: seconds of computing.
    #[pyo3(signature = (flat, samples, weight, loss_sum, took))]
    fn computed(
        &self,
        py: Python<'_>,
        flat: &Bound<'_, Flat>,
        samples: u64,
        weight: Option<f64>,
        loss_sum: f64,
        took: f64,
    ) -> PyResult<()> {
        let flat = flat.get();
        self.check_len(flat)?;
        let took = Duration::try_from_secs_f64(took).unwrap_or_default();
        let (size, params) = (self.size, self.params);
        self.using(py, |state| {
            state.asked(|ask| matches!(ask, edge::Ask::Compute { .. }))?;
            let mut sum = std::mem::take(&mut state.sum);
            if sum.is_empty() {
                sum = Vector::zeros(size);
            }
            flat.with(|flat| {
                let buffers = sum[params..].iter_mut().zip(&flat[params..]);
                buffers.for_each(|(sum, buffer)| *sum = buffer * samples as f32);
            });
            let mut gradient = Gradient { sum, loss_sum, ..Gradient::default() };
            match weight {
                Some(weight) => gradient.count(samples, weight),
                None => gradient.samples = samples,
            }
            state.line()?.computed(gradient, took);
            Ok(())
        })
    }

    /// Writes the mean gradient that is to be applied to `into`, and the mean of the buffers behind it. If nothing weighs anything,
    /// the gradient is zero and the buffers stay.
    fn mean(&self, py: Python<'_>, into: &Bound<'_, Flat>) -> PyResult<()> {
        let into = into.get();
        self.check_len(into)?;
        let params = self.params;
        self.using(py, |state| {
            let Some(edge::Ask::Apply { along, .. }) = &state.asked else {
                return Err(failed("there is nothing to apply"));
            };
            let gradient = along.gradient();
            // Divided, and not multiplied by 1 / weight: that would be rounded once more, for all numbers in the same direction.
            let (weight, samples) = (gradient.weight() as f32, gradient.samples as f32);
            into.change(|into| {
                let (learned, buffers) = into.split_at_mut(params);
                let (sums, statistics) = gradient.sum.split_at(params.min(gradient.sum.len()));
                if weight > 0.0 {
                    learned.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum / weight);
                } else {
                    learned.fill(0.0);
                }
                if samples > 0.0 {
                    buffers.iter_mut().zip(statistics).for_each(|(to, sum)| *to = sum / samples);
                }
            })
        })
    }

    /// Writes the replica that is to be loaded to `into`.
    fn replica(&self, py: Python<'_>, into: &Bound<'_, Flat>) -> PyResult<()> {
        let into = into.get();
        self.check_len(into)?;
        self.using(py, |state| match &state.asked {
            Some(edge::Ask::Load { params, .. }) if params.len() == into.with(<[f32]>::len) => {
                into.change(|into| into.copy_from_slice(params))
            }
            Some(edge::Ask::Load { .. }) => Err(failed("the replica has another length")),
            _ => Err(failed("there is nothing to load")),
        })
    }

    /// Answers `apply` or `load`. `is_skipped`: the step was left out, which the journal notes.
    #[pyo3(signature = (is_skipped=false))]
    fn done(&self, py: Python<'_>, is_skipped: bool) -> PyResult<()> {
        self.using(py, |state| {
            let is_it =
                |ask: &edge::Ask| matches!(ask, edge::Ask::Apply { .. } | edge::Ask::Load { .. });
            state.asked(is_it)?;
            state.line()?.done(if is_skipped { Answer::Skipped } else { Answer::Done });
            Ok(())
        })
    }

    /// Answers `export`.
    fn export(&self, py: Python<'_>, replica: &Bound<'_, Flat>) -> PyResult<()> {
        let replica = replica.get();
        self.check_len(replica)?;
        self.using(py, |state| {
            state.asked(|ask| matches!(ask, edge::Ask::Export))?;
            let params = Arc::new(replica.copied());
            state.line()?.done(Answer::Params(params));
            Ok(())
        })
    }

    /// Answers `keep`.
    fn keep(&self, py: Python<'_>, bytes: Vec<u8>) -> PyResult<()> {
        self.using(py, |state| {
            state.asked(|ask| matches!(ask, edge::Ask::Keep))?;
            state.line()?.done(Answer::Optimizer(Arc::new(bytes)));
            Ok(())
        })
    }

    /// At most so many positions that will probably be computed next, for reading data ahead. Never waits.
    fn peek(&self, py: Python<'_>, samples: u64) -> PyResult<Vec<(u64, u64)>> {
        self.using(py, |state| {
            Ok(state.line.as_mut().map(|line| intervals(&line.peek(samples))).unwrap_or_default())
        })
    }

    /// What the journal says so far: view, members, samples, seconds.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let known = self.news.known().clone();
        let status = PyDict::new(py);
        status.set_item("view", known.view)?;
        let members: Vec<u32> = known.members.iter().map(|who| who.0).collect();
        status.set_item("members", members)?;
        status.set_item("samples", known.samples)?;
        status.set_item("seconds", known.time.as_secs_f64())?;
        Ok(status)
    }

    /// Leaves: the worker ends, and what it holds is computed by others.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.using(py, |state| {
            (state.asked, state.line) = (None, None);
            Ok(())
        })
    }
}
