//! The flags that describe a job, shared by all commands that run one.

use std::num::NonZero;
use std::path::{Path, PathBuf};

use clap::Args;
use paceline_job::description::read_description;
use paceline_job::{Job, Kernels, scenarios};
use paceline_sim::Scenario;

use crate::error::{CliError, CliResult, UsageError};
use crate::files::Named;

/// A job: flags override the job file, which overrides the defaults.
#[derive(Args)]
#[command(next_help_heading = "Job", allow_negative_numbers = true)]
pub struct JobFlags {
    /// Read the job from a file; flags override its settings
    #[arg(long, value_name = "FILE.toml")]
    pub job: Option<PathBuf>,
    /// Number of workers at the start
    #[arg(long, value_name = "N")]
    pub workers: Option<u32>,
    /// Passes over the training data [default: 20]
    #[arg(long, value_name = "X")]
    pub epochs: Option<f64>,
    /// Batch size of each worker [default: 16]
    #[arg(long, value_name = "B")]
    batch: Option<u64>,
    /// Total batch size of the workers at the start, instead of --batch
    #[arg(long, value_name = "B")]
    batch_total: Option<u64>,
    /// Learning rate at the initial total batch size [default: depends on the strategy]
    #[arg(long, value_name = "R")]
    learning_rate: Option<f32>,
    /// Random seed [default: 1]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Model to train: softmax, mlp, cnn, resnet8, resnet20, resnet18 (each resnet also with -bn), charlm, quadratic [default: mlp]
    #[arg(long, value_name = "M")]
    model: Option<String>,
    /// Data set: a name (see `paceline data list`) or a path to a .txt file [default: digits]
    #[arg(long, value_name = "D")]
    data: Option<String>,
    /// Folder of the data sets [default: $PACELINE_DATA, or paceline in the cache folder]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Train on the first N samples only [default: all]
    #[arg(long, value_name = "N")]
    samples: Option<u64>,
    /// Instruction set for gradients: avx512, avx2, neon, or portable, which computes the same bits on every machine [default: the best that the processor supports]
    #[arg(long, value_name = "K", value_parser = kernels)]
    kernels: Option<Kernels>,
    /// Part of the training data, from 0 to below 1, that is held out and that targets are judged on; at most 1,000 samples [default: 0.1]
    #[arg(long, value_name = "P")]
    validation: Option<f64>,
    /// Report when the validation loss of the model that would be deployed falls to L
    #[arg(long, value_name = "L")]
    target_loss: Option<f64>,
    /// Report when the validation accuracy of that model reaches A, from 0 to 1
    #[arg(long, value_name = "A")]
    target_accuracy: Option<f64>,
    /// Report when the training loss, smoothed over half an epoch, falls to L
    #[arg(long, value_name = "L")]
    target_training_loss: Option<f64>,
}

impl JobFlags {
    /// Returns the job that the file and the flags describe, not checked yet.
    pub fn job(&self) -> CliResult<Job> {
        let job = match &self.job {
            Some(path) => read_job(path)?,
            None => Job::default(),
        };
        Ok(self.over(job))
    }

    /// Overrides settings of the job by those of the flags.
    pub fn over(&self, mut job: Job) -> Job {
        job.epochs = self.epochs.unwrap_or(job.epochs);
        job.seed = self.seed.unwrap_or(job.seed);
        job.learning_rate = self.learning_rate.or(job.learning_rate);
        job.model = self.model.clone().unwrap_or(job.model);
        job.data = self.data.clone().unwrap_or(job.data);
        job.data_dir = self.data_dir.clone().or(job.data_dir);
        job.samples = self.samples.or(job.samples);
        job.validation = self.validation.unwrap_or(job.validation);
        job.kernels = self.kernels.or(job.kernels);
        // A flag for one of two alternatives overrides the file's choice of the other.
        if self.batch.or(self.batch_total).is_some() {
            (job.batch, job.batch_total) = (self.batch, self.batch_total);
        }
        if self.target_loss.or(self.target_accuracy).or(self.target_training_loss).is_some() {
            (job.target_loss, job.target_accuracy) = (self.target_loss, self.target_accuracy);
            job.target_training_loss = self.target_training_loss;
        }
        job
    }

    /// Returns the job with the strategy of the command line, which replaces strategy and choices of the file.
    pub fn job_with(&self, strategy: Option<&str>) -> CliResult<Job> {
        let mut job = self.job()?;
        if let Some(strategy) = strategy {
            job.strategy = strategy.to_owned();
            job.choices = None;
        }
        Ok(job)
    }

    /// The folder of the data, if a flag names it.
    pub fn data_dir(&self) -> Option<&std::path::Path> {
        self.data_dir.as_deref()
    }

    /// Whether neither a job file nor a flag names a model or data: then it is the built-in demonstration.
    pub fn is_demonstration(&self) -> bool {
        self.job.is_none() && self.model.is_none() && self.data.is_none()
    }

    /// Returns the files that the job reads: the job file and the text to learn.
    pub fn files(&self, job: &Job) -> Vec<Named> {
        let text = job.data.strip_prefix("text:");
        let text = text.or(job.data.ends_with(".txt").then_some(&job.data));
        let text = text.map(|path| ("the data", PathBuf::from(path)));
        self.job.clone().map(|path| ("--job", path)).into_iter().chain(text).collect()
    }

    /// Returns the scenario, with the number of workers that the flags set.
    pub fn scenario(&self, name_or_path: &str) -> CliResult<Scenario> {
        let mut scenario = scenarios::load(name_or_path).map_err(CliError::usage)?;
        scenario.workers = self.workers.unwrap_or(scenario.workers);
        scenario.check().map_err(CliError::usage)?;
        Ok(scenario)
    }
}

fn kernels(name: &str) -> Result<Kernels, UsageError> {
    Kernels::ALL.into_iter().find(|path| path.name() == name).ok_or(UsageError::Kernels)
}

/// Returns the scenario's file; `None` for a built-in scenario.
pub fn scenario_file(name_or_path: &str) -> Option<Named> {
    let is_named = scenarios::named(name_or_path).is_ok();
    (!is_named).then(|| ("the scenario", PathBuf::from(name_or_path)))
}

fn read_job(path: &Path) -> CliResult<Job> {
    let text = read_description("job", path).map_err(CliError::usage)?;
    Job::from_toml(&text).map_err(|error| {
        UsageError::JobFile { path: path.to_owned(), problem: error.into() }.into()
    })
}

/// The number of compute threads.
#[derive(Args)]
pub struct ThreadsFlag {
    /// Number of compute threads; the result does not depend on it [default: one per core]
    #[arg(long, value_name = "T")]
    threads: Option<NonZero<usize>>,
}

/// More threads would not make any run faster.
const THREADS_MAX: usize = 256;

impl ThreadsFlag {
    pub fn count(&self) -> usize {
        let cores = std::thread::available_parallelism();
        self.threads.or(cores.ok()).map_or(1, NonZero::get).min(THREADS_MAX)
    }
}
