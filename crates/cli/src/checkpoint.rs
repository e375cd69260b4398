//! The checkpoint flags of `train`, and loading the model of a checkpoint.

use std::fs;
use std::io;
#[cfg(unix)]
use std::io::Read;
use std::num::NonZero;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use paceline_job::checkpoint::{
    Checkpoint, Checkpoints, Manifest, Saved, Saving, Weights, load_weights,
};
use paceline_job::{Job, Prepared, RunResult};
use paceline_watch::table::number;

use crate::error::{CliError, CliResult, CommandError, UsageError};
use crate::log;
use crate::output::say;
use crate::summary::rate;

#[derive(Args)]
#[command(next_help_heading = "Checkpoints")]
pub struct CheckpointFlags {
    /// Save checkpoints into this folder: periodically, when stopped, and at the end [default: a new folder paceline-runs/STRATEGY-N; with --json, none]
    #[arg(long, value_name = "DIR")]
    checkpoints: Option<PathBuf>,
    /// Save every N rounds
    #[arg(long, value_name = "N")]
    checkpoint_rounds: Option<NonZero<u64>>,
    /// Save every M minutes [default: 5, unless --checkpoint-rounds is given]
    #[arg(long, value_name = "M")]
    checkpoint_minutes: Option<f64>,
    /// Keep the K newest checkpoints [default: 3]
    #[arg(long, value_name = "K")]
    keep: Option<NonZero<u64>>,
    /// Resume from the newest intact checkpoint in this folder
    #[arg(long, value_name = "DIR", conflicts_with = "job")]
    resume: Option<PathBuf>,
    /// If --epochs changes: plan the learning rate anew over all epochs, instead of continuing at the current rate
    #[arg(long, requires = "resume")]
    restart_schedule: bool,
    /// Save nothing
    #[arg(long, conflicts_with_all = ["checkpoints", "checkpoint_rounds", "checkpoint_minutes", "keep"])]
    no_save: bool,
}

/// The folder of runs that were saved without --checkpoints.
const RUNS: &str = "paceline-runs";

impl CheckpointFlags {
    /// Loads the checkpoint to resume from, if --resume is given.
    pub fn resumed(&self) -> CliResult<Option<Checkpoint>> {
        let Some(dir) = &self.resume else { return Ok(None) };
        let mut checkpoint = Checkpoint::load(dir).map_err(CliError::usage)?;
        checkpoint.restart_schedule = self.restart_schedule;
        for problem in &checkpoint.passed_over {
            say(&format!("skipped: {problem}"));
        }
        Ok(Some(checkpoint))
    }

    /// Sets the job's checkpoints from the flags. A resumed job continues to save into the folder that it was
    /// resumed from.
    pub fn apply(&self, job: &mut Job, resumed: Option<&Checkpoint>) -> CliResult {
        let mut checkpoints = job.checkpoints.take();
        let mut folder = self.checkpoints.as_deref().map(utf8).transpose()?;
        if let (None, Some(resumed)) = (&folder, resumed) {
            folder = resumed.folder().map(utf8).transpose()?;
            // If the checkpoint was moved out of its folder, the resumed run must not write into that folder.
            checkpoints = checkpoints.filter(|_| folder.is_some());
        }
        if let Some(folder) = folder {
            let checkpoints = checkpoints.get_or_insert_with(|| Checkpoints::into(&folder));
            checkpoints.folder = folder;
        }
        let is_tuned = self.checkpoint_rounds.or(self.keep).is_some();
        match &mut checkpoints {
            None if is_tuned || self.checkpoint_minutes.is_some() => {
                return Err(UsageError::NoCheckpointFolder.into());
            }
            None => {}
            Some(checkpoints) => {
                // A flag for one of two alternatives overrides the file's choice of the other.
                if self.checkpoint_rounds.is_some() || self.checkpoint_minutes.is_some() {
                    checkpoints.rounds = self.checkpoint_rounds;
                    checkpoints.minutes = self.checkpoint_minutes;
                }
                checkpoints.keep = self.keep.unwrap_or(checkpoints.keep);
            }
        }
        job.checkpoints = checkpoints.filter(|_| !self.no_save);
        Ok(())
    }

    pub fn saves_nothing(&self) -> bool {
        self.no_save
    }

    /// Gives a job without checkpoints this folder.
    pub fn save_in(&self, job: &mut Job, folder: &Path) -> CliResult {
        if job.checkpoints.is_none() && !self.no_save {
            job.checkpoints = Some(Checkpoints::into(&utf8(folder)?));
        }
        Ok(())
    }

    /// Gives a job without checkpoints a new folder, so that its last weights are not lost. If there can be none, the
    /// job runs all the same.
    pub fn save_by_default(&self, job: &mut Job, name: &str) -> Option<DefaultFolder> {
        if job.checkpoints.is_some() || self.no_save {
            return None;
        }
        match new_folder(name) {
            Ok(folder) => {
                let mut checkpoints = Checkpoints::into(&folder);
                checkpoints.keep = NonZero::<u64>::MIN;
                job.checkpoints = Some(checkpoints);
                Some(DefaultFolder(folder.into()))
            }
            Err(error) => {
                say(&format!(
                    "no weights will be saved: cannot create a folder in {RUNS}: {error}"
                ));
                None
            }
        }
    }
}

/// `paceline-runs/NAME`.
pub fn run_folder(name: &str) -> PathBuf {
    Path::new(RUNS).join(name)
}

/// Creates `paceline-runs/NAME-N` with the first number that is free, so that no run writes into another one's folder.
pub fn new_folder(name: &str) -> io::Result<String> {
    fs::create_dir_all(RUNS)?;
    let mut number = 1;
    loop {
        let folder = format!("{RUNS}/{name}-{number}");
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// A folder that was created for a run; deleted if nothing was saved.
pub struct DefaultFolder(PathBuf);

impl Drop for DefaultFolder {
    fn drop(&mut self) {
        // Only empty folders can be removed so.
        let _ = fs::remove_file(self.0.join(".lock"));
        let _ = fs::remove_dir(&self.0);
        let _ = fs::remove_dir(RUNS);
    }
}

/// Says in one sentence which learning rate a job has that is resumed with another number of epochs.
pub fn say_schedule(before: &Manifest, prepared: &Prepared, is_restarted: bool) {
    let (plan, schedule) = (&prepared.plan, &prepared.plan.schedule);
    if plan.samples_total == before.samples_total {
        return;
    }
    let epochs = |samples: u64| {
        let epochs = samples as f64 / plan.samples_per_epoch as f64;
        number((100.0 * epochs).round() / 100.0)
    };
    let (old, new) = (epochs(before.samples_total), epochs(plan.samples_total));
    let total = plan.samples_total;
    let now = rate(schedule.rate(before.samples, total));
    let last = rate(schedule.rate(total, total));
    let is_complete = schedule.progress(before.samples, total) >= 1.0;
    let how = if is_restarted {
        format!("the learning rate is planned anew over all of them and continues at {now}")
    } else if now == last && !is_complete {
        format!("the learning rate stays at {now}")
    } else if is_complete {
        format!(
            "the learning rate stays at {now}, where its schedule ended (--restart-schedule plans it anew over all epochs)"
        )
    } else {
        let rest = epochs(plan.samples_total - before.samples);
        format!(
            "the learning rate continues at {now}, and the rest of its schedule is stretched over the remaining {rest} epochs (--restart-schedule plans it anew over all epochs)"
        )
    };
    say(&format!("the job has {new} epochs instead of {old}: {how}"));
}

/// Returns the name of a folder as text, because a checkpoint stores its job as text.
fn utf8(folder: &Path) -> Result<String, UsageError> {
    let name = folder.to_str().map(str::to_owned);
    name.ok_or_else(|| UsageError::NotUtf8 { path: folder.to_owned() })
}

/// Returns how the run saves checkpoints; `None` if its job has none.
pub fn saving(job: &Job, from: Option<PathBuf>) -> CliResult<Option<Saving>> {
    let now = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    on_usr1(job.checkpoints.as_ref().map(|_| now.clone()))
        .map_err(|error| CommandError::Signal { signal: "SIGUSR1", source: error.into() })?;
    let Some(checkpoints) = job.checkpoints.clone() else { return Ok(None) };
    job.data_dir.as_deref().map(utf8).transpose()?;
    Ok(Some(Saving { job: job.clone(), checkpoints, from, now, say, saved: log::saved }))
}

/// Lets SIGUSR1 request a checkpoint. Without checkpoints it only prints a message; the default action would end the
/// program.
#[cfg(unix)]
fn on_usr1(now: Option<Arc<AtomicBool>>) -> io::Result<()> {
    use signal_hook::consts::SIGUSR1;
    if let Some(now) = now {
        return signal_hook::flag::register(SIGUSR1, now).map(drop);
    }
    let (mut receiver, sender) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGUSR1, sender)?;
    std::thread::spawn(move || {
        while receiver.read_exact(&mut [0]).is_ok() {
            say("SIGUSR1 ignored: this run saves nothing, start with --checkpoints DIR");
        }
    });
    Ok(())
}

/// Loads the model of a checkpoint, or of the newest intact one in a folder.
pub fn weights(dir: &Path) -> CliResult<Weights> {
    let weights = load_weights(dir).map_err(CliError::usage)?;
    for problem in &weights.passed_over {
        say(&format!("skipped: {problem}"));
    }
    Ok(weights)
}

/// Says how to resume a run that stopped before its end, with this command.
pub fn say_how_to_resume(command: &str, saved: &Saved, result: &RunResult, prepared: &Prepared) {
    let Some(newest) = &saved.newest else { return };
    if result.samples < prepared.plan.samples_total || result.diverged.is_some() {
        let dir: PathBuf = newest.parent().map_or_else(|| newest.clone(), |dir| dir.to_owned());
        say(&format!(
            "the last checkpoint is {}; resume with: paceline {command} --resume {}",
            newest.display(),
            dir.display()
        ));
    }
}
