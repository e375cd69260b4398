//! What is to be learned: a model and its data, by name or of one's own.

use std::num::NonZero;
use std::sync::Arc;

use paceline_learn::{Dataset, Gradient, Model, Order, Score};
use paceline_runtime::cluster::{Compute, Workspace};
use rayon::prelude::*;

use crate::data::Sets;
use crate::error::{Error, TaskError};
use crate::{Job, data, models};

/// A model, what it learns from, and what it is judged by.
#[derive(Clone)]
pub struct Task {
    pub model: Arc<dyn Model>,
    pub train: Arc<dyn Dataset>,
    pub test: Arc<dyn Dataset>,
}

impl Task {
    /// The model and the data that a job names.
    pub fn of(job: &Job) -> Result<Task, Error> {
        let (model, data) = (job.model.as_str(), job.data.as_str());
        let Sets { train, test } = data::of(job)?;
        if (model == "quadratic") != (data == "noise") {
            let (model, data) = (model.to_owned(), data.to_owned());
            return Err(TaskError::QuadraticNeedsNoise { model, data }.into());
        }
        let model = models::named(model, train.as_ref(), job.path()?)?;
        Ok(Task { model, train, test })
    }

    /// The function that clusters compute gradients with.
    pub fn compute(&self, seed: u64) -> Compute {
        let (model, data) = (self.model.clone(), self.train.clone());
        let order = Order::new(seed, data.len());
        let micro_batch = model.micro_batch_max();
        Arc::new(move |params, spans, workspace| {
            let mut gradient = Gradient::zero(model.size());
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

    /// How good these parameters are on the test set, with so many hands as `hands` says from time to time;
    /// with none it gives up. The score does not depend on how many they are.
    pub fn evaluate(
        &self,
        params: &[f32],
        workspaces: &mut Vec<Workspace>,
        hands: impl Fn() -> usize,
    ) -> Option<Score> {
        let micro_batch = self.model.micro_batch_max().max(1) as u64;
        let judge = |(from, workspace): (u64, &mut Workspace)| {
            let to = self.test.len().min(from + micro_batch);
            workspace.batch.fill(self.test.as_ref(), (from..to).map(|index| (0, index)));
            self.model.evaluate(params, &workspace.batch, &mut workspace.scratch)
        };
        let mut score = Score::default();
        let mut from = 0;
        while from < self.test.len() {
            let hands = NonZero::new(hands())?.get();
            workspaces.resize_with(workspaces.len().max(hands), Workspace::default);
            let starts = (from..self.test.len()).step_by(micro_batch as usize);
            let parts: Vec<_> = starts.zip(&mut workspaces[..hands]).collect();
            from += parts.len() as u64 * micro_batch;
            let scores: Vec<Score> = match hands {
                1 => parts.into_iter().map(judge).collect(),
                _ => parts.into_par_iter().map(judge).collect(),
            };
            scores.iter().for_each(|part| score.add(part));
        }
        Some(score)
    }
}
