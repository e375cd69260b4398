//! `paceline simulate`: one strategy on a simulated cluster.

use std::path::PathBuf;

use clap::Args;
use paceline_job::{PrepareOptions, Recipe, simulate};

use crate::audience::Audience;
use crate::bar::Bar;
use crate::flags::{JobFlags, ThreadsFlag, scenario_file};
use crate::output::Ended;
use crate::outputs::OutputFlags;
use crate::summary::{Told, tell};

/// Simulate a job on a cluster of your description
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Simulate {
    /// A scenario's name (see `paceline scenarios`) or a path to a .toml file
    #[arg(default_value = "stragglers")]
    scenario: String,
    /// The training algorithm (see `paceline strategies`) [default: ssgd, or what the job file says]
    #[arg(long, value_name = "NAME")]
    strategy: Option<String>,
    #[command(flatten)]
    threads: ThreadsFlag,
    /// Write what happened to a file, as JSON lines
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    job: JobFlags,
    #[command(flatten)]
    outputs: OutputFlags,
}

const EXAMPLES: &str = "\
Examples:
  paceline simulate --strategy abs
  paceline simulate spot --strategy dynamic --target-accuracy 0.9
  paceline simulate my-cluster.toml --strategy cpsgd --epochs 5 --json
  paceline simulate elastic --strategy dynamic --journal run.jsonl --report elastic.html

Gradients are real, time is virtual. The same seed gives the same run.";

impl Simulate {
    pub fn run(&self, recipes: &[Recipe]) -> Ended {
        let scenario = self.job.scenario(&self.scenario)?;
        let job = self.job.job_with(self.strategy.as_deref())?;
        let workers = scenario.workers;
        let prepared = job.prepare_with(PrepareOptions { workers, recipes, task: None })?;
        let bar = Bar::new(prepared.plan.samples_total, "virtual", !self.json);
        let mut read = self.job.files(&job);
        read.extend(scenario_file(&self.scenario));
        let outputs = self.outputs.check(&prepared.name, false, self.journal.as_deref(), &read)?;
        let mut audience = Audience::new(bar, outputs);

        let threads = self.threads.count();
        let simulated = simulate(&prepared, &scenario, threads, vec![&mut audience]);

        let place = &scenario.name;
        let told = Told { job: &job, prepared: &prepared, place, json: self.json };
        tell(&told, simulated.map(|simulated| simulated.result), audience)
    }
}
