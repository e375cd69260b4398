//! What Python says about a job: the job itself as its file would, and the shape of the user's model and data.

use std::ops::Range;
use std::sync::Arc;

use paceline_job::checkpoint::{Checkpoint, Checkpoints, Saving};
use paceline_job::{Error, Job, PrepareOptions, Prepared, Task, recipes};
use paceline_learn::{
    Batch, Dataset, Gradient, Layout, Model, Score, Scratch, Tensor, Vector, layout,
};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::errors::{exception, refused};
use crate::flat::Flat;

/// A job for the user's own model and data.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub job: Job,
    pub workers: u32,
    /// Samples of one epoch.
    pub samples: u64,
    /// Samples that were learned before this job, which has so many fewer.
    #[serde(default)]
    pub samples_before: u64,
    /// Learned parameters; buffers follow them.
    pub params: usize,
    pub tensors: Vec<TensorSpec>,
    /// A folder of checkpoints to resume from.
    #[serde(default)]
    pub resume: Option<String>,
}

/// A tensor of the user's model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    pub name: String,
    pub shape: Vec<usize>,
    /// The sides in the order of memory, and where they stand in the shape; omitted: as in the shape.
    #[serde(default)]
    pub memory: Option<(Vec<usize>, Vec<usize>)>,
    /// Whether it is the number of steps instead of a part of the replica.
    #[serde(default)]
    pub is_steps: bool,
}

impl Spec {
    pub fn read(text: &str) -> PyResult<Spec> {
        serde_json::from_str(text).map_err(|error| refused(error.to_string()))
    }

    /// How the replica is divided; an error if the tensors do not fit it.
    pub fn layout(&self, size: usize) -> PyResult<Layout> {
        let mut start = 0_usize;
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for TensorSpec { name, shape, memory, is_steps } in &self.tensors {
            let fits = |sides: &[usize]| {
                let count = sides.iter().try_fold(1_usize, |n, side| n.checked_mul(*side));
                count.filter(|count| count.checked_add(start).is_some_and(|end| end <= size))
            };
            let sides = memory.as_ref().map_or(shape, |(sides, _)| sides);
            let tensor = match (is_steps, memory) {
                (true, _) => Tensor::steps(name),
                (false, _) if fits(sides).is_none() => {
                    return Err(refused(format!("{name} does not fit the model's {size} numbers")));
                }
                (false, None) => Tensor::plain(name, shape, start),
                (false, Some((sides, order))) => Tensor::permuted(name, shape, start, sides, order),
            };
            if !is_steps {
                start += fits(sides).unwrap_or(0);
            }
            tensors.push(tensor);
        }
        layout::check(&tensors, size).map_err(|error| refused(error.to_string()))?;
        let params = self.params.min(size);
        // Only a center has an optimizer of ours for such a job; buffers are not learned.
        let undecayed = (params < size).then_some(params..size).into_iter().collect();
        Ok(Layout { params, undecayed, tensors })
    }

    /// The user's model and data, as far as the engine knows them.
    pub fn task(&self, model: Arc<dyn Model>, test: u64) -> PyResult<Task> {
        if self.samples == 0 {
            return Err(refused("the data set has no samples: give it at least one"));
        }
        let set = |len, learned_before| Arc::new(Indices { len, learned_before });
        let train: Arc<dyn Dataset> = set(self.samples, self.samples_before);
        let test: Arc<dyn Dataset> = set(test, 0);
        Ok(Task { model, train, validation: None, test })
    }

    /// The same, for a model that hosts compute.
    pub fn hosted(&self, initial: &Flat) -> PyResult<Task> {
        let initial = initial.copied();
        let layout = self.layout(initial.len())?;
        self.task(Arc::new(HostModel { layout, initial }), 0)
    }

    /// Checks the whole job.
    pub fn prepare(&self, task: Task) -> PyResult<Prepared> {
        let (recipes, task) = (recipes(), Some(task));
        let options = PrepareOptions { workers: self.workers, recipes: &recipes, task };
        let prepared = match &self.resume {
            None => self.job.prepare_with(options),
            Some(folder) => Checkpoint::load(folder)
                .map_err(Error::from)
                .and_then(|checkpoint| checkpoint.prepare_with(&self.job, options)),
        };
        prepared.map_err(|error| exception(&error))
    }

    /// Where checkpoints are written, if they are.
    pub fn saving(&self) -> Option<Saving> {
        let checkpoints: Checkpoints = self.job.checkpoints.clone()?;
        let (job, from) = (self.job.clone(), self.resume.clone().map(Into::into));
        let say = |message: &str| eprintln!("paceline: {message}");
        Some(Saving { job, checkpoints, from, now: Arc::default(), say, saved: |_| {} })
    }
}

/// The user's model, as far as the engine knows it when a host computes.
pub struct HostModel {
    pub layout: Layout,
    pub initial: Vector,
}

impl Model for HostModel {
    fn params(&self) -> usize {
        self.layout.params
    }

    fn buffers(&self) -> usize {
        self.initial.len() - self.layout.params
    }

    fn initial(&self, _seed: u64) -> Vector {
        self.initial.clone()
    }

    fn gradient(&self, _: &[f32], _: &Batch, _: &mut Scratch, _: &mut Gradient) {
        unreachable!("the gradients of this model are computed by its hosts")
    }

    /// Users evaluate their models themselves.
    fn evaluate(&self, _: &[f32], _: &Batch, _: &mut Scratch) -> Score {
        Score::default()
    }

    fn undecayed(&self) -> Vec<Range<usize>> {
        self.layout.undecayed.clone()
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.layout.tensors.clone()
    }

    fn kernels(&self) -> &'static str {
        "host"
    }
}

/// Rows that are their own labels: Python reads the data.
pub struct Indices {
    pub len: u64,
    pub learned_before: u64,
}

impl Dataset for Indices {
    fn len(&self) -> u64 {
        self.len
    }

    fn features(&self) -> usize {
        0
    }

    fn classes(&self) -> usize {
        0
    }

    fn learned_before(&self) -> u64 {
        self.learned_before
    }

    fn read(&self, index: u64, _epoch: u64, _into: &mut [f32]) -> u32 {
        index as u32
    }
}

/// The order in which a job reads its samples: a permutation for each epoch.
#[pyclass(frozen, module = "paceline._paceline")]
pub struct Order {
    order: paceline_learn::Order,
    len: u64,
    is_shuffled: bool,
}

#[pymethods]
impl Order {
    #[new]
    fn new(seed: u64, len: u64, is_shuffled: bool) -> PyResult<Order> {
        if len == 0 {
            return Err(refused("the data set has no samples: give it at least one"));
        }
        Ok(Order { order: paceline_learn::Order::new(seed, len), len, is_shuffled })
    }

    /// The (epoch, index) of each position of these intervals.
    fn at(&self, intervals: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
        let positions = intervals.into_iter().flat_map(|(from, to)| from..to);
        let place = |position| match self.is_shuffled {
            true => self.order.at(position),
            false => (position / self.len, position % self.len),
        };
        positions.map(place).collect()
    }
}
