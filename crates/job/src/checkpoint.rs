//! Checkpoints: what a run can be taken up from again, in folders that are whole or not there.
//!
//! `DIR/round-000123/` holds `weights.safetensors` (what the job is judged by, as one flat tensor
//! `params`), `state.safetensors` (everything else that is long) and `manifest.json` (what it all
//! means, with the checksums). It is written aside and renamed when it is on the disk.

mod files;
mod folder;
mod resume;
mod state;
mod version_1;
mod writer;

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use paceline_learn::Vocabulary;
use paceline_runtime::Spans;
use serde::{Deserialize, Serialize};

use crate::job::Job;

pub use folder::Folder;
pub use resume::Checkpoint;
pub use writer::{Saved, Saving};

pub(crate) use writer::Writer;

/// Where and how often a job saves what it has; a table of the job file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoints {
    pub folder: String,
    /// A checkpoint after each so many rounds; asynchronous strategies: steps per worker.
    #[serde(default)]
    pub rounds: Option<NonZero<u64>>,
    /// A checkpoint after each so many minutes. With neither, every five.
    #[serde(default)]
    pub minutes: Option<f64>,
    /// How many of the newest are kept.
    #[serde(default = "keep_default")]
    pub keep: NonZero<u64>,
}

fn keep_default() -> NonZero<u64> {
    NonZero::new(3).expect("three is not zero")
}

impl Checkpoints {
    pub fn into(folder: &str) -> Checkpoints {
        let folder = folder.to_owned();
        Checkpoints { folder, rounds: None, minutes: None, keep: keep_default() }
    }

    pub fn check(&self) -> Result<(), String> {
        match self.minutes {
            _ if self.folder.is_empty() => Err("checkpoints: name a folder for them".into()),
            Some(minutes) if !(minutes > 0.0 && minutes < 1e6) => Err(format!(
                "checkpoints every {minutes} minutes: give a number above zero, below a million"
            )),
            _ => Ok(()),
        }
    }
}

/// What a checkpoint is of, and how far it came.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub job: Job,
    /// The strategy's name, also where the job spells one out.
    pub strategy: String,
    /// For how many workers the job was made: batches and learning rates follow from that.
    pub workers_first: u32,
    /// How many there were at the checkpoint.
    pub workers: u32,
    /// Their emulated speeds, if any.
    pub speeds: Vec<f64>,
    pub round: u64,
    pub samples: u64,
    pub samples_total: u64,
    pub samples_per_epoch: u64,
    /// How many parameters there are.
    pub params: u64,
    /// What tokens stand for, if a text is learned: its file may change, or be elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<Vocabulary>,
    /// The training loss at the job's beginning, and at the checkpoint.
    pub loss_first: Option<f64>,
    pub loss_last: Option<f64>,
    /// The samples that were applied, by their positions in the job.
    pub done: Spans,
    pub files: BTreeMap<String, Seal>,
    pub state: state::State,
}

/// What a file must be like to be the one that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    pub bytes: u64,
    pub crc32: u32,
}

/// What a checkpoint's job had learned.
#[derive(Clone, Debug)]
pub struct Weights {
    pub manifest: Manifest,
    pub params: Vec<f32>,
    /// The checkpoint itself.
    pub path: PathBuf,
    /// A sentence for each newer one that is damaged.
    pub passed_over: Vec<String>,
}

/// The weights of a checkpoint: `dir` is one, or a folder with some, of which the newest whole one is read.
pub fn load_weights(dir: impl AsRef<Path>) -> Result<Weights, String> {
    let read = |path: &Path| {
        let manifest = files::read_manifest(path)?;
        let params = files::read_params(path, &manifest)?;
        Ok((path.to_owned(), manifest, params))
    };
    let ((path, manifest, params), passed_over) = folder::newest_whole(dir.as_ref(), read)?;
    Ok(Weights { manifest, params, path, passed_over })
}

/// The parameters of a checkpoint, as [`load_weights`] finds them, and what they are of.
pub fn load_params(dir: impl AsRef<Path>) -> Result<(Manifest, Vec<f32>), String> {
    load_weights(dir).map(|weights| (weights.manifest, weights.params))
}
