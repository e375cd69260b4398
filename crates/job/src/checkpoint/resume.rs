//! Rebuilds a job from its checkpoint, ready to go on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_learn::Vector;
use paceline_runtime::{Snapshot, train};
use safetensors::SafeTensors;
use serde_json::Value;

use super::files::{self, PARAMS, STATE};
use super::{Manifest, folder};
use crate::error::{CheckpointError, Error, JobError, Mismatch};
use crate::job::{Job, PrepareOptions, Prepared};

/// A checkpoint that was found whole.
pub struct Checkpoint {
    pub manifest: Manifest,
    pub path: PathBuf,
    /// What is wrong with newer ones.
    pub passed_over: Vec<CheckpointError>,
    snapshot: Snapshot,
}

/// What may be another way when a job goes on; all else makes what was learned what it is.
const CHANGEABLE: [&str; 7] = [
    "epochs",
    "learning_rate",
    "target_loss",
    "target_accuracy",
    "checkpoints",
    // Another machine may keep its data elsewhere and have other instructions.
    "data_dir",
    "kernels",
];

impl Checkpoint {
    /// The newest whole checkpoint in `dir`, or `dir` itself if it is one.
    pub fn load(dir: impl AsRef<Path>) -> Result<Checkpoint, CheckpointError> {
        let read = |path: &Path| {
            let manifest = files::read_manifest(path)?;
            let snapshot = read_snapshot(path, &manifest)?;
            Ok((path.to_owned(), manifest, snapshot))
        };
        let ((path, manifest, snapshot), passed_over) = folder::newest_intact(dir.as_ref(), read)?;
        Ok(Checkpoint { manifest, path, passed_over, snapshot })
    }

    /// The folder of checkpoints that it lies in; `None` if it was taken out and stands alone.
    pub fn folder(&self) -> Option<&Path> {
        let parent = self.path.parent()?;
        let is_listed = folder::round_of(&self.path).is_some();
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        is_listed.then_some(parent)
    }

    /// Goes on with `job`, which is the manifest's but for what may change, on so many workers.
    pub fn prepare(self, job: &Job, workers: u32) -> Result<Prepared, Error> {
        self.prepare_with(job, PrepareOptions::new(workers))
    }

    /// As [`prepare`](Self::prepare), with custom recipes or a custom task.
    pub fn prepare_with(self, job: &Job, options: PrepareOptions<'_>) -> Result<Prepared, Error> {
        let Checkpoint { manifest, snapshot, .. } = self;
        let workers = options.workers;
        refuse_change(&manifest, job)?;
        if workers == 0 {
            return Err(JobError::NoWorkers.into());
        }
        // Batches and rates are those of the job's first view, whoever goes on with it.
        let options = PrepareOptions { workers: manifest.workers_first, ..options };
        let mut prepared = job.prepare_with(options)?;
        prepared.workers = workers;
        check(&manifest, &snapshot, &prepared)?;
        prepared.plan.resumed = Some(Arc::new(snapshot));
        Ok(prepared)
    }
}

fn refuse_change(manifest: &Manifest, now: &Job) -> Result<(), Error> {
    // A batch may be told in three ways.
    let fields = |job: &Job| {
        let batch = Some(job.batch_of_one(manifest.workers_first)?);
        let plain = Job { batch, batch_total: None, ..job.clone() };
        Ok::<_, JobError>(serde_json::to_value(plain).expect("a job is plain data"))
    };
    let (before, now) = (fields(&manifest.job)?, fields(now)?);
    let Value::Object(now) = now else { return Ok(()) };
    let changed = now.iter().find(|(name, value)| {
        !CHANGEABLE.contains(&name.as_str()) && before.get(name.as_str()) != Some(value)
    });
    match changed {
        None => Ok(()),
        Some((name, value)) => {
            let was = before.get(name).unwrap_or(&Value::Null).clone();
            let (field, now) = (name.clone(), value.clone());
            Err(CheckpointError::Changed { field, was, now }.into())
        }
    }
}

fn check(
    manifest: &Manifest,
    snapshot: &Snapshot,
    prepared: &Prepared,
) -> Result<(), CheckpointError> {
    let (plan, size) = (&prepared.plan, prepared.task.model.size());
    let learned = plan.layout.params.min(size);
    let (has, wants) = (manifest.params, plan.initial.len());
    let other = |problem: Mismatch| {
        let (model, data) = (manifest.job.model.clone(), manifest.job.data.clone());
        CheckpointError::Mismatch { model, data, problem }
    };
    let vocabulary = prepared.task.train.vocabulary();
    if let (Some(learned), Some(now)) = (&manifest.vocabulary, vocabulary)
        && learned != now
    {
        return Err(CheckpointError::VocabularyChanged { data: manifest.job.data.clone() });
    }
    if has != wants as u64 || plan.samples_per_epoch != manifest.samples_per_epoch {
        return Err(other(Mismatch::Sizes {
            params: has,
            samples: manifest.samples_per_epoch,
            params_wanted: wants as u64,
            samples_wanted: plan.samples_per_epoch,
        }));
    }
    let fits = |vector: &Vector| vector.len() == wants || vector.len() == size;
    let portions = || snapshot.portions.values();
    let replicas = portions().map(|portion| &portion.shared.params);
    let centers = snapshot.center.iter().map(|center| &center.params);
    let optimizers = portions().map(|portion| &portion.shared.optimizer);
    let optimizers = optimizers.chain(snapshot.center.iter().map(|center| &center.optimizer));
    let sums =
        portions().filter_map(|portion| Some(&portion.own.summed.as_ref()?.sum.gradient.sum));
    let residuals = portions().map(|portion| &*portion.own.residual);
    if !replicas.chain(centers).all(|vector| vector.len() == wants)
        || !optimizers.flat_map(|state| &state.slots).all(|slot| slot.len() == learned)
        || !sums.chain(residuals).all(|vector| vector.is_empty() || fits(vector))
    {
        return Err(other(Mismatch::VectorLength));
    }
    let end = manifest.done.intervals().last().map_or(0, |(_, end)| *end);
    if end > plan.samples_total {
        let done = end as f64 / plan.samples_per_epoch as f64;
        return Err(CheckpointError::EpochsDone { done });
    }
    let memory = portions().next().map_or(&[][..], |portion| &portion.shared.memory);
    train::check_memory(memory, prepared.strategy()).map_err(|error| other(Mismatch::Memory(error)))
}

fn read_snapshot(dir: &Path, manifest: &Manifest) -> Result<Snapshot, CheckpointError> {
    let params = Arc::new(files::read_params(dir, manifest)?);
    let bytes = files::read_sealed(dir, STATE, manifest)?;
    let damaged = |problem| CheckpointError::File { path: dir.join(STATE), problem };
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.into()))?;
    let find = |name: &str| match name {
        "" => Ok(Arc::default()),
        PARAMS => Ok(params.clone()),
        name => files::vector(&tensors, name).map(Arc::new),
    };
    let snapshot = manifest.state.join(&find).map_err(damaged)?;
    let losses = (manifest.loss_first, manifest.loss_last);
    Ok(Snapshot { done: manifest.done.clone(), losses, ..snapshot })
}
