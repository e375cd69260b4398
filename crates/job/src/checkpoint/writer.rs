//! Writes checkpoints on a thread of its own, while training goes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use paceline_runtime::{Snapshot, Spans};

use super::files::{self, STATE, WEIGHTS};
use super::{Added, Checkpoints, Folder, Manifest, state};
use crate::error::{CheckpointError, WriteProblem};
use crate::job::{Job, Prepared};

/// How a run on threads saves what it has.
pub struct Saving {
    /// What the manifest says the job is.
    pub job: Job,
    pub checkpoints: Checkpoints,
    /// The checkpoint that the run goes on from.
    pub from: Option<PathBuf>,
    /// Set by whoever wants a checkpoint now.
    pub now: Arc<AtomicBool>,
    /// Hears of checkpoints that could not be written; the run goes on.
    pub say: fn(&str),
}

/// What came of saving.
#[derive(Debug, Default)]
pub struct Saved {
    /// The newest checkpoint.
    pub newest: Option<PathBuf>,
    /// Why the last one could not be written.
    pub error: Option<CheckpointError>,
}

pub(crate) struct Writer {
    snapshots: SyncSender<Box<Snapshot>>,
    /// The newest one that the thread had no time for yet; older ones are let go.
    waiting: Option<Box<Snapshot>>,
    thread: JoinHandle<Saved>,
    say: fn(&str),
    /// Whether it has been said that none are written at present.
    refuses: bool,
}

impl Writer {
    pub fn start(
        saving: &Saving,
        prepared: &Prepared,
        speeds: &[f64],
    ) -> Result<Writer, CheckpointError> {
        let Checkpoints { folder, keep, .. } = &saving.checkpoints;
        let folder = Folder::open(Path::new(folder), *keep, saving.from.as_deref())?;
        let blank = Manifest {
            job: saving.job.clone(),
            strategy: prepared.name.clone(),
            workers_first: prepared.workers_first,
            workers: prepared.workers,
            speeds: speeds.to_vec(),
            round: 0,
            samples: 0,
            samples_total: prepared.plan.samples_total,
            samples_per_epoch: prepared.plan.samples_per_epoch,
            params: prepared.plan.initial.len() as u64,
            vocabulary: prepared.task.train.vocabulary().cloned(),
            loss_first: None,
            loss_last: None,
            done: Default::default(),
            files: Default::default(),
            state: Default::default(),
        };
        let (snapshots, inbox) = sync_channel(0);
        let done = prepared.plan.resumed.as_ref().map(|snapshot| snapshot.done.clone());
        let begun = folder.begun.clone().zip(done);
        let say = saving.say;
        let thread = std::thread::Builder::new()
            .name("checkpoints".into())
            .spawn(move || write_all((&folder, begun), &blank, inbox, say))
            .expect("the system has a thread left");
        Ok(Writer { snapshots, waiting: None, thread, say, refuses: false })
    }

    /// Takes a snapshot to write when there is time.
    pub fn offer(&mut self, snapshot: Box<Snapshot>) {
        self.waiting = Some(snapshot);
        self.refuses = false;
        self.pass_on();
    }

    /// Leaves a snapshot unwritten, for those before it are worth more.
    pub fn refuse(&mut self, snapshot: &Snapshot) {
        if !std::mem::replace(&mut self.refuses, true) {
            let round = snapshot.round();
            (self.say)(&format!(
                "no checkpoint of round {round}: the training loss is far above where it began; those from before stay"
            ));
        }
    }

    /// Hands the thread what waits, if it is idle.
    pub fn pass_on(&mut self) {
        let Some(snapshot) = self.waiting.take() else { return };
        if let Err(TrySendError::Full(snapshot)) = self.snapshots.try_send(snapshot) {
            self.waiting = Some(snapshot);
        }
    }

    /// Writes what waits, and tells what came of it all.
    pub fn finish(mut self) -> Saved {
        if let Some(snapshot) = self.waiting.take() {
            // A thread that has panicked has said why.
            let _ = self.snapshots.send(snapshot);
        }
        drop(self.snapshots);
        let panicked = Saved { newest: None, error: Some(CheckpointError::WriterPanicked) };
        self.thread.join().unwrap_or(panicked)
    }
}

fn write_all(
    (folder, begun): (&Folder, Option<(PathBuf, Spans)>),
    blank: &Manifest,
    snapshots: Receiver<Box<Snapshot>>,
    say: fn(&str),
) -> Saved {
    let mut saved = Saved::default();
    for snapshot in snapshots {
        if let Some((place, _)) = begun.as_ref().filter(|(_, done)| *done == snapshot.done) {
            // Nothing was learned since, and what is there is not touched.
            saved.newest = Some(place.clone());
            continue;
        }
        let round = snapshot.round();
        match folder.add(round, |dir| write(dir, blank, &snapshot)) {
            Ok(Added { path, not_deleted }) => {
                if let Some(error) = not_deleted {
                    say(&error.to_string());
                }
                saved = Saved { newest: Some(path), error: None };
            }
            Err(error) => {
                let (folder, problem) = (folder.path().to_owned(), Box::new(error));
                let error = CheckpointError::NotWritten { round, folder, problem };
                say(&error.to_string());
                saved.error = Some(error);
            }
        }
    }
    saved
}

fn write(dir: &Path, blank: &Manifest, snapshot: &Snapshot) -> Result<(), CheckpointError> {
    if !snapshot.is_finite() {
        return Err(WriteProblem::ParamsNotFinite.into());
    }
    let params = snapshot.params();
    let (state, mut tensors) = state::divide(snapshot, &params);
    let rest = tensors.split_off(1);
    let weights = files::write_tensors(&dir.join(WEIGHTS), &tensors)?;
    let others = files::write_tensors(&dir.join(STATE), &rest)?;
    let (loss_first, loss_last) = snapshot.losses;
    let manifest = Manifest {
        round: snapshot.round(),
        samples: snapshot.done.len(),
        loss_first,
        loss_last,
        done: snapshot.done.clone(),
        files: [(WEIGHTS.to_owned(), weights), (STATE.to_owned(), others)].into(),
        state,
        ..blank.clone()
    };
    Ok(files::write_manifest(dir, &manifest)?)
}
