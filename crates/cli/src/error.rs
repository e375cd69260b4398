//! The errors of commands, and the exit codes they map to.

use std::io;
use std::net::SocketAddr;
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
    /// A signal stopped the run, and what it had was kept: the exit code of that signal.
    #[error("{message}")]
    Stopped { code: u8, message: String },
    /// Another process of the same job has said why.
    #[cfg(feature = "mpi")]
    #[error("see the first rank's message")]
    Silent { code: u8 },
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
    #[error(
        "{flag} {}: only {format} can be written here; name it {}",
        path.display(),
        instead.display()
    )]
    Format { flag: &'static str, path: PathBuf, format: String, instead: PathBuf },
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
    #[error("give a number of seconds, from 0.1 to 86400")]
    Patience,
    #[error("give an address and a port, such as 127.0.0.1:8080, or a port alone")]
    PageAddress,
    #[error("give a number of hours, above 0 and at most 100000")]
    Hours,
    #[error("give a number of seconds above 0, at most 60")]
    Pace,
    #[error("{0} names no port: give HOST:PORT, as the coordinator printed it")]
    CoordinatorAddress(String),
    #[error("--seconds is a number from 1 to 3600")]
    MeasuredSeconds,
    #[cfg(not(feature = "mpi"))]
    #[error(
        "this paceline was built without MPI: build it with `cargo build --release --features mpi`, which needs an MPI library \
        with its headers (libopenmpi-dev or libmpich-dev) and libclang-dev"
    )]
    WithoutMpi,
    #[cfg(feature = "mpi")]
    #[error(
        "rank {rank} runs another version of Paceline than rank 0: install the same one everywhere"
    )]
    RankVersions { rank: usize },
    #[cfg(feature = "mpi")]
    #[error(
        "rank {rank} was started with other arguments than rank 0: start all ranks with one command"
    )]
    RankArguments { rank: usize },
    #[error("give the least and the most workers, such as 2:8, or the least alone")]
    Members,
    #[error(
        "--state etcd://... needs --authority FILE, the same file for every coordinator of the job: the authority's key is not kept in etcd"
    )]
    AuthorityNeeded,
    #[error(
        "--state etcd://... needs --checkpoints DIR, a folder that every coordinator of the job can reach, or --no-save"
    )]
    CheckpointsNeeded,
    #[error(
        "--listen {listen} does not say where workers reach this coordinator: give --advertise HOST:PORT"
    )]
    AdvertiseNeeded { listen: SocketAddr },
    #[error("--advertise is for a coordinator whose state is in etcd (--state etcd://...)")]
    AdvertiseWithoutEtcd,
    #[error("--etcd-ca is for a coordinator whose state is in etcd (--state etcd://...)")]
    EtcdCaWithoutEtcd,
    #[error("--advertise {address}: give a host and a port, such as 10.0.0.1:7070")]
    Advertise { address: String },
    #[error(
        "--state must be a folder here: `paceline coordinate --state etcd://...` starts a coordinator with a standby by hand"
    )]
    LaunchInEtcd,
    #[error("cannot read the token in {}: {source}", path.display())]
    TokenFile { path: PathBuf, source: io::Error },
    #[error(
        "a token is needed to join: give --token-file FILE, --token T or the variable PACELINE_TOKEN"
    )]
    NoToken,
    #[error(
        "no launcher has started this program: start it with srun, `torchrun --no-python` or a Kubernetes indexed job, name machines \
        with --hosts, or use `paceline train --processes N` on this machine alone"
    )]
    NoLauncher,
    #[error("the launcher does not say how many tasks there are: give --tasks N")]
    NoTasks,
    #[error(
        "this is task {rank} of {size}: --tasks is too small, or the launcher's variables are wrong"
    )]
    TaskBeyond { rank: u32, size: u32 },
    #[error(
        "the launcher does not say on which machine the first task runs: give --coordinator HOST"
    )]
    NoFirstHost,
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
    #[error("give strategies and their learning rates, e.g. ssgd=0.1,abs=0.3")]
    TunedRate,
    #[error(
        "--tuned-rates names the strategy `{name}`, which does not exist: see `paceline strategies`"
    )]
    TunedStrategy { name: String },
    #[error("{name} is built in: there is nothing to fetch")]
    BuiltIn { name: String },
    #[error(
        "--first is only for IDX files, which contain many pictures: {} is a single one, omit --first",
        path.display()
    )]
    FirstWithoutIdx { path: PathBuf },
    #[error("the journal {} is empty", path.display())]
    EmptyJournal { path: PathBuf },
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
    #[error("cannot find this program's own file, which worker processes run: {0}")]
    Program(#[source] io::Error),
    #[error("the page cannot listen on {address}: {source}; --page names another address or port")]
    Page { address: SocketAddr, source: io::Error },
    #[error("cannot keep the token of the page in {}: {source}", path.display())]
    PageToken { path: PathBuf, source: io::Error },
    #[error("cannot start a worker process: {0}")]
    Worker(#[source] io::Error),
    #[error("cannot start {}: {source}", program.display())]
    Start { program: PathBuf, source: io::Error },
    #[error(
        "{} was not there after five minutes: does the first task run, and is the folder on a disk that all tasks share?",
        path.display()
    )]
    NoTokenYet { path: PathBuf },
    #[error("{failed} of {all} worker processes failed; see above")]
    WorkersFailed { failed: usize, all: usize },
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
    #[error("{strategy} diverged: {reason}")]
    Diverged { strategy: String, reason: String },
    #[error("{strategy} learned nothing: {reason}")]
    LearnedNothing { strategy: String, reason: String },
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
