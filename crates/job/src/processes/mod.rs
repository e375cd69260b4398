//! Runs a job on processes: a coordinator in this one, and workers that it starts.

mod center_lines;
mod children;
mod clock_error;
mod coordinate;
mod join;
mod office;
mod orphan;
mod own;
#[cfg(feature = "mpi")]
mod ranks;
mod remote;
mod reported;
mod waiting;
mod wishes;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use paceline_net::processes::message::{Conclude, JobText, PackedSnapshot, Saves, Secret, VERSION};
use paceline_runtime::coordination::{Collected, Coordination, Rules};
use paceline_runtime::edge::ClusterOutput;
use paceline_runtime::wire::Shelf;
use paceline_runtime::{Snapshot, Spans, WorkerId, WorkerSnapshot};
use serde::{Deserialize, Serialize};

use crate::checkpoint::{Saved, Saving, Writer};
use crate::config::Job;
use crate::error::{Error, JobError, RunError};
use crate::facts::data_hash;
use crate::job::Prepared;
use crate::pace;
use crate::run::evaluator::Evaluator;
use crate::run::observer::Observer;
use crate::run::totals::Score;
use crate::run::{Next, Request, Running, SaveRequests, Watch};
use crate::run_result::RunResult;
use crate::threads::{TrainOptions, paces};
use children::Children;
use office::{Office, OfficeConfig};
use reported::Reported;

pub use coordinate::{CoordinateOptions, Coordinating, StatePlace};
pub use join::{HostProgram, JoinOptions, join, join_hosted};
pub use own::{Addresses, described};
/// A place in etcd, for coordinators with a standby.
pub use paceline_coordinator::{EtcdPlace, EtcdTls, PlaceError};
/// With what a stranger may join.
pub use paceline_identity::{Token, write_private};
#[cfg(feature = "mpi")]
pub use ranks::{RankOptions, refuse_ranks, train_on_ranks, work_on_rank};
pub use wishes::{Wish, ask_coordinator};
pub use worker::{WorkerSignals, work};

/// How workers are started, and when they count as lost.
#[derive(Clone, Debug)]
pub struct ProcessOptions {
    /// The program that workers run, and its arguments: it calls [`work`] with its standard input and output.
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Start a new worker when one has died.
    pub respawn: bool,
    /// A worker that is silent for this long counts as lost. One whose process ends is lost at once.
    pub patience: Duration,
    /// Gets the system's id of every process that is started.
    pub started: Option<Sender<u32>>,
}

/// What a worker and its coordinator must have in common: the program's version, and that of what its processes say to each other, which two
/// builds of one version may not share.
fn version() -> String {
    format!("{} (messages {VERSION})", env!("CARGO_PKG_VERSION"))
}

/// The longest time that workers which join or leave together may be apart.
const GATHERING: Duration = Duration::from_millis(100);
const WORKERS_MAX: u32 = 256;

/// The result of a run on processes. The parameters stay with the workers.
pub struct OnProcesses {
    pub result: RunResult,
    /// A fingerprint of the deployed parameters: the center, or the mean of the replicas.
    pub fingerprint: Option<u64>,
    /// Its checkpoints; `None` if it made none.
    pub saved: Option<Saved>,
}

/// Trains on processes of this machine, which end with this one. `job` is what `prepared` was made of: workers
/// prepare it again.
pub fn train_on_processes(
    job: &Job,
    prepared: &Prepared,
    options: TrainOptions<'_>,
    processes: ProcessOptions,
) -> Result<OnProcesses, Error> {
    let TrainOptions { speeds, pace, stop, saving, faults, requests, readers } = options;
    pace::check_speeds(&speeds)?;
    if faults.is_some() {
        return Err(JobError::FaultsOnProcesses.into());
    }
    if prepared.workers > WORKERS_MAX {
        let workers = prepared.workers;
        return Err(JobError::TooManyProcesses { workers, most: WORKERS_MAX }.into());
    }
    let coordination = prepared.strategy().coordination();
    let writer = saving.map(|saving| Writer::start(saving, prepared, &speeds)).transpose()?;
    let resumed = prepared.plan.resumed.as_deref();
    let done = |snapshot: &Snapshot| snapshot.done.clone();
    let rules = Rules {
        patience: processes.patience,
        gathering: GATHERING.min(processes.patience / 4),
        ..Rules::new(prepared.plan.samples_total, prepared.workers as usize, coordination)
    };
    let text = job_text(job, prepared, paces(prepared, &speeds, pace), saving);
    let (arrive, incoming) = mpsc::channel();
    let office = Office::new(OfficeConfig {
        rules,
        done: resumed.map(done).unwrap_or_default(),
        elapsed: prepared.past.time,
        job: text,
        data: data_hash(&prepared.task),
        secret: secret(),
        incoming,
    });
    let evaluator = Evaluator::background(prepared.task.clone());
    let observer = Observer::new(prepared, (coordination, evaluator), readers);
    let size = prepared.plan.initial.len();
    let mut children = Children::new(processes.clone(), arrive, size);
    for _ in 0..prepared.workers {
        children.start()?;
    }
    let mut run = ProcessRun { office, children, respawned: 0, workers: prepared.workers as usize };
    let save_requests = saving.map(|saving| SaveRequests::new(saving, coordination));
    let watch = Watch { observer, writer, save_requests, requests, stopped: false };
    until_concluded(prepared, &mut run, watch, &stop).map_err(|failed| failed.error)
}

/// A run whose coordinator is an office.
trait OfficeRun: Running {
    fn office(&mut self) -> &mut Office;
    /// Tells all workers that nothing is left to do.
    fn end(&mut self);
}

/// Why a run failed, and the checkpoints that it had written by then.
struct Failed {
    error: Error,
    #[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "a lost rank names them"))]
    saved: Saved,
}

/// Watches until the workers have ended, and has the deployed parameters evaluated. A run that failed has checkpoints, too.
fn until_concluded(
    prepared: &Prepared,
    run: &mut impl OfficeRun,
    mut watch: Watch<'_>,
    stop: &AtomicBool,
) -> Result<OnProcesses, Box<Failed>> {
    let started = Instant::now();
    let coordination = prepared.strategy().coordination();
    let ended = watch.until_ended(run, stop);
    // Also after a failure: the last snapshot is what the user can resume from.
    let finish = |writer: Option<Writer>| writer.map(Writer::finish);
    if let Err(error) = ended {
        run.end();
        let saved = finish(watch.writer).unwrap_or_default();
        return Err(Box::new(Failed { error: error.into(), saved }));
    }
    let seconds = (prepared.past.time + started.elapsed()).as_secs_f64();
    let is_brief = watch.stopped || stop.load(Ordering::Relaxed);
    let conclude = conclusion(&watch.observer, coordination, is_brief);
    let mut lines = vec![];
    let fingerprint = run.office().conclude(&conclude, |output| lines.push(output));
    for output in lines {
        if let ClusterOutput::Line(line) = output {
            let _ = watch.observer.observe(&line);
        }
    }
    run.end();
    let saved = finish(watch.writer);
    let mut result = watch.observer.conclude(prepared, watch.stopped, stop, None);
    result.real_seconds = Some(seconds);
    result.stopped = stop.load(Ordering::Relaxed) && result.samples < prepared.plan.samples_total;
    Ok(OnProcesses { result, fingerprint, saved })
}

/// The job as text, from which workers prepare it.
fn job_text(
    job: &Job,
    prepared: &Prepared,
    pace: Vec<Duration>,
    saving: Option<&Saving>,
) -> JobText {
    JobText {
        json: serde_json::to_string(job).expect("a job is plain data"),
        workers_first: prepared.workers_first,
        workers: prepared.workers,
        pace,
        members_min: 1,
        fingerprints: prepared.plan.fingerprints,
        saves: saving.map(|saving| Saves { every_rounds: saving.checkpoints.rounds }),
        resumed: prepared.plan.resumed.as_deref().map(PackedSnapshot::pack),
        is_resumed: false,
        schedule: prepared.schedule_before,
    }
}

/// What the workers are asked when the job is over.
fn conclusion(observer: &Observer<'_>, coordination: Coordination, is_brief: bool) -> Conclude {
    let totals = &observer.totals;
    let mut of = totals.members.clone();
    let mut shelf = Shelf::Replica;
    if matches!(coordination, Coordination::Centered { .. }) {
        of.truncate(1);
        shelf = Shelf::Center;
    }
    let is_in =
        |scores: &[Score]| scores.last().is_some_and(|score| score.samples == totals.samples());
    let validates = totals.validations.is_empty() || is_in(&totals.validations);
    // Asynchronous replicas still change when all samples are applied.
    let is_scored =
        is_in(&totals.scores) && validates && coordination != Coordination::Asynchronous;
    let is_scored = is_scored || observer.diverged.is_some();
    let at = totals.over.unwrap_or(totals.end);
    Conclude { at, samples: totals.samples(), of, shelf, is_brief, is_scored }
}

/// A run on processes.
struct ProcessRun {
    office: Office,
    children: Children,
    respawned: u32,
    /// How many processes the job begins with.
    workers: usize,
}

impl OfficeRun for ProcessRun {
    fn office(&mut self) -> &mut Office {
        &mut self.office
    }

    fn end(&mut self) {
        self.office.dismiss();
        self.children.end();
    }
}

impl Running for ProcessRun {
    fn next(&mut self) -> Result<Next, RunError> {
        if let Some(output) = self.office.next() {
            return Ok(Next::Output(output));
        }
        self.children.reap();
        if self.office.has_ended() {
            return Ok(Next::Ended);
        }
        if self.children.respawns() && !self.office.is_over() {
            while self.respawned < self.office.crashed {
                self.respawned += 1;
                self.children.start()?;
            }
        }
        if !self.office.has_begun() && self.children.count() < self.workers {
            // The others would wait for it forever.
            let failure = self.office.failures.pop();
            let why = failure.unwrap_or_else(|| "it ended before it joined".to_owned());
            return Err(RunError::WorkerFailed { why });
        }
        if self.children.count() == 0 && self.office.connected() == 0 {
            if self.office.is_over() {
                return Ok(Next::Ended);
            }
            let failure = self.office.failures.pop();
            return Err(
                failure.map_or(RunError::AllWorkersGone, |why| RunError::WorkerFailed { why })
            );
        }
        Ok(Next::Idle)
    }

    fn stop(&mut self) {
        self.office.stop();
    }

    fn save(&mut self) {
        self.office.save();
    }

    fn put_out(&mut self, request: Request) -> Result<(), String> {
        self.office.put_out(request);
        Ok(())
    }
}

/// What a coordinator and its workers on other machines tell each other besides words, lines and orders.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Note {
    Conclude(Conclude),
    SendCenter {
        request: u64,
    },
    Lost {
        who: WorkerId,
    },
    Dismissed,
    Concluded {
        params: Option<u64>,
    },
    SaveWished,
    /// A server has the center again, with these samples in it.
    Restored {
        done: Spans,
    },
    Failed {
        why: String,
    },
    /// For the user of the worker.
    Told {
        text: String,
    },
    /// Of another version: it is ignored.
    Unknown,
}

impl From<Note> for serde_json::Value {
    fn from(note: Note) -> serde_json::Value {
        serde_json::to_value(note).expect("notes are plain data")
    }
}

impl From<serde_json::Value> for Note {
    fn from(value: serde_json::Value) -> Note {
        serde_json::from_value(value).unwrap_or(Note::Unknown)
    }
}

/// A snapshot that lacks only the center, which its host was asked for.
struct Pending {
    host: WorkerId,
    collected: Collected,
    parts: BTreeMap<WorkerId, WorkerSnapshot>,
}

/// Random bits that nobody else knows.
fn secret() -> Secret {
    use std::hash::{BuildHasher, RandomState};
    // The standard library keys its hash maps with random bits of the system.
    [RandomState::new().hash_one(1), RandomState::new().hash_one(2)]
}

#[cfg(test)]
mod tests {
    use crate::checkpoint_config::Checkpoints;

    use super::*;

    #[test]
    fn workers_learn_that_they_save_also_without_a_period_in_rounds() {
        for rounds in [None, std::num::NonZero::new(7)] {
            let checkpoints = Checkpoints { rounds, ..Checkpoints::into("saved") };
            let (job, now, say) = (Job::default(), Default::default(), |_: &str| {});
            let saving =
                Saving { job: job.clone(), checkpoints, from: None, now, say, saved: |_| {} };
            let prepared = job.prepare(2).expect("the job is valid");
            let text = job_text(&job, &prepared, vec![], Some(&saving));

            let sent = serde_json::to_string(&text).expect("it is plain data");
            let sent = serde_json::from_str(&sent).expect("it is read");
            let received = worker::prepare(sent, crate::recipes::built_in(), None);

            let saves = received.expect("the job is valid").plan.saves.expect("workers save");
            assert_eq!(saves.every_rounds, rounds);
        }
    }
}
