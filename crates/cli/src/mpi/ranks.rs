//! One rank: the first runs the command, the others work for it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use paceline_job::error::RunError;
use paceline_job::mpi::{Loss, Ranks, Sums};
use paceline_job::processes::{RankOptions, refuse_ranks, train_on_ranks, work_on_rank};
use paceline_job::{Error, Job, Recipe};

use super::{ClusterFlags, SumsBy};
use crate::error::{CliError, CliResult, UsageError};
use crate::output::{say, say_error};
use crate::place::{Place, TrainOn};
use crate::stop::Stop;

/// A rank that is silent for this long is lost, if no patience is given.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a rank looks whether the first one is there.
const LOOK: Duration = Duration::from_millis(50);
/// Of the first rank, the others know only that it is silent when the launcher ends the job.
const SILENT_AT_STOP: Duration = Duration::from_millis(500);

/// Runs the command on the first rank; all others work for it until it has ended.
pub fn run_on_ranks(
    flags: &ClusterFlags,
    patience: Option<Duration>,
    recipes: &[Recipe],
    run: impl FnOnce(Place) -> CliResult,
) -> CliResult {
    let ranks = Arc::new(Ranks::start().map_err(CliError::failed)?);
    let sums = match flags.sums.unwrap_or_default() {
        SumsBy::InOrder => Sums::InOrder,
        SumsBy::Mpi => Sums::Mpi,
    };
    let options = RankOptions { sums, patience: patience.unwrap_or(PATIENCE) };
    let ended = match (started_alike(&ranks), ranks.rank) {
        (Err(error), 0) => Err(error.into()),
        (Err(_), _) => Err(CliError::Silent { code: 2 }),
        (Ok(()), 0) => lead(&ranks, options, run),
        (Ok(()), _) => follow(&ranks, options, recipes),
    };
    // Ranks end together. What is wrong is said before: a launcher ends the first rank when another one has failed.
    let ended = ended.map_err(say_why);
    match (Arc::try_unwrap(ranks), ended) {
        (Ok(ranks), _) => ranks.end(),
        // A thread that waits for a lost rank has it: the process ends with the thread.
        (Err(ranks), Err(code)) => ranks.watch().abort(code),
        (Err(_), Ok(())) => {}
    }
    ended.map_err(|code| CliError::Silent { code })
}

/// Whether all ranks run the same version with the same arguments.
fn started_alike(ranks: &Ranks) -> Result<(), UsageError> {
    let differ = |value: u64| {
        let all = ranks.agree(value);
        all.iter().position(|theirs| Some(theirs) != all.first())
    };
    if let Some(rank) = differ(hash(&env!("CARGO_PKG_VERSION"))) {
        return Err(UsageError::RankVersions { rank });
    }
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match differ(hash(&arguments)) {
        Some(rank) => Err(UsageError::RankArguments { rank }),
        None => Ok(()),
    }
}

/// The same in all processes of one program.
fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn lead(
    ranks: &Arc<Ranks>,
    options: RankOptions,
    run: impl FnOnce(Place) -> CliResult,
) -> CliResult {
    let has_failed = Arc::new(AtomicBool::new(false));
    let (on, failed) = (ranks.clone(), has_failed.clone());
    let train: TrainOn = Box::new(move |job, prepared, train_options| {
        if let Some(saving) = train_options.saving {
            let folder = &saving.checkpoints.folder;
            say(&format!(
                "checkpoints are saved in {folder}: if a rank is lost, resume with --resume {folder}"
            ));
        }
        let trained = train_on_ranks(&on, job, prepared, train_options, options);
        failed.store(matches!(&trained, Err(error) if !error.is_usage()), Ordering::SeqCst);
        trained.map(|trained| (trained.result, trained.saved))
    });
    let workers = u32::try_from(ranks.size).ok();
    let ended = run(Place { name: "MPI ranks", workers, can_lose_members: false, train });
    if has_failed.load(Ordering::SeqCst) {
        // Other ranks may wait for one that is gone.
        let code = ended.map_or_else(say_why, |()| 0);
        ranks.watch().abort(code);
    }
    if let Err(error) = &ended {
        refuse_ranks(ranks, &error.to_string());
    }
    ended
}

/// Says why the command failed; returns its exit code.
fn say_why(error: CliError) -> u8 {
    match error {
        CliError::PipeClosed => 0,
        CliError::Usage(error) => {
            say_error(error);
            2
        }
        CliError::Failed(error) => {
            say_error(error);
            1
        }
        CliError::Stopped { code, message } => {
            say(&message);
            code
        }
        CliError::Silent { code } => code,
    }
}

fn follow(ranks: &Ranks, options: RankOptions, recipes: &[Recipe]) -> CliResult {
    // The first rank decides what a signal means.
    let stop = Stop::quietly()?;
    let folder = Arc::<OnceLock<String>>::default();
    let is_over = Arc::<AtomicBool>::default();
    let (watch, rank) = (ranks.watch(), ranks.rank);
    let (known, over) = (folder.clone(), is_over.clone());
    std::thread::spawn(move || {
        while !over.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK);
            let silent = || watch.silent_for(SILENT_AT_STOP).filter(|_| stop.is_requested());
            let Some(loss) = watch.loss().or_else(silent) else { continue };
            // One rank says so, unless the first one has.
            if rank == 1 && !over.load(Ordering::SeqCst) && !matches!(loss, Loss::Ended { .. }) {
                let resume = known.get().map_or("it saves no checkpoints".to_owned(), |folder| {
                    format!("resume it from its last checkpoint with --resume {folder}")
                });
                say_error(format!("rank 1: {loss}, and the job ends; {resume}"));
            }
            watch.abort(1);
        }
    });
    let begin = |job: &Job| {
        if let Some(checkpoints) = &job.checkpoints {
            let _ = folder.set(checkpoints.folder.clone());
        }
    };
    let worked = work_on_rank(ranks, options, recipes, begin);
    is_over.store(true, Ordering::SeqCst);
    match worked {
        Ok(()) => Ok(()),
        // The first rank has said why.
        Err(Error::Run(RunError::Refused { .. })) => Err(CliError::Silent { code: 2 }),
        Err(error) => Err(CliError::failed(format!("rank {rank}: {error}"))),
    }
}
