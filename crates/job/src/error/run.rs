//! Runs and journals that failed, and requests that do not fit a trained model.

use paceline_learn::DataError;
use std::io;
use std::path::{Path, PathBuf};

use paceline_learn::Extent;
use paceline_runtime::{Stuck, WorkerId};

use crate::plain::plain;

/// A valid job whose run failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    #[error("{0}")]
    Stuck(Stuck),
    #[error("worker {worker} is stuck: {stuck}")]
    WorkerStuck { worker: WorkerId, stuck: Stuck },
    #[error("a worker's thread panicked; see above")]
    WorkerPanicked,
    #[error("the host of a worker panicked; see above")]
    HostPanicked,
    #[error("the model panicked while it was timed; see above")]
    ModelPanicked,
    #[error("the strategy computes too few gradients to be timed: choose ssgd")]
    TooFewGradients,
    #[error(
        "every replica was lost {restarts} times, and the job was given up: workers live too short for a round. Use a \
        shorter period or a smaller batch, or resume from checkpoints"
    )]
    GaveUp { restarts: u32 },
    #[error(
        "{} not hold what the others hold after exchange {exchange}: do all members run the same version, on the same \
        data?",
        these_do(workers)
    )]
    Disagreed { exchange: u64, workers: Vec<WorkerId> },
    #[error("{strategy} diverged: {reason}")]
    Diverged { strategy: String, reason: String },
    #[error("the coordinator is gone")]
    CoordinatorGone,
    #[error(
        "the coordinator is gone for good, and this worker took no part in the training: it has nothing to save"
    )]
    GoneWithoutUs,
    #[error("the coordinator is gone for good; worker {heir} saves what was learned")]
    GoneAndLeft { heir: WorkerId },
    #[error(
        "the coordinator is gone for good; {} in {}",
        if *is_finished { "the job was finished without it, and the final weights are" } else { "what was learned is saved, for `paceline train --resume`," },
        path.display()
    )]
    GoneAndSaved { path: PathBuf, is_finished: bool },
    #[error("the coordinator is gone for good, and what was learned cannot be saved: {why}")]
    GoneAndNotSaved { why: String },
    #[error("the coordinator refused this worker: {why}")]
    Refused { why: String },
    #[error("this worker was put out: {why}")]
    PutOut { why: String },
    #[error("the job that the coordinator sent cannot be read: {why}")]
    JobUnreadable { why: String },
    #[error("cannot listen for other workers: {why}")]
    Listen { why: String },
    #[error("cannot start a worker process: {why}")]
    Spawn { why: String },
    #[error("a worker process failed: {why}")]
    WorkerFailed { why: String },
    #[error("{why}")]
    Join { why: String },
    #[error("the coordinator stops: {why}")]
    Coordinate { why: String },
    #[error(
        "no coordinator answers in {}: is it running, and is this its --state folder?",
        state.display()
    )]
    NoCoordinator { state: PathBuf },
    #[error("the coordinator refuses: {why}")]
    WishRefused { why: String },
    #[error("every worker process has ended before the job was done")]
    AllWorkersGone,
    /// The ranks of an MPI job are fixed.
    #[error("{why}, and the job ends; {}", resumable(newest.as_deref()))]
    RankLost { why: String, newest: Option<PathBuf> },
}

/// From what a job that has ended can be resumed.
fn resumable(newest: Option<&Path>) -> String {
    let Some(newest) = newest else {
        return "no checkpoint has been written yet: begin anew".to_owned();
    };
    let folder = newest.parent().unwrap_or(newest).display();
    format!(
        "the last checkpoint is {}: resume it with --resume {folder}, on any number of ranks, threads or processes",
        newest.display()
    )
}

/// "worker 1 does", "workers 1, 2 do".
fn these_do(workers: &[WorkerId]) -> String {
    let names: Vec<String> = workers.iter().map(WorkerId::to_string).collect();
    match names.as_slice() {
        [name] => format!("worker {name} does"),
        _ => format!("workers {} do", names.join(", ")),
    }
}

/// A journal file that could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    #[error("cannot write the journal {}: {source}", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("the journal {} is incomplete: {source}", path.display())]
    Incomplete { path: PathBuf, source: io::Error },
    #[error("cannot read the journal {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{}, line {line}: {source}", path.display())]
    Read { path: PathBuf, line: usize, source: io::Error },
    #[error("{}, line {line}: {}", path.display(), without_place(source))]
    Malformed { path: PathBuf, line: usize, source: serde_json::Error },
    #[error("{}, line 1: not the beginning of a Paceline journal", path.display())]
    NotAJournal { path: PathBuf },
    #[error("{}, line {line}: longer than any line of a Paceline journal", path.display())]
    TooLong { path: PathBuf, line: usize },
    #[error(
        "{}, line 1: a journal of version {version}; this Paceline reads version {supported}",
        path.display()
    )]
    Version { path: PathBuf, version: u64, supported: u32 },
}

/// The message without serde_json's own line number, which counts within one line of the journal.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    plain(text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message))
}

/// A trained model and data or requests that do not fit it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InferenceError {
    #[error("the model quadratic was trained on noise and predicts no classes")]
    Noise,
    #[error(
        "the checkpoint's {params} parameters do not fit the model {model} for {data}, which has {expected}"
    )]
    Params { params: usize, model: String, data: String, expected: usize },
    #[error("the model was trained on a text ({data}): let it continue a text with --text")]
    TrainedOnText { data: String },
    #[error("the model was trained on {data}, which are not images: there is nothing to classify")]
    NotTrainedOnImages { data: String },
    #[error("the model was trained on {data}, which is not a text")]
    NotTrainedOnText { data: String },
    #[error(
        "{data} has other characters than the text that the model was trained on: give a text with the same characters"
    )]
    OtherCharacters { data: String },
    #[error(
        "{data} has {}, but the model was trained on {trained_on}: {}",
        in_words(shape),
        in_words(trained_shape)
    )]
    OtherShape {
        data: String,
        shape: (Extent, usize),
        trained_on: String,
        trained_shape: (Extent, usize),
    },
    #[error(
        "the model does not predict one class for a whole sample: if it was trained on a text, use --text"
    )]
    NoClassPerSample,
    #[error("the model predicts no classes: there is nothing to compare with the labels")]
    NoClasses,
    #[error(
        "the model does not predict the next character at each position: it cannot continue a text"
    )]
    NoNextCharacter,
    #[error("temperature = {0}: give a number from 0 to 100")]
    Temperature(f64),
    #[error("length = {length}: give at most {most}")]
    Length { length: usize, most: usize },
    #[error("the prompt is empty: give at least one character")]
    EmptyPrompt,
    #[error(transparent)]
    Prompt(#[from] DataError),
}

/// The shape of samples and the number of their classes.
fn in_words((extent, classes): &(Extent, usize)) -> String {
    match extent {
        Extent { height: 1, width: 1, channels } => {
            format!("rows of {channels} numbers in {classes} classes")
        }
        Extent { height, width, channels } => {
            format!("{height} x {width} x {channels} images in {classes} classes")
        }
    }
}
