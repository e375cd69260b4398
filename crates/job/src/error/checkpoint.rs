//! Checkpoints that could not be written, read or resumed.

use std::io;
use std::path::PathBuf;

use paceline_learn::LayoutError;
use safetensors::{Dtype, SafeTensorError};
use serde_json::Value;

/// A checkpoint that could not be written, read or resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    #[error("cannot write checkpoints to {}: {source}", folder.display())]
    Unwritable { folder: PathBuf, source: io::Error },
    #[error(
        "another run ({owner}) writes checkpoints to {}: choose another folder",
        folder.display()
    )]
    Locked { folder: PathBuf, owner: String },
    #[error(
        "{0} holds checkpoints of another run: resume that run with --resume {0}, or choose another folder",
        folder.display()
    )]
    Occupied { folder: PathBuf },
    #[error(
        "a resumed job cannot change {field} from {} to {}: keep the old value, or start a new run",
        shown(was),
        shown(now)
    )]
    Changed { field: String, was: Value, now: Value },
    #[error(
        "the checkpoint does not fit {model} on {data}: {problem}; was it made by another version of the program?"
    )]
    Mismatch { model: String, data: String, problem: Mismatch },
    #[error(
        "{data} no longer has the characters of the text that the checkpoint was trained on: restore the file, or start a new run"
    )]
    VocabularyChanged { data: String },
    #[error("{done:.2} epochs are already done: give at least that many epochs")]
    EpochsDone { done: f64 },

    #[error("cannot read {}: {source}", folder.display())]
    Unreadable { folder: PathBuf, source: io::Error },
    #[error("there is no checkpoint in {} yet", folder.display())]
    None { folder: PathBuf },
    #[error(
        "none of the {tried} checkpoints in {} is intact; the newest: {newest}",
        folder.display()
    )]
    NoneIntact { folder: PathBuf, tried: usize, newest: Box<CheckpointError> },
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: FileProblem },

    #[error("no checkpoint of round {round} in {}: {problem}", folder.display())]
    NotWritten { round: u64, folder: PathBuf, problem: Box<CheckpointError> },
    #[error(transparent)]
    Write(#[from] WriteProblem),
    #[error("another run ({owner}) has taken over the folder")]
    TakenOver { owner: String },
    #[error("the old checkpoint {} could not be deleted and stays: {source}", path.display())]
    NotDeleted { path: PathBuf, source: io::Error },
    #[error("the thread that writes checkpoints panicked; see above")]
    WriterPanicked,
}

impl CheckpointError {
    /// As [`Error::is_usage`](super::Error::is_usage): a folder that cannot be used, or a change that a resumed job cannot have.
    pub fn is_usage(&self) -> bool {
        use CheckpointError as E;
        matches!(
            self,
            E::Unwritable { .. }
                | E::Locked { .. }
                | E::Occupied { .. }
                | E::Changed { .. }
                | E::Mismatch { .. }
                | E::VocabularyChanged { .. }
                | E::EpochsDone { .. }
        )
    }
}

/// A field's value in a message.
fn shown(value: &Value) -> String {
    if value.is_null() { "unset".to_owned() } else { value.to_string() }
}

/// How a checkpoint and the job that resumes it differ.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    #[error(
        "it has {params} parameters and {samples} samples per epoch, and should have {params_wanted} and {samples_wanted}"
    )]
    Sizes { params: u64, samples: u64, params_wanted: u64, samples_wanted: u64 },
    #[error("a vector has another length")]
    VectorLength,
    #[error("the state of its strategy cannot be read ({0})")]
    Memory(serde_json::Error),
}

/// What is wrong with a file of a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileProblem {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("damaged ({0})")]
    Json(#[from] serde_json::Error),
    #[error("damaged (its checksum is wrong)")]
    Checksum,
    #[error("damaged ({bytes} bytes instead of {expected})")]
    Length { bytes: u64, expected: u64 },
    #[error("version {version} of the format, but this program reads versions 1 to {supported}")]
    Version { version: u32, supported: u32 },
    #[error("the manifest does not list it")]
    Unlisted,
    #[error("not a safetensors file, or damaged ({0})")]
    Tensors(#[from] SafeTensorError),
    #[error("tensor {name}: {source}")]
    Tensor { name: String, source: SafeTensorError },
    #[error("tensor {name} has the type {found} instead of {expected}")]
    TensorType { name: String, found: Dtype, expected: Dtype },
    #[error("tensor {name} has the shape {shape:?} instead of {expected:?}")]
    TensorShape { name: String, shape: Vec<usize>, expected: Vec<usize> },
    #[error("there is no tensor {name}; is it a file of another model?")]
    MissingTensor { name: String },
    #[error("the model has no tensor {name:?}; is it a file of another model?")]
    UnknownTensor { name: String },
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error("it has no members")]
    NoMembers,
}

/// Why the files of a checkpoint could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteProblem {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Tensors(#[from] SafeTensorError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error("its parameters are not finite")]
    ParamsNotFinite,
    #[error("its numbers are not finite ({0})")]
    NumbersNotFinite(serde_json::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_field_is_shown_with_both_values() {
        let error =
            CheckpointError::Changed { field: "samples".into(), was: Value::Null, now: 8.into() };

        let expected = "a resumed job cannot change samples from unset to 8: keep the old value, or start a new run";
        assert_eq!(error.to_string(), expected);
    }
}
