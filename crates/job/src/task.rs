//! What is to be learned: a model and its data, by name or of one's own.

use std::sync::Arc;

use paceline_learn::{Batch, Dataset, Gradient, Model, Order, Score};
use paceline_runtime::cluster::{Compute, Desk};

use crate::data::Sets;
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
    pub fn of(job: &Job) -> Result<Task, String> {
        let (model, data) = (job.model.as_str(), job.data.as_str());
        let Sets { train, test } = data::of(job)?;
        if (model == "quadratic") != (data == "noise") {
            return Err(format!(
                "the model quadratic and the data set noise belong together: {model} cannot learn {data}"
            ));
        }
        let model = models::named(model, train.as_ref(), job.path()?)?;
        Ok(Task { model, train, test })
    }

    /// The function that clusters compute gradients with.
    pub fn compute(&self, seed: u64) -> Compute {
        let (model, data) = (self.model.clone(), self.train.clone());
        let order = Order::new(seed, data.len());
        let micro_batch = model.micro_batch_max();
        Arc::new(move |params, spans, desk| {
            let mut gradient = Gradient::zero(model.size());
            let mut positions = spans.positions();
            desk.scratch.at(params);
            loop {
                let some = positions.by_ref().take(micro_batch).map(|at| order.at(at));
                desk.batch.fill(data.as_ref(), some);
                if desk.batch.is_empty() {
                    return gradient;
                }
                model.gradient(params, &desk.batch, &mut desk.scratch, &mut gradient);
            }
        })
    }

    /// How good these parameters are on the test set.
    pub fn evaluate(&self, params: &[f32], desk: &mut Desk) -> Score {
        let mut score = Score::default();
        let mut from = 0;
        while from < self.test.len() {
            let to = self.test.len().min(from + self.model.micro_batch_max() as u64);
            desk.batch.fill(self.test.as_ref(), (from..to).map(|index| (0, index)));
            let batch: &Batch = &desk.batch;
            score.add(&self.model.evaluate(params, batch, &mut desk.scratch));
            from = to;
        }
        score
    }
}
