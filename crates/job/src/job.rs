//! Checks a job once; a [`Prepared`] job is valid and ready to run.

use std::sync::Arc;
use std::time::Duration;

use paceline_learn::{Optimizer, Rescale, Rule, Schedule, ScheduleBefore, layout};
use paceline_runtime::codec::Codec;
use paceline_runtime::edge::Compute;
use paceline_runtime::journal::Past;
use paceline_runtime::ledger::Ledger;
use paceline_runtime::{AnyStrategy, Coordination, Owner, Plan, Replay};

pub use crate::config::Job;
use crate::error::{Error, JobError};
use crate::facts::Facts;
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

/// What a job says, as far as it can be checked without its data.
pub struct Outline {
    /// Of the strategy.
    pub name: String,
    pub coordination: Coordination,
    pub batch: u64,
    make: Make,
    target: Option<Target>,
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
    /// The history before the job was resumed.
    pub(crate) past: Past,
    /// Where the schedule of a resumed job continues; `None` if it is planned anew.
    pub(crate) schedule_before: Option<ScheduleBefore>,
    /// The recorded training of an earlier run, which replaces computing.
    pub(crate) training: Option<Arc<Training>>,
    make: Make,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// On the validation part, of the model that would be deployed.
    Loss(f64),
    /// On the validation part, of the model that would be deployed.
    Accuracy(f64),
    /// Of mini-batches, where workers computed their gradients; smoothed over half an epoch of samples.
    TrainingLoss(f64),
}

impl Target {
    /// Whether it is judged on the validation part.
    pub fn is_validated(self) -> bool {
        !matches!(self, Target::TrainingLoss(_))
    }
}

/// How often per epoch of samples a target is judged.
const EVALUATIONS_PER_EPOCH: u64 = 20;

impl Job {
    /// Checks everything that types cannot, with the built-in recipes and the model and data that the job names.
    pub fn prepare(&self, workers: u32) -> Result<Prepared, Error> {
        self.prepare_with(PrepareOptions::new(workers))
    }

    /// As [`prepare`](Self::prepare), with custom recipes or a custom task.
    pub fn prepare_with(&self, options: PrepareOptions<'_>) -> Result<Prepared, Error> {
        let PrepareOptions { workers, recipes, task } = options;
        let named = task.is_none().then_some((self.model.as_str(), self.data.as_str()));
        self.prepare_as(workers, recipes, named, || task.map_or_else(|| Task::of(self), Ok))
    }

    /// Prepares the job for a coordinator without data, from what a worker says of the model and data that the job names.
    pub fn prepare_from(
        &self,
        facts: &Facts,
        workers: u32,
        recipes: &[Recipe],
    ) -> Result<Prepared, Error> {
        let is_named = !self.is_own()?;
        let named = is_named.then_some((self.model.as_str(), self.data.as_str()));
        self.prepare_as(workers, recipes, named, || Ok(facts.task()))
    }

    fn prepare_as(
        &self,
        workers: u32,
        recipes: &[Recipe],
        named: Option<(&str, &str)>,
        task: impl FnOnce() -> Result<Task, Error>,
    ) -> Result<Prepared, Error> {
        let Outline { name, batch, make, target, .. } = self.outline(workers, recipes)?;
        let (model, data) = named.unzip();
        let task = task()?;
        let steps = self.steps(find(recipes, &self.strategy)?, model, task.train.features())?;
        let mut plan = self.plan(steps, &make, &task, batch, workers)?;
        if target.is_some_and(Target::is_validated) {
            if task.validation.is_none() {
                return Err(JobError::NothingHeldOut.into());
            }
            plan.evaluations_per_epoch = EVALUATIONS_PER_EPOCH;
        }
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
            past: Past::default(),
            schedule_before: None,
            training: None,
            make,
        })
    }

    /// Checks everything that needs neither the model nor the data, also their names.
    pub fn check_without_data(&self, workers: u32, recipes: &[Recipe]) -> Result<Outline, Error> {
        let outline = self.outline(workers, recipes)?;
        Task::check_names(self)?;
        // The default rate depends on the data, its bounds do not.
        self.steps(find(recipes, &self.strategy)?, Some(&self.model), 1)?;
        self.check_epochs()?;
        Ok(outline)
    }

    fn outline(&self, workers: u32, recipes: &[Recipe]) -> Result<Outline, Error> {
        let recipe = find(recipes, &self.strategy)?;
        let make = self.choices.clone().map_or(recipe.make.clone(), Make::Choices);
        if let Make::Choices(choices) = &make {
            choices.check()?;
        }
        if workers == 0 {
            return Err(JobError::NoWorkers.into());
        }
        let batch = self.batch_of_one(workers)?;
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.check()?;
        }
        let name = match &self.choices {
            Some(choices) => choices.strategy.name().to_owned(),
            None => recipe.name.clone(),
        };
        let coordination = strategy(&make, batch, workers).coordination();
        Ok(Outline { name, coordination, batch, make, target: self.target()? })
    }

    fn check_epochs(&self) -> Result<(), JobError> {
        let is_valid = self.epochs.is_finite() && self.epochs > 0.0 && self.epochs < 1e6;
        if is_valid { Ok(()) } else { Err(JobError::Epochs(self.epochs)) }
    }

    fn target(&self) -> Result<Option<Target>, JobError> {
        let targets = [
            self.target_loss.map(Target::Loss),
            self.target_accuracy.map(Target::Accuracy),
            self.target_training_loss.map(Target::TrainingLoss),
        ];
        let mut given = targets.into_iter().flatten();
        let target = given.next();
        if given.next().is_some() {
            return Err(JobError::TwoTargets);
        }
        match target {
            Some(Target::Loss(loss)) if !(loss.is_finite() && loss > 0.0) => {
                Err(JobError::TargetLoss { field: "target_loss", loss })
            }
            Some(Target::TrainingLoss(loss)) if !(loss.is_finite() && loss > 0.0) => {
                Err(JobError::TargetLoss { field: "target_training_loss", loss })
            }
            Some(Target::Accuracy(accuracy)) if !(accuracy > 0.0 && accuracy <= 1.0) => {
                Err(JobError::TargetAccuracy(accuracy))
            }
            target => Ok(target),
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
        let is_adamw = |optimizer: &Optimizer| matches!(optimizer.rule, Rule::Adamw { .. });
        let (optimizer, rate) = of_model.unwrap_or_else(|| match &self.optimizer {
            Some(optimizer) if is_adamw(optimizer) => {
                (optimizer.clone(), models::adamw_rate(model, features))
            }
            _ => {
                let factor = model.map_or(1.0, |model| models::rate_factor(model, features));
                (recipe.optimizer.clone(), recipe.learning_rate * factor)
            }
        });
        let optimizer = self.optimizer.clone().unwrap_or(optimizer);
        optimizer.check().map_err(JobError::from)?;
        let base = self.learning_rate.unwrap_or(rate);
        let (shape, warm_up) = (self.schedule.clone(), self.warm_up);
        let schedule = Schedule { base, shape, warm_up, stretched: None };
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
        self.check_epochs()?;
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
        let samples_whole = (self.epochs * samples_per_epoch as f64).round() as u64;
        let learned_before = task.train.learned_before();
        let samples_total = samples_whole.saturating_sub(learned_before);
        // Of a job that was begun elsewhere, any rest is learned.
        if samples_whole < first || samples_total == 0 {
            return Err(JobError::TooFewSamples { workers, batch, samples: samples_total });
        }
        let layout = task.model.layout();
        layout::check(&layout.tensors, task.model.size())?;
        Ok(Plan {
            seed: self.seed,
            samples_total,
            samples_per_epoch,
            evaluations_per_epoch: 1,
            ledger: Arc::new(Ledger::new(samples_total)),
            members_min: 1,
            initial: Arc::new(task.model.initial(self.seed)),
            replicas: Owner::Ours,
            rounds_ahead: 0,
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
        strategy(&self.make, self.batch, self.workers_first)
    }

    /// The length of a replica.
    pub fn size(&self) -> usize {
        self.task.model.size()
    }

    /// How long the job had run before it was resumed; zero for a new one.
    pub fn time_before(&self) -> Duration {
        self.past.time
    }

    /// Lets a resumed job's time begin no earlier than this: the run before may have lasted longer than its last
    /// checkpoint knows.
    pub fn begin_at(&mut self, time: Duration) {
        self.past.time = self.past.time.max(time);
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

fn strategy(make: &Make, batch: u64, workers: u32) -> Box<dyn AnyStrategy> {
    match make {
        Make::Choices(choices) => choices.build(batch, workers as usize),
        Make::Own(make) => make(batch, workers as usize),
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

    /// With the rate of a recipe for SGD, AdamW would diverge.
    #[test]
    fn adamw_has_defaults_of_its_own() {
        for strategy in ["ssgd", "abs", "diloco"] {
            let text =
                format!("strategy = \"{strategy}\"\n[optimizer]\nrule = {{ kind = \"adamw\" }}\n");
            let job = Job::from_toml(&text).expect("nothing else is needed");
            let plan = job.prepare(4).expect("the job is valid").plan;

            assert_eq!(plan.schedule.base, 0.01, "{strategy}");
            let Rule::Adamw { beta1, beta2, .. } = plan.optimizer.rule else {
                panic!("{strategy}")
            };
            assert_eq!((beta1, beta2), (0.9, 0.999));
        }
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
