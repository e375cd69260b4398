//! What is to be learned: a model and its data, by name or of one's own.

use std::sync::Arc;

use paceline_learn::{
    Batch, Dataset, Gradient, Mlp, Model, Noise, Order, Quadratic, Score, Softmax, blobs, digits,
};
use paceline_runtime::cluster::{Compute, Desk};

use crate::recipes::unknown;

/// A model, what it learns from, and what it is judged by.
#[derive(Clone)]
pub struct Task {
    pub model: Arc<dyn Model>,
    pub train: Arc<dyn Dataset>,
    pub test: Arc<dyn Dataset>,
}

pub const MODELS: [&str; 3] = ["mlp", "softmax", "quadratic"];
pub const DATA: [&str; 3] = ["digits", "blobs", "noise"];

/// Largest batch that goes through a model at once.
const MICRO_BATCH_MAX: usize = 256;

impl Task {
    pub fn named(model: &str, data: &str, seed: u64) -> Result<Task, String> {
        let (train, test): (Arc<dyn Dataset>, Arc<dyn Dataset>) = match data {
            "digits" => {
                let (train, test) = digits();
                (Arc::new(train), Arc::new(test))
            }
            "blobs" => {
                // The same centers for both sets, other points around them.
                let all = blobs(2_500, 16, 4, seed, 0.5);
                let (train, test) = split(all, 2_000);
                (Arc::new(train), Arc::new(test))
            }
            "noise" => (Arc::new(Noise { len: 2_000 }), Arc::new(Noise { len: 1 })),
            name => {
                let list = format!("there are {}", DATA.join(", "));
                return Err(unknown("data set", name, DATA.into_iter(), &list));
            }
        };
        let (features, classes) = (train.features(), train.classes());
        if (model == "quadratic") != (data == "noise") {
            return Err(format!(
                "the model quadratic and the data set noise belong together: {model} cannot learn {data}"
            ));
        }
        let model: Arc<dyn Model> = match model {
            "mlp" => Arc::new(Mlp { features, hidden: vec![32], classes }),
            "softmax" => Arc::new(Softmax { features, classes }),
            "quadratic" => Arc::new(Quadratic { curvature: vec![1.0; 16], noise: 0.1 }),
            name => {
                let list = format!("there are {}", MODELS.join(", "));
                return Err(unknown("model", name, MODELS.into_iter(), &list));
            }
        };
        Ok(Task { model, train, test })
    }

    /// The function that clusters compute gradients with.
    pub fn compute(&self, seed: u64) -> Compute {
        let (model, data) = (self.model.clone(), self.train.clone());
        let order = Order::new(seed, data.len());
        Arc::new(move |params, spans, desk| {
            let mut gradient = Gradient::zero(model.size());
            let mut positions = spans.positions();
            loop {
                let some = positions.by_ref().take(MICRO_BATCH_MAX).map(|at| order.at(at));
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
            let to = self.test.len().min(from + MICRO_BATCH_MAX as u64);
            desk.batch.fill(self.test.as_ref(), (from..to).map(|index| (0, index)));
            let batch: &Batch = &desk.batch;
            score.add(&self.model.evaluate(params, batch, &mut desk.scratch));
            from = to;
        }
        score
    }
}

fn split(
    all: paceline_learn::Table,
    train: usize,
) -> (paceline_learn::Table, paceline_learn::Table) {
    let features = all.features;
    let part = |from: usize, to: usize| paceline_learn::Table {
        features,
        classes: all.classes,
        inputs: all.inputs[from * features..to * features].to_vec(),
        labels: all.labels[from..to].to_vec(),
    };
    (part(0, train), part(train, all.labels.len()))
}
