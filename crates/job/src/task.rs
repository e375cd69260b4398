//! A task: a model and its data, by name or user-defined.

use std::num::NonZero;
use std::sync::Arc;

use paceline_learn::{Dataset, Model, Order, Score};
use paceline_runtime::edge::{Compute, Workspace};
use rayon::prelude::*;

use crate::data::{Sets, hold_out};
use crate::error::{Error, TaskError};
use crate::{Job, data, models};

/// A model, the data it is trained on, and the data it is evaluated on.
#[derive(Clone)]
pub struct Task {
    pub model: Arc<dyn Model>,
    pub train: Arc<dyn Dataset>,
    /// What targets are judged on; none of it is trained on. A job that names its data has it cut from the training data;
    /// `None` if nothing is held out.
    pub validation: Option<Arc<dyn Dataset>>,
    pub test: Arc<dyn Dataset>,
}

fn check_pair(model: &str, data: &str) -> Result<(), TaskError> {
    if (model == "quadratic") == (data == "noise") {
        return Ok(());
    }
    let (model, data) = (model.to_owned(), data.to_owned());
    Err(TaskError::QuadraticNeedsNoise { model, data })
}

/// The data that a model is evaluated on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Validation,
    Test,
}

impl Task {
    /// The model and the data that a job names.
    pub fn of(job: &Job) -> Result<Task, Error> {
        if job.is_own()? {
            return Err(TaskError::OwnProgram.into());
        }
        let (model, data) = (job.model.as_str(), job.data.as_str());
        let Sets { train, test } = data::of(job)?;
        check_pair(model, data)?;
        let model = models::named(model, train.as_ref(), job.path()?)?;
        let (train, validation) = hold_out(train, job.validation, job.seed)?;
        Ok(Task { model, train, validation, test })
    }

    /// Checks what a job says of its model and data, as far as that needs no data.
    pub fn check_names(job: &Job) -> Result<(), TaskError> {
        if job.is_own()? {
            return data::check_part(job.validation);
        }
        data::check_name(&job.data)?;
        check_pair(&job.model, &job.data)?;
        models::check_name(&job.model)?;
        data::check_part(job.validation)
    }

    /// The function that clusters compute gradients with.
    pub fn compute(&self, seed: u64) -> Compute {
        let (model, data) = (self.model.clone(), self.train.clone());
        let order = Order::new(seed, data.len());
        let micro_batch = model.micro_batch_max();
        Arc::new(move |params, spans, workspace| {
            let mut gradient = workspace.zero_gradient(model.size());
            let mut positions = spans.positions();
            workspace.scratch.at(params);
            loop {
                let some = positions.by_ref().take(micro_batch).map(|at| order.at(at));
                workspace.batch.fill(data.as_ref(), some);
                if workspace.batch.is_empty() {
                    return gradient;
                }
                model.gradient(params, &workspace.batch, &mut workspace.scratch, &mut gradient);
            }
        })
    }

    /// Evaluates parameters on the test set. `threads` is asked from time to time how many threads to use; at 0 the
    /// evaluation is given up. The score does not depend on their number.
    pub fn evaluate(
        &self,
        params: &[f32],
        workspaces: &mut Vec<Workspace>,
        threads: impl Fn() -> usize,
    ) -> Option<Score> {
        self.evaluate_on(self.test.as_ref(), params, workspaces, threads)
    }

    /// As [`evaluate`](Self::evaluate), on any data of the same shape.
    pub(crate) fn evaluate_on(
        &self,
        data: &dyn Dataset,
        params: &[f32],
        workspaces: &mut Vec<Workspace>,
        threads: impl Fn() -> usize,
    ) -> Option<Score> {
        let micro_batch = self.model.micro_batch_max().max(1) as u64;
        let evaluate = |(from, workspace): (u64, &mut Workspace)| {
            let to = data.len().min(from + micro_batch);
            workspace.batch.fill(data, (from..to).map(|index| (0, index)));
            self.model.evaluate(params, &workspace.batch, &mut workspace.scratch)
        };
        let mut score = Score::default();
        let mut from = 0;
        while from < data.len() {
            let threads = NonZero::new(threads())?.get();
            workspaces.resize_with(workspaces.len().max(threads), Workspace::default);
            let starts = (from..data.len()).step_by(micro_batch as usize);
            let parts: Vec<_> = starts.zip(&mut workspaces[..threads]).collect();
            from += parts.len() as u64 * micro_batch;
            let scores: Vec<Score> = match threads {
                1 => parts.into_iter().map(evaluate).collect(),
                _ => parts.into_par_iter().map(evaluate).collect(),
            };
            scores.iter().for_each(|part| score.add(part));
        }
        Some(score)
    }
}
