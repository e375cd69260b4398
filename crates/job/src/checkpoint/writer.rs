//! Writes checkpoints on a background thread while training continues.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use paceline_runtime::journal::Past;
use paceline_runtime::wire::AnyOptimizerState;
use paceline_runtime::{Snapshot, Spans};

use super::files::{self, STATE, WEIGHTS};
use super::folder::rounds;
use super::{Added, Checkpoints, Folder, Manifest, state};
use crate::error::{CheckpointError, WriteProblem};
use crate::job::{Job, Prepared};
use crate::run_result::Losses;

/// How a real run saves what it has.
#[derive(Clone)]
pub struct Saving {
    /// The job as the manifest describes it.
    pub job: Job,
    pub checkpoints: Checkpoints,
    /// The checkpoint that the run was resumed from.
    pub from: Option<PathBuf>,
    /// Set to request a checkpoint now.
    pub now: Arc<AtomicBool>,
    /// Called with a message when a checkpoint could not be written; the run continues.
    pub say: fn(&str),
    /// Called with each checkpoint that was written.
    pub saved: fn(&Path),
}

impl Saving {
    /// For a coordinator that was killed and goes on: the checkpoints that are in its folder are its own.
    pub fn continued(&self) -> Saving {
        let there = rounds(self.checkpoints.folder.as_ref()).unwrap_or_default();
        let newest = there.into_iter().next_back().map(|(_, checkpoint)| checkpoint);
        Saving { from: newest.or(self.from.clone()), ..self.clone() }
    }
}

/// The checkpoints that a run has written.
#[derive(Debug, Default)]
pub struct Saved {
    /// The newest checkpoint.
    pub newest: Option<PathBuf>,
    /// Why the last one could not be written.
    pub error: Option<CheckpointError>,
}

type Offer = (Arc<Snapshot>, Losses, Past);

pub(crate) struct Writer {
    snapshots: SyncSender<Offer>,
    /// The newest snapshot that the thread had no time for yet; older ones are dropped.
    waiting: Option<Offer>,
    thread: JoinHandle<Saved>,
    say: fn(&str),
    /// Whether a message has said that no checkpoints are written at present.
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
            params: prepared.size() as u64,
            weights: prepared.plan.layout.tensors.clone(),
            vocabulary: prepared.task.train.vocabulary().cloned(),
            loss_first: None,
            loss_last: None,
            past: Past::default(),
            stretched: prepared.plan.schedule.stretched,
            done: Default::default(),
            files: Default::default(),
            state: Default::default(),
        };
        let (snapshots, inbox) = sync_channel(0);
        let done = prepared.plan.resumed.as_ref().map(|snapshot| snapshot.done.clone());
        let begun = folder.begun.clone().zip(done);
        let (say, told) = (saving.say, Told { say: saving.say, saved: saving.saved });
        let thread = std::thread::Builder::new()
            .name("checkpoints".into())
            .spawn(move || write_all((&folder, begun), &blank, inbox, told))
            .expect("the system can start another thread");
        Ok(Writer { snapshots, waiting: None, thread, say, refuses: false })
    }

    /// Writes a snapshot as soon as the thread is idle.
    pub fn offer(&mut self, snapshot: Arc<Snapshot>, losses: Losses, past: Past) {
        self.waiting = Some((snapshot, losses, past));
        self.refuses = false;
        self.pass_on();
    }

    /// Does not write a snapshot, because older ones are worth more.
    pub fn refuse(&mut self, snapshot: &Snapshot) {
        if !std::mem::replace(&mut self.refuses, true) {
            let round = snapshot.round();
            (self.say)(&format!(
                "no checkpoint of round {round}: the training loss is far above where it began; older checkpoints are kept"
            ));
        }
    }

    /// Passes the waiting snapshot to the thread, if it is idle.
    pub fn pass_on(&mut self) {
        let Some(snapshot) = self.waiting.take() else { return };
        if let Err(TrySendError::Full(snapshot)) = self.snapshots.try_send(snapshot) {
            self.waiting = Some(snapshot);
        }
    }

    /// Writes the waiting snapshot, and returns what was written in all.
    pub fn finish(mut self) -> Saved {
        if let Some(snapshot) = self.waiting.take() {
            // A thread that panicked has printed why.
            let _ = self.snapshots.send(snapshot);
        }
        drop(self.snapshots);
        let panicked = Saved { newest: None, error: Some(CheckpointError::WriterPanicked) };
        self.thread.join().unwrap_or(panicked)
    }
}

/// Who is told what became of a checkpoint.
#[derive(Clone, Copy)]
struct Told {
    say: fn(&str),
    saved: fn(&Path),
}

fn write_all(
    (folder, begun): (&Folder, Option<(PathBuf, Spans)>),
    blank: &Manifest,
    snapshots: Receiver<Offer>,
    told: Told,
) -> Saved {
    let mut saved = Saved::default();
    for (snapshot, losses, past) in snapshots {
        if let Some((place, _)) = begun.as_ref().filter(|(_, done)| *done == snapshot.done) {
            // Nothing was learned since that checkpoint, so it stays as it is.
            saved.newest = Some(place.clone());
            continue;
        }
        let round = snapshot.round();
        match folder.add(round, |dir| write(dir, blank, (&snapshot, losses, &past))) {
            Ok(Added { path, not_deleted }) => {
                if let Some(error) = not_deleted {
                    (told.say)(&error.to_string());
                }
                (told.saved)(&path);
                saved = Saved { newest: Some(path), error: None };
            }
            Err(error) => {
                let (folder, problem) = (folder.path().to_owned(), Box::new(error));
                let error = CheckpointError::NotWritten { round, folder, problem };
                (told.say)(&error.to_string());
                saved.error = Some(error);
            }
        }
    }
    saved
}

fn write(
    dir: &Path,
    blank: &Manifest,
    (snapshot, losses, past): (&Snapshot, Losses, &Past),
) -> Result<(), CheckpointError> {
    if !snapshot.is_finite() {
        return Err(WriteProblem::ParamsNotFinite.into());
    }
    let params = snapshot.params();
    let (state, mut tensors) = state::divide(snapshot, &params);
    let rest = tensors.split_off(1);
    let weights = files::write_weights(&dir.join(WEIGHTS), &params, blank, steps(snapshot))?;
    let others = files::write_tensors(&dir.join(STATE), &rest)?;
    let manifest = Manifest {
        round: snapshot.round(),
        samples: snapshot.done.len(),
        loss_first: losses.first,
        loss_last: losses.last,
        past: past.clone(),
        done: snapshot.done.clone(),
        files: [(WEIGHTS.to_owned(), weights), (STATE.to_owned(), others)].into(),
        state,
        ..blank.clone()
    };
    Ok(files::write_manifest(dir, &manifest)?)
}

/// The steps of the replica that has made the most; each has moved its buffers once. How many a host's optimizer has made,
/// its bytes do not tell; the updates of the replica do.
fn steps(snapshot: &Snapshot) -> u64 {
    let workers =
        snapshot.workers.values().map(|part| (&part.shared.optimizer, part.shared.version));
    let center = snapshot.center.iter().map(|center| (&center.optimizer, center.version));
    let steps = |(optimizer, version): (&AnyOptimizerState, u64)| match optimizer {
        AnyOptimizerState::Ours(state) => state.steps,
        AnyOptimizerState::Theirs(_) => version,
    };
    workers.chain(center).map(steps).max().unwrap_or(0)
}
