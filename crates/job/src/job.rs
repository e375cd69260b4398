//! Checks a job once; a [`Prepared`] job is valid and ready to run.

use std::sync::Arc;

use paceline_learn::{Optimizer, Rescale, Schedule, layout};
use paceline_runtime::codec::Codec;
use paceline_runtime::edge::Compute;
use paceline_runtime::ledger::Ledger;
use paceline_runtime::{AnyStrategy, Owner, Plan, Replay};

pub use crate::config::Job;
use crate::error::{Error, JobError};
use crate::models;
use crate::recipes::{Make, Recipe, built_in, find};
use crate::retime::Training;
use crate::run_result::Losses;
use crate::task::Task;

/// What [`Job::prepare_with`] needs besides the job.
#[derive(Clone)]
pub struct PrepareOptions<'a> {
    /// The workers of the first view.
    pub workers: u32,
    /// The strategies that the job may name.
    pub recipes: &'a [Recipe],
    /// Replaces the job's `model` and `data`, which are then ignored.
    pub task: Option<Task>,
}

impl PrepareOptions<'static> {
    /// The built-in recipes, and the model and data that the job names.
    pub fn new(workers: u32) -> PrepareOptions<'static> {
        PrepareOptions { workers, recipes: built_in(), task: None }
    }
}

/// A job that has been checked: ready to run.
#[derive(Clone)]
pub struct Prepared {
    pub name: String,
    /// As the job names them; empty if a task was given instead.
    pub(crate) model: String,
    pub(crate) data: String,
    pub workers: u32,
    /// The workers of the first view: batches and learning rates follow from it. A resumed job may run on
    /// another number of workers.
    pub workers_first: u32,
    pub batch: u64,
    pub task: Task,
    pub plan: Plan,
    pub target: Option<Target>,
    /// Whether the run ends as soon as the target is reached.
    pub ends_at_target: bool,
    /// The losses before the job was resumed.
    pub(crate) losses: Losses,
    /// The recorded training of an earlier run, which replaces computing.
    pub(crate) training: Option<Arc<Training>>,
    make: Make,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    Loss(f64),
    Accuracy(f64),
}

impl Job {
    /// Checks everything that types cannot, with the built-in recipes and the model and data that the job names.
    pub fn prepare(&self, workers: u32) -> Result<Prepared, Error> {
        self.prepare_with(PrepareOptions::new(workers))
    }

    /// As [`prepare`](Self::prepare), with custom recipes or a custom task.
    pub fn prepare_with(&self, options: PrepareOptions<'_>) -> Result<Prepared, Error> {
        let PrepareOptions { workers, recipes, task } = options;
        let recipe = find(recipes, &self.strategy)?;
        let make = self.choices.clone().map_or(recipe.make.clone(), Make::Choices);
        if let Make::Choices(choices) = &make {
            choices.check()?;
        }
        if workers == 0 {
            return Err(JobError::NoWorkers.into());
        }
        let batch = self.batch_of_one(workers)?;
        let named = task.is_none().then_some((self.model.as_str(), self.data.as_str()));
        let (model, data) = named.unzip();
        let task = match task {
            Some(task) => task,
            None => Task::of(self)?,
        };
        let steps = self.steps(recipe, model, task.train.features())?;
        let plan = self.plan(steps, &make, &task, batch, workers)?;
        let target = self.target()?;
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.check()?;
        }
        let name = match &self.choices {
            Some(choices) => choices.strategy.name().to_owned(),
            None => recipe.name.clone(),
        };
        Ok(Prepared {
            name,
            model: model.unwrap_or_default().to_owned(),
            data: data.unwrap_or_default().to_owned(),
            workers,
            workers_first: workers,
            batch,
            task,
            plan,
            target,
            ends_at_target: false,
            losses: Losses::default(),
            training: None,
            make,
        })
    }

    fn target(&self) -> Result<Option<Target>, JobError> {
        match (self.target_loss, self.target_accuracy) {
            (Some(_), Some(_)) => Err(JobError::TwoTargets),
            (Some(loss), _) if !(loss.is_finite() && loss > 0.0) => Err(JobError::TargetLoss(loss)),
            (_, Some(accuracy)) if !(accuracy > 0.0 && accuracy <= 1.0) => {
                Err(JobError::TargetAccuracy(accuracy))
            }
            (Some(loss), _) => Ok(Some(Target::Loss(loss))),
            (_, Some(accuracy)) => Ok(Some(Target::Accuracy(accuracy))),
            (None, None) => Ok(None),
        }
    }

    /// The optimizer and the schedule. Defaults are those of the named model, or of the recipe.
    fn steps(
        &self,
        recipe: &Recipe,
        model: Option<&str>,
        features: usize,
    ) -> Result<(Optimizer, Schedule), JobError> {
        // A learning rate belongs to its optimizer: the model's default rate needs the model's default optimizer.
        let of_model = model.filter(|_| self.optimizer.is_none()).and_then(models::default_steps);
        let (optimizer, rate) = of_model.unwrap_or_else(|| {
            let factor = model.map_or(1.0, |model| models::rate_factor(model, features));
            (recipe.optimizer.clone(), recipe.learning_rate * factor)
        });
        let optimizer = self.optimizer.clone().unwrap_or(optimizer);
        optimizer.check().map_err(JobError::from)?;
        let base = self.learning_rate.unwrap_or(rate);
        let schedule = Schedule { base, shape: self.schedule.clone(), warm_up: self.warm_up };
        schedule.check().map_err(JobError::from)?;
        Ok((optimizer, schedule))
    }

    fn plan(
        &self,
        (optimizer, schedule): (Optimizer, Schedule),
        make: &Make,
        task: &Task,
        batch: u64,
        workers: u32,
    ) -> Result<Plan, JobError> {
        if !(self.epochs.is_finite() && self.epochs > 0.0 && self.epochs < 1e6) {
            return Err(JobError::Epochs(self.epochs));
        }
        let (rescale, codec) = match make {
            Make::Choices(choices) => (choices.rescale, choices.codec),
            Make::Own(_) => (Rescale::None, Codec::Dense),
        };
        let first = batch * u64::from(workers);
        let batch_reference = self.batch_reference.unwrap_or(first as f64);
        if !(batch_reference.is_finite() && batch_reference > 0.0) {
            return Err(JobError::BatchReference(batch_reference));
        }
        let samples_per_epoch = task.train.len();
        let samples_total = (self.epochs * samples_per_epoch as f64).round() as u64;
        if samples_total < first {
            return Err(JobError::TooFewSamples { workers, batch, samples: samples_total });
        }
        let layout = task.model.layout();
        layout::check(&layout.tensors, task.model.size())?;
        Ok(Plan {
            seed: self.seed,
            samples_total,
            samples_per_epoch,
            ledger: Arc::new(Ledger::new(samples_total)),
            members_min: 1,
            initial: Arc::new(task.model.initial(self.seed)),
            replicas: Owner::Ours,
            blank: Arc::default(),
            layout,
            optimizer,
            schedule,
            rescale,
            batch_reference,
            codec,
            fingerprints: false,
            replay: None,
            saves: None,
            resumed: None,
        })
    }
}

impl Prepared {
    pub fn strategy(&self) -> Box<dyn AnyStrategy> {
        match &self.make {
            Make::Choices(choices) => choices.build(self.batch, self.workers_first as usize),
            Make::Own(make) => make(self.batch, self.workers_first as usize),
        }
    }

    /// The same job, with the measurements of a recorded run instead of this run's clock.
    pub fn replaying(mut self, replay: Replay) -> Prepared {
        self.plan.replay = Some(Arc::new(replay));
        self
    }

    /// Whether the trained parameters may depend on how long things take; always true for custom strategies.
    pub fn reads_clock(&self) -> bool {
        match &self.make {
            Make::Choices(choices) => choices.reads_clock(),
            Make::Own(_) => true,
        }
    }

    /// Whether the recorded training of one run is valid on any cluster. AdaScale reads no clock, but it
    /// reads gradients, which a recorded training does not have.
    pub fn is_retimable(&self) -> bool {
        !self.reads_clock() && self.plan.rescale != Rescale::Adascale
    }

    /// The same job, timed without computing: losses and scores come from the recorded training.
    pub fn retimed(mut self, training: Arc<Training>) -> Prepared {
        assert!(self.is_retimable(), "the training must not depend on the cluster");
        self.plan.replay = Some(Arc::new(training.replay()));
        self.training = Some(training);
        self
    }

    /// The function that clusters compute gradients with.
    pub(crate) fn compute(&self) -> Compute {
        match &self.training {
            Some(training) => training.compute(self.plan.initial.len()),
            None => self.task.compute(self.plan.seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_may_be_named_short_or_spelled_out() {
        let job = Job::from_toml(
            "[choices]\nstrategy = \"delayed\"\nshares = \"by_speed\"\ncodec = { kind = \"qsgd\", bits = 4 }\n",
        );

        let prepared = job.expect("it can be read").prepare(4).expect("the job is valid");

        assert_eq!(prepared.name, "delayed");
    }

    #[test]
    fn contradictions_and_impossible_numbers_are_refused() {
        let rows = [
            ("strategy = \"all_reduce\"\nelasticity = 0.5", "elasticity is the pull of"),
            (
                "strategy = \"periodic_average\"\nperiod = { kind = \"adaptive\", steps_first = 40, steps_max = 3 }",
                "period.steps_max = 3 is less than the 40 steps",
            ),
        ];
        let error = |job: Job| job.prepare(4).err().expect("it is refused").to_string();
        for (choices, start) in rows {
            let job = Job::from_toml(&format!("[choices]\n{choices}\n")).expect("it can be read");
            let message = error(job);
            assert!(message.starts_with(start), "{message}");
        }
        for rate in [f32::INFINITY, f32::NAN, 0.0, -1.0] {
            let job = Job { learning_rate: Some(rate), ..Job::default() };
            assert!(job.prepare(4).is_err(), "{rate}");
        }
        let epsilon = "[optimizer]\nrule = { kind = \"adamw\", beta1 = 0.9, beta2 = 0.99, epsilon = 0.0, weight_decay = 0.0 }\n";
        let job = Job::from_toml(epsilon).expect("it can be read");
        assert!(error(job).contains("epsilon"));
    }

    /// The recipes' rates are for digits: unscaled, training on larger images would diverge.
    #[test]
    fn default_rates_follow_the_data_and_a_rate_leaves_the_optimizer_alone() {
        let prepared = |job: Job| job.prepare(4).expect("the job is valid").plan;
        let rate = |model: &str, data: &str| {
            let job = Job { model: model.into(), data: data.into(), ..Job::default() };
            prepared(job).schedule.base
        };
        assert_eq!(rate("mlp", "digits"), 0.2);
        assert_eq!(rate("resnet8", "digits"), 0.05);
        assert_eq!(rate("resnet8-bn", "digits"), 0.1);
        assert_eq!(models::rate_factor("cnn", 28 * 28), 64.0 / 784.0);
        assert_eq!(models::rate_factor("mlp", 32 * 32 * 3), 1.0 / 16.0);

        let text = Job { model: "charlm".into(), data: "text".into(), ..Job::default() };
        let slower = Job { learning_rate: Some(1e-4), ..text.clone() };
        assert_eq!(prepared(text).optimizer, prepared(slower).optimizer);
    }

    #[test]
    fn huge_numbers_are_refused_and_do_not_overflow() {
        let total = Job { batch_total: Some(u64::MAX), ..Job::default() };
        let epochs = Job { epochs: 1e300, ..Job::default() };
        for job in [total, epochs] {
            assert!(job.prepare(3).is_err());
        }
    }

    #[test]
    fn a_custom_task_replaces_the_named_model_and_data() {
        let task = Task::of(&Job::default()).expect("the default task exists");
        let job = Job { model: "no such model".into(), ..Job::default() };

        let prepared =
            job.prepare_with(PrepareOptions { task: Some(task), ..PrepareOptions::new(2) });

        assert_eq!(prepared.expect("the names are ignored").model, "");
        assert!(job.prepare(2).is_err());
    }
}
