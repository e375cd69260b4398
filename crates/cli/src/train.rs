//! `paceline train`: trains on threads of this machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use paceline_job::checkpoint::{Checkpoint, Saved};
use paceline_job::journal_file::recorded;
use paceline_job::pace::check_speeds;
use paceline_job::{
    Job, PrepareOptions, Prepared, Recipe, TrainOptions, scenarios, train, train_on_processes,
};
use paceline_runtime::Snapshot;

use crate::bar::{Bar, Clock};
use crate::checkpoint::{CheckpointFlags, saving, say_how_to_resume, say_schedule};
#[cfg(not(feature = "mpi"))]
use crate::error::UsageError;
use crate::error::{CliError, CliResult};
use crate::flags::JobFlags;
use crate::log::LogFlag;
use crate::mpi::ClusterFlags;
#[cfg(feature = "mpi")]
use crate::mpi::run_on_ranks;
use crate::output::say;
use crate::outputs::{OutputFlags, Outputs};
use crate::page::{PageFlags, Watched};
use crate::place::Place;
use crate::processes::ProcessFlags;
use crate::readers::RunReaders;
use crate::speeds::{SpeedsFlag, listed, pace};
use crate::stop::Stop;
use crate::summary::{ReportContext, report_run};

/// Train on this machine, with one thread or one process per worker
#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Train {
    /// The training algorithm (see `paceline strategies`) [default: dbs, or the job file's]
    #[arg(long, value_name = "NAME")]
    strategy: Option<String>,
    #[command(flatten)]
    speeds: SpeedsFlag,
    /// The emulated time per sample of the fastest worker, in seconds [default: what computing takes here]
    #[arg(long, value_name = "S", requires = "speeds", value_parser = pace)]
    pace: Option<Duration>,
    #[command(flatten)]
    processes: ProcessFlags,
    #[command(flatten)]
    cluster: ClusterFlags,
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
    log: LogFlag,
    #[command(flatten)]
    checkpoints: CheckpointFlags,
    #[command(flatten)]
    job: JobFlags,
    #[command(flatten)]
    outputs: OutputFlags,
    #[command(flatten)]
    page: PageFlags,
}

const EXAMPLES: &str = "\
Examples:
  paceline train
  paceline train --strategy abs --speeds 1,1,2,4 --target-loss 0.3
  paceline train --workers 8 --strategy gossip-pull --epochs 5 --json
  paceline train --tensorboard runs/dbs --trace trace.json --report dbs.html
  paceline train --checkpoints saved --checkpoint-minutes 1
  paceline train --resume saved --epochs 30
  paceline train --processes 4 --strategy adpsgd --respawn
  mpirun -n 8 paceline train --cluster mpi

There are 4 workers unless --workers or --speeds is given. Without these, --job, --model and --data,
they emulate relative speeds 4, 4, 2 and 1; otherwise all workers run at full speed. The report is
also written after Ctrl-C and after a failure. The first Ctrl-C finishes the round, saves a
checkpoint and prints the summary; the second one stops at once. A stopped run exits with 130
(Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP). SIGUSR1 saves a checkpoint now. A resumed job keeps its
settings: only --workers, --speeds, --epochs, --learning-rate, targets and checkpoints may change.";

const STRATEGY: &str = "dbs";

impl Train {
    pub fn run(&self, recipes: &[Recipe]) -> CliResult {
        self.log.begin();
        if self.cluster.cluster.is_some() {
            #[cfg(feature = "mpi")]
            return run_on_ranks(&self.cluster, self.processes.patience, recipes, |place| {
                self.run_in(place, recipes)
            });
            #[cfg(not(feature = "mpi"))]
            return Err(UsageError::WithoutMpi.into());
        }
        let workers = self.processes.processes.or(self.job.workers);
        let place = match self.processes.options()? {
            Some(processes) => Place {
                name: "processes",
                workers,
                can_lose_members: true,
                train: Box::new(|job, prepared, options| {
                    train_on_processes(job, prepared, options, processes)
                        .map(|trained| (trained.result, trained.saved))
                }),
            },
            None => Place {
                name: "threads",
                workers,
                can_lose_members: false,
                train: Box::new(|_, prepared, options| {
                    train(prepared, options).map(|trained| (trained.result, trained.saved))
                }),
            },
        };
        self.run_in(place, recipes)
    }

    fn run_in(&self, place: Place, recipes: &[Recipe]) -> CliResult {
        let resumed = self.checkpoints.resumed()?;
        let from = resumed.as_ref().map(|checkpoint| checkpoint.path.clone());
        let (mut job, mut prepared, speeds) = match resumed {
            Some(checkpoint) => self.resume(checkpoint, place.workers, recipes)?,
            None => self.start(place.workers, recipes)?,
        };
        let faults = self.faults.as_deref().map(scenarios::load).transpose();
        let faults = faults.map_err(CliError::usage)?;
        let recorded = self.journal.as_ref().and_then(|path| recorded(path, &prepared));
        prepared.begin_at(recorded.map_or(Duration::ZERO, |recorded| recorded.last));
        let was_done =
            |snapshot: &Arc<Snapshot>| snapshot.done.len() == prepared.plan.samples_total;
        let was_done = prepared.plan.resumed.as_ref().is_some_and(was_done);
        let outputs = match was_done {
            // Nothing will be learned: what the finished run has written stays.
            true => Outputs::none(),
            false => self.outputs(&job, &prepared)?.continuing(recorded),
        };
        let name = prepared.name.as_str();
        let created = match self.json {
            true => None,
            false => self.checkpoints.save_by_default(&mut job, name),
        };
        let saving = saving(&job, from)?;
        check_speeds(&speeds).map_err(CliError::usage)?;
        if !self.json && !speeds.is_empty() {
            let speeds = listed(&speeds, prepared.workers);
            say(&format!("emulating workers of relative speeds {speeds}"));
        }
        let bar = Bar::new(prepared.plan.samples_total, Clock::Real, !self.json);
        let stop = Stop::on_signals("finishing the round; press Ctrl-C again to stop at once")?;
        let mut page = self.page.open(&Watched {
            place: place.name,
            can_lose_members: place.can_lose_members || faults.is_some(),
            saving: saving.as_ref(),
            stop: &stop,
            members_min: 1,
            token_file: None,
        })?;
        let mut readers = RunReaders::new(bar, outputs).shown_on(page.reader()).telling_losses();

        let options = TrainOptions {
            speeds: speeds.clone(),
            pace: self.pace,
            stop: stop.requested.clone(),
            saving: saving.as_ref(),
            faults,
            requests: page.requests.take(),
            readers: vec![&mut readers],
        };
        let trained = (place.train)(&job, &prepared, options);

        let (ended, saved) = match trained {
            Ok((result, saved)) => (Ok(result), saved.unwrap_or_default()),
            Err(failure) => (Err(failure), Saved::default()),
        };
        if let Ok(result) = &ended {
            say_how_to_resume("train", &saved, result, &prepared);
        }
        if was_done {
            let epochs = job.epochs;
            say(&format!("all {epochs} epochs are already done: give more --epochs to continue"));
        }
        let place = place.name;
        let (json, stop) = (self.json, &stop);
        let (speeds, saved_in) = (speeds.as_slice(), saved.newest.as_deref());
        let context =
            ReportContext { job: &job, prepared: &prepared, place, json, stop, speeds, saved_in };
        let reported = report_run(&context, ended, readers);
        drop(created);
        reported?;
        saved.error.map_or(Ok(()), |error| Err(CliError::failed(error)))
    }

    fn outputs(&self, job: &Job, prepared: &Prepared) -> CliResult<Outputs> {
        let read = self.job.files(job);
        self.outputs.check(&prepared.name, !self.json, self.journal.as_deref(), &read)
    }

    /// Returns the strategy of the command line, or the default if there is no job file either.
    fn strategy(&self) -> Option<&str> {
        self.strategy.as_deref().or(self.job.job.is_none().then_some(STRATEGY))
    }

    /// Prepares a new job; returns it with the speeds of its workers.
    fn start(
        &self,
        workers: Option<u32>,
        recipes: &[Recipe],
    ) -> CliResult<(Job, Prepared, Vec<f64>)> {
        let workers = self.speeds.workers(workers)?;
        let mut job = self.job.job_with(self.strategy())?;
        self.checkpoints.apply(&mut job, None)?;
        let prepared =
            job.prepare_with(PrepareOptions { recipes, ..PrepareOptions::new(workers) })?;
        // Whoever wants processes wants to see what their machine can do: speeds are emulated only on request.
        let speeds = match self.processes.processes.is_some() || self.cluster.cluster.is_some() {
            true => self.speeds.speeds.clone(),
            false => self.speeds.speeds(&self.job),
        };
        Ok((job, prepared, speeds))
    }

    /// Prepares the job of a checkpoint; flags override the settings that may change.
    fn resume(
        &self,
        checkpoint: Checkpoint,
        workers: Option<u32>,
        recipes: &[Recipe],
    ) -> CliResult<(Job, Prepared, Vec<f64>)> {
        let manifest = &checkpoint.manifest;
        let mut job = self.job.over(manifest.job.clone());
        job.strategy = self.strategy.clone().unwrap_or(job.strategy);
        self.checkpoints.apply(&mut job, Some(&checkpoint))?;
        let workers = match (workers, self.speeds.speeds.len()) {
            (None, 0) => manifest.workers,
            _ => self.speeds.workers(workers)?,
        };
        let mut speeds = self.speeds.speeds.clone();
        if speeds.is_empty() {
            speeds.clone_from(&manifest.speeds);
            speeds.truncate(workers as usize);
        }
        let (before, restart_schedule) = (manifest.clone(), checkpoint.restart_schedule);
        let prepared = checkpoint
            .prepare_with(&job, PrepareOptions { recipes, ..PrepareOptions::new(workers) })?;
        say_schedule(&before, &prepared, restart_schedule);
        Ok((job, prepared, speeds))
    }
}
