//! What the user asks for, checked once at the door; behind it everything is valid.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use paceline_learn::{Optimizer, Path, Rescale, Schedule, Shape};
use paceline_runtime::codec::Codec;
use paceline_runtime::edge::Compute;
use paceline_runtime::{AnyStrategy, Plan, Replay};
use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoints;
use crate::choices::{Choices, kind};
use crate::models;
use crate::recipes::{Make, Recipe, find};
use crate::retime::Training;
use crate::run_result::Losses;
use crate::task::Task;

/// A job, as a file or flags say it. What is left out has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Job {
    /// A recipe's name.
    pub strategy: String,
    /// A training algorithm spelled out, in place of what the recipe says.
    pub choices: Option<Choices>,
    pub model: String,
    pub data: String,
    /// Where data sets lie, in place of the usual folder.
    pub data_dir: Option<PathBuf>,
    /// So many of the first samples to learn from, in place of all.
    pub samples: Option<u64>,
    pub epochs: f64,
    /// Of one worker.
    pub batch: Option<u64>,
    /// Of all workers of the first view together, in place of `batch`; rounded up to equal batches.
    pub batch_total: Option<u64>,
    pub seed: u64,
    /// For a total batch of `batch_reference`; left out, the recipe's own.
    pub learning_rate: Option<f32>,
    /// The total batch that the learning rate is meant for; left out, that of the first view.
    pub batch_reference: Option<f64>,
    #[serde(deserialize_with = "kind")]
    pub schedule: Shape,
    /// The fraction of the job over which the learning rate rises.
    pub warm_up: f64,
    pub optimizer: Option<Optimizer>,
    /// Which vector instructions gradients use; left out, the best of this processor.
    pub kernels: Option<Path>,
    /// Training loss whose time is reported.
    pub target_loss: Option<f64>,
    /// Test accuracy whose time is reported, in place of a loss.
    pub target_accuracy: Option<f64>,
    /// Where and how often what was learned is saved; only on real clusters.
    pub checkpoints: Option<Checkpoints>,
}

/// The batch of one worker, unless a job says otherwise.
const BATCH: u64 = 16;
const BATCH_MAX: u64 = 1 << 24;

impl Default for Job {
    fn default() -> Job {
        Job {
            strategy: "ssgd".into(),
            choices: None,
            model: "mlp".into(),
            data: "digits".into(),
            data_dir: None,
            samples: None,
            epochs: 20.0,
            batch: None,
            batch_total: None,
            seed: 1,
            learning_rate: None,
            batch_reference: None,
            schedule: Shape::Step { at: vec![0.5, 0.75], factor: 0.1 },
            warm_up: 0.0,
            optimizer: None,
            kernels: None,
            target_loss: None,
            target_accuracy: None,
            checkpoints: None,
        }
    }
}

/// A job that has been checked: ready to run on a cluster of so many workers.
#[derive(Clone)]
pub struct Prepared {
    pub name: String,
    /// As the job names them; empty where the task is one's own.
    pub(crate) model: String,
    pub(crate) data: String,
    pub workers: u32,
    /// How many it was made for; others may go on with it.
    pub workers_first: u32,
    pub batch: u64,
    pub task: Task,
    pub plan: Plan,
    pub target: Option<Target>,
    /// Whether the run ends as soon as the target is reached.
    pub ends_at_target: bool,
    /// The losses before the job was resumed.
    pub(crate) losses: Losses,
    /// What is learned, if a run has learned it before.
    pub(crate) training: Option<Arc<Training>>,
    make: Make,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    Loss(f64),
    Accuracy(f64),
}

impl Job {
    /// Reads a job from TOML; the sentence names line and field.
    pub fn from_toml(text: &str) -> Result<Job, String> {
        toml::from_str(text).map_err(|error| toml_sentence(text, &error))
    }

    /// Checks everything that types cannot; with a task of one's own, `model` and `data` are not looked at.
    pub fn check(
        &self,
        recipes: &[Recipe],
        workers: u32,
        own: Option<Task>,
    ) -> Result<Prepared, String> {
        let recipe = find(recipes, &self.strategy)?;
        let make = self.choices.clone().map_or(recipe.make.clone(), Make::Choices);
        if let Make::Choices(choices) = &make {
            choices.check()?;
        }
        if workers == 0 {
            return Err("workers = 0: a job needs at least one worker".into());
        }
        let batch = self.batch_of_one(workers)?;
        let named = own.is_none().then_some((self.model.as_str(), self.data.as_str()));
        let (model, data) = named.unzip();
        let task = match own {
            Some(task) => task,
            None => Task::of(self)?,
        };
        let steps = self.steps(recipe, model, task.train.features())?;
        let plan = self.plan(steps, &make, &task, batch, workers)?;
        let target = self.target()?;
        self.checkpoints.as_ref().map_or(Ok(()), Checkpoints::check)?;
        let name = match &self.choices {
            Some(choices) => choices.strategy.name().to_owned(),
            None => recipe.name.clone(),
        };
        let workers_first = workers;
        Ok(Prepared {
            name,
            model: model.unwrap_or_default().to_owned(),
            data: data.unwrap_or_default().to_owned(),
            workers,
            workers_first,
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

    /// The kernels' path.
    pub(crate) fn path(&self) -> Result<Path, String> {
        match self.kernels {
            Some(path) if !path.is_here() => Err(format!(
                "kernels = \"{}\": this processor has no such instructions; leave it out, or take portable",
                path.name()
            )),
            path => Ok(path.unwrap_or_else(Path::best)),
        }
    }

    pub(crate) fn batch_of_one(&self, workers: u32) -> Result<u64, String> {
        match (self.batch, self.batch_total) {
            (Some(_), Some(_)) => Err("batch and batch_total say the same thing: give one".into()),
            (Some(0), _) => Err("batch = 0: give at least one sample".into()),
            (Some(batch), None) if batch > BATCH_MAX => Err(format!(
                "batch = {batch}: a worker takes at most {BATCH_MAX} samples at a time"
            )),
            (Some(batch), None) => Ok(batch),
            (None, Some(total)) if total < u64::from(workers) => Err(format!(
                "batch_total = {total} is smaller than the {workers} workers: each needs at least one sample"
            )),
            (None, Some(total)) if total.div_ceil(u64::from(workers)) > BATCH_MAX => Err(format!(
                "batch_total = {total}: a worker takes at most {BATCH_MAX} samples at a time"
            )),
            (None, Some(total)) => Ok(total.div_ceil(u64::from(workers))),
            (None, None) => Ok(BATCH),
        }
    }

    fn target(&self) -> Result<Option<Target>, String> {
        match (self.target_loss, self.target_accuracy) {
            (Some(_), Some(_)) => Err("target_loss and target_accuracy: give one of them".into()),
            (Some(loss), _) if !(loss.is_finite() && loss > 0.0) => {
                Err(format!("target_loss = {loss}: give a number above zero"))
            }
            (_, Some(accuracy)) if !(accuracy > 0.0 && accuracy <= 1.0) => {
                Err(format!("target_accuracy = {accuracy}: give a number above 0, at most 1"))
            }
            (Some(loss), _) => Ok(Some(Target::Loss(loss))),
            (_, Some(accuracy)) => Ok(Some(Target::Accuracy(accuracy))),
            (None, None) => Ok(None),
        }
    }

    /// How replicas are moved. What the job leaves out follows the named model's habits, or the recipe.
    fn steps(
        &self,
        recipe: &Recipe,
        model: Option<&str>,
        features: usize,
    ) -> Result<(Optimizer, Schedule), String> {
        // A rate is one of its optimizer: habits of rate count where those of optimizer do.
        let habits = model.filter(|_| self.optimizer.is_none()).and_then(models::habits);
        let (optimizer, rate) = habits.unwrap_or_else(|| {
            let factor = model.map_or(1.0, |model| models::rate_factor(model, features));
            (recipe.optimizer.clone(), recipe.learning_rate * factor)
        });
        let optimizer = self.optimizer.clone().unwrap_or(optimizer);
        optimizer.check().map_err(|error| error.to_string())?;
        let base = self.learning_rate.unwrap_or(rate);
        let schedule = Schedule { base, shape: self.schedule.clone(), warm_up: self.warm_up };
        schedule.check().map_err(|error| error.to_string())?;
        Ok((optimizer, schedule))
    }

    fn plan(
        &self,
        (optimizer, schedule): (Optimizer, Schedule),
        make: &Make,
        task: &Task,
        batch: u64,
        workers: u32,
    ) -> Result<Plan, String> {
        if !(self.epochs.is_finite() && self.epochs > 0.0 && self.epochs < 1e6) {
            return Err(format!(
                "epochs = {}: give a number above zero, below a million",
                self.epochs
            ));
        }
        let (rescale, codec) = match make {
            Make::Choices(choices) => (choices.rescale, choices.codec),
            Make::Own(_) => (Rescale::None, Codec::Dense),
        };
        let first = batch * u64::from(workers);
        if codec.is_lossy() && task.model.buffers() > 0 {
            return Err(
                "batch norm's statistics do not survive a lossy codec: take a model with group norm (without -bn), or codec dense".into(),
            );
        }
        let batch_reference = self.batch_reference.unwrap_or(first as f64);
        if !(batch_reference.is_finite() && batch_reference > 0.0) {
            return Err(format!("batch_reference = {batch_reference}: give a number above zero"));
        }
        let samples_per_epoch = task.train.len();
        let samples_total = (self.epochs * samples_per_epoch as f64).round() as u64;
        if samples_total < first {
            return Err(format!(
                "{workers} workers x batch {batch} is more than the job's {samples_total} samples: lower the batch or give more epochs"
            ));
        }
        Ok(Plan {
            seed: self.seed,
            samples_total,
            samples_per_epoch,
            initial: Arc::new(task.model.initial(self.seed)),
            blank: Arc::default(),
            layout: task.model.layout(),
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

    /// The same job, with what a recorded run measured in place of this run's clock.
    pub fn replaying(mut self, replay: Replay) -> Prepared {
        self.plan.replay = Some(Arc::new(replay));
        self
    }

    /// Whether what is learned depends on how long things take. What others wrote may.
    pub fn reads_clock(&self) -> bool {
        match &self.make {
            Make::Choices(choices) => choices.reads_clock(),
            Make::Own(_) => true,
        }
    }

    /// Whether what one run learned can be told again elsewhere. AdaScale reads no clock, but gradients.
    pub fn is_retimable(&self) -> bool {
        !self.reads_clock() && self.plan.rescale != Rescale::Adascale
    }

    /// The same job on a cluster where things take another time.
    pub fn retimed(mut self, training: Arc<Training>) -> Prepared {
        assert!(self.is_retimable(), "it may learn something else elsewhere");
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

fn cut(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The text of a file that describes a job, a scenario or the like.
pub fn read_description(what: &str, path: impl AsRef<std::path::Path>) -> Result<String, String> {
    const BYTES_MAX: u64 = 1_000_000;
    let shown = path.as_ref().display();
    let mut text = String::new();
    let file = File::open(&path);
    let read = file.and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    read.map_err(|error| format!("cannot read the {what} {shown}: {error}"))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(format!("cannot read the {what} {shown}: it is longer than a million bytes"));
    }
    Ok(text)
}

/// "line 3, batch: invalid type: string, expected u64"
pub fn toml_sentence(text: &str, error: &toml::de::Error) -> String {
    // A file that is something else altogether may be one long line.
    let message = cut(&error.message().replace('\n', " "), 400);
    match error.span() {
        Some(span) => {
            let before = &text[..span.start.min(text.len())];
            let line = before.matches('\n').count() + 1;
            let source = text.lines().nth(line - 1).unwrap_or("").trim();
            match source.is_empty() {
                true => format!("line {line}: {message}"),
                false => format!("line {line}: {message} (in `{}`)", cut(source, 80)),
            }
        }
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::recipes;

    #[test]
    fn choices_may_be_named_short_or_spelled_out() {
        let job = Job::from_toml(
            "[choices]\nstrategy = \"delayed\"\nshares = \"by_speed\"\ncodec = { kind = \"qsgd\", bits = 4 }\n",
        );
        let prepared = job.and_then(|job| job.check(&recipes(), 4, None)).expect("it is sound");
        assert_eq!(prepared.name, "delayed");
    }

    #[test]
    fn a_malformed_job_is_told_line_and_field() {
        let error = Job::from_toml("epochs = 3\nbatch = \"x\"\n").expect_err("a batch is a number");
        assert!(error.starts_with("line 2:") && error.contains("batch"), "{error}");
        let error = Job::from_toml("[choices]\nstrategy = \"delayed\"\nshares = \"opn\"\n");
        assert!(error.expect_err("there is no such share").contains("opn"));
        let long = format!("epochs = 3\nbatch = \"{}\"\n", "x".repeat(5000));
        assert!(Job::from_toml(&long).expect_err("a batch is a number").len() < 600);
        let short = Job::from_toml("schedule = \"constant\"\n").expect("it needs nothing else");
        assert_eq!(short.schedule, Shape::Constant);
        for misspelled in [
            "[choices]\nstrategy = \"delayed\"\nshares = { kind = \"by_speed\", smothing = 0.5 }\n",
            "[choices]\nstrategy = \"all_reduce\"\ncodec = { kind = \"qsgd\", bits = 4, bukcet = 8 }\n",
            "[choices]\nstrategy = \"periodic_average\"\nperiod = { kind = \"adaptive\", steps_first = 4, max = 8 }\n",
            "[optimizer]\nrule = { kind = \"sgd\", momentum = 0.9, nestrov = true }\n",
            "schedule = { kind = \"cosine\", floor = 0.1, flor = 0.2 }\n",
        ] {
            assert!(Job::from_toml(misspelled).is_err(), "{misspelled}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let rows = [
            ("strategy = \"all_reduce\"\nelasticity = 0.5", "elasticity is the pull of"),
            (
                "strategy = \"periodic_average\"\nperiod = { kind = \"adaptive\", steps_first = 40, steps_max = 3 }",
                "period.steps_max = 3 is less than the 40 steps",
            ),
        ];
        for (choices, says) in rows {
            let job = Job::from_toml(&format!("[choices]\n{choices}\n")).expect("it can be read");
            let sentence = job.check(&recipes(), 4, None).err().expect("it is refused");
            assert!(sentence.starts_with(says), "{sentence}");
        }
        for rate in [f32::INFINITY, f32::NAN, 0.0, -1.0] {
            let job = Job { learning_rate: Some(rate), ..Job::default() };
            assert!(job.check(&recipes(), 4, None).is_err(), "{rate}");
        }
        let epsilon = "[optimizer]\nrule = { kind = \"adamw\", beta1 = 0.9, beta2 = 0.99, epsilon = 0.0, weight_decay = 0.0 }\n";
        let job = Job::from_toml(epsilon).expect("it can be read");
        assert!(
            job.check(&recipes(), 4, None).err().expect("it is refused").starts_with("epsilon")
        );
    }

    /// The recipes' rates are for digits: unscaled, nothing would be learned from larger images.
    #[test]
    fn default_rates_follow_the_data_and_a_rate_leaves_the_optimizer_alone() {
        let prepared = |job: Job| job.check(&recipes(), 4, None).expect("it is sound").plan;
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
            assert!(job.check(&recipes(), 3, None).is_err());
        }
    }
}
