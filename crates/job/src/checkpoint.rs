//! Checkpoints: folders from which a run can be resumed.
//!
//! `DIR/round-000123/` holds `weights.safetensors` (the evaluated parameters, as named tensors),
//! `state.safetensors` (all other long vectors) and `manifest.json` (everything else, with the checksums).
//! It is written under a temporary name and renamed once it is on the disk, so it is complete or absent.

mod files;
mod folder;
mod lock;
mod resume;
mod state;
mod version_1;
mod writer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use paceline_learn::{Stretched, Tensor, Vector, Vocabulary};
use paceline_runtime::Spans;
use paceline_runtime::journal::Past;
use serde::{Deserialize, Serialize};

use crate::config::Job;
use crate::error::CheckpointError;

pub use crate::checkpoint_config::Checkpoints;
pub use folder::{Added, Folder, newest};
pub use resume::Checkpoint;
pub use writer::{Saved, Saving};

pub(crate) use lock::void as void_lock;
pub(crate) use writer::Writer;

/// The job of a checkpoint, and how far it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub job: Job,
    /// The strategy's name, also if the job gives it axis by axis.
    pub strategy: String,
    /// The workers of the first view: batches and learning rates follow from it.
    pub workers_first: u32,
    /// The workers at the time of the checkpoint.
    pub workers: u32,
    /// Their emulated speeds, if any.
    pub speeds: Vec<f64>,
    pub round: u64,
    pub samples: u64,
    pub samples_total: u64,
    pub samples_per_epoch: u64,
    /// The number of parameters.
    pub params: u64,
    /// The tensors of the parameters in the file of weights; earlier versions have none in the manifest.
    #[serde(default)]
    pub weights: Vec<Tensor>,
    /// The characters of the tokens, if the data is a text: its file may change later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<Vocabulary>,
    /// The training loss at the start of the job and at the checkpoint.
    pub loss_first: Option<f64>,
    pub loss_last: Option<f64>,
    /// The history of the job so far; checkpoints of earlier programs have none.
    #[serde(default, skip_serializing_if = "Past::is_empty")]
    pub past: Past,
    /// Where the learning rate's schedule was stretched, when the job was resumed with another number of epochs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stretched: Option<Stretched>,
    /// The applied samples, by their positions in the job.
    pub done: Spans,
    pub files: BTreeMap<String, Seal>,
    pub state: state::State,
}

/// Length and checksum of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    pub bytes: u64,
    pub crc32: u32,
}

/// The trained parameters of a checkpoint.
#[derive(Debug)]
pub struct Weights {
    pub manifest: Manifest,
    pub params: Vector,
    /// The checkpoint itself.
    pub path: PathBuf,
    /// Why newer checkpoints were skipped: they are damaged.
    pub passed_over: Vec<CheckpointError>,
}

/// The parameters of a checkpoint; `dir` is a checkpoint, or a folder whose newest intact checkpoint is read.
pub fn load_weights(dir: impl AsRef<Path>) -> Result<Weights, CheckpointError> {
    let read = |path: &Path| {
        let manifest = files::read_manifest(path)?;
        let params = files::read_params(path, &manifest)?;
        Ok((path.to_owned(), manifest, params))
    };
    let ((path, manifest, params), passed_over) = folder::newest_intact(dir.as_ref(), read)?;
    Ok(Weights { manifest, params, path, passed_over })
}

/// The manifest and the parameters of the checkpoint that [`load_weights`] finds.
pub fn load_params(dir: impl AsRef<Path>) -> Result<(Manifest, Vector), CheckpointError> {
    load_weights(dir).map(|weights| (weights.manifest, weights.params))
}

/// What fuzzing reaches: manifests without a disk.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    use super::{Manifest, files};

    pub fn parse(text: &str) -> Option<Manifest> {
        files::parse(text).ok()
    }

    pub fn seal(manifest: &Manifest) -> Option<String> {
        files::seal(manifest).ok()
    }

    /// A file whose checksum is right, whatever it holds.
    pub fn with_checksum(version: u32, manifest: &str) -> String {
        let crc32 = crc32fast::hash(manifest.as_bytes());
        format!("{{\"version\":{version},\"crc32\":{crc32},\"manifest\":{manifest}}}")
    }
}
