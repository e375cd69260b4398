//! Runs and journals that failed, and requests that do not fit a trained model.

use paceline_learn::DataError;
use std::io;
use std::path::PathBuf;

use paceline_learn::Extent;
use paceline_runtime::{Stuck, WorkerId};

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
    #[error(
        "{}, line 1: a journal of version {version}; this Paceline reads version {supported}",
        path.display()
    )]
    Version { path: PathBuf, version: u64, supported: u32 },
}

/// The message without serde_json's own line number, which counts within one line of the journal.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(message, _)| message.to_owned())
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
