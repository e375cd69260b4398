//! What a coordinator must know of a task to coordinate it: sizes and names. Workers, which have the data, tell it.

use std::sync::Arc;

use paceline_learn::{
    Batch, Dataset, Gradient, Model, Path, Score, Scratch, Tensor, Vector, Vocabulary, mix,
};
use serde::{Deserialize, Serialize};

use crate::task::Task;

/// A task, as far as its coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Tells different files apart.
    pub data: String,
    /// Samples of an epoch, without those that are held out.
    pub samples: u64,
    /// Samples of the job that were learned before it began.
    #[serde(default)]
    pub learned_before: u64,
    pub features: usize,
    pub classes: usize,
    /// Whether there is a validation part.
    pub validates: bool,
    pub vocabulary: Option<Vocabulary>,
    pub params: usize,
    pub buffers: usize,
    pub tensors: Vec<Tensor>,
    /// Of the first worker, for the journal; others may have other processors.
    pub kernels: String,
}

impl Facts {
    pub fn of(task: &Task) -> Facts {
        let Task { model, train, validation, .. } = task;
        Facts {
            data: format!("{:016x}", data_hash(task)),
            samples: train.len(),
            learned_before: train.learned_before(),
            features: train.features(),
            classes: train.classes(),
            validates: validation.is_some(),
            vocabulary: train.vocabulary().cloned(),
            params: model.params(),
            buffers: model.buffers(),
            tensors: model.tensors(),
            kernels: model.kernels().to_owned(),
        }
    }

    /// Says in one sentence in what a worker differs from the first one; `None` if in nothing that matters.
    pub fn difference(&self, first: &Facts) -> Option<String> {
        let numbers = [
            ("samples per epoch", self.samples, first.samples),
            ("samples learned before", self.learned_before, first.learned_before),
            ("numbers per sample", self.features as u64, first.features as u64),
            ("classes", self.classes as u64, first.classes as u64),
        ];
        let different = numbers.into_iter().find(|(_, mine, theirs)| mine != theirs);
        if let Some((what, mine, theirs)) = different {
            let from = "of this worker differ from those of the job's first worker";
            return Some(format!("the data {from}: {mine} {what} here, {theirs} there"));
        }
        if let Some(difference) = other_tensor(&self.tensors, &first.tensors) {
            let from = "differs from that of the job's first worker";
            return Some(format!("the model of this worker {from}: {difference}"));
        }
        let sizes = |facts: &Facts| facts.params + facts.buffers;
        if (self.params, self.buffers) != (first.params, first.buffers) {
            let (mine, theirs) = (sizes(self), sizes(first));
            let from = "differs from that of the job's first worker";
            return Some(format!(
                "the model of this worker {from}: {mine} parameters and buffers here, {theirs} there"
            ));
        }
        let is_same = (&self.data, &self.vocabulary, self.validates)
            == (&first.data, &first.vocabulary, first.validates);
        (!is_same).then(|| {
            "the data of this worker differ from those of the job's first worker: as many samples, but other contents"
                .to_owned()
        })
    }

    /// Stands for the task where nothing is computed: it has its sizes and names, and no data.
    pub fn task(&self) -> Task {
        let facts = Arc::new(self.clone());
        let sets: Arc<dyn Dataset> = Arc::new(Absent(facts.clone()));
        let validation = self.validates.then(|| sets.clone());
        Task { model: Arc::new(Absent(facts)), train: sets.clone(), validation, test: sets }
    }
}

/// Names the first tensor in which two models differ.
fn other_tensor(mine: &[Tensor], theirs: &[Tensor]) -> Option<String> {
    let at = mine.iter().zip(theirs).position(|(mine, theirs)| mine != theirs);
    let at = at.or((mine.len() != theirs.len()).then_some(mine.len().min(theirs.len())))?;
    let told = |tensor: Option<&Tensor>| match tensor {
        Some(Tensor { name, shape, .. }) => format!("{name} {shape:?}"),
        None => "nothing".to_owned(),
    };
    Some(format!("{} here, {} there", told(mine.get(at)), told(theirs.get(at))))
}

/// A model and data that are elsewhere.
struct Absent(Arc<Facts>);

impl Dataset for Absent {
    fn len(&self) -> u64 {
        self.0.samples
    }

    fn features(&self) -> usize {
        self.0.features
    }

    fn classes(&self) -> usize {
        self.0.classes
    }

    fn vocabulary(&self) -> Option<&Vocabulary> {
        self.0.vocabulary.as_ref()
    }

    fn learned_before(&self) -> u64 {
        self.0.learned_before
    }

    fn read(&self, _index: u64, _epoch: u64, _into: &mut [f32]) -> u32 {
        0
    }
}

impl Model for Absent {
    fn params(&self) -> usize {
        self.0.params
    }

    fn buffers(&self) -> usize {
        self.0.buffers
    }

    /// Empty: a coordinator has no replica, and a worker's word must not make it allocate one.
    fn initial(&self, _seed: u64) -> Vector {
        Vector::default()
    }

    fn gradient(&self, _: &[f32], _: &Batch, _: &mut Scratch, _: &mut Gradient) {}

    fn evaluate(&self, _: &[f32], _: &Batch, _: &mut Scratch) -> Score {
        Score::default()
    }

    fn kernels(&self) -> &'static str {
        let mut known = Path::ALL.into_iter().map(Path::name);
        known.find(|name| *name == self.0.kernels).unwrap_or("plain")
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.0.tensors.clone()
    }
}

/// A name for the data that tells different files apart: a hash of rows that are spread over both sets.
pub(crate) fn data_hash(task: &Task) -> u64 {
    const ROWS: u64 = 512;
    let mut hash = 0u64;
    let mut take = |value: u64| hash = mix(hash ^ value);
    for data in [&task.train, &task.test] {
        let (length, features) = (data.len(), data.features());
        [length, features as u64, data.classes() as u64].into_iter().for_each(&mut take);
        let mut row = vec![0.0; features];
        let step = (length / ROWS).max(1) as usize;
        for index in (0..length).step_by(step) {
            take(u64::from(data.read(index, 0, &mut row)));
            row.iter().for_each(|x| take(u64::from(x.to_bits())));
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Job, recipes};

    fn job(model: &str, data: &str) -> Job {
        Job { model: model.into(), data: data.into(), ..Job::default() }
    }

    #[test]
    fn facts_prepare_the_same_job_as_the_data_do() {
        for (model, data) in [("softmax", "blobs"), ("resnet8-bn", "digits"), ("charlm", "text")] {
            let job = job(model, data);
            let here = job.prepare(3).expect("the job is valid");
            let text = serde_json::to_string(&Facts::of(&here.task)).expect("plain data");
            let facts: Facts = serde_json::from_str(&text).expect("it was written so");

            let there = job.prepare_from(&facts, 3, &recipes()).expect("the job is valid");

            assert_eq!(there.plan.samples_total, here.plan.samples_total);
            assert_eq!(there.plan.schedule, here.plan.schedule);
            assert_eq!(there.plan.layout.tensors, here.plan.layout.tensors);
            assert_eq!((there.size(), there.batch), (here.plan.initial.len(), here.batch));
            assert_eq!((&there.model, &there.data), (&here.model, &here.data));
            assert_eq!(there.task.model.kernels(), here.task.model.kernels());
            assert_eq!(there.task.train.vocabulary(), here.task.train.vocabulary());
            assert!(there.plan.initial.is_empty());
        }
    }

    #[test]
    fn a_job_that_was_begun_elsewhere_has_so_many_samples_fewer() {
        let job = job("softmax", "blobs");
        let whole = job.prepare(3).expect("the job is valid");
        let all = whole.plan.samples_total;
        let facts = |learned_before| Facts { learned_before, ..Facts::of(&whole.task) };
        let total = |before| {
            job.prepare_from(&facts(before), 3, &recipes()).map(|it| it.plan.samples_total)
        };

        assert_eq!(total(1000).ok(), Some(all - 1000));
        assert_eq!(total(all - 1).ok(), Some(1), "less than one batch is learned, too");
        assert!(total(all).is_err() && total(u64::MAX).is_err(), "nothing is left");
        let other = facts(7).difference(&facts(8)).unwrap_or_default();
        assert!(other.ends_with("7 samples learned before here, 8 there"), "{other}");
    }

    #[test]
    fn a_difference_is_named() {
        let of = |job: Job| Facts::of(&Task::of(&job).expect("the job is valid"));
        let first = of(job("softmax", "blobs"));
        let said = |job: Job| of(job).difference(&first).unwrap_or_default();
        let fewer = Job { samples: Some(100), ..job("softmax", "blobs") };
        assert!(said(fewer).ends_with("90 samples per epoch here, 1800 there"));
        let other = Job { seed: 2, ..job("softmax", "blobs") };
        assert!(said(other).ends_with("other contents"));
        let wider = said(job("mlp", "blobs"));
        assert!(wider.contains("the model of this worker differs"), "{wider}");
        let quadratic = Facts { params: 7, ..first.clone() };
        let sizes = quadratic.difference(&first).unwrap_or_default();
        assert!(sizes.contains("parameters and buffers here"), "{sizes}");
        let slower = Facts { kernels: "portable".into(), ..first.clone() };
        assert_eq!(slower.difference(&first), None);
    }
}
