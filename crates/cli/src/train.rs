//! `paceline train`: trains on threads of this machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use paceline_job::checkpoint::{Checkpoint, Saved};
use paceline_job::{Job, PrepareOptions, Prepared, Recipe, TrainOptions, scenarios, train};
use paceline_runtime::Snapshot;

use crate::bar::{Bar, Clock};
use crate::checkpoint::{CheckpointFlags, saving, say_how_to_resume};
use crate::error::{CliError, CliResult, CommandError};
use crate::flags::JobFlags;
use crate::output::say;
use crate::outputs::OutputFlags;
use crate::readers::RunReaders;
use crate::speeds::SpeedsFlag;
use crate::summary::{ReportContext, report_run};

/// Train on this machine, with one thread per worker
#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Train {
    /// The training algorithm (see `paceline strategies`) [default: dbs, or the job file's]
    #[arg(long, value_name = "NAME")]
    strategy: Option<String>,
    #[command(flatten)]
    speeds: SpeedsFlag,
    /// Rehearse faults: crashes, leaves, joins, pauses and churn of a scenario file, in real time
    #[arg(long, value_name = "FILE.toml")]
    faults: Option<String>,
    /// Record the run in this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    checkpoints: CheckpointFlags,
    #[command(flatten)]
    job: JobFlags,
    #[command(flatten)]
    outputs: OutputFlags,
}

const EXAMPLES: &str = "\
Examples:
  paceline train
  paceline train --strategy abs --speeds 1,1,2,4 --target-loss 0.3
  paceline train --workers 8 --strategy gossip-pull --epochs 5 --json
  paceline train --tensorboard runs/dbs --trace trace.json --report dbs.html
  paceline train --checkpoints saved --checkpoint-minutes 1
  paceline train --resume saved --epochs 30

Without --workers and --speeds there are 4 workers of relative speeds 4, 4, 2 and 1; with --workers
alone, all workers run at full speed. The report is also written after Ctrl-C and after a failure.
The first Ctrl-C finishes the round, saves a checkpoint if --checkpoints is given, and prints the
summary; the second one stops at once. SIGUSR1 saves a checkpoint now. A resumed job keeps its
settings: only --workers, --speeds, --epochs, --learning-rate, targets and checkpoints may change.";

const STRATEGY: &str = "dbs";

impl Train {
    pub fn run(&self, recipes: &[Recipe]) -> CliResult {
        let resumed = self.checkpoints.resumed()?;
        let from = resumed.as_ref().map(|checkpoint| checkpoint.path.clone());
        let (job, prepared, speeds) = match resumed {
            Some(checkpoint) => self.resume(checkpoint, recipes)?,
            None => self.start(recipes)?,
        };
        let saving = saving(&job, from)?;
        let bar = Bar::new(prepared.plan.samples_total, Clock::Real, !self.json);
        let journal = self.journal.as_deref();
        let read = self.job.files(&job);
        let outputs = self.outputs.check(&prepared.name, !self.json, journal, &read)?;
        let mut readers = RunReaders::new(bar, outputs);
        let stop = stop_on_signal()?;

        let options = TrainOptions {
            speeds,
            pace: None,
            stop,
            saving: saving.as_ref(),
            faults: self
                .faults
                .as_deref()
                .map(scenarios::load)
                .transpose()
                .map_err(CliError::usage)?,
            readers: vec![&mut readers],
        };
        let trained = train(&prepared, options);

        let (ended, saved) = match trained {
            Ok(trained) => (Ok(trained.result), trained.saved.unwrap_or_default()),
            Err(failure) => (Err(failure), Saved::default()),
        };
        if let Ok(result) = &ended {
            say_how_to_resume(&saved, result, prepared.plan.samples_total);
            let was_done =
                |snapshot: &Arc<Snapshot>| snapshot.done.len() == prepared.plan.samples_total;
            if prepared.plan.resumed.as_ref().is_some_and(was_done) {
                say(&format!(
                    "all {} epochs are already done: give more --epochs to continue",
                    job.epochs
                ));
            }
        }
        let context =
            ReportContext { job: &job, prepared: &prepared, place: "threads", json: self.json };
        report_run(&context, ended, readers)?;
        saved.error.map_or(Ok(()), |error| Err(CliError::failed(error)))
    }

    /// Returns the strategy of the command line, or the default if there is no job file either.
    fn strategy(&self) -> Option<&str> {
        self.strategy.as_deref().or(self.job.job.is_none().then_some(STRATEGY))
    }

    /// Prepares a new job; returns it with the speeds of its workers.
    fn start(&self, recipes: &[Recipe]) -> CliResult<(Job, Prepared, Vec<f64>)> {
        let workers = self.speeds.workers(self.job.workers)?;
        let mut job = self.job.job_with(self.strategy())?;
        self.checkpoints.apply(&mut job, None)?;
        let prepared =
            job.prepare_with(PrepareOptions { recipes, ..PrepareOptions::new(workers) })?;
        Ok((job, prepared, self.speeds.speeds(self.job.workers)))
    }

    /// Prepares the job of a checkpoint; flags override the settings that may change.
    fn resume(
        &self,
        checkpoint: Checkpoint,
        recipes: &[Recipe],
    ) -> CliResult<(Job, Prepared, Vec<f64>)> {
        let manifest = &checkpoint.manifest;
        let mut job = self.job.over(manifest.job.clone());
        job.strategy = self.strategy.clone().unwrap_or(job.strategy);
        self.checkpoints.apply(&mut job, Some(&checkpoint))?;
        let workers = match (self.job.workers, self.speeds.speeds.len()) {
            (None, 0) => manifest.workers,
            _ => self.speeds.workers(self.job.workers)?,
        };
        let mut speeds = self.speeds.speeds.clone();
        if speeds.is_empty() {
            speeds.clone_from(&manifest.speeds);
            speeds.truncate(workers as usize);
        }
        let prepared = checkpoint
            .prepare_with(&job, PrepareOptions { recipes, ..PrepareOptions::new(workers) })?;
        Ok((job, prepared, speeds))
    }
}

/// Signals that arrive this soon after the first are taken for the same request.
const ONE_REQUEST: Duration = Duration::from_millis(300);

/// Returns a flag that the first Ctrl-C or SIGTERM sets; the second one ends the program.
fn stop_on_signal() -> CliResult<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let requested = stop.clone();
    let mut first: Option<Instant> = None;
    let on_signal = move || match first {
        // `timeout` and other supervisors signal both the process and its group: that is one request.
        Some(at) if at.elapsed() < ONE_REQUEST => {}
        Some(_) => std::process::exit(130),
        None => {
            first = Some(Instant::now());
            requested.store(true, Ordering::SeqCst);
            say("finishing the round; press Ctrl-C again to stop at once");
        }
    };
    ctrlc::set_handler(on_signal)
        .map_err(|error| CommandError::Signal { signal: "Ctrl-C", source: error.into() })?;
    Ok(stop)
}
