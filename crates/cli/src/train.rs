//! `paceline train`: a job on real threads of this machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use paceline_job::checkpoint::{Checkpoint, Saved};
use paceline_job::threads::{ThreadOptions, train_saving};
use paceline_job::{Job, PrepareOptions, Prepared, Recipe};
use paceline_runtime::Snapshot;

use crate::audience::Audience;
use crate::bar::Bar;
use crate::checkpoint::{CheckpointFlags, saving, tell_how_to_resume};
use crate::flags::JobFlags;
use crate::output::{Ended, Ending, say};
use crate::outputs::OutputFlags;
use crate::speeds::SpeedsFlag;
use crate::summary::{Told, tell};

/// Train on threads of this machine, one per worker
#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Train {
    /// The training algorithm (see `paceline strategies`) [default: dbs, or what the job file says]
    #[arg(long, value_name = "NAME")]
    strategy: Option<String>,
    #[command(flatten)]
    speeds: SpeedsFlag,
    /// Write what happened to a file, as JSON lines
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Print the outcome as JSON
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

Without --workers and --speeds there are 4 workers of speeds 4, 4, 2 and 1; with --workers alone all
are as fast as they can be. The report is drawn after Ctrl-C and after a failure, too.
The first Ctrl-C finishes the round, saves it if there are checkpoints, and sums up; the second
stops at once. SIGUSR1 saves now. A resumed job is the saved one: only --workers, --speeds,
--epochs, --learning-rate, targets and checkpoints may be others.";

const STRATEGY: &str = "dbs";

impl Train {
    pub fn run(&self, recipes: &[Recipe]) -> Ended {
        let resumed = self.checkpoints.resumed()?;
        let from = resumed.as_ref().map(|checkpoint| checkpoint.path.clone());
        let (job, prepared, speeds) = match resumed {
            Some(checkpoint) => self.go_on(checkpoint, recipes)?,
            None => self.begin(recipes)?,
        };
        let saving = saving(&job, from)?;
        let bar = Bar::new(prepared.plan.samples_total, "", !self.json);
        let journal = self.journal.as_deref();
        let read = self.job.files(&job);
        let outputs = self.outputs.check(&prepared.name, !self.json, journal, &read)?;
        let mut audience = Audience::new(bar, outputs);
        let stop = stop_on_signal()?;

        let setting = ThreadOptions { speeds, pace: None };
        let trained = train_saving(&prepared, setting, stop, saving.as_ref(), vec![&mut audience]);

        let (ended, saved) = match trained {
            Ok(trained) => (Ok(trained.result), trained.saved.unwrap_or_default()),
            Err(failure) => (Err(failure), Saved::default()),
        };
        if let Ok(outcome) = &ended {
            tell_how_to_resume(&saved, outcome, prepared.plan.samples_total);
            let was_done =
                |snapshot: &Arc<Snapshot>| snapshot.done.len() == prepared.plan.samples_total;
            if prepared.plan.resumed.as_ref().is_some_and(was_done) {
                say(&format!("its {} epochs are done: give more --epochs to go on", job.epochs));
            }
        }
        let told = Told { job: &job, prepared: &prepared, place: "threads", json: self.json };
        tell(&told, ended, audience)?;
        saved.error.map_or(Ok(()), |error| Err(Ending::of(error)))
    }

    /// The one that was named, or the job file's, or the one that shows what this is about.
    fn strategy(&self) -> Option<&str> {
        self.strategy.as_deref().or(self.job.job.is_none().then_some(STRATEGY))
    }

    /// A job from its beginning, and the speeds of its workers.
    fn begin(&self, recipes: &[Recipe]) -> Result<(Job, Prepared, Vec<f64>), Ending> {
        let workers = self.speeds.workers(self.job.workers).map_err(Ending::Usage)?;
        let mut job = self.job.job_with(self.strategy())?;
        self.checkpoints.apply(&mut job, None)?;
        let prepared = job.prepare_with(PrepareOptions { workers, recipes, task: None })?;
        Ok((job, prepared, self.speeds.speeds(self.job.workers)))
    }

    /// The job of a checkpoint; flags override what may change.
    fn go_on(
        &self,
        checkpoint: Checkpoint,
        recipes: &[Recipe],
    ) -> Result<(Job, Prepared, Vec<f64>), Ending> {
        let manifest = &checkpoint.manifest;
        let mut job = self.job.over(manifest.job.clone());
        job.strategy = self.strategy.clone().unwrap_or(job.strategy);
        self.checkpoints.apply(&mut job, Some(&checkpoint))?;
        let workers = match (self.job.workers, self.speeds.speeds.len()) {
            (None, 0) => manifest.workers,
            _ => self.speeds.workers(self.job.workers).map_err(Ending::Usage)?,
        };
        let mut speeds = self.speeds.speeds.clone();
        if speeds.is_empty() {
            speeds.clone_from(&manifest.speeds);
            speeds.truncate(workers as usize);
        }
        let options = PrepareOptions { workers, recipes, task: None };
        let prepared = checkpoint.prepare_with(&job, options)?;
        Ok((job, prepared, speeds))
    }
}

/// A flag that the first Ctrl-C or SIGTERM sets; the second one ends the program.
fn stop_on_signal() -> Result<Arc<AtomicBool>, Ending> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    let on_signal = move || {
        if asked.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        say("finishing the round; press Ctrl-C again to stop at once");
    };
    ctrlc::set_handler(on_signal)
        .map_err(|error| Ending::Failed(format!("cannot listen for Ctrl-C: {error}")))?;
    Ok(stop)
}
