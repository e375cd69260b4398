//! `paceline simulate`: runs one strategy on a simulated cluster.

use std::path::PathBuf;

use clap::Args;
use paceline_job::{PrepareOptions, Recipe, SimulateOptions, simulate};

use crate::bar::{Bar, Clock};
use crate::error::CliResult;
use crate::flags::{JobFlags, ThreadsFlag, scenario_file};
use crate::outputs::OutputFlags;
use crate::readers::RunReaders;
use crate::stop::Stop;
use crate::summary::{ReportContext, report_run};

/// Simulate a job on a cluster that you describe
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Simulate {
    /// A scenario's name (see `paceline scenarios`) or a path to a .toml file
    #[arg(default_value = "stragglers")]
    scenario: String,
    /// The training algorithm (see `paceline strategies`) [default: ssgd, or the job file's]
    #[arg(long, value_name = "NAME")]
    strategy: Option<String>,
    #[command(flatten)]
    threads: ThreadsFlag,
    /// Record the run in this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Print the result as JSON
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

Gradients are real, time is virtual. The same seed produces the same run.";

impl Simulate {
    pub fn run(&self, recipes: &[Recipe]) -> CliResult {
        let scenario = self.job.scenario(&self.scenario)?;
        let job = self.job.job_with(self.strategy.as_deref())?;
        let prepared =
            job.prepare_with(PrepareOptions { recipes, ..PrepareOptions::new(scenario.workers) })?;
        let bar = Bar::new(prepared.plan.samples_total, Clock::Virtual, !self.json);
        let mut read = self.job.files(&job);
        read.extend(scenario_file(&self.scenario));
        let outputs = self.outputs.check(&prepared.name, false, self.journal.as_deref(), &read)?;
        let mut readers = RunReaders::new(bar, outputs);
        let stop = Stop::on_signals("stopping; press Ctrl-C again to stop at once")?;

        let (threads, requested) = (self.threads.count(), stop.requested.clone());
        let options = SimulateOptions { threads, stop: requested, readers: vec![&mut readers] };
        let simulated = simulate(&prepared, &scenario, options);

        let (place, json, stop) = (scenario.name.as_str(), self.json, &stop);
        let (speeds, saved_in) = ([].as_slice(), None);
        let context =
            ReportContext { job: &job, prepared: &prepared, place, json, stop, speeds, saved_in };
        report_run(&context, simulated.map(|simulated| simulated.result), readers)
    }
}
