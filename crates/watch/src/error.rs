//! Errors of the files that this crate writes.

use std::io;
use std::path::PathBuf;

/// Why a trace or an event file is missing or incomplete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    #[error("cannot write the trace {}: {source}", path.display())]
    CreateTrace { path: PathBuf, source: io::Error },
    #[error("the trace {} is incomplete: {source}", path.display())]
    IncompleteTrace { path: PathBuf, source: io::Error },
    #[error("cannot write TensorBoard's events to {}: {source}", folder.display())]
    CreateEvents { folder: PathBuf, source: io::Error },
    #[error("TensorBoard's events in {} are incomplete: {source}", path.display())]
    IncompleteEvents { path: PathBuf, source: io::Error },
}
