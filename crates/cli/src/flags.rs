//! The flags that describe a job, for every command that runs one.

use std::num::NonZero;
use std::path::PathBuf;

use clap::Args;
use paceline_job::{Job, Kernels, scenarios};
use paceline_sim::Scenario;

use crate::files::Named;
use crate::output::Ending;

/// Flags override the job file, which overrides the defaults.
#[derive(Args)]
#[command(next_help_heading = "Job", allow_negative_numbers = true)]
pub struct JobFlags {
    /// Read the job from a file; flags override what it says
    #[arg(long, value_name = "FILE.toml")]
    pub job: Option<PathBuf>,
    /// How many workers there are at first
    #[arg(long, value_name = "N")]
    pub workers: Option<u32>,
    /// Passes over the data [default: 20]
    #[arg(long, value_name = "X")]
    pub epochs: Option<f64>,
    /// Samples of one worker's gradient [default: 16]
    #[arg(long, value_name = "B")]
    batch: Option<u64>,
    /// Samples of all first workers' gradients together, in place of --batch
    #[arg(long, value_name = "B")]
    batch_total: Option<u64>,
    /// Learning rate for the first total batch [default: the strategy's own]
    #[arg(long, value_name = "R")]
    learning_rate: Option<f32>,
    /// What all chance follows from [default: 1]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// softmax, mlp, cnn, resnet8, resnet20, resnet18 (each resnet also with -bn), charlm, quadratic [default: mlp]
    #[arg(long, value_name = "M")]
    model: Option<String>,
    /// What to learn: a name (see `paceline data list`) or a path to a .txt file [default: digits]
    #[arg(long, value_name = "D")]
    data: Option<String>,
    /// Where data sets lie [default: $PACELINE_DATA, or paceline in the cache folder]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Learn from so many of the first samples [default: all]
    #[arg(long, value_name = "N")]
    samples: Option<u64>,
    /// Instructions that gradients use: avx512, avx2, neon, or portable, which gives the same bits everywhere [default: the best of the processor]
    #[arg(long, value_name = "K", value_parser = kernels)]
    kernels: Option<Kernels>,
    /// Report when the training loss first falls to this
    #[arg(long, value_name = "L")]
    target_loss: Option<f64>,
    /// Report when the test accuracy first rises to this, from 0 to 1
    #[arg(long, value_name = "A")]
    target_accuracy: Option<f64>,
}

impl JobFlags {
    /// The job that the file and the flags describe, not checked yet.
    pub fn job(&self) -> Result<Job, Ending> {
        let job = match &self.job {
            Some(path) => Job::load(path).map_err(Ending::of)?,
            None => Job::default(),
        };
        Ok(self.over(job))
    }

    /// The job with what the flags say in its place.
    pub fn over(&self, mut job: Job) -> Job {
        job.epochs = self.epochs.unwrap_or(job.epochs);
        job.seed = self.seed.unwrap_or(job.seed);
        job.learning_rate = self.learning_rate.or(job.learning_rate);
        job.model = self.model.clone().unwrap_or(job.model);
        job.data = self.data.clone().unwrap_or(job.data);
        job.data_dir = self.data_dir.clone().or(job.data_dir);
        job.samples = self.samples.or(job.samples);
        job.kernels = self.kernels.or(job.kernels);
        // A flag for one of two alternatives overrides the file's choice of the other.
        if self.batch.or(self.batch_total).is_some() {
            (job.batch, job.batch_total) = (self.batch, self.batch_total);
        }
        if self.target_loss.or(self.target_accuracy).is_some() {
            (job.target_loss, job.target_accuracy) = (self.target_loss, self.target_accuracy);
        }
        job
    }

    /// The job with a strategy's name from the command line; a name replaces whatever the file spells out.
    pub fn job_with(&self, strategy: Option<&str>) -> Result<Job, Ending> {
        let mut job = self.job()?;
        if let Some(strategy) = strategy {
            job.strategy = strategy.to_owned();
            job.choices = None;
        }
        Ok(job)
    }

    /// The files that the job is read from: its own, and its text.
    pub fn files(&self, job: &Job) -> Vec<Named> {
        let text = job.data.strip_prefix("text:");
        let text = text.or(job.data.ends_with(".txt").then_some(&job.data));
        let text = text.map(|path| ("the data", PathBuf::from(path)));
        self.job.clone().map(|path| ("--job", path)).into_iter().chain(text).collect()
    }

    /// The scenario, with as many workers as the flags say.
    pub fn scenario(&self, name_or_path: &str) -> Result<Scenario, Ending> {
        let mut scenario = scenarios::load(name_or_path).map_err(Ending::of)?;
        scenario.workers = self.workers.unwrap_or(scenario.workers);
        scenario.check().map_err(Ending::Usage)?;
        Ok(scenario)
    }
}

fn kernels(name: &str) -> Result<Kernels, String> {
    let known = Kernels::ALL.into_iter().find(|path| path.name() == name);
    known.ok_or_else(|| format!("take one of {}", Kernels::ALL.map(Kernels::name).join(", ")))
}

/// The scenario's file, if it is not one of those that have a name.
pub fn scenario_file(name_or_path: &str) -> Option<Named> {
    let is_named = scenarios::named(name_or_path).is_ok();
    (!is_named).then(|| ("the scenario", PathBuf::from(name_or_path)))
}

/// How many threads compute: as many as asked for, or one per core.
#[derive(Args)]
pub struct ThreadsFlag {
    /// Threads that compute; the result does not depend on it [default: one per core]
    #[arg(long, value_name = "T")]
    threads: Option<NonZero<usize>>,
}

/// More threads than this help nobody, and the result does not depend on them.
const THREADS_MAX: usize = 256;

impl ThreadsFlag {
    pub fn count(&self) -> usize {
        let cores = std::thread::available_parallelism();
        self.threads.or(cores.ok()).map_or(1, NonZero::get).min(THREADS_MAX)
    }
}
