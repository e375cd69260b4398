//! The errors of this crate, grouped by topic.

mod checkpoint;
mod job;
mod run;

use crate::description::{DescriptionError, TomlError};

pub use checkpoint::{CheckpointError, FileProblem, Mismatch, WriteProblem};
pub use job::{ChoicesError, JobError, ScenarioError, TaskError};
pub use run::{InferenceError, JournalError, RunError};

/// Why a job could not be prepared, run, saved, resumed or evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Job(#[from] JobError),
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error(transparent)]
    Description(#[from] DescriptionError),
    #[error(transparent)]
    Toml(#[from] TomlError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Inference(#[from] InferenceError),
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Error {
    /// Whether the request was invalid (exit code 2), as opposed to a valid request that failed (exit code 1).
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Job(_) | Error::Task(_) | Error::Scenario(_) | Error::Inference(_) => true,
            Error::Description(_) | Error::Toml(_) => true,
            Error::Checkpoint(error) => error.is_usage(),
            Error::Journal(_) | Error::Run(_) => false,
        }
    }
}

impl From<ChoicesError> for Error {
    fn from(error: ChoicesError) -> Error {
        Error::Job(error.into())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn invalid_requests_are_usage_errors_and_failures_are_not() {
        let folder = PathBuf::from("saved");
        let usage: [Error; 4] = [
            JobError::NoWorkers.into(),
            TaskError::OnlyForText.into(),
            CheckpointError::Occupied { folder: folder.clone() }.into(),
            InferenceError::EmptyPrompt.into(),
        ];
        let failures: [Error; 3] = [
            RunError::WorkerPanicked.into(),
            CheckpointError::None { folder: folder.clone() }.into(),
            JournalError::NotAJournal { path: folder }.into(),
        ];

        assert!(usage.iter().all(Error::is_usage));
        assert!(!failures.iter().any(Error::is_usage));
    }
}
