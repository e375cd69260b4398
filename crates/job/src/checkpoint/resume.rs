//! Resumes a job from its checkpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_learn::ScheduleBefore;
use paceline_runtime::Snapshot;
use paceline_runtime::private::RESIDUAL;
use safetensors::SafeTensors;
use serde_json::Value;

use super::files::{self, PARAMS, STATE};
use super::state::Find;
use super::{Manifest, folder};
use crate::error::{CheckpointError, Error, JobError, Mismatch};
use crate::facts::Facts;
use crate::job::{Job, PrepareOptions, Prepared};
use crate::recipes::Recipe;
use crate::run_result::Losses;

/// A checkpoint that is complete and undamaged.
pub struct Checkpoint {
    pub manifest: Manifest,
    pub path: PathBuf,
    /// Why newer checkpoints were skipped.
    pub passed_over: Vec<CheckpointError>,
    /// If the job is resumed with another number of epochs: plans the learning rate anew over all of them, as if the
    /// job had always had that many. Otherwise the rate continues where it was, and the rest of its schedule is
    /// stretched over the samples that remain.
    pub restart_schedule: bool,
    snapshot: Arc<Snapshot>,
}

/// Fields that may change when a job is resumed; all others determine what has been learned so far.
const CHANGEABLE: [&str; 8] = [
    "epochs",
    "learning_rate",
    "target_loss",
    "target_accuracy",
    "target_training_loss",
    "checkpoints",
    // Another machine may have its data elsewhere, and other vector instructions.
    "data_dir",
    "kernels",
];

impl Checkpoint {
    /// The newest whole checkpoint in `dir`, or `dir` itself if it is one.
    pub fn load(dir: impl AsRef<Path>) -> Result<Checkpoint, CheckpointError> {
        let read = |path: &Path| {
            let manifest = files::read_manifest(path)?;
            let snapshot = read_snapshot(path, &manifest)?;
            Ok((path.to_owned(), manifest, Arc::new(snapshot)))
        };
        let ((path, manifest, snapshot), passed_over) = folder::newest_intact(dir.as_ref(), read)?;
        Ok(Checkpoint { manifest, path, passed_over, restart_schedule: false, snapshot })
    }

    /// The folder of checkpoints that contains it; `None` if it was moved out of one.
    pub fn folder(&self) -> Option<&Path> {
        let parent = self.path.parent()?;
        let is_listed = folder::round_of(&self.path).is_some();
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        is_listed.then_some(parent)
    }

    /// Resumes with `job` on `workers` workers; `job` may differ from the manifest's in the changeable fields.
    pub fn prepare(self, job: &Job, workers: u32) -> Result<Prepared, Error> {
        self.prepare_with(job, PrepareOptions::new(workers))
    }

    /// As [`prepare`](Self::prepare), with custom recipes or a custom task.
    pub fn prepare_with(&self, job: &Job, options: PrepareOptions<'_>) -> Result<Prepared, Error> {
        let workers = options.workers;
        self.prepare_as(job, workers, |workers| {
            job.prepare_with(PrepareOptions { workers, ..options })
        })
    }

    /// For a coordinator without data, from what a worker says of them.
    pub fn prepare_from(
        &self,
        job: &Job,
        facts: &Facts,
        workers: u32,
        recipes: &[Recipe],
    ) -> Result<Prepared, Error> {
        self.prepare_as(job, workers, |workers| job.prepare_from(facts, workers, recipes))
    }

    fn prepare_as(
        &self,
        job: &Job,
        workers: u32,
        prepare: impl FnOnce(u32) -> Result<Prepared, Error>,
    ) -> Result<Prepared, Error> {
        let Checkpoint { manifest, snapshot, .. } = self;
        let losses = Losses { first: manifest.loss_first, last: manifest.loss_last };
        self.check_job(job)?;
        if workers == 0 {
            return Err(JobError::NoWorkers.into());
        }
        // Batches and rates are those of the job's first view, however many workers resume it.
        let mut prepared = prepare(manifest.workers_first)?;
        prepared.workers = workers;
        check(manifest, snapshot, &prepared)?;
        prepared.schedule_before = self.schedule_before();
        if let Some(before) = prepared.schedule_before {
            let total = prepared.plan.samples_total;
            prepared.plan.schedule.resume(before, total);
        }
        prepared.plan.resumed = Some(snapshot.clone());
        prepared.losses = losses;
        prepared.past = manifest.past.clone();
        Ok(prepared)
    }

    /// Refuses a job that differs from the manifest's in a field that may not change.
    pub fn check_job(&self, job: &Job) -> Result<(), Error> {
        refuse_change(&self.manifest, job)
    }

    /// What was saved.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// `None` if the schedule is planned anew.
    pub fn schedule_before(&self) -> Option<ScheduleBefore> {
        let Manifest { samples, samples_total, stretched, .. } = self.manifest;
        (!self.restart_schedule).then_some(ScheduleBefore { samples, samples_total, stretched })
    }
}

fn refuse_change(manifest: &Manifest, now: &Job) -> Result<(), Error> {
    // There are three ways to give a batch.
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
    let (plan, size) = (&prepared.plan, prepared.size());
    let learned = plan.layout.params.min(size);
    let has = manifest.params;
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
    if has != size as u64 || plan.samples_per_epoch != manifest.samples_per_epoch {
        return Err(other(Mismatch::Sizes {
            params: has,
            samples: manifest.samples_per_epoch,
            params_wanted: size as u64,
            samples_wanted: plan.samples_per_epoch,
        }));
    }
    let fits = |name: &str, vector: &[f32]| match name {
        RESIDUAL => vector.len() == learned,
        _ => vector.len() == size,
    };
    let parts = || snapshot.workers.values();
    let replicas = parts().map(|part| &part.shared.params);
    let centers = snapshot.center.iter().map(|center| &center.params);
    let optimizers = parts().map(|part| &part.shared.optimizer);
    let optimizers = optimizers.chain(snapshot.center.iter().map(|center| &center.optimizer));
    let mut private = parts().flat_map(|part| part.private.vectors());
    let mut memory = parts().flat_map(|part| part.shared.strategy.vectors.values());
    if !replicas.chain(centers).all(|vector| vector.len() == size)
        || !optimizers.flat_map(|state| state.slots()).all(|slot| slot.len() == learned)
        || !private.all(|(name, vector)| vector.is_empty() || fits(name, vector))
        || !memory.all(|vector| vector.is_empty() || vector.len() == learned)
    {
        return Err(other(Mismatch::VectorLength));
    }
    let end = manifest.done.intervals().last().map_or(0, |(_, end)| *end);
    if end > plan.samples_total {
        let done = end as f64 / plan.samples_per_epoch as f64;
        return Err(CheckpointError::EpochsDone { done });
    }
    let memory = parts().next().map(|part| part.shared.strategy.clone()).unwrap_or_default();
    prepared.strategy().load(memory).map_err(|error| other(Mismatch::Memory(error)))
}

fn read_snapshot(dir: &Path, manifest: &Manifest) -> Result<Snapshot, CheckpointError> {
    let params = Arc::new(files::read_params(dir, manifest)?);
    let bytes = files::read_sealed(dir, STATE, manifest)?;
    let damaged = |problem| CheckpointError::File { path: dir.join(STATE), problem };
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.into()))?;
    let vector = |name: &str| match name {
        "" => Ok(Arc::default()),
        PARAMS => Ok(params.clone()),
        name => files::vector(&tensors, name).map(Arc::new),
    };
    let bytes = |name: &str| match name {
        "" => Ok(Arc::default()),
        name => files::bytes(&tensors, name).map(Arc::new),
    };
    let find = Find { vector: &vector, bytes: &bytes };
    let snapshot = manifest.state.join(find).map_err(damaged)?;
    Ok(Snapshot { done: manifest.done.clone(), ..snapshot })
}
