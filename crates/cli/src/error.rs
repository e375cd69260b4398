//! The errors of commands, and the exit codes they map to.

use std::io;
use std::path::PathBuf;

use paceline_job::{Error, Kernels};
use paceline_watch::table::count;
use thiserror::Error;

use crate::counted::counted;

/// Why a command ended early. Errors of other crates are wrapped where they reach a command, because only the command
/// knows whether they are the user's mistake.
#[derive(Debug, Error)]
pub enum CliError {
    /// The request is invalid: exit code 2.
    #[error(transparent)]
    Usage(Source),
    /// The request was valid, but something failed: exit code 1.
    #[error(transparent)]
    Failed(Source),
    /// The reader of stdout has closed the pipe: a silent end, exit code 0.
    #[error("stdout was closed")]
    PipeClosed,
}

type Source = Box<dyn std::error::Error + Send + Sync>;

pub type CliResult<T = ()> = Result<T, CliError>;

impl CliError {
    pub fn usage(error: impl Into<Source>) -> CliError {
        CliError::Usage(error.into())
    }

    pub fn failed(error: impl Into<Source>) -> CliError {
        CliError::Failed(error.into())
    }
}

impl From<Error> for CliError {
    fn from(error: Error) -> CliError {
        match error.is_usage() {
            true => CliError::usage(error),
            false => CliError::failed(error),
        }
    }
}

impl From<UsageError> for CliError {
    fn from(error: UsageError) -> CliError {
        CliError::usage(error)
    }
}

impl From<CommandError> for CliError {
    fn from(error: CommandError) -> CliError {
        CliError::failed(error)
    }
}

/// An invalid combination of arguments or files.
#[derive(Debug, Error)]
pub enum UsageError {
    #[error("{first} and {second} both name {}: give each its own file", path.display())]
    SameFile { first: &'static str, second: &'static str, path: PathBuf },
    #[error("{}, {problem}", path.display())]
    JobFile {
        path: PathBuf,
        #[source]
        problem: Source,
    },
    #[error("choose one of {}", Kernels::ALL.map(Kernels::name).join(", "))]
    Kernels,
    #[error("give numbers above zero, e.g. 1,1,2,4")]
    Speed,
    #[error("--speeds has {speeds} values, but --workers is {workers}: give one speed per worker")]
    SpeedsCount { speeds: u32, workers: u32 },
    #[error("checkpoint settings without a folder: name one with --checkpoints DIR")]
    NoCheckpointFolder,
    #[error(
        "a checkpoint cannot store the folder name {}, which is not UTF-8: rename the folder",
        path.display()
    )]
    NotUtf8 { path: PathBuf },
    #[error(
        "the job file sets `choices`, but compare runs strategies by name: remove `choices`, or use `paceline simulate`"
    )]
    ChoicesInCompare,
    #[error("{name} is built in: there is nothing to fetch")]
    BuiltIn { name: String },
    #[error(
        "--first is only for IDX files, which contain many pictures: {} is a single one, omit --first",
        path.display()
    )]
    FirstWithoutIdx { path: PathBuf },
    #[error("--seeds: {seed} is given twice, give each seed once")]
    RepeatedSeed { seed: u64 },
    #[error("--only {}: no run has this name; --dry-run lists all runs", only.join(" --only "))]
    NoSuchRun { only: Vec<String> },
    #[error(
        "the results of {first} and {second} would both go to {}: run them one at a time, each with its own --folder",
        path.display()
    )]
    SharedResults { first: String, second: String, path: PathBuf },
    #[error(
        "{} was calibrated with emulated speeds; use one without: `paceline calibrate --workers 1 --model cnn --data fashion-mnist`",
        path.display()
    )]
    EmulatedSpeeds { path: PathBuf },
}

/// A failure of the command itself, not of its arguments.
#[derive(Debug, Error)]
pub enum CommandError {
    #[error("cannot write the {what} {}: {source}", path.display())]
    Write { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot write TensorBoard events to {}: {source}", folder.display())]
    TensorBoard { folder: PathBuf, source: io::Error },
    #[error("cannot write TensorBoard events to {}: it is a file, name a folder", path.display())]
    TensorBoardFile { path: PathBuf },
    #[error("cannot write to stdout: {0}")]
    Stdout(#[source] io::Error),
    #[error("cannot install a handler for {signal}: {source}")]
    Signal {
        signal: &'static str,
        #[source]
        source: Source,
    },
    #[error("{} is a file: name a folder with --dir", path.display())]
    DataFolderIsFile { path: PathBuf },
    #[error("the journal {} is empty", path.display())]
    EmptyJournal { path: PathBuf },
    #[error("{strategy} diverged: {reason}")]
    Diverged { strategy: String, reason: String },
    /// Every sample is to be applied exactly once: this is a bug.
    #[error(
        "{strategy} lost {} samples and repeated {}; please report this",
        count(*lost),
        count(*repeated)
    )]
    Ledger { strategy: String, lost: u64, repeated: u64 },
    #[error("some strategies could not be checked; see above")]
    Unchecked,
    #[error("{} of {runs} runs failed: {}", failed.len(), failed.join(", "))]
    RunsFailed { failed: Vec<String>, runs: usize },
    #[error("{} failed; see above", counted(*failures, "run"))]
    ExperimentRuns { failures: usize },
}
