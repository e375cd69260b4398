//! Checkpoints: the flags of `train` that have to do with them, and what was learned.

#[cfg(unix)]
use std::io::{self, Read};
use std::num::NonZero;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use paceline_job::checkpoint::{Checkpoint, Checkpoints, Saved, Saving, Weights, load_weights};
use paceline_job::{Job, RunResult};

use crate::output::{Ending, say};

#[derive(Args)]
#[command(next_help_heading = "Checkpoints")]
pub struct CheckpointFlags {
    /// Save what was learned into this folder from time to time, when stopped, and at the end
    #[arg(long, value_name = "DIR")]
    checkpoints: Option<PathBuf>,
    /// Save after each so many rounds
    #[arg(long, value_name = "N")]
    checkpoint_rounds: Option<NonZero<u64>>,
    /// Save after each so many minutes [default: 5, unless rounds are given]
    #[arg(long, value_name = "M")]
    checkpoint_minutes: Option<f64>,
    /// How many of the newest checkpoints to keep [default: 3]
    #[arg(long, value_name = "K")]
    keep: Option<NonZero<u64>>,
    /// Go on from the newest whole checkpoint in this folder
    #[arg(long, value_name = "DIR", conflicts_with = "job")]
    resume: Option<PathBuf>,
}

impl CheckpointFlags {
    /// The checkpoint to go on from, if there is to be one.
    pub fn resumed(&self) -> Result<Option<Checkpoint>, Ending> {
        let Some(dir) = &self.resume else { return Ok(None) };
        let checkpoint = Checkpoint::load(dir).map_err(Ending::of)?;
        for sentence in &checkpoint.passed_over {
            say(&format!("passed over: {sentence}"));
        }
        Ok(Some(checkpoint))
    }

    /// Writes into the job what the flags say of checkpoints. A resumed job goes on saving where its
    /// checkpoints are now.
    pub fn apply(&self, job: &mut Job, resumed: Option<&Checkpoint>) -> Result<(), Ending> {
        let mut checkpoints = job.checkpoints.take();
        let mut folder = self.checkpoints.as_deref().map(utf8).transpose()?;
        if let (None, Some(resumed)) = (&folder, resumed) {
            folder = resumed.folder().map(utf8).transpose()?;
            // What was taken out of its folder must not disturb what is there now.
            checkpoints = checkpoints.filter(|_| folder.is_some());
        }
        if let Some(folder) = folder {
            let checkpoints = checkpoints.get_or_insert_with(|| Checkpoints::into(&folder));
            checkpoints.folder = folder;
        }
        let is_tuned = self.checkpoint_rounds.or(self.keep).is_some();
        match &mut checkpoints {
            None if is_tuned || self.checkpoint_minutes.is_some() => {
                return Err(Ending::Usage(
                    "where should checkpoints go? name a folder with --checkpoints DIR".into(),
                ));
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
        job.checkpoints = checkpoints;
        Ok(())
    }
}

/// A checkpoint holds its job as text, with the names of its folders.
fn utf8(folder: &Path) -> Result<String, Ending> {
    folder.to_str().map(str::to_owned).ok_or_else(|| {
        Ending::Usage(format!(
            "a checkpoint cannot hold the name {}: it is not UTF-8, give the folder another",
            folder.display()
        ))
    })
}

/// How the run saves, if its job says that it does.
pub fn saving(job: &Job, from: Option<PathBuf>) -> Result<Option<Saving>, Ending> {
    let now = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    on_usr1(job.checkpoints.as_ref().map(|_| now.clone()))
        .map_err(|error| Ending::Failed(format!("cannot listen for SIGUSR1: {error}")))?;
    let Some(checkpoints) = job.checkpoints.clone() else { return Ok(None) };
    job.data_dir.as_deref().map(utf8).transpose()?;
    Ok(Some(Saving { job: job.clone(), checkpoints, from, now, say }))
}

/// SIGUSR1 asks for a checkpoint; where there are none, it says so and ends nothing.
#[cfg(unix)]
fn on_usr1(now: Option<Arc<AtomicBool>>) -> io::Result<()> {
    use signal_hook::consts::SIGUSR1;
    if let Some(now) = now {
        return signal_hook::flag::register(SIGUSR1, now).map(drop);
    }
    let (mut asked, asks) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGUSR1, asks)?;
    std::thread::spawn(move || {
        while asked.read_exact(&mut [0]).is_ok() {
            say("SIGUSR1 saves nothing here: begin with --checkpoints DIR to have a place for it");
        }
    });
    Ok(())
}

/// What was learned, from a checkpoint or the newest whole one in a folder.
pub fn weights(dir: &Path) -> Result<Weights, Ending> {
    let weights = load_weights(dir).map_err(Ending::of)?;
    for sentence in &weights.passed_over {
        say(&format!("passed over: {sentence}"));
    }
    Ok(weights)
}

/// Says how to go on with a run that has not come to its end.
pub fn tell_how_to_resume(saved: &Saved, outcome: &RunResult, samples_total: u64) {
    let Some(newest) = &saved.newest else { return };
    if outcome.samples < samples_total || outcome.diverged.is_some() {
        let dir: PathBuf = newest.parent().map_or_else(|| newest.clone(), |dir| dir.to_owned());
        say(&format!(
            "the last checkpoint is {}; go on with: paceline train --resume {}",
            newest.display(),
            dir.display()
        ));
    }
}
